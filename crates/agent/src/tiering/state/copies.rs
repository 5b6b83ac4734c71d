//! Published copies: index, tiers and sweeps together, since a copy is a file in a tier, a record for each of its
//! names, and a directory to sweep.

use std::time::{Duration, Instant};

use forebay_contract::{Control, Entry, Freshness, NotCached, index::split, run::use_stamp};
use forebay_store::{Finished, StoreError};

use crate::{
    host::{
        clock::{boot_ns, unix_s},
        log,
    },
    tiering::{
        handoff::Handoff,
        mounts::MountSource,
        pages::NoRoom,
        state::{
            copy_index::CopyIndex,
            eviction::OpenCopiesLook,
            flights::{CopyFlight, CopyName, CopyPlace},
            sweeps::{FinishedSweep, Sweeps},
            tier_set::TierSet,
        },
        sweeper::{SweepRequest, SweepResult},
    },
};

/// Published copies of files and directories.
#[derive(Debug)]
pub(crate) struct PublishedCopies {
    pub(crate) index: CopyIndex,
    pub(crate) tiers: TierSet,
    pub(crate) sweeps: Sweeps,
    pub(crate) open_look: OpenCopiesLook,
    control: Control<'static>,
    /// Start of the agent in nanoseconds of boot time.
    started_at: u64,
    /// Shortest validity among the runs.
    ttl: Option<Duration>,
}

impl PublishedCopies {
    pub(crate) fn new(index: CopyIndex, tiers: TierSet, requests: std::sync::mpsc::Sender<SweepRequest>, started_at: u64) -> Self {
        let control = tiers.control();
        Self {
            index,
            sweeps: Sweeps::new(requests, control, started_at, Instant::now()),
            tiers,
            open_look: OpenCopiesLook::default(),
            control,
            started_at,
            ttl: None,
        }
    }

    pub(crate) const fn started_at(&self) -> u64 {
        self.started_at
    }

    /// Sets the shortest validity of a checked name among the runs.
    pub(crate) const fn set_ttl(&mut self, ttl: Option<Duration>) {
        self.ttl = ttl;
    }

    /// Removes a name, and with its last name the copy. The catalogue can't forget one name of a copy and keep the
    /// others, so all names of the copy are removed.
    pub(crate) fn drop_record(&mut self, number: u32) {
        let mut next = Some(number);
        while let Some(removed) = next.and_then(|number| self.index.remove(number)) {
            self.sweeps.remove_name(removed.directory, removed.is_directory);
            if removed.left == 0 {
                self.tiers
                    .remove_copy(removed.copy, removed.tier, removed.size, removed.is_directory);
            }
            next = removed.other;
        }
    }

    /// Removes all names of a record's copy, and the copy.
    pub(crate) fn drop_copy_of(&mut self, number: u32) {
        for other in self.index.records_of_copy(number) {
            self.drop_record(other);
        }
    }

    /// Returns true if the copy of a record is still the file that was published. A preload library that could not open
    /// it hands the source over.
    pub(crate) fn has_copy(&mut self, number: u32) -> bool {
        let index = self.index.index();
        index.record(number).is_some_and(|record| self.tiers.has_copy(record))
    }

    /// Removes copies that were changed by a covered program and not checked since: tombstones end with the agent,
    /// copies do not.
    pub(crate) fn drop_changed(&mut self) {
        if self.control.newest_tombstone() == 0 {
            return;
        }
        let changed = self.index.kept_records(|index, record| {
            let found = index.directory(record.directory()).and_then(|directory| {
                let (name, identity) = (index.record_name(record)?, index.identity(record)?);
                Some(
                    self.control
                        .usable(record, directory, name, &identity, Freshness::Immutable, 0)
                        .is_err(),
                )
            });
            found == Some(true)
        });
        for number in changed {
            self.drop_record(number);
        }
    }

    /// Writes a whole copy to the catalogue, unless its source was changed by a covered program meanwhile.
    ///
    /// # Errors
    /// The reason to count; the copy has been removed.
    pub(crate) fn publish(
        &mut self,
        flight: &CopyFlight,
        place: CopyPlace,
        finished: &Finished,
        mount: &MountSource,
    ) -> Result<(), NotCached> {
        let Some(state) = self.tiers.get(place.tier) else {
            return Err(NotCached::TierOff);
        };
        let marked = self.control.file_marked_at(flight.identity.dev, flight.identity.ino);
        let first = flight.names.first().filter(|name| marked == 0 || marked < name.opened_at);
        let Some((dir, name)) = first.and_then(|name| split(&name.path)) else {
            self.tiers.discard(place.tier, place.copy);
            return Err(NotCached::ChangedMeanwhile);
        };
        let entry = forebay_store::CatalogueEntry {
            id: place.copy,
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
            Err(error) => Err(self.tiers.blame(place.tier, flight.identity.size, &error)),
        }
    }

    /// Adds the names of a published copy to the index. Returns false, and removes the copy, if no name could be added.
    pub(crate) fn publish_names(&mut self, flight: &CopyFlight, place: CopyPlace, finished: &Finished) -> bool {
        let CopyPlace { tier, copy } = place;
        let is_directory = flight.stat.is_directory();
        if let Some(state) = self.tiers.get_mut(tier) {
            *state.copies(is_directory) += 1;
        }
        let mut is_found = false;
        for (nth, CopyName { path, opened_at, plain }) in flight.names.iter().enumerate() {
            let Some((dir, name)) = split(path) else { continue };
            if nth > 0 && !self.publish_alias(tier, copy, dir, name) {
                continue;
            }
            let entry = Entry {
                directory: 0,
                name,
                identity: flight.identity,
                attributes: flight.stat.attributes,
                copy,
                tier,
                copy_ino: finished.object.ino,
                copy_ctime: finished.object.ctime,
                plain: *plain,
                inserted_at: boot_ns(),
                checked_at: *opened_at,
            };
            is_found |= self.insert(dir, entry);
        }
        if !is_found {
            self.tiers.remove_copy(copy, tier, flight.identity.size, is_directory);
        }
        is_found
    }

    /// Adds the name of a handoff to the copy of a record; `None` if that failed. Returns false if the index had no
    /// room.
    pub(crate) fn add_spelling(&mut self, number: u32, handoff: &Handoff) -> Option<bool> {
        let (dir, name) = split(&handoff.path)?;
        let index = self.index.index();
        let old = index.record(number).and_then(|record| self.index.entry_of(record))?;
        let entry = Entry {
            name,
            plain: handoff.plain,
            inserted_at: boot_ns(),
            checked_at: handoff.opened_at,
            ..old
        };
        self.publish_alias(entry.tier, entry.copy, dir, name)
            .then(|| self.insert(dir, entry))
    }

    fn publish_alias(&mut self, tier: usize, copy: u64, dir: &[u8], name: &[u8]) -> bool {
        let Some(state) = self.tiers.get(tier) else { return false };
        let result = state.tier.publish_alias(copy, dir, name);
        if let Err(error) = &result {
            self.tiers.count_fault(tier, error);
        }
        result.is_ok()
    }

    /// Adds a name to the index, and drops the copy that had this name before. Returns false if there is no room.
    pub(crate) fn insert(&mut self, dir: &[u8], entry: Entry<'_>) -> bool {
        let path = [dir, b"/", entry.name].concat();
        let replaced = self.index.index().find_kept(&path).map(|found| found.0);
        if let Some(old) = replaced {
            self.drop_record(old);
        }
        self.insert_new(dir, entry)
    }

    /// Adds a name to the index that is not in it. Returns false if there is no room.
    pub(crate) fn insert_new(&mut self, dir: &[u8], entry: Entry<'_>) -> bool {
        match self.try_insert(dir, entry) {
            Ok(()) => true,
            Err(no_room) => {
                self.index.pause(&no_room);
                false
            }
        }
    }

    fn try_insert(&mut self, dir: &[u8], entry: Entry<'_>) -> Result<(), NoRoom> {
        let (open_look, tiers) = (&self.open_look, &self.tiers);
        let open = || open_look.open_in(tiers.iter());
        let directory = if let Some(number) = self.index.directory_number(dir) {
            number
        } else {
            let number = self.index.add_directory(dir, &open)?;
            self.sweeps.add_directory(number, &self.index);
            number
        };
        let checked_at = entry.checked_at;
        if checked_at != 0 {
            // An open at the source is a use too.
            self.control.stamp_directory(directory, use_stamp(self.started_at, checked_at));
        }
        let is_directory = self.index.insert(&Entry { directory, ..entry }, &open)?;
        self.sweeps.add_name(directory, is_directory);
        if checked_at != 0 {
            self.sweeps.schedule_first(directory, checked_at, self.ttl);
        }
        Ok(())
    }

    /// Notes that a program found the name of a record out of time, or opened it at the source.
    pub(crate) fn want_directory_of(&mut self, record: u32) {
        let directory = self.index.index().record(record).map(forebay_contract::Record::directory);
        if let Some(directory) = directory {
            self.sweeps.want(directory, &self.index, self.ttl);
        }
    }

    /// Requests the next sweep that is due.
    pub(crate) fn request_sweep(&mut self) {
        self.sweeps.request_next(&self.index, self.ttl);
    }

    /// Requests a look at all directories' inodes if their paths may lead elsewhere.
    pub(crate) fn answer_void(&mut self) {
        self.sweeps.answer_void(&self.index);
    }

    /// Takes the result of a comparison of a directory with the source. Returns the number of names that had changed or
    /// were gone; `None` if only the inode was looked up or the source could not answer.
    pub(crate) fn take_sweep(&mut self, swept: &SweepResult) -> Option<u64> {
        if let Some((dev, ino)) = swept.inode {
            self.take_inode(swept, (dev, ino));
        }
        let generation = self.index.index().generation();
        match self.sweeps.finish(swept, generation, self.ttl) {
            FinishedSweep::Incomplete => return None,
            FinishedSweep::OutOfDate => return Some(0),
            FinishedSweep::Complete => {}
        }
        for number in &swept.written {
            self.index.writer().detach(*number);
        }
        for number in &swept.changed {
            self.drop_record(*number);
        }
        // Last: from now on the remaining names are valid from the start of the sweep on.
        self.index.writer().set_swept(swept.directory, swept.started_at);
        self.request_sweep();
        Some(swept.changed.len() as u64)
    }

    fn take_inode(&mut self, swept: &SweepResult, inode: (u64, u64)) {
        let index = self.index.index();
        let known = index.directory(swept.directory).map(|directory| (directory.dev(), directory.ino()));
        if known == Some(inode) && swept.started_at != 0 {
            self.index.writer().set_way_checked(swept.directory, swept.started_at);
        } else if !swept.complete && (known != Some((0, 0)) || self.control.void_since() != 0) {
            // Another directory than the one of the records, or perhaps so: each record is checked by its next open.
            for number in 0..self.index.records() {
                let index = self.index.index();
                if index.record(number).is_some_and(|record| record.directory() == swept.directory) {
                    self.index.writer().detach(number);
                }
            }
        }
        self.index.writer().set_directory_inode(swept.directory, inode.0, inode.1);
    }

    /// Writes which directories were used, so that later runs find the copies that nobody uses.
    pub(crate) fn write_use(&self) {
        let now = unix_s();
        let index = self.index.index();
        for (path, number) in self.index.directories() {
            let used = self.control.directory_stamp(number) != 0;
            if !used || index.directory(number).is_none() {
                continue;
            }
            for state in self.tiers.iter() {
                // A full tier loses only the date of use.
                let _ = state.tier.mark_used(path, now);
            }
        }
    }

    /// Compacts the catalogues that need it.
    pub(crate) fn compact(&self) {
        for state in self.tiers.iter() {
            if let Err(error) = state.tier.compact_if_due() {
                log_compaction(&error);
            }
        }
    }
}

/// Writes to the log that a catalogue could not be compacted.
pub(crate) fn log_compaction(error: &StoreError) {
    log::fallback(&format!("the catalogue could not be compacted: {error}"));
}
