//! From a whole copy to a name that doors find.

use std::time::Instant;

use forebay_contract::{Entry, index::split, run::use_stamp};
use forebay_policy::{CopyId, TierIndex, fill_first};
use forebay_store::{Finished, StoreError};

use crate::{
    host::clock::{boot_ms, boot_ns, unix_s},
    tiering::{
        copier::{Copied, CopyOutcome},
        handoff::Handoff,
        limits::{INDEX_FULL_PAUSE, TIER_FAULTS_MAX},
        pages::NoRoom,
    },
};

use super::{
    Clerk, DirectoryState,
    flight::{Flight, FlightName},
};

/// Why there is no copy when the index takes no more names.
pub(super) const INDEX_FULL: &str = "index_full";

impl Clerk {
    /// A copy has ended.
    pub(super) fn copied(&mut self, copied: Copied) {
        let Copied {
            number,
            outcome,
            read_bytes,
        } = copied;
        self.copier.ended(number);
        let Some(flight) = self.flights.remove(&number) else { return };
        self.flight_of_file.remove(&(flight.identity.dev, flight.identity.ino));
        self.tally(flight.run, |tally| tally.source_bytes_read += read_bytes);
        let reason = match outcome {
            CopyOutcome::Whole(finished, sample) => match self.publish(&flight, &finished) {
                Ok(()) => {
                    self.sampled(flight.tier, sample);
                    fill_first::step(&mut self.policy, fill_first::Event::Published { copy: CopyId(number) });
                    self.publish_names(&flight, &finished);
                    return;
                }
                Err(reason) => reason,
            },
            CopyOutcome::GivenUp => "mostly_unread",
            CopyOutcome::MemoryShort => "memory_short",
            CopyOutcome::Marked => "changed_meanwhile",
            CopyOutcome::DirtyPages => "source_error",
            CopyOutcome::Failed(error) => self.blame(&flight, &error),
        };
        fill_first::step(&mut self.policy, fill_first::Event::Dropped { copy: CopyId(number) });
        if flight.ahead {
            self.read_in_vain(&flight, read_bytes);
        } else {
            self.not_kept(flight.run, &flight.stat, reason);
        }
        self.publish_room();
    }

    /// Writes a whole copy to the catalogue, unless its source was changed through a door meanwhile.
    fn publish(&mut self, flight: &Flight, finished: &Finished) -> Result<(), &'static str> {
        let Some(state) = self.tiers.get(flight.tier) else {
            return Err("tier_off");
        };
        let marked = self.control.file_marked_at(flight.identity.dev, flight.identity.ino);
        let first = flight.names.first().filter(|name| marked == 0 || marked < name.opened_at);
        let Some((dir, name)) = first.and_then(|name| split(&name.path)) else {
            return Err(self.discard(flight, "changed_meanwhile"));
        };
        let mount = self.mounts.of(flight.identity.dev);
        let entry = forebay_store::Entry {
            id: flight.copy,
            dir,
            name,
            mount: mount.as_stored(),
            identity: flight.identity,
            attributes: flight.stat.attributes,
            object: finished.object,
            checksum: finished.checksum,
            created_unix_s: unix_s(),
        };
        match state.tier.publish(&entry) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.blame(flight, &error)),
        }
    }

    /// Removes a whole copy that is not published.
    fn discard(&self, flight: &Flight, reason: &'static str) -> &'static str {
        if let Some(state) = self.tiers.get(flight.tier)
            && let Err(error) = state.tier.discard(flight.copy)
        {
            self.log.line(&format!("a copy could not be removed: {error}"));
        }
        reason
    }

    fn publish_names(&mut self, flight: &Flight, finished: &Finished) {
        if let Some(state) = self.tiers.get_mut(flight.tier) {
            *state.copies(flight.stat.is_directory()) += 1;
        }
        let size = flight.identity.size;
        let mut is_found = false;
        for (nth, FlightName { path, opened_at, plain }) in flight.names.iter().enumerate() {
            let Some((dir, name)) = split(path) else { continue };
            if nth > 0 && !self.publish_alias(flight.tier, flight.copy, dir, name) {
                continue;
            }
            let entry = Entry {
                directory: 0,
                name,
                identity: flight.identity,
                attributes: flight.stat.attributes,
                copy: flight.copy,
                tier: flight.tier,
                copy_ino: finished.object.ino,
                copy_ctime: finished.object.ctime,
                plain: *plain,
                inserted_at: boot_ns(),
                checked_at: *opened_at,
            };
            is_found |= self.insert(dir, entry);
        }
        if is_found {
            let (ahead, is_directory) = (flight.ahead, flight.stat.is_directory());
            self.tally(flight.run, |tally| {
                let (files, bytes) = if is_directory {
                    (&mut tally.listings_kept, &mut tally.listings_bytes)
                } else if ahead {
                    (&mut tally.prefetched_files, &mut tally.prefetched_bytes)
                } else {
                    (&mut tally.files_copied, &mut tally.bytes_copied)
                };
                *files += 1;
                *bytes += size;
            });
        } else {
            // Nobody would ever find it.
            self.remove_copy(flight.copy, flight.tier, size, flight.stat.is_directory());
            if !flight.ahead {
                self.not_kept(flight.run, &flight.stat, INDEX_FULL);
            }
        }
    }

    /// Another name of a copy that is there.
    pub(super) fn add_spelling(&mut self, number: u32, handed: &Handoff) {
        let index = self.pages.index();
        let old = index.record(number).and_then(|record| self.pages.writer_ref().entry(record));
        let (Some(old), Some((dir, name))) = (old, split(&handed.path)) else {
            return;
        };
        if !self.publish_alias(old.tier, old.copy, dir, name) {
            return;
        }
        let entry = Entry {
            name,
            plain: handed.plain,
            inserted_at: boot_ns(),
            checked_at: handed.opened_at,
            ..old
        };
        if self.insert(dir, entry) {
            self.confirmed(handed.run, &handed.stat);
        } else {
            self.not_kept(handed.run, &handed.stat, INDEX_FULL);
        }
    }

    fn publish_alias(&mut self, tier: usize, copy: u64, dir: &[u8], name: &[u8]) -> bool {
        let Some(state) = self.tiers.get(tier) else { return false };
        let result = state.tier.publish_alias(copy, dir, name);
        if let Err(error) = &result {
            self.tier_fault(tier, error);
        }
        result.is_ok()
    }

    /// Puts a name into the index, in the place of a record that bears it; tells whether there was room.
    pub(super) fn insert(&mut self, dir: &[u8], entry: Entry<'_>) -> bool {
        let path = [dir, b"/", entry.name].concat();
        let replaced = self.pages.index().find_kept(&path).map(|found| found.0);
        if let Some(old) = replaced {
            self.drop_record(old);
        }
        self.insert_new(dir, entry)
    }

    /// Puts a name into the index that is not in it; tells whether there was room.
    pub(super) fn insert_new(&mut self, dir: &[u8], entry: Entry<'_>) -> bool {
        match self.put(dir, entry) {
            Ok(()) => true,
            Err(no_room) => {
                self.index_is_full(&no_room);
                false
            }
        }
    }

    /// The directory's number is found or made here.
    fn put(&mut self, dir: &[u8], entry: Entry<'_>) -> Result<(), NoRoom> {
        let directory = self.directory(dir)?;
        let checked_at = entry.checked_at;
        if checked_at != 0 {
            // An open that missed is a use too.
            self.control.stamp_directory(directory, use_stamp(self.started_at, checked_at));
        }
        let (eviction, tiers) = (&self.eviction, &self.tiers);
        let (number, grown) = self.pages.insert(&Entry { directory, ..entry }, &|| eviction.open_in(tiers))?;
        self.note_record(number, directory, grown);
        if checked_at != 0 {
            self.schedule_first_sweep(directory, checked_at);
        }
        Ok(())
    }

    /// Number of a spelled directory.
    fn directory(&mut self, path: &[u8]) -> Result<u32, NoRoom> {
        if let Some(number) = self.directories.get(path) {
            return Ok(*number);
        }
        let (eviction, tiers) = (&self.eviction, &self.tiers);
        let (number, grown) = self.pages.add_directory(path, &|| eviction.open_in(tiers))?;
        if grown {
            let records = self.pages.writer_ref().records();
            self.names.rebuild(&self.pages.index(), records);
        }
        self.directories.insert(path.to_vec(), number);
        self.directory_states.push(DirectoryState::default());
        // Its inode is looked up beside: changes by name are recognised by it.
        self.request_sweep(number, true);
        Ok(number)
    }

    /// No more copies for a while: what there is serves on.
    fn index_is_full(&mut self, no_room: &NoRoom) {
        if no_room.grown {
            let records = self.pages.writer_ref().records();
            self.names.rebuild(&self.pages.index(), records);
        }
        if !self.index_has_no_room() {
            self.log.line(&format!("no more copies for now: {}", no_room.why));
        }
        self.no_room_until = Some(Instant::now() + INDEX_FULL_PAUSE);
    }

    /// Whether the index had no room a short time ago: to try to grow it takes time and memory.
    pub(super) fn index_has_no_room(&self) -> bool {
        self.no_room_until.is_some_and(|until| Instant::now() < until)
    }

    /// What an error says about the tier, and the reason to count.
    fn blame(&mut self, flight: &Flight, error: &StoreError) -> &'static str {
        if error.is_full() {
            let event = fill_first::Event::Full {
                tier: TierIndex(flight.tier),
                size: flight.identity.size,
                now_ms: boot_ms(),
            };
            fill_first::step(&mut self.policy, event);
            return "tier_was_full";
        }
        if error.is_source() {
            return if matches!(error, StoreError::Changed { .. }) {
                "changed_meanwhile"
            } else {
                "source_error"
            };
        }
        self.tier_fault(flight.tier, error);
        "tier_error"
    }

    /// Counts a fault of a tier; after a few it is switched off, for doors too.
    pub(super) fn tier_fault(&mut self, tier: usize, error: &StoreError) {
        if !error.is_tier_fault() {
            return;
        }
        let Some(state) = self.tiers.get_mut(tier) else { return };
        state.faults += 1;
        if state.faults == TIER_FAULTS_MAX {
            state.off = Some(error.to_string());
            self.log.line(&format!("tier {tier} is switched off: {error}"));
            self.control.set_tier_off(tier, true);
            fill_first::step(&mut self.policy, fill_first::Event::Off { tier: TierIndex(tier) });
        }
    }
}
