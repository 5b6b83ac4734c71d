//! Files that somebody may be changing, and what their times tell of it.

use std::time::Duration;

use forebay_contract::{Identity, Record};

use crate::{
    host::{
        clock::{boot_ns, unix_s},
        shared::DirtyPages,
    },
    tiering::{handoff::Handoff, limits::WRITERS_BEFORE_START, mounts::MountSource},
};

use super::Clerk;

impl Clerk {
    /// Returns whether a file is shared while it changes: a program has changed it in place or locked it, and that was not long
    /// ago, or another process has the file open. Programs that open it must see what comes.
    pub(super) fn is_live(&mut self, handed: &Handoff) -> bool {
        let identity = &handed.stat.identity;
        let Some(live) = self.control.live(identity.dev, identity.ino) else {
            return false;
        };
        let left_alone = Duration::from_secs(u64::try_from(unix_s() - identity.mtime.sec).unwrap_or(0));
        let rests = boot_ns() < live.rests_until() || left_alone < Duration::from_nanos(live.rest());
        rests || self.writers.is_open_elsewhere(&handed.source, (handed.pid, handed.descriptor))
    }

    /// Returns whether a process can change a file, as far as that is worth a look: through a descriptor or a mapping.
    pub(super) fn has_writer(&mut self, handed: &Handoff) -> bool {
        let identity = &handed.stat.identity;
        // In memory a file is written through a mapping for ever, and its times stay.
        let is_due = self.is_changed_lately(identity) || self.is_mounted_in_memory(identity.dev);
        is_due && self.writers.hold(&handed.source, identity)
    }

    /// Libc opens some files for writing where no preload library stands (mkstemp): those bear no mark, but their time.
    fn is_changed_lately(&self, identity: &Identity) -> bool {
        let lately = identity.ctime.sec >= self.started_unix_s - WRITERS_BEFORE_START.as_secs() as i64;
        lately || self.control.file_marked_at(identity.dev, identity.ino) != 0
    }

    /// Returns whether a record's copy holds the file's bytes, as far as times tell. In memory they tell nothing of a mapping:
    /// there a file that was opened for writing since its copy was compared with it counts as changed.
    pub(super) fn is_copy_of(&self, record: &Record, identity: &Identity) -> bool {
        let marked = self.control.file_marked_at(identity.dev, identity.ino);
        let is_unseen = marked != 0 && marked >= record.checked_at() && self.is_mounted_in_memory(identity.dev);
        self.pages.index().is_version(record, identity) && !is_unseen
    }

    /// Returns which pages of a file are to be written back before it is copied. To ask overlayfs costs the file system below
    /// it a commit: it is asked only of what was changed lately.
    pub(super) fn pages_to_clean(&self, identity: &Identity) -> DirtyPages {
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
