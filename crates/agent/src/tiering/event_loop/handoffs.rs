//! From a handoff to a published copy.

use forebay_contract::{FileKind, NotCached};
use forebay_policy::{CopyId, fill_first};
use forebay_store::Finished;

use crate::{
    host::clock::boot_ms,
    tiering::{
        copy_job::{Copied, CopyOutcome, CopyPace},
        handoff::Handoff,
        lister::ListedDirectory,
        nodes::group::FileShare,
        prefetcher::PrefetchAnswer,
        state::{
            flights::{CopyFlight, CopyName, CopyPlace, FlightOfNodes},
            making::CopyMaking,
            nodes::Nodes,
        },
        worker_flags::PrefetchGate,
    },
};

use super::EventLoop;

impl EventLoop {
    /// Returns the other nodes, and the parts that begin a copy.
    pub(super) const fn making(&mut self) -> (&mut Nodes, CopyMaking<'_>) {
        let making = CopyMaking {
            runs: &mut self.runs,
            sources: &mut self.sources,
            copies: &mut self.copies,
            flights: &mut self.flights,
            copier: &self.copier,
        };
        (&mut self.nodes, making)
    }

    /// Takes a handoff: a program has opened a source file, or listed a directory. It waits while its directory is not
    /// recovered.
    pub(super) fn take_handoff(&mut self, handoff: Handoff) {
        self.runs.count_handoff(handoff.run, &handoff.stat);
        if self.prefetching.is_on() {
            self.copier.set_ahead(PrefetchGate::Hold);
            self.prefetching.note_handoff(&handoff, &mut self.runs);
        }
        self.read_next(&handoff);
        if let Some(handoff) = self.recovery.defer(handoff, !self.runs.is_empty()) {
            self.take_on(handoff);
        }
    }

    /// Confirms the name of a copy, adds a name to one, joins a copy that is being made, or begins one.
    pub(super) fn take_on(&mut self, mut handoff: Handoff) {
        if let Err(reason) = self.sources.check(&handoff, &self.runs, &self.copies.index) {
            if reason == NotCached::FromTheFuture && self.skewed.has_room_for(&handoff) {
                handoff.waiting = None;
                return self.skewed.add(handoff, &mut self.runs);
            }
            return self.runs.count_refused(handoff.run, &handoff.stat, reason);
        }
        let identity = handoff.stat.identity;
        let index = self.copies.index.index();
        let by_name = index
            .find_kept(&handoff.path)
            .map(|(number, record)| (number, self.sources.is_copy_of(&index, record, &identity)));
        if let Some((number, same)) = by_name {
            if same && self.copies.has_copy(number) {
                self.copies.index.writer().confirm(number, handoff.opened_at);
                self.copies.want_directory_of(number);
                return self.runs.count_confirmed(handoff.run, &handoff.stat);
            }
            if same {
                self.copies.drop_copy_of(number);
            } else {
                self.copies.drop_record(number);
            }
        }
        if let Some(number) = self.copies.index.of_file(identity.dev, identity.ino) {
            let index = self.copies.index.index();
            if index
                .record(number)
                .is_some_and(|record| self.sources.is_copy_of(&index, record, &identity))
            {
                return self.add_spelling(number, &handoff);
            }
            self.copies.drop_copy_of(number);
        }
        if handoff.stat.is_directory() {
            return self.list(handoff);
        }
        match self.flights.number_of((identity.dev, identity.ino)) {
            Some(number) => self.join_flight(number, handoff),
            None => self.begin_copy(handoff),
        }
    }

    fn add_spelling(&mut self, number: u32, handoff: &Handoff) {
        match self.copies.add_spelling(number, handoff) {
            Some(true) => self.runs.count_confirmed(handoff.run, &handoff.stat),
            Some(false) => self.runs.count_refused(handoff.run, &handoff.stat, NotCached::IndexFull),
            None => {}
        }
    }

    /// Has a directory listed.
    pub(super) fn list(&mut self, handoff: Handoff) {
        let (run, stat) = (handoff.run, handoff.stat);
        let listed = self
            .cached_directories
            .list(handoff, &mut self.flights, &self.sources, &self.copies);
        if let Err(reason) = listed {
            self.runs.count_refused(run, &stat, reason);
        }
    }

    pub(super) fn take_listing(&mut self, listed: ListedDirectory) {
        let run = listed.run;
        match self.cached_directories.listed(listed, &self.sources, &mut self.copies) {
            Ok(None) => {}
            Ok(Some(placed)) => self.flights.add(placed.number, placed.flight),
            Err(reason) => self.runs.count_listing_refused(run, reason),
        }
    }

    /// Adds a name, and a reader to follow, to a copy that is being made.
    fn join_flight(&mut self, number: u64, mut handoff: Handoff) {
        let flight = self.flights.get_mut(number);
        let Some(flight) = flight.filter(|flight| flight.identity == handoff.stat.identity) else {
            return self.runs.count_not_copied(handoff.run, NotCached::ChangedMeanwhile);
        };
        // From here on the copy follows a program.
        flight.ahead = false;
        if handoff.is_library {
            self.copier.hurry(number);
        }
        CopyName::add_to(&mut flight.names, &handoff);
        if flight.nodes.is_awaited() {
            flight.nodes.waiting.extend(handoff.waiting.take());
        }
        self.copier.opened_again(number, handoff);
    }

    fn begin_copy(&mut self, handoff: Handoff) {
        let run = handoff.run;
        let share = self.nodes.share_of(&handoff, &self.runs);
        let (nodes, mut making) = self.making();
        let begun = match share {
            FileShare::Alone => making.begin(handoff),
            share => nodes.begin_copy(handoff, share, &mut making),
        };
        if let Err(reason) = begun {
            self.runs.count_not_copied(run, reason);
        }
    }

    /// Publishes a copy that is whole, or counts why it is not.
    pub(super) fn finish_copy(&mut self, copied: Copied) {
        let Copied {
            number,
            outcome,
            read_bytes,
            ahead,
            parts,
        } = copied;
        if let CopyOutcome::LeftToSource(job) = outcome {
            let (nodes, mut making) = self.making();
            return nodes.leave_to_source(*job, &mut making);
        }
        let late = self.copier.ended(number);
        let Some(flight) = self.flights.remove(number) else { return };
        self.runs.tally(flight.run, |tally| {
            tally.files.source_bytes_read += read_bytes;
            tally.prefetch.count_ahead(ahead, read_bytes);
        });
        self.note_read(&flight, number, parts);
        self.note_weights(&flight, &outcome);
        // Why it ended says nothing about a program that has opened the file meanwhile.
        let late = late.filter(|_| matches!(outcome, CopyOutcome::GivenUp | CopyOutcome::Marked));
        self.conclude(&flight, (number, read_bytes), outcome);
        // Last: a node that waits for the copy finds it in the index, or nothing.
        self.nodes.answer_waiting(&flight, &mut self.copies);
        if let Some(handoff) = late {
            self.take_on(handoff);
        }
    }

    /// Notes the end of a copy of weights that a program reads: with it their last byte came from the source.
    fn note_weights(&self, flight: &CopyFlight, outcome: &CopyOutcome) {
        let is_weights = |name: &CopyName| FileKind::of(&name.path) == FileKind::Weights;
        if !flight.ahead && matches!(outcome, CopyOutcome::Whole(..) | CopyOutcome::InPageCache) && flight.names.iter().any(is_weights) {
            self.runs.note_weights_read(flight.run);
        }
    }

    fn conclude(&mut self, flight: &CopyFlight, (number, read_bytes): (u64, u64), outcome: CopyOutcome) {
        let Some(place) = flight.place else {
            // That no tier takes it was counted when it began.
            return;
        };
        let reason = match outcome {
            CopyOutcome::Whole(finished, sample) => {
                let mount = self.sources.mounts().of(flight.identity.dev);
                match self.copies.publish(flight, place, &finished, &mount) {
                    Ok(()) => {
                        self.copies.tiers.take_sample(place.tier, sample);
                        self.copies.tiers.step(fill_first::Event::Published(CopyId(number)));
                        let (nodes, mut making) = self.making();
                        nodes.note_copy(flight, place.copy, finished.checksum, &mut making);
                        return self.publish_names(flight, place, &finished);
                    }
                    Err(reason) => reason,
                }
            }
            CopyOutcome::GivenUp | CopyOutcome::InPageCache => NotCached::MostlyUnread,
            CopyOutcome::MemoryShort => NotCached::MemoryShort,
            CopyOutcome::Marked => NotCached::ChangedMeanwhile,
            // What is left to the source was handled before.
            CopyOutcome::DirtyPages | CopyOutcome::LeftToSource(_) => NotCached::SourceError,
            CopyOutcome::Failed(error) => self.copies.tiers.blame(place.tier, flight.identity.size, &error),
        };
        self.copies.tiers.step(fill_first::Event::Dropped(CopyId(number)));
        if flight.ahead {
            let file = (flight.identity.dev, flight.identity.ino);
            self.prefetching.note_dropped(file, flight.run, read_bytes, &mut self.runs);
        } else {
            self.runs.count_refused(flight.run, &flight.stat, reason);
        }
        self.copies.tiers.publish_room();
    }

    fn publish_names(&mut self, flight: &CopyFlight, place: CopyPlace, finished: &Finished) {
        let (ahead, is_directory, size) = (flight.ahead, flight.stat.is_directory(), flight.identity.size);
        if self.copies.publish_names(flight, place, finished) {
            self.runs.tally(flight.run, |tally| {
                let (files, bytes) = if is_directory {
                    (&mut tally.listings.listings_kept, &mut tally.listings.listings_bytes)
                } else if ahead {
                    (&mut tally.prefetch.prefetched_files, &mut tally.prefetch.prefetched_bytes)
                } else {
                    (&mut tally.files.files_copied, &mut tally.files.bytes_copied)
                };
                *files += 1;
                *bytes += size;
            });
        } else if !ahead {
            self.runs.count_refused(flight.run, &flight.stat, NotCached::IndexFull);
        }
    }

    /// Takes an answer of the prefetcher, and begins the copies of files that it has opened.
    pub(super) fn take_prefetched(&mut self, answer: PrefetchAnswer) {
        match answer {
            PrefetchAnswer::Listed(names) => self.prefetching.take_names(names, &self.runs),
            PrefetchAnswer::Opened(opened) => {
                let now_ms = boot_ms();
                for file in self.prefetching.take_files(opened, now_ms) {
                    self.copy_ahead(file, now_ms);
                }
            }
        }
        self.prefetch_more();
    }

    /// Returns true if a file that no program has opened may be copied and has no copy, not even one in the making.
    /// Returns false if its run has left meanwhile.
    pub(super) fn may_copy_ahead(&mut self, file: &Handoff) -> bool {
        let identity = file.stat.identity;
        let is_known = self.copies.index.index().find_kept(&file.path).is_some()
            || self.copies.index.of_file(identity.dev, identity.ino).is_some()
            || self.flights.number_of((identity.dev, identity.ino)).is_some();
        !is_known && self.sources.check(file, &self.runs, &self.copies.index).is_ok() && !self.copies.index.is_full()
    }

    /// Begins the copy of a file that no program has opened, if it has none and a tier has room.
    fn copy_ahead(&mut self, file: Handoff, now_ms: u64) {
        if !self.prefetching.is_on() || !self.may_copy_ahead(&file) {
            return;
        }
        let identity = file.stat.identity;
        let key = (identity.dev, identity.ino);
        match self.nodes.share_of(&file, &self.runs) {
            FileShare::Other(_) | FileShare::Keeper(_) => return,
            FileShare::Owner if !self.copies.may_own(identity.size) => return self.prefetching.note_full(now_ms),
            FileShare::Owner | FileShare::Alone => {}
        }
        let (_, mut making) = self.making();
        match making.prepare(file, CopyPace::Idle, FlightOfNodes::default()) {
            Ok(job) => {
                making.copier.add(job);
                self.prefetching.add_to_batch(key);
            }
            Err(_) => self.prefetching.note_full(now_ms),
        }
    }
}
