//! One record of the log: its payload and its frame (length, payload, tag).

use std::sync::Arc;

use forebay_contract::{Attributes, FileTime, Identity};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::disk::{self, DiskFile, uninterrupted};
use crate::limits;
use crate::secret::SecretKey;

/// First bytes of a catalogue; [`SALT_BYTES`] random bytes of this log follow.
pub(crate) const MAGIC: [u8; 8] = *b"FBCAT 1\n";
pub(crate) const SALT_BYTES: usize = 16;
pub(crate) const HEADER_BYTES: usize = MAGIC.len() + SALT_BYTES;
const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 16;

/// Records of the log. New kinds are added at the end, and change the tier's FORMAT.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum CatalogueRecord<'a> {
    /// Directory of the source as spelled; entries refer to it.
    Dir { id: u32, path: &'a [u8] },
    /// Mounted source; entries refer to it.
    Mount { id: u32, source: &'a [u8], fs_type: &'a [u8] },
    /// Boot in which all following entries were written.
    Boot { id: [u8; 16] },
    /// A published copy.
    #[serde(borrow)]
    Entry(EntryRecord<'a>),
    /// Another path of a published copy.
    Alias { id: u64, dir: u32, name: &'a [u8] },
    /// A removed copy.
    Removed { id: u64 },
    /// A copy of an earlier boot that was verified in this one.
    Verified { id: u64 },
    /// Last use of the copies of a directory.
    Used { dir: u32, unix_s: i64 },
}

/// A published copy as stored, without device numbers, since they change with each mount.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct EntryRecord<'a> {
    pub(super) id: u64,
    pub(super) dir: u32,
    pub(super) name: &'a [u8],
    pub(super) mount: u32,
    ino: u64,
    pub(super) size: u64,
    #[serde(with = "StoredTime")]
    mtime: FileTime,
    #[serde(with = "StoredTime")]
    ctime: FileTime,
    #[serde(with = "StoredAttributes")]
    pub(super) attributes: Attributes,
    object_ino: u64,
    #[serde(with = "StoredTime")]
    object_mtime: FileTime,
    #[serde(with = "StoredTime")]
    object_ctime: FileTime,
    checksum: [u8; 16],
    pub(super) created_unix_s: i64,
}

/// Attributes of a source file as stored.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Attributes")]
struct StoredAttributes {
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    blksize: u32,
    blocks: u64,
}

/// A time as stored.
#[derive(Serialize, Deserialize)]
#[serde(remote = "FileTime")]
struct StoredTime {
    sec: i64,
    nsec: u32,
}

impl<'a> EntryRecord<'a> {
    pub(super) fn new(entry: &super::CatalogueEntry<'a>, dir: u32, mount: u32) -> Self {
        let super::CatalogueEntry {
            id,
            name,
            identity,
            attributes,
            object,
            checksum,
            created_unix_s,
            ..
        } = *entry;
        Self {
            id,
            dir,
            name,
            mount,
            ino: identity.ino,
            size: identity.size,
            mtime: identity.mtime,
            ctime: identity.ctime,
            attributes,
            object_ino: object.ino,
            object_mtime: object.mtime,
            object_ctime: object.ctime,
            checksum: checksum.to_le_bytes(),
            created_unix_s,
        }
    }

    pub(super) fn identity(&self) -> Identity {
        Identity {
            dev: 0,
            ino: self.ino,
            size: self.size,
            mtime: self.mtime,
            ctime: self.ctime,
        }
    }

    pub(super) fn object(&self, dev: u64) -> Identity {
        Identity {
            dev,
            ino: self.object_ino,
            size: self.size,
            mtime: self.object_mtime,
            ctime: self.object_ctime,
        }
    }

    pub(super) fn checksum(&self) -> u128 {
        u128::from_le_bytes(self.checksum)
    }
}

/// Key of one log's tags.
#[derive(Clone, Debug)]
pub(crate) struct TagKey(SecretKey);

impl TagKey {
    pub(crate) fn new(key: SecretKey) -> Self {
        Self(key)
    }

    /// Returns a tag, which is valid for one position in one log: records cannot be moved, repeated or taken from an
    /// older log.
    fn tag(&self, offset: u64, payload: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(self.0.bytes());
        hasher.update(&offset.to_le_bytes()).update(payload);
        let mut tag = [0; TAG_BYTES];
        hasher.finalize_xof().fill(&mut tag);
        tag
    }
}

/// Frames to write with one call.
#[derive(Debug)]
pub(crate) struct FrameBatch<'k> {
    key: &'k TagKey,
    offset: u64,
    pub(super) bytes: Vec<u8>,
}

impl<'k> FrameBatch<'k> {
    /// Creates a batch that will be written at `offset`.
    pub(crate) fn new(key: &'k TagKey, offset: u64) -> Self {
        Self {
            key,
            offset,
            bytes: Vec::with_capacity(512),
        }
    }

    /// Adds a record; returns false if it is too long.
    pub(crate) fn push(&mut self, record: &impl Serialize) -> bool {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; LENGTH_BYTES]);
        let Ok(bytes) = postcard::to_extend(record, std::mem::take(&mut self.bytes)) else {
            return false;
        };
        self.bytes = bytes;
        let payload = start + LENGTH_BYTES;
        let length = self.bytes.len() - payload;
        if length > limits::RECORD_BYTES_MAX {
            self.bytes.truncate(start);
            return false;
        }
        self.bytes[start..payload].copy_from_slice(&(length as u32).to_le_bytes());
        let tag = self.key.tag(self.offset + start as u64, &self.bytes[payload..]);
        self.bytes.extend_from_slice(&tag);
        true
    }

    /// Writes the frames and goes on behind them.
    pub(crate) fn flush(&mut self, file: &dyn DiskFile) -> disk::Result<()> {
        disk::write_all_at(file, &self.bytes, self.offset)?;
        self.offset += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }

    /// Returns the position of the next record.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// Reader of records, one after the other. It stops at the first that is incomplete, not tagged by us, or not
/// understood.
#[derive(Debug)]
pub(crate) struct Frames<'f> {
    file: &'f dyn DiskFile,
    key: &'f TagKey,
    /// Offset at which reading ends in any case.
    upto: u64,
    /// Length of one read, in bytes.
    piece: usize,
    /// Offset of `window` in the file.
    window_offset: u64,
    window: Vec<u8>,
    /// Position in the window.
    at: usize,
}

impl<'f> Frames<'f> {
    pub(crate) fn new(file: &'f dyn DiskFile, key: &'f TagKey, upto: u64) -> Self {
        Self {
            file,
            key,
            upto,
            piece: limits::READ_PIECE_BYTES,
            window_offset: HEADER_BYTES as u64,
            window: Vec::new(),
            at: 0,
        }
    }

    /// Creates a reader of the records behind `from`, the end of one.
    pub(super) fn behind(file: &'f dyn DiskFile, key: &'f TagKey, upto: u64, from: u64) -> Self {
        Self {
            window_offset: from,
            ..Self::new(file, key, upto)
        }
    }

    /// Creates a reader of scattered records, which reads `piece` bytes at a time.
    pub(super) fn scattered(file: &'f dyn DiskFile, key: &'f TagKey, upto: u64, piece: usize) -> Self {
        Self {
            piece,
            ..Self::new(file, key, upto)
        }
    }

    /// Returns the record at `offset`, the beginning of one.
    pub(super) fn read_at(&mut self, offset: u64) -> disk::Result<Option<CatalogueRecord<'_>>> {
        match offset.checked_sub(self.window_offset).map(|at| at as usize) {
            Some(at) if at <= self.window.len() => self.at = at,
            _ => {
                self.window.clear();
                self.window_offset = offset;
                self.at = 0;
            }
        }
        self.next()
    }

    /// Returns the end of the last record returned.
    pub(crate) fn end(&self) -> u64 {
        self.window_offset + self.at as u64
    }

    pub(super) fn next(&mut self) -> disk::Result<Option<CatalogueRecord<'_>>> {
        self.next_of()
    }

    /// Returns the next record of a log of records of type `R`.
    pub(crate) fn next_of<'s, R: Deserialize<'s>>(&'s mut self) -> disk::Result<Option<R>> {
        if !self.have(LENGTH_BYTES)? {
            return Ok(None);
        }
        let mut length = [0; LENGTH_BYTES];
        length.copy_from_slice(&self.window[self.at..self.at + LENGTH_BYTES]);
        let length = u32::from_le_bytes(length) as usize;
        let frame = LENGTH_BYTES + length + TAG_BYTES;
        if length > limits::RECORD_BYTES_MAX || !self.have(frame)? {
            return Ok(None);
        }
        let (start, tag_start) = (self.at + LENGTH_BYTES, self.at + LENGTH_BYTES + length);
        let tag = self.key.tag(self.end(), &self.window[start..tag_start]);
        if tag != self.window[tag_start..tag_start + TAG_BYTES] {
            return Ok(None);
        }
        let Ok(record) = postcard::from_bytes(&self.window[start..tag_start]) else {
            return Ok(None);
        };
        self.at += frame;
        Ok(Some(record))
    }

    /// Returns whether `bytes` more can be read, and reads them into the window.
    fn have(&mut self, bytes: usize) -> disk::Result<bool> {
        if self.window.len() - self.at >= bytes {
            return Ok(true);
        }
        self.window.drain(..self.at);
        self.window_offset += self.at as u64;
        self.at = 0;
        let kept = self.window.len();
        let from = self.window_offset + kept as u64;
        let wanted = self.upto.saturating_sub(from).min(self.piece.max(bytes) as u64) as usize;
        self.window.resize(kept + wanted, 0);
        let read = disk::read_full_at(self.file, &mut self.window[kept..], from)?;
        self.window.truncate(kept + read);
        // A disk that returns fewer bytes than the file has is at fault; to take that for the end of the log would lose
        // valid records.
        if read < wanted {
            Err(Errno::IO)
        } else {
            Ok(self.window.len() >= bytes)
        }
    }
}

/// Returns the header of a new log.
pub(crate) fn new_header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..MAGIC.len()].copy_from_slice(&MAGIC);
    crate::secret::fill_random(&mut header[MAGIC.len()..]);
    header
}

/// Returns the salt of an existing log; `None` if the file is foreign or too short.
pub(crate) fn read_salt(file: &dyn DiskFile) -> Result<Option<[u8; SALT_BYTES]>, Errno> {
    let mut header = [0; HEADER_BYTES];
    let size = uninterrupted(|| file.stat())?.identity.size;
    let read = disk::read_full_at(file, &mut header, 0)?;
    if (read as u64) < size.min(HEADER_BYTES as u64) {
        return Err(Errno::IO);
    }
    let salt = header[MAGIC.len()..].try_into().ok();
    Ok(salt.filter(|_| read == HEADER_BYTES && header[..MAGIC.len()] == MAGIC))
}

/// Returns the bytes under which a mount is interned. Neither part can hold a NUL: both are strings of the kernel.
pub(super) fn mount_key(source: &[u8], fs_type: &[u8]) -> Arc<[u8]> {
    [source, b"\0", fs_type].concat().into()
}
