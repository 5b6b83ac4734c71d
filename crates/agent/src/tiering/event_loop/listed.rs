//! Reading ahead by the lists of what earlier runs of a command have read.

use forebay_policy::read_list::{ReadEntry, ReadParts};

use crate::{
    host::log,
    tiering::{
        copy_job::CopyPace,
        handoff::Handoff,
        nodes::group::FileShare,
        read_lists::{openers::ListedAnswer, recorder::LoadedList},
        state::flights::{CopyFlight, FlightOfNodes},
    },
};

use super::{EventLoop, LoopEvent, deliver};

impl EventLoop {
    /// Takes the list of a run's command, and begins to read ahead by it.
    pub(super) fn take_list(&mut self, loaded: LoadedList) {
        if !self.runs.contains(loaded.run) {
            return;
        }
        self.runs.take_list(loaded.run, &loaded.list);
        let started = if self.read_lists.has_started() {
            Ok(())
        } else {
            self.copier.start_listed(&deliver(&self.events, LoopEvent::Copied))
        };
        match started.and_then(|()| self.read_lists.load(loaded)) {
            Ok(()) => self.read_listed(),
            Err(error) => log::fallback(&format!("nothing is read ahead by what earlier runs have read: {error}")),
        }
    }

    /// Has more of the lists opened, as far as the source's answers, memory and recovery allow.
    pub(super) fn read_listed(&mut self) {
        if !self.recovery.is_running() {
            let index = self.copies.index.current();
            self.read_lists.open_more(&index);
        }
    }

    /// Takes what an opener has done. Entries are taken in the order of their list.
    pub(super) fn take_listed(&mut self, answer: ListedAnswer) {
        match answer {
            ListedAnswer::Opened { run, at, entry, opened } => {
                for (entry, file) in self.read_lists.opened(run, at, entry, opened) {
                    self.begin_listed(run, entry, file);
                }
            }
            ListedAnswer::Pages { run, bytes } => {
                self.read_lists.pages_ended(run);
                self.runs.tally(run, |tally| tally.files.source_bytes_read += bytes);
            }
        }
        self.read_listed();
    }

    /// Begins the copy of a file or directory that earlier runs have read, or reads its parts into the page cache.
    fn begin_listed(&mut self, run: u64, entry: ReadEntry, file: Box<Handoff>) {
        if !self.may_copy_ahead(&file) {
            return;
        }
        if file.stat.is_directory() {
            return self.list(*file);
        }
        let is_other = match self.nodes.share_of(&file, &self.runs) {
            FileShare::Other(_) => true,
            FileShare::Owner => !self.copies.may_own(file.stat.identity.size),
            FileShare::Alone => false,
        };
        if is_other {
            return;
        }
        if !entry.parts.is_whole() || self.copies.tiers.room() < file.stat.identity.size {
            return self.read_lists.read_pages(run, entry, file);
        }
        let wanted = self.read_lists.is_wanted(run);
        let (_, mut making) = self.making();
        if let Ok(mut job) = making.prepare(*file, CopyPace::Listed, FlightOfNodes::default()) {
            let number = job.number;
            job.is_wanted = wanted;
            making.copier.add(job);
            self.read_lists.copying(run, number);
        }
    }

    /// Notes what the program of a copy has read.
    pub(super) fn note_read(&mut self, flight: &CopyFlight, number: u64, parts: ReadParts) {
        if !flight.ahead {
            self.read_lists.note(flight, parts);
        }
        if self.read_lists.copied(flight.run, number) {
            self.read_listed();
        }
    }

    /// Keeps what runs have read that have left and whose copies have ended.
    pub(super) fn save_reads(&mut self) {
        for run in self.read_lists.left() {
            if self.under_way(Some(run)).is_nothing() {
                self.read_lists.save(run);
            }
        }
    }
}
