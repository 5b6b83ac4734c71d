//! Source files that a process may be changing: what their times, marks, mounts and open descriptors tell.

use std::time::Duration;

use forebay_contract::{Control, Identity, Index, NotCached, Record, index::split};

use crate::{
    host::{
        clock::{boot_ns, unix_s},
        shared::DirtyPages,
    },
    tiering::{
        handoff::Handoff,
        limits::WRITERS_BEFORE_START,
        mounts::{MountSource, MountTable},
        open_files::Writers,
        state::{
            clock_skew::{FileAge, age_of},
            copy_index::CopyIndex,
            runs::ServedRuns,
        },
    },
};

/// Mounts, open descriptors and change marks of source files.
#[derive(Debug)]
pub(crate) struct SourceFiles {
    mounts: MountTable,
    writers: Writers,
    control: Control<'static>,
    /// Start of the agent in seconds since 1970.
    started_unix_s: i64,
}

impl SourceFiles {
    pub(crate) fn new(control: Control<'static>) -> Self {
        Self {
            mounts: MountTable::default(),
            writers: Writers::default(),
            control,
            started_unix_s: unix_s(),
        }
    }

    pub(crate) fn read_mounts(&mut self) {
        self.mounts = MountTable::read();
    }

    pub(crate) const fn mounts(&self) -> &MountTable {
        &self.mounts
    }

    /// Checks whether a handoff may lead to a copy of a file or a directory.
    ///
    /// # Errors
    /// The reason to count.
    pub(crate) fn check(&mut self, handoff: &Handoff, runs: &ServedRuns, index: &CopyIndex) -> Result<(), NotCached> {
        let run = runs.get(handoff.run).ok_or(NotCached::UnknownRun)?;
        if run.excludes(&handoff.path) || handoff.other_name.as_ref().is_some_and(|name| run.excludes(name)) {
            return Err(NotCached::Excluded);
        }
        let is_regular = handoff.stat.is_regular();
        if !is_regular && !handoff.stat.is_directory() {
            return Err(NotCached::NotRegular);
        }
        let identity = &handoff.stat.identity;
        // Preload libraries notice writes only to files of these devices.
        if !run.sources.iter().any(|source| source.dev == identity.dev) {
            return Err(NotCached::AnotherFileSystem);
        }
        // Checked first, since the mark of a live file is also the mark of a change.
        if is_regular && self.is_live(handoff) {
            return Err(NotCached::Live);
        }
        self.check_unchanged(handoff, index)?;
        if is_regular && self.has_writer(handoff) {
            return Err(NotCached::OpenForWriting);
        }
        Ok(())
    }

    /// Checks that a file is old enough for its times to tell its next change, and that no covered program has changed
    /// it since it was opened.
    ///
    /// # Errors
    /// The reason to count.
    pub(crate) fn check_unchanged(&self, handoff: &Handoff, index: &CopyIndex) -> Result<(), NotCached> {
        let identity = &handoff.stat.identity;
        let (dir, name) = split(&handoff.path).ok_or(NotCached::Malformed)?;
        match age_of(identity, unix_s()) {
            FileAge::Settled => {}
            FileAge::Recent => return Err(NotCached::RecentlyModified),
            // Two looks two seconds apart by our own clock tell as much as a comparison of two clocks.
            FileAge::Ahead(_)
                if handoff
                    .waited
                    .is_some_and(|before| before.mtime == identity.mtime && before.ctime == identity.ctime) => {}
            FileAge::Ahead(_) => return Err(NotCached::FromTheFuture),
        }
        if self.control.newest_tombstone() != 0 {
            let pages = index.index();
            let directory = index.directory_number(dir).and_then(|number| pages.directory(number));
            let name_marked = directory.map_or(0, |d| self.control.name_marked_at(d.dev(), d.ino(), name));
            let file_marked = self.control.file_marked_at(identity.dev, identity.ino);
            if handoff.opened_at <= self.control.void_since().max(name_marked).max(file_marked) {
                return Err(NotCached::ChangedMeanwhile);
            }
        }
        Ok(())
    }

    /// Returns true if a file is shared while it changes: a program changed it in place or locked it recently, or
    /// another process has it open. Programs that open it must see later changes.
    fn is_live(&mut self, handoff: &Handoff) -> bool {
        let identity = &handoff.stat.identity;
        let Some(live) = self.control.live(identity.dev, identity.ino) else {
            return false;
        };
        let left_alone = Duration::from_secs(u64::try_from(unix_s() - identity.mtime.sec).unwrap_or(0));
        let rests = boot_ns() < live.rests_until() || left_alone < Duration::from_nanos(live.rest());
        rests || self.writers.is_open_elsewhere(&handoff.source, handoff.reader.descriptor())
    }

    /// Returns true if a process can change a file through a descriptor or a mapping. Looks only where a writer is
    /// likely.
    fn has_writer(&mut self, handoff: &Handoff) -> bool {
        let identity = &handoff.stat.identity;
        // A file in memory can be written through a mapping for ever while its times stay.
        let is_due = self.is_changed_lately(identity) || self.is_mounted_in_memory(identity.dev);
        is_due && self.writers.hold(&handoff.source, identity)
    }

    /// Returns true if a file has a change mark, or times near the agent's start or later. Libc opens some files for
    /// writing without the preload library (mkstemp): those have no mark, but a recent time.
    fn is_changed_lately(&self, identity: &Identity) -> bool {
        let lately = identity.ctime.sec >= self.started_unix_s - WRITERS_BEFORE_START.as_secs() as i64;
        lately || self.control.file_marked_at(identity.dev, identity.ino) != 0
    }

    /// Returns true if a record's copy holds the file's bytes, as far as times tell. The times of a file in memory do
    /// not show writes through a mapping: there, a file that was opened for writing since its copy was checked counts
    /// as changed.
    pub(crate) fn is_copy_of(&self, index: &Index<'_>, record: &Record, identity: &Identity) -> bool {
        let marked = self.control.file_marked_at(identity.dev, identity.ino);
        let is_unseen = marked != 0 && marked >= record.checked_at() && self.is_mounted_in_memory(identity.dev);
        index.is_version(record, identity) && !is_unseen
    }

    /// Returns the pages of a file to write back before it is copied. A request to overlayfs costs the file system
    /// below it a commit, so only recently changed files get one.
    pub(crate) fn pages_to_clean(&self, identity: &Identity) -> DirtyPages {
        let is_overlay = self.mounts.find(identity.dev).is_some_and(MountSource::is_overlay);
        if is_overlay && self.is_changed_lately(identity) {
            DirtyPages::Lower
        } else {
            DirtyPages::Own
        }
    }

    fn is_mounted_in_memory(&self, dev: u64) -> bool {
        self.mounts.find(dev).is_some_and(MountSource::is_in_memory)
    }
}
