//! From a whole copy to a name that doors find.

use forebay_contract::{Entry, index::split, run::use_stamp};
use forebay_policy::{CopyId, TierIndex, fill_first};
use forebay_store::{Finished, StoreError};

use crate::{
    clock::{boot_ms, boot_ns, unix_s},
    copier::Outcome,
    error::AgentError,
    limits::TIER_FAULTS_MAX,
    receiver::Handed,
};

use super::{Clerk, DirectoryState, Flight, FlightName};

impl Clerk {
    /// A copy has ended.
    pub(super) fn copied(&mut self, number: u64, outcome: Outcome) -> Result<(), AgentError> {
        let Some(flight) = self.flights.remove(&number) else {
            return Ok(());
        };
        self.flight_of_file.remove(&(flight.identity.dev, flight.identity.ino));
        let reason = match outcome {
            Outcome::Whole(finished) => match self.publish(&flight, &finished) {
                Ok(()) => {
                    fill_first::step(&mut self.policy, fill_first::Event::Published { copy: CopyId(number) });
                    return self.publish_names(&flight, &finished);
                }
                Err(reason) => reason,
            },
            Outcome::GivenUp => "mostly_unread",
            Outcome::Failed(error) => self.blame(&flight, &error),
        };
        fill_first::step(&mut self.policy, fill_first::Event::Dropped { copy: CopyId(number) });
        self.not_copied(flight.run, reason);
        self.publish_room();
        Ok(())
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

    fn publish_names(&mut self, flight: &Flight, finished: &Finished) -> Result<(), AgentError> {
        if let Some(state) = self.tiers.get_mut(flight.tier) {
            state.files += 1;
        }
        let size = flight.identity.size;
        self.tally(flight.run, |tally| {
            tally.files_copied += 1;
            tally.bytes_copied += size;
            tally.source_bytes_read += size;
        });
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
            self.insert(dir, entry)?;
        }
        Ok(())
    }

    /// Another name of a copy that is there.
    pub(super) fn add_spelling(&mut self, number: u32, handed: &Handed) -> Result<(), AgentError> {
        let index = self.pages.index();
        let Some(record) = index.record(number) else { return Ok(()) };
        let Some(old) = self.pages.writer_ref().entry(record) else {
            return Ok(());
        };
        let Some((dir, name)) = split(&handed.path) else { return Ok(()) };
        if self.publish_alias(old.tier, old.copy, dir, name) {
            self.insert(
                dir,
                Entry {
                    name,
                    plain: handed.plain,
                    inserted_at: boot_ns(),
                    checked_at: handed.opened_at,
                    ..old
                },
            )?;
            self.tally(handed.run, |tally| tally.files_confirmed += 1);
        }
        Ok(())
    }

    fn publish_alias(&mut self, tier: usize, copy: u64, dir: &[u8], name: &[u8]) -> bool {
        let Some(state) = self.tiers.get(tier) else { return false };
        let result = state.tier.publish_alias(copy, dir, name);
        if let Err(error) = &result {
            self.tier_fault(tier, error);
        }
        result.is_ok()
    }

    /// Puts a name into the index; its directory number is found or made here.
    pub(super) fn insert(&mut self, dir: &[u8], entry: Entry<'_>) -> Result<(), AgentError> {
        let directory = self.directory(dir)?;
        let replaced = {
            let mut path = dir.to_vec();
            path.push(b'/');
            path.extend_from_slice(entry.name);
            self.pages.index().find_kept(&path).map(|found| found.0)
        };
        if let Some(old) = replaced {
            self.drop_record(old);
        }
        let checked_at = entry.checked_at;
        if checked_at != 0 {
            // An open that missed is a use too.
            self.control.stamp_directory(directory, use_stamp(self.started_at, checked_at));
        }
        let (number, grown) = self.pages.insert(&Entry { directory, ..entry })?;
        self.note_record(number, directory, grown);
        if checked_at != 0 {
            self.schedule_first_sweep(directory, checked_at);
        }
        Ok(())
    }

    /// Number of a spelled directory.
    fn directory(&mut self, path: &[u8]) -> Result<u32, AgentError> {
        if let Some(number) = self.directories.get(path) {
            return Ok(*number);
        }
        let (number, grown) = self.pages.add_directory(path)?;
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
        if state.faults >= TIER_FAULTS_MAX && state.off.is_none() {
            state.off = Some(error.to_string());
            self.log.line(&format!("tier {tier} is switched off: {error}"));
            self.control.set_tier_off(tier, true);
            fill_first::step(&mut self.policy, fill_first::Event::Off { tier: TierIndex(tier) });
        }
    }
}
