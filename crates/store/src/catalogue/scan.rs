//! Scan of the whole log: its valid part, and the effect of later records on earlier ones.

use std::collections::HashMap;

use super::Interned;
use super::record::{self, CatalogueRecord, FrameBatch, Frames, TagKey};
use crate::disk::{self, DiskFile, uninterrupted};
use crate::limits;
use crate::root::BootId;

/// Position of a record: recovery reads by directory, not in the order of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPosition {
    /// Name of the copy.
    pub(super) id: u64,
    /// Directory of the name.
    pub(super) dir: u32,
    /// Offset in the log.
    pub(super) at: u32,
}

/// Positions of the records of names.
#[derive(Debug, Default)]
pub(super) struct RecordPositions {
    pub(super) entries: Vec<RecordPosition>,
    pub(super) aliases: Vec<RecordPosition>,
    /// Offsets at which the boot changes, and whether it is this boot.
    boots: Vec<(u64, bool)>,
}

impl RecordPositions {
    fn note(&mut self, at: u64, record: &CatalogueRecord<'_>, boot: BootId) {
        // No log is longer: it would have thirty million copies.
        let Ok(short) = u32::try_from(at) else { return };
        match *record {
            CatalogueRecord::Entry(ref entry) => self.entries.push(RecordPosition {
                id: entry.id,
                dir: entry.dir,
                at: short,
            }),
            CatalogueRecord::Alias { id, dir, .. } => self.aliases.push(RecordPosition { id, dir, at: short }),
            CatalogueRecord::Boot { id } => self.boots.push((at, id == boot.0)),
            _ => {}
        }
    }

    /// Returns whether the record at this offset was written in this boot.
    pub(super) fn is_of_this_boot(&self, at: u32) -> bool {
        let following = self.boots.partition_point(|(from, _)| *from <= u64::from(at));
        following
            .checked_sub(1)
            .and_then(|last| self.boots.get(last))
            .is_some_and(|boot| boot.1)
    }
}

/// Contents of the log as a whole.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// End of the valid records.
    pub(super) end: u64,
    /// Number of bytes behind the valid records.
    pub(super) torn_bytes: u64,
    pub(super) dirs: Interned,
    pub(super) mounts: Interned,
    /// Last use by directory, in Unix seconds.
    pub(super) used: HashMap<u32, i64>,
    /// True if the last section of the log belongs to this boot.
    pub(super) boot_is_current: bool,
    /// Removed copies, sorted.
    removed: Vec<u64>,
    /// Copies of earlier boots that were verified in this one, sorted.
    verified: Vec<u64>,
    entries: u64,
    /// Sizes of all copies, in bytes.
    pub(super) entry_bytes: u64,
    superseded: u64,
    /// Positions of records, until recovery takes them.
    pub(super) positions: RecordPositions,
}

impl Scan {
    /// Reads the log up to an offset, without noting positions of records.
    pub(super) fn of(file: &dyn DiskFile, key: &TagKey, boot: BootId, upto: u64) -> disk::Result<Self> {
        Self::read(file, key, boot, upto, &mut |_, _, _| {})
    }

    /// Reads the log for recovery, and calls `rest` after each piece of it.
    pub(super) fn with_positions(file: &dyn DiskFile, key: &TagKey, boot: BootId, rest: &mut dyn FnMut()) -> disk::Result<Self> {
        let mut positions = RecordPositions::default();
        let mut next_rest = 0;
        let size = uninterrupted(|| file.stat())?.identity.size;
        let mut scan = Self::read(file, key, boot, size, &mut |at, record, boot| {
            positions.note(at, record, boot);
            if at >= next_rest {
                rest();
                next_rest = at + limits::READ_PIECE_BYTES as u64;
            }
        })?;
        scan.positions = positions;
        Ok(scan)
    }

    fn read(
        file: &dyn DiskFile,
        key: &TagKey,
        boot: BootId,
        size: u64,
        each: &mut dyn FnMut(u64, &CatalogueRecord<'_>, BootId),
    ) -> disk::Result<Self> {
        let mut scan = Self::default();
        let mut frames = Frames::new(file, key, size);
        let mut at = frames.end();
        while let Some(record) = frames.next()? {
            scan.take(&record, boot);
            each(at, &record, boot);
            at = frames.end();
        }
        scan.end = frames.end();
        scan.torn_bytes = size.saturating_sub(scan.end);
        scan.sort();
        Ok(scan)
    }

    /// Sorts the lists; call it after the last record was taken.
    pub(super) fn sort(&mut self) {
        for ids in [&mut self.removed, &mut self.verified] {
            ids.sort_unstable();
            ids.dedup();
        }
    }

    /// Writes a record behind what was read, and takes it.
    pub(super) fn add(&mut self, batch: &mut FrameBatch<'_>, record: &CatalogueRecord<'_>, boot: BootId) {
        batch.push(record);
        self.take(record, boot);
    }

    fn take(&mut self, record: &CatalogueRecord<'_>, boot: BootId) {
        match *record {
            CatalogueRecord::Dir { id, path } => self.dirs.insert(id, path),
            CatalogueRecord::Mount { id, source, fs_type } => self.mounts.insert(id, &record::mount_key(source, fs_type)),
            CatalogueRecord::Boot { id } => {
                self.boot_is_current = id == boot.0;
                self.superseded += self.verified.len() as u64;
                self.verified.clear();
            }
            CatalogueRecord::Entry(ref entry) => {
                self.entries += 1;
                self.entry_bytes = self.entry_bytes.saturating_add(entry.size);
            }
            CatalogueRecord::Alias { .. } => {}
            CatalogueRecord::Removed { id } => self.removed.push(id),
            CatalogueRecord::Verified { id } if self.boot_is_current => self.verified.push(id),
            CatalogueRecord::Verified { .. } => self.superseded += 1,
            CatalogueRecord::Used { dir, unix_s } => self.superseded += u64::from(self.used.insert(dir, unix_s).is_some()),
        }
    }

    pub(super) fn is_live(&self, id: u64) -> bool {
        self.removed.binary_search(&id).is_err()
    }

    pub(super) fn verified(&self) -> &[u64] {
        &self.verified
    }

    /// Returns the number of copies that still exist.
    pub(super) fn live(&self) -> u64 {
        self.entries.saturating_sub(self.removed.len() as u64)
    }

    /// Returns the number of dead records.
    pub(super) fn dead(&self) -> u64 {
        2 * self.removed.len() as u64 + self.superseded
    }
}
