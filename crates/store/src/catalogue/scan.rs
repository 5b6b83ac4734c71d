//! One reading of the whole log: what of it is whole, and what later records say of earlier ones.

use std::collections::HashMap;

use super::record::{self, EntryRecord, Frames, Record, TagKey};
use super::{AdoptReport, Adopted, AdoptedAlias, AdoptedCopy, Interned, Mount};
use crate::disk::{self, DiskFile, uninterrupted};
use crate::root::BootId;

/// What the log says as a whole.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Up to here all is whole.
    pub(super) end: u64,
    /// What lies behind that.
    pub(super) torn_bytes: u64,
    pub(super) dirs: Interned,
    pub(super) mounts: Interned,
    /// Last use by directory.
    pub(super) used: HashMap<u32, i64>,
    /// Whether the last section of the log is of this boot.
    pub(super) boot_is_current: bool,
    /// Copies that are no more, sorted.
    removed: Vec<u64>,
    /// Copies of earlier boots that were verified in this one, sorted.
    verified: Vec<u64>,
    entries: u64,
    superseded: u64,
}

impl Scan {
    pub(super) fn of(file: &dyn DiskFile, key: &TagKey, boot: BootId) -> disk::Result<Self> {
        let size = uninterrupted(|| file.stat())?.identity.size;
        let mut scan = Self::default();
        let mut frames = Frames::new(file, key, size);
        while let Some(record) = frames.next()? {
            scan.take(&record, boot);
        }
        scan.end = frames.end();
        scan.torn_bytes = size.saturating_sub(scan.end);
        for ids in [&mut scan.removed, &mut scan.verified] {
            ids.sort_unstable();
            ids.dedup();
        }
        Ok(scan)
    }

    fn take(&mut self, record: &Record<'_>, boot: BootId) {
        match *record {
            Record::Dir { id, path } => self.dirs.insert(id, path),
            Record::Mount { id, source, fs_type } => self.mounts.insert(id, &record::mount_key(source, fs_type)),
            Record::Boot { id } => {
                self.boot_is_current = id == boot.0;
                self.superseded += self.verified.len() as u64;
                self.verified.clear();
            }
            Record::Entry(_) => self.entries += 1,
            Record::Alias { .. } => {}
            Record::Removed { id } => self.removed.push(id),
            Record::Verified { id } if self.boot_is_current => self.verified.push(id),
            Record::Verified { .. } => self.superseded += 1,
            Record::Used { dir, unix_s } => self.superseded += u64::from(self.used.insert(dir, unix_s).is_some()),
        }
    }

    pub(super) fn is_live(&self, id: u64) -> bool {
        self.removed.binary_search(&id).is_err()
    }

    pub(super) fn verified(&self) -> &[u64] {
        &self.verified
    }

    /// Copies that there still are.
    pub(super) fn live(&self) -> u64 {
        self.entries.saturating_sub(self.removed.len() as u64)
    }

    /// Records that say nothing any more.
    pub(super) fn dead(&self) -> u64 {
        2 * self.removed.len() as u64 + self.superseded
    }
}

/// Tells what is live and has its file.
pub(super) struct Teller<'s> {
    pub(super) scan: &'s Scan,
    /// The copies that lie in the tier, sorted.
    pub(super) objects: &'s [u64],
    pub(super) dev: u64,
    pub(super) report: &'s mut AdoptReport,
    pub(super) missing: &'s mut Vec<u64>,
}

impl Teller<'_> {
    fn is_there(&self, id: u64) -> bool {
        self.objects.binary_search(&id).is_ok()
    }

    pub(super) fn tell_entry(&mut self, entry: &EntryRecord<'_>, boot_is_current: bool, each: &mut dyn FnMut(Adopted<'_>)) {
        let scan = self.scan;
        if !scan.is_live(entry.id) {
            return;
        }
        let names = scan.dirs.bytes_of(entry.dir).zip(scan.mounts.bytes_of(entry.mount));
        let Some((dir, mount)) = names.filter(|_| self.is_there(entry.id)) else {
            self.missing.push(entry.id);
            return;
        };
        let split = mount.iter().position(|byte| *byte == 0).unwrap_or(mount.len());
        let used = scan.used.get(&entry.dir).copied().unwrap_or(entry.created_unix_s);
        self.report.copies += 1;
        each(Adopted::Copy(&AdoptedCopy {
            id: entry.id,
            dir,
            name: entry.name,
            mount: Mount {
                source: &mount[..split],
                fs_type: mount.get(split + 1..).unwrap_or_default(),
            },
            identity: entry.identity(),
            attributes: entry.attributes(),
            object: entry.object(self.dev),
            checksum: entry.checksum(),
            created_unix_s: entry.created_unix_s,
            last_used_unix_s: used.max(entry.created_unix_s),
            trusted: boot_is_current || scan.verified.binary_search(&entry.id).is_ok(),
        }));
    }

    pub(super) fn tell_alias(&mut self, id: u64, dir: u32, name: &[u8], each: &mut dyn FnMut(Adopted<'_>)) {
        let last_used_unix_s = self.scan.used.get(&dir).copied().unwrap_or(0);
        let Some(dir) = self.scan.dirs.bytes_of(dir) else { return };
        if self.scan.is_live(id) && self.is_there(id) {
            self.report.aliases += 1;
            each(Adopted::Alias(AdoptedAlias {
                id,
                dir,
                name,
                last_used_unix_s,
            }));
        }
    }
}
