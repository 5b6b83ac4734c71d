//! Rewrites the log without dead records. The name `catalogue` leads to a complete log at every instant: the new one
//! takes the name with one rename, after it was read back (F9).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::record::{self, CatalogueRecord, EntryRecord, FrameBatch, Frames, TagKey};
use super::scan::Scan;
use super::{Catalogue, OpenLog};
use crate::disk::{self, DiskFile, Name, uninterrupted};
use crate::error::StoreError;
use crate::limits;

/// The log at the beginning of its rewriting. Records written behind it meanwhile are copied at the end.
struct OldLog {
    file: Box<dyn DiskFile>,
    key: TagKey,
    end: u64,
    /// Opening of the log that this belongs to.
    opening: Arc<()>,
}

/// Mark that the catalogue is being rewritten, whichever log is open meanwhile: all rewritings use the same name.
struct Alone<'a>(&'a AtomicBool);

impl<'a> Alone<'a> {
    fn take(is_compacting: &'a AtomicBool) -> Option<Self> {
        (!is_compacting.swap(true, Ordering::AcqRel)).then(|| Self(is_compacting))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The new log, while it has no name yet.
struct Rewritten {
    file: Box<dyn DiskFile>,
    key: TagKey,
    scan: Scan,
}

impl Catalogue {
    /// Returns whether dead records outnumber live ones.
    pub(crate) fn compaction_is_due(&self) -> Result<bool, StoreError> {
        self.with_log(|slot, _| {
            let is_compacting = self.is_compacting.load(Ordering::Acquire);
            Ok(slot
                .as_ref()
                .is_some_and(|log| log.dead > log.live && log.dead >= limits::COMPACTION_DEAD_MIN && !is_compacting))
        })
    }

    /// Rewrites the log. Copies may be published and removed meanwhile; those calls wait only while the last new
    /// records are copied. Does nothing if the log is being rewritten already, or the lease was given up.
    pub(crate) fn compact(&self) -> Result<(), StoreError> {
        let Some(_alone) = Alone::take(&self.is_compacting) else {
            return Ok(());
        };
        // Writes pending removals first, so that the log that is read has them.
        self.removed(&[])?;
        let Some(before) = self.begin_compaction()? else { return Ok(()) };
        let rewritten = self.rewrite(&before);
        let replaced = self.replace(&before, rewritten);
        if replaced.is_err() {
            // It is worthless, and may take the room that was lacking.
            let _ = self.shared.while_leased(|| self.shared.disk.remove(Name::CatalogueNew));
        }
        replaced
    }

    /// Replaces the old log by the new one.
    fn replace(&self, before: &OldLog, rewritten: disk::Result<Rewritten>) -> Result<(), StoreError> {
        let failed = |errno| StoreError::tier(&self.shared.path_of(Name::CatalogueNew), "write", errno);
        self.with_log(|slot, _| {
            // A log that was opened again meanwhile is another one.
            let is_the_same = |log: &&OpenLog| Arc::ptr_eq(&log.opening, &before.opening);
            let Some(log) = slot.as_ref().filter(is_the_same) else {
                return Ok(());
            };
            let mut rewritten = rewritten.map_err(failed)?;
            self.bring_along(log, before.end, &mut rewritten).map_err(failed)?;
            let replace = || uninterrupted(|| self.shared.disk.rename(Name::CatalogueNew, Name::Catalogue));
            // Without the lease the name belongs to another process.
            let Some(replaced) = self.shared.while_leased(replace) else {
                return Ok(());
            };
            // If that fails, the next use reads the log that has the name.
            *slot = None;
            replaced.map_err(self.error("replace"))?;
            let Rewritten { file, key, scan } = rewritten;
            let mut new = OpenLog::new(file, key, scan);
            new.first_scan = None;
            *slot = Some(new);
            Ok(())
        })
    }

    fn begin_compaction(&self) -> Result<Option<OldLog>, StoreError> {
        self.with_log(|slot, _| {
            let Some(log) = slot else { return Ok(None) };
            let file = uninterrupted(|| self.shared.disk.open_read(Name::Catalogue)).map_err(self.error("open"))?;
            Ok(Some(OldLog {
                file,
                key: log.key.clone(),
                end: log.end,
                opening: Arc::clone(&log.opening),
            }))
        })
    }

    fn rewrite(&self, old: &OldLog) -> disk::Result<Rewritten> {
        let scan = Scan::of(&*old.file, &old.key, self.boot, old.end)?;
        // Records that can't be read now would be lost with the old log.
        if scan.end != old.end {
            return Err(Errno::IO);
        }
        let header = record::new_header();
        let key = self.key_of(&header[record::MAGIC.len()..]);
        let disk = &self.shared.disk;
        let make = || {
            match uninterrupted(|| disk.remove(Name::CatalogueNew)) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
            uninterrupted(|| disk.create(Name::CatalogueNew))
        };
        let file = self.shared.while_leased(make).unwrap_or(Err(Errno::NOLCK))?;
        disk::write_all_at(&*file, &header, 0)?;
        let mut batch = FrameBatch::new(&key, header.len() as u64);
        self.copy_live(old, &scan, &mut batch, &*file)?;
        let written = Scan::of(&*file, &key, self.boot, batch.end())?;
        if written.live() != scan.live() || written.torn_bytes != 0 {
            return Err(Errno::IO);
        }
        Ok(Rewritten { file, key, scan: written })
    }

    /// Copies the records that were written to the old log behind `from`.
    fn bring_along(&self, old: &OpenLog, from: u64, new: &mut Rewritten) -> disk::Result<()> {
        let Rewritten { file, key, scan } = new;
        let mut batch = FrameBatch::new(key, scan.end);
        let mut frames = Frames::behind(&*old.file, &old.key, old.end, from);
        while let Some(record) = frames.next()? {
            if !scan.boot_is_current {
                scan.add(&mut batch, &CatalogueRecord::Boot { id: self.boot.0 }, self.boot);
            }
            match record {
                // All of them belong to this boot.
                CatalogueRecord::Boot { .. } => continue,
                CatalogueRecord::Entry(EntryRecord { dir: id, .. })
                | CatalogueRecord::Alias { dir: id, .. }
                | CatalogueRecord::Used { dir: id, .. } => {
                    // A directory without live records was left out.
                    if let Some(path) = old.dirs.bytes_of(id).filter(|_| scan.dirs.bytes_of(id).is_none()) {
                        scan.add(&mut batch, &CatalogueRecord::Dir { id, path }, self.boot);
                    }
                }
                CatalogueRecord::Dir { .. }
                | CatalogueRecord::Mount { .. }
                | CatalogueRecord::Removed { .. }
                | CatalogueRecord::Verified { .. } => {}
            }
            scan.add(&mut batch, &record, self.boot);
            flush_when_large(&mut batch, &**file)?;
        }
        if frames.end() != old.end {
            return Err(Errno::IO);
        }
        // Removals that the old log did not take.
        for id in &old.pending {
            scan.add(&mut batch, &CatalogueRecord::Removed { id: *id }, self.boot);
            flush_when_large(&mut batch, &**file)?;
        }
        batch.flush(&**file)?;
        scan.end = batch.end();
        scan.sort();
        Ok(())
    }

    fn copy_live(&self, old: &OldLog, scan: &Scan, batch: &mut FrameBatch<'_>, file: &dyn DiskFile) -> disk::Result<()> {
        let dirs = live_dirs(old, scan)?;
        let mut boot_written = None;
        let mut boot = None;
        let mut frames = Frames::new(&*old.file, &old.key, scan.end);
        while let Some(record) = frames.next()? {
            let keep = match record {
                CatalogueRecord::Boot { id } => {
                    boot = Some(id);
                    false
                }
                CatalogueRecord::Dir { id, .. } => dirs.contains(&id),
                CatalogueRecord::Mount { .. } => true,
                CatalogueRecord::Entry(entry) => scan.is_live(entry.id),
                CatalogueRecord::Alias { id, .. } => scan.is_live(id),
                CatalogueRecord::Removed { .. } | CatalogueRecord::Verified { .. } | CatalogueRecord::Used { .. } => false,
            };
            if !keep {
                continue;
            }
            if let Some(id) = boot.filter(|_| boot != boot_written) {
                batch.push(&CatalogueRecord::Boot { id });
                boot_written = boot;
            }
            batch.push(&record);
            flush_when_large(batch, file)?;
        }
        for (dir, unix_s) in scan.used.iter().filter(|(dir, _)| dirs.contains(dir)) {
            batch.push(&CatalogueRecord::Used {
                dir: *dir,
                unix_s: *unix_s,
            });
            flush_when_large(batch, file)?;
        }
        // Verifications are valid in the boot under which they stand, and only those of this boot were kept in the
        // scan.
        if !scan.verified().is_empty() && boot_written != Some(self.boot.0) {
            batch.push(&CatalogueRecord::Boot { id: self.boot.0 });
        }
        for id in scan.verified().iter().filter(|id| scan.is_live(**id)) {
            batch.push(&CatalogueRecord::Verified { id: *id });
            flush_when_large(batch, file)?;
        }
        batch.flush(file)
    }
}

/// Returns the directories that have live records.
fn live_dirs(old: &OldLog, scan: &Scan) -> disk::Result<HashSet<u32>> {
    let mut dirs = HashSet::new();
    let mut frames = Frames::new(&*old.file, &old.key, scan.end);
    while let Some(record) = frames.next()? {
        match record {
            CatalogueRecord::Entry(entry) if scan.is_live(entry.id) => drop(dirs.insert(entry.dir)),
            CatalogueRecord::Alias { id, dir, .. } if scan.is_live(id) => drop(dirs.insert(dir)),
            _ => {}
        }
    }
    Ok(dirs)
}

fn flush_when_large(batch: &mut FrameBatch<'_>, file: &dyn DiskFile) -> disk::Result<()> {
    if batch.bytes.len() >= limits::READ_PIECE_BYTES {
        batch.flush(file)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use forebay_contract::Identity;
    use forebay_policy::Space;

    use super::*;
    use crate::disk::MemoryDisk;
    use crate::root::BootId;
    use crate::testing::MemorySource;
    use crate::{CatalogueEntry, CopySource, Secret, SourceMount, StatFrom, Tier};

    fn tier_with(disk: &Arc<MemoryDisk>, copies: u64) -> Tier {
        let quota = Space {
            bytes: 1 << 20,
            inodes: 100,
        };
        let (root, secret) = (PathBuf::from("/tier/forebay-0"), Secret::from_bytes([7; 32]));
        let tier = Tier::open_on(disk.clone(), root, quota, &secret, BootId([1; 16])).unwrap();
        for id in 0..copies {
            tier.publish(&entry(id)).unwrap();
        }
        tier
    }

    fn entry(id: u64) -> CatalogueEntry<'static> {
        let source = MemorySource::new(1, b"");
        CatalogueEntry {
            id,
            dir: b"/pfs",
            name: b"a",
            mount: SourceMount {
                source: b"pfs",
                fs_type: b"nfs4",
            },
            identity: source.identity(),
            attributes: source.stat(StatFrom::Kernel).unwrap().attributes,
            object: Identity::default(),
            checksum: 0,
            created_unix_s: 0,
        }
    }

    fn memory() -> Arc<MemoryDisk> {
        Arc::new(MemoryDisk::new(1 << 20, 100))
    }

    fn live_of(catalogue: &Catalogue) -> u64 {
        catalogue.with_log(|slot, _| Ok(slot.as_ref().unwrap().live)).unwrap()
    }

    fn forget_log(catalogue: &Catalogue) {
        let forget = |slot: &mut Option<OpenLog>, _: &Catalogue| {
            *slot = None;
            Ok(())
        };
        catalogue.with_log(forget).unwrap();
    }

    #[test]
    fn what_the_old_log_would_not_take_is_in_the_new_one() {
        let tier = tier_with(&memory(), 3);
        let catalogue = &tier.catalogue;
        let before = catalogue.begin_compaction().unwrap().unwrap();
        let rewritten = catalogue.rewrite(&before);
        tier.publish(&entry(3)).unwrap();
        let fail_to_write = |slot: &mut Option<OpenLog>, _: &Catalogue| {
            slot.as_mut().unwrap().pending.extend([1, 3]);
            Ok(())
        };
        catalogue.with_log(fail_to_write).unwrap();
        catalogue.replace(&before, rewritten).unwrap();
        assert_eq!(live_of(catalogue), 2);
        forget_log(catalogue);
        assert_eq!(live_of(catalogue), 2, "it is written");
    }

    #[test]
    fn a_log_that_is_opened_anew_meanwhile_is_not_rewritten_a_second_time() {
        let disk = memory();
        let tier = tier_with(&disk, 3);
        let catalogue = &tier.catalogue;
        let alone = Alone::take(&catalogue.is_compacting).unwrap();
        forget_log(catalogue);
        let bytes = || {
            let mut bytes = Vec::new();
            disk.alter(Name::Catalogue, |all| bytes.clone_from(all));
            bytes
        };
        let log = bytes();
        for _ in 0..2 {
            catalogue.compact().unwrap();
            assert!(bytes() == log);
        }
        drop(alone);
        catalogue.compact().unwrap();
        assert!(bytes() != log, "it has another salt");
    }

    #[test]
    fn f9_a_log_that_is_not_read_to_its_end_is_not_replaced() {
        let disk = memory();
        let tier = tier_with(&disk, 3);
        let before = tier.catalogue.begin_compaction().unwrap().unwrap();
        disk.alter(Name::Catalogue, |bytes| *bytes.last_mut().unwrap() ^= 1);
        assert!(matches!(tier.catalogue.rewrite(&before), Err(Errno::IO)));
    }
}
