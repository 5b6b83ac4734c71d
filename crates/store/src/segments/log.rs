//! Catalogue of the segments: an append-only log of the positions of extents, with the same frames and tags as a
//! tier's.
//!
//! Its records do not mention boots: each read of an extent is compared with its checksum, whatever happened to the
//! disk in between.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{ExtentKey, FileVersion};
use crate::catalogue::record::{self, FrameBatch, Frames, TagKey};
use crate::disk::{self, Disk, DiskFile, Name, uninterrupted};
use crate::error::StoreError;
use crate::limits;
use crate::secret::SecretKey;

/// Records of the log. New kinds change the segments' FORMAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SegmentRecord {
    /// An extent is stored completely.
    Stored(Stored),
    /// An extent was removed.
    Removed { key: ExtentKey },
}

/// Position of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) key: ExtentKey,
    pub(super) version: FileVersion,
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
    /// XXH3-128 checksum of the extent.
    pub(super) checksum: [u8; 16],
}

/// The log while it is open.
#[derive(Debug)]
pub(super) struct SegmentLog {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    root_key: SecretKey,
    file: Box<dyn DiskFile>,
    key: TagKey,
    /// End of the valid records; the next one is written here.
    end: u64,
    /// Number of live records, and below it of dead ones.
    live: u64,
    dead: u64,
    /// True if an incomplete record could not be cut off: nothing is written behind it.
    is_broken: bool,
}

impl SegmentLog {
    /// Opens the log, or creates one. Returns besides what is stored, the oldest first.
    pub(super) fn open(disk: Arc<dyn Disk>, root: PathBuf, root_key: SecretKey) -> Result<(Self, Vec<Stored>), StoreError> {
        let path = root.join("catalogue");
        let failed = |operation| {
            let path = &path;
            move |errno| StoreError::tier(path, operation, errno)
        };
        // Left by a rewriting that did not finish.
        match uninterrupted(|| disk.remove(Name::CatalogueNew)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("clean up beside")(errno)),
        }
        let file = match uninterrupted(|| disk.open_write(Name::Catalogue)) {
            Err(Errno::NOENT) => uninterrupted(|| disk.create(Name::Catalogue)).map_err(failed("create"))?,
            answer => answer.map_err(failed("open"))?,
        };
        let salt = match record::read_salt(&*file).map_err(failed("read"))? {
            Some(salt) => salt,
            None => begin(&*file).map_err(failed("begin"))?,
        };
        let key = TagKey::new(root_key.derive(&salt));
        let size = uninterrupted(|| file.stat()).map_err(failed("stat"))?.identity.size;
        let (records, end) = read(&*file, &key, size).map_err(failed("read"))?;
        if end < size {
            uninterrupted(|| file.truncate(end)).map_err(failed("cut the torn end of"))?;
        }
        let written = records.len() as u64;
        let stored = remaining(records);
        let log = Self {
            live: stored.len() as u64,
            dead: written - stored.len() as u64,
            disk,
            root,
            root_key,
            file,
            key,
            end,
            is_broken: false,
        };
        Ok((log, stored))
    }

    /// Returns whether records can be written.
    pub(super) fn is_writable(&self) -> bool {
        !self.is_broken
    }

    /// Writes records with one system call, all or none.
    pub(super) fn append(&mut self, records: &[SegmentRecord]) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        if self.is_broken {
            return Err(self.error("write", Errno::IO));
        }
        let mut batch = FrameBatch::new(&self.key, self.end);
        for record in records {
            batch.push(record);
        }
        let end = batch.end();
        let written = batch.flush(&*self.file);
        if let Err(errno) = written {
            // A part of it must not remain in front of the next record.
            self.is_broken = uninterrupted(|| self.file.truncate(self.end)).is_err();
            return Err(self.error("write", errno));
        }
        self.end = end;
        for record in records {
            match record {
                SegmentRecord::Stored(_) => self.live += 1,
                SegmentRecord::Removed { .. } => {
                    self.live = self.live.saturating_sub(1);
                    self.dead += 2;
                }
            }
        }
        Ok(())
    }

    /// Returns whether the log is to be rewritten, since most of its records are dead.
    pub(super) fn is_mostly_dead(&self) -> bool {
        self.dead > self.live && self.dead >= limits::COMPACTION_DEAD_MIN
    }

    /// Rewrites the log with what is stored, the oldest first. The name `catalogue` leads to a complete log at every
    /// instant.
    pub(super) fn rewrite(&mut self, stored: &[Stored]) -> Result<(), StoreError> {
        let rewritten = self.write_new(stored);
        if rewritten.is_err() {
            // If this fails too, the next opening removes it.
            let _ = uninterrupted(|| self.disk.remove(Name::CatalogueNew));
        }
        let (file, key, end) = rewritten.map_err(|errno| self.error("rewrite", errno))?;
        if let Err(errno) = uninterrupted(|| self.disk.rename(Name::CatalogueNew, Name::Catalogue)) {
            // It is unknown which of the two has the name now, so records written to the old one might never be read.
            self.is_broken = true;
            return Err(self.error("replace", errno));
        }
        (self.file, self.key, self.end) = (file, key, end);
        (self.live, self.dead, self.is_broken) = (stored.len() as u64, 0, false);
        Ok(())
    }

    fn write_new(&self, stored: &[Stored]) -> disk::Result<(Box<dyn DiskFile>, TagKey, u64)> {
        match uninterrupted(|| self.disk.remove(Name::CatalogueNew)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let file = uninterrupted(|| self.disk.create(Name::CatalogueNew))?;
        let salt = begin(&*file)?;
        let key = TagKey::new(self.root_key.derive(&salt));
        let mut end = record::HEADER_BYTES as u64;
        for some in stored.chunks(limits::READ_PIECE_BYTES / RECORD_BYTES) {
            let mut batch = FrameBatch::new(&key, end);
            for stored in some {
                batch.push(&SegmentRecord::Stored(*stored));
            }
            end = batch.end();
            batch.flush(&*file)?;
        }
        // The new log is read back before it takes the place of the old one.
        let (records, read_end) = read(&*file, &key, end)?;
        if read_end != end || records.len() != stored.len() {
            return Err(Errno::IO);
        }
        Ok((file, key, end))
    }

    fn error(&self, operation: &'static str, errno: Errno) -> StoreError {
        StoreError::tier(&self.root.join("catalogue"), operation, errno)
    }
}

/// Approximate length of a record in bytes; only sizes of batches depend on it.
const RECORD_BYTES: usize = 96;

/// Makes `file` an empty log, whatever it held.
fn begin(file: &dyn DiskFile) -> disk::Result<[u8; record::SALT_BYTES]> {
    let header = record::new_header();
    let mut salt = [0; record::SALT_BYTES];
    salt.copy_from_slice(&header[record::MAGIC.len()..]);
    uninterrupted(|| file.truncate(0))?;
    disk::write_all_at(file, &header, 0)?;
    Ok(salt)
}

/// Returns all valid records, and where they end.
fn read(file: &dyn DiskFile, key: &TagKey, size: u64) -> disk::Result<(Vec<SegmentRecord>, u64)> {
    let mut frames = Frames::new(file, key, size);
    let mut records = Vec::new();
    while let Some(record) = frames.next_of::<SegmentRecord>()? {
        records.push(record);
    }
    Ok((records, frames.end()))
}

/// Returns what is stored after all records, in the order in which it was stored.
fn remaining(records: Vec<SegmentRecord>) -> Vec<Stored> {
    let mut last = std::collections::HashMap::new();
    for (nth, record) in records.iter().enumerate() {
        match record {
            SegmentRecord::Stored(stored) => last.insert(stored.key, nth),
            SegmentRecord::Removed { key } => last.remove(key),
        };
    }
    let is_last = |(nth, record): (usize, SegmentRecord)| match record {
        SegmentRecord::Stored(stored) if last.get(&stored.key) == Some(&nth) => Some(stored),
        _ => None,
    };
    records.into_iter().enumerate().filter_map(is_last).collect()
}
