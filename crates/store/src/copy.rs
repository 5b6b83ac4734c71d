//! Writes one copy: sequential, checked, and invisible until it is published.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_contract::Identity;
use rustix::fs::FileType;
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use crate::disk::{self, DiskFile, Name, read_full_at, uninterrupted, write_all_at};
use crate::error::StoreError;
use crate::leased::LeasedRoot;
use crate::source::{CopySource, StatFrom};

/// Length of the blocks of zeros that become holes: that of a page, and of a block of most file systems.
const HOLE_BYTES: usize = 4096;
static ZEROS: [u8; HOLE_BYTES] = [0; HOLE_BYTES];

/// A complete copy that is not published yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// XXH3-128 checksum of the written bytes.
    pub checksum: u128,
    /// Device, inode, size and times of the copy itself.
    pub object: Identity,
}

/// Writer of one copy. Dropped before [`CopyWriter::finish`], it removes its file.
#[derive(Debug)]
pub struct CopyWriter {
    shared: Arc<LeasedRoot>,
    id: u64,
    identity: Identity,
    /// `None` once finished or abandoned.
    file: Option<Box<dyn DiskFile>>,
    copied: u64,
    /// Ends of the ranges beyond `copied` that were written already, by their beginnings.
    ahead: BTreeMap<u64, u64>,
    keeps_holes: bool,
    hasher: Hasher,
}

/// Checksum so far. (The library's hasher has no Debug.)
struct Hasher(Box<XxHash3_128>);

impl std::fmt::Debug for Hasher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Hasher")
    }
}

impl CopyWriter {
    pub(crate) fn new(shared: Arc<LeasedRoot>, id: u64, identity: Identity, file: Box<dyn DiskFile>) -> Self {
        Self {
            shared,
            id,
            identity,
            file: Some(file),
            copied: 0,
            ahead: BTreeMap::new(),
            keeps_holes: false,
            hasher: Hasher(Box::new(XxHash3_128::new())),
        }
    }

    /// Turns blocks of zeros into holes of the copy from here on, for a source that takes less room than its size.
    #[must_use]
    pub fn keep_holes(mut self) -> Self {
        self.keeps_holes = true;
        self
    }

    /// Returns the copy's name.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the version of the source that is being copied.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the number of bytes copied so far.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Returns whether all bytes are copied.
    pub fn is_complete(&self) -> bool {
        self.copied == self.identity.size
    }

    /// Copies on, in order, up to `upto_offset` or the end of the file, through `buffer`. Returns the number of bytes
    /// copied so far.
    ///
    /// Goes on after short reads, short writes and interruptions; a call without progress is an error (F4). A source
    /// that ends before its size is [`StoreError::Changed`].
    pub fn advance(&mut self, source: &dyn CopySource, upto_offset: u64, buffer: &mut [u8]) -> Result<u64, StoreError> {
        let upto = upto_offset.min(self.identity.size);
        while self.copied < upto {
            let wanted = (upto - self.copied).min(buffer.len() as u64) as usize;
            let read = uninterrupted(|| source.read_at(&mut buffer[..wanted], self.copied))
                .map_err(|errno| self.source_error("read", errno))?
                .min(wanted);
            if read == 0 {
                return Err(self.changed("it ends before its size"));
            }
            let bytes = &buffer[..read];
            self.write(bytes).map_err(|errno| self.tier_error("write", errno))?;
            self.hasher.0.write(bytes);
            self.copied += read as u64;
        }
        Ok(self.copied)
    }

    /// Writes bytes that came out of order, and counts them as copied once all before them are. The caller writes each
    /// byte once, by this alone, and has a `buffer` for bytes that are read back to be digested.
    pub fn place(&mut self, offset: u64, bytes: &[u8], buffer: &mut [u8]) -> Result<u64, StoreError> {
        let end = offset.saturating_add(bytes.len() as u64);
        if offset < self.copied || end > self.identity.size {
            return Err(self.tier_error("place bytes twice or beyond its end", Errno::INVAL));
        }
        if offset > self.copied && self.keeps_holes && self.ahead.is_empty() {
            // A hole that no write covers is read back, too.
            self.set_size().map_err(|errno| self.tier_error("truncate", errno))?;
        }
        self.write_at(bytes, offset).map_err(|errno| self.tier_error("write", errno))?;
        if offset > self.copied {
            self.ahead.insert(offset, end);
            return Ok(self.copied);
        }
        self.hasher.0.write(bytes);
        self.copied = end;
        while let Some(end) = self.ahead.remove(&self.copied) {
            self.read_back(end, buffer).map_err(|errno| self.tier_error("read", errno))?;
        }
        Ok(self.copied)
    }

    /// Digests bytes that were written ahead of the copied part, which they follow.
    fn read_back(&mut self, end: u64, buffer: &mut [u8]) -> Result<(), Errno> {
        let file = self.file.as_deref().ok_or(Errno::BADF)?;
        while self.copied < end {
            let wanted = (end - self.copied).min(buffer.len() as u64) as usize;
            let bytes = &mut buffer[..wanted];
            if wanted == 0 || read_full_at(file, bytes, self.copied)? != wanted {
                return Err(Errno::IO);
            }
            self.hasher.0.write(bytes);
            self.copied += wanted as u64;
        }
        Ok(())
    }

    /// Writes bytes at the end of the copied part, except holes.
    fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.write_at(bytes, self.copied)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        let file = self.file.as_deref().ok_or(Errno::BADF)?;
        if !self.keeps_holes {
            return write_all_at(file, bytes, offset);
        }
        data_in(bytes, offset).try_for_each(|(offset, data)| write_all_at(file, data, offset))
    }

    /// Checks that the whole of one version was copied (F6): the source, asked as `ask` says, still has its identity of
    /// the beginning, and the copy, asked through its own descriptor, is a file of that size which only its owner can
    /// read (S1).
    pub fn finish(mut self, source: &dyn CopySource, ask: StatFrom) -> Result<Finished, StoreError> {
        if !self.is_complete() {
            return Err(self.tier_error("finish before its end", Errno::INVAL));
        }
        let now = uninterrupted(|| source.stat(ask))
            .map_err(|errno| self.source_error("stat", errno))?
            .identity;
        if let Some(what) = difference(&self.identity, &now) {
            return Err(self.changed(what));
        }
        if self.keeps_holes {
            // No write covers a hole at the end.
            self.set_size().map_err(|errno| self.tier_error("truncate", errno))?;
        }
        let object = self.check().map_err(|errno| self.tier_error("check", errno))?;
        if object.size != self.identity.size {
            return Err(StoreError::Damaged {
                path: self.path(),
                what: "its size differs from the written one",
            });
        }
        let checksum = self.hasher.0.finish_128();
        if let Some(Err(errno)) = self.file.take().map(disk::close) {
            let error = self.tier_error("close", errno);
            self.shared.discard(self.id);
            return Err(error);
        }
        Ok(Finished { checksum, object })
    }

    /// Removes the file. (Dropping does so too, but reports no failure.)
    pub fn abandon(mut self) -> Result<(), StoreError> {
        self.file = None;
        self.shared.remove_object(self.id)
    }

    fn set_size(&self) -> Result<(), Errno> {
        let file = self.file.as_deref().ok_or(Errno::BADF)?;
        uninterrupted(|| file.truncate(self.identity.size))
    }

    /// Returns the copy's identity, after it corrected the mode.
    fn check(&self) -> Result<Identity, Errno> {
        let file = self.file.as_deref().ok_or(Errno::BADF)?;
        let mut stat = uninterrupted(|| file.stat())?;
        if FileType::from_raw_mode(stat.mode) != FileType::RegularFile {
            return Err(Errno::IO);
        }
        if stat.mode & 0o7777 != Name::Object(self.id).mode() {
            // The umask took even the owner's right to read. The correction moves the ctime, so ask again.
            uninterrupted(|| file.set_read_only())?;
            stat = uninterrupted(|| file.stat())?;
        }
        Ok(stat.identity)
    }

    fn path(&self) -> PathBuf {
        self.shared.object_path(self.id)
    }

    fn tier_error(&self, operation: &'static str, errno: Errno) -> StoreError {
        StoreError::tier(&self.path(), operation, errno)
    }

    fn source_error(&self, operation: &'static str, source: Errno) -> StoreError {
        StoreError::Source {
            path: self.path(),
            operation,
            source,
        }
    }

    fn changed(&self, what: &'static str) -> StoreError {
        StoreError::Changed { path: self.path(), what }
    }
}

impl Drop for CopyWriter {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.shared.discard(self.id);
        }
    }
}

/// Returns the parts of `bytes` that are not blocks of zeros, with their offsets in the file. `bytes` begin at
/// `offset`; blocks begin at multiples of their length.
fn data_in(bytes: &[u8], offset: u64) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let block_len = |at: usize| (HOLE_BYTES - (offset as usize).wrapping_add(at) % HOLE_BYTES).min(bytes.len() - at);
        let is_hole = |at: usize, len: usize| bytes[at..at + len] == ZEROS[..len];
        while at < bytes.len() && is_hole(at, block_len(at)) {
            at += block_len(at);
        }
        let from = at;
        while at < bytes.len() && !is_hole(at, block_len(at)) {
            at += block_len(at);
        }
        (from < at).then(|| (offset + from as u64, &bytes[from..at]))
    })
}

/// Returns the first field in which two identities differ.
fn difference(before: &Identity, after: &Identity) -> Option<&'static str> {
    if (before.dev, before.ino) != (after.dev, after.ino) {
        Some("it is another file")
    } else if before.size != after.size {
        Some("its size")
    } else if before.mtime != after.mtime {
        Some("its modification time")
    } else if before.ctime != after.ctime {
        Some("its change time")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_left_out_is_blocks_of_zeros(blocks in proptest::collection::vec(0_u8..3, 0..6), cut in 0..HOLE_BYTES, offset in 0..3 * HOLE_BYTES as u64) {
            let mut bytes: Vec<u8> = blocks.iter().flat_map(|block| vec![*block; HOLE_BYTES]).collect();
            bytes.truncate(bytes.len().saturating_sub(cut));
            let mut rebuilt = vec![0; bytes.len()];
            let mut end = offset;
            for (at, data) in data_in(&bytes, offset) {
                prop_assert!(at >= end && !data.is_empty());
                end = at + data.len() as u64;
                rebuilt[(at - offset) as usize..][..data.len()].copy_from_slice(data);
            }
            prop_assert_eq!(&rebuilt, &bytes);
            let kept: usize = data_in(&bytes, offset).map(|(_, data)| data.len()).sum();
            let aligned = offset.is_multiple_of(HOLE_BYTES as u64);
            let data = blocks.iter().filter(|block| **block != 0).count() * HOLE_BYTES;
            prop_assert!(!aligned || kept <= data, "{kept} of {data}");
        }
    }
}
