//! Rewriting the log without what says nothing any more. At every instant the name `catalogue` has a whole log: the new one takes it
//! with one rename, after it was read back (F9).

use std::collections::HashSet;

use rustix::io::Errno;

use super::record::{self, Batch, Frames, Record};
use super::scan::Scan;
use super::{Catalogue, Log};
use crate::disk::{self, DiskFile, Name, uninterrupted};
use crate::error::StoreError;
use crate::limits;

impl Catalogue {
    /// Whether dead records outnumber live ones.
    pub(crate) fn compaction_is_due(&self) -> Result<bool, StoreError> {
        self.with_log(|slot, _| {
            Ok(slot
                .as_ref()
                .is_some_and(|log| log.dead > log.live && log.dead >= limits::COMPACTION_DEAD_MIN))
        })
    }

    /// Rewrites the log.
    pub(crate) fn compact(&self) -> Result<(), StoreError> {
        // So that removals which are only in mind are in the log that is read.
        self.removed(&[])?;
        self.with_log(|slot, _| {
            let Some(old) = slot.take() else { return Ok(()) };
            // Whatever fails from here on: `slot` is empty, and the next use reads whichever log has the name.
            let new = self
                .rewrite(&old)
                .map_err(|errno| StoreError::tier(&self.shared.path_of(Name::CatalogueNew), "write", errno))?;
            uninterrupted(|| self.shared.disk.rename(Name::CatalogueNew, Name::Catalogue)).map_err(self.error("replace"))?;
            *slot = Some(new);
            Ok(())
        })
    }

    fn rewrite(&self, old: &Log) -> disk::Result<Log> {
        let scan = Scan::of(&*old.file, &old.key, self.boot)?;
        let header = record::new_header();
        let key = self.key_of(&header[record::MAGIC.len()..]);
        let disk = &self.shared.disk;
        match uninterrupted(|| disk.remove(Name::CatalogueNew)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let file = uninterrupted(|| disk.create(Name::CatalogueNew))?;
        disk::write_all_at(&*file, &header, 0)?;
        let mut batch = Batch::new(&key, header.len() as u64);
        self.copy_live(old, &scan, &mut batch, &*file)?;
        let written = Scan::of(&*file, &key, self.boot)?;
        if written.live() != scan.live() || written.torn_bytes != 0 {
            return Err(Errno::IO);
        }
        let mut log = Log::new(file, key, written);
        log.first_scan = None;
        Ok(log)
    }

    fn copy_live(&self, old: &Log, scan: &Scan, batch: &mut Batch<'_>, file: &dyn DiskFile) -> disk::Result<()> {
        let dirs = live_dirs(old, scan)?;
        let mut boot_written = None;
        let mut boot = None;
        let mut frames = Frames::new(&*old.file, &old.key, scan.end);
        while let Some(record) = frames.next()? {
            let keep = match record {
                Record::Boot { id } => {
                    boot = Some(id);
                    false
                }
                Record::Dir { id, .. } => dirs.contains(&id),
                Record::Mount { .. } => true,
                Record::Entry(entry) => scan.is_live(entry.id),
                Record::Alias { id, .. } => scan.is_live(id),
                Record::Removed { .. } | Record::Verified { .. } | Record::Used { .. } => false,
            };
            if !keep {
                continue;
            }
            if let Some(id) = boot.filter(|_| boot != boot_written) {
                batch.push(&Record::Boot { id });
                boot_written = boot;
            }
            batch.push(&record);
            flush_when_large(batch, file)?;
        }
        for (dir, unix_s) in scan.used.iter().filter(|(dir, _)| dirs.contains(dir)) {
            batch.push(&Record::Used {
                dir: *dir,
                unix_s: *unix_s,
            });
            flush_when_large(batch, file)?;
        }
        // Verifications hold in the boot under which they stand, and only those of this boot were kept in the scan.
        if !scan.verified().is_empty() && boot_written != Some(self.boot.0) {
            batch.push(&Record::Boot { id: self.boot.0 });
        }
        for id in scan.verified().iter().filter(|id| scan.is_live(**id)) {
            batch.push(&Record::Verified { id: *id });
            flush_when_large(batch, file)?;
        }
        batch.flush(file)
    }
}

/// The directories that something live is in.
fn live_dirs(old: &Log, scan: &Scan) -> disk::Result<HashSet<u32>> {
    let mut dirs = HashSet::new();
    let mut frames = Frames::new(&*old.file, &old.key, scan.end);
    while let Some(record) = frames.next()? {
        match record {
            Record::Entry(entry) if scan.is_live(entry.id) => drop(dirs.insert(entry.dir)),
            Record::Alias { id, dir, .. } if scan.is_live(id) => drop(dirs.insert(dir)),
            _ => {}
        }
    }
    Ok(dirs)
}

fn flush_when_large(batch: &mut Batch<'_>, file: &dyn DiskFile) -> disk::Result<()> {
    if batch.bytes.len() >= limits::READ_PIECE_BYTES {
        batch.flush(file)
    } else {
        Ok(())
    }
}
