//! Copies as other nodes are served them.

use std::{io, ops::Range, sync::Arc};

use forebay_contract::{FileTime, Identity};
use forebay_peers::{Blob, BlobName};
use forebay_store::disk::{DiskFile, read_full_at};

use crate::tiering::nodes::partial::PartialCopy;

/// Version of a source file by size and times: the same on all nodes, unlike device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedVersion {
    size: u64,
    mtime: FileTime,
    ctime: FileTime,
}

/// Object of a copy that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyPart {
    /// The bytes of the file.
    Bytes,
    /// XXH3-128 of the file, as 16 bytes, little-endian.
    Digest,
}

impl CopyPart {
    pub(crate) const ALL: [Self; 2] = [Self::Bytes, Self::Digest];
}

impl SharedVersion {
    pub(crate) const fn of(identity: &Identity) -> Self {
        Self {
            size: identity.size,
            mtime: identity.mtime,
            ctime: identity.ctime,
        }
    }

    fn bytes(self, part: CopyPart) -> Vec<u8> {
        let time = |time: FileTime| [time.sec.to_le_bytes().as_slice(), &time.nsec.to_le_bytes()].concat();
        [
            self.size.to_le_bytes().as_slice(),
            &time(self.mtime),
            &time(self.ctime),
            &[part as u8],
        ]
        .concat()
    }

    /// Returns the name of an object of a file at this version.
    pub(crate) fn name(self, path: &[u8], part: CopyPart) -> BlobName {
        BlobName {
            name: path.to_vec(),
            version: self.bytes(part),
        }
    }

    /// Reads a name that [`Self::name`] has made.
    pub(crate) fn parse(name: &BlobName) -> Option<(Self, CopyPart)> {
        let (size, rest) = name.version.split_first_chunk::<8>()?;
        let time = |bytes: &[u8]| {
            let (sec, nsec) = bytes.split_first_chunk::<8>()?;
            Some(FileTime {
                sec: i64::from_le_bytes(*sec),
                nsec: u32::from_le_bytes(nsec.try_into().ok()?),
            })
        };
        let (mtime, rest) = rest.split_at_checked(12)?;
        let (ctime, part) = rest.split_at_checked(12)?;
        let version = Self {
            size: u64::from_le_bytes(*size),
            mtime: time(mtime)?,
            ctime: time(ctime)?,
        };
        let part = CopyPart::ALL.into_iter().find(|known| part == [*known as u8])?;
        Some((version, part))
    }
}

/// Digests of a published copy.
#[derive(Clone, Debug)]
pub(crate) struct CopyDigests {
    /// XXH3-128 of the whole.
    pub(crate) whole: u128,
    /// Digests of its pieces, if these were digested while it was made.
    pub(crate) pieces: Option<Arc<PartialCopy>>,
}

/// A copy that another node is sent, or the part of it that is here.
#[derive(Debug)]
pub(crate) struct CopyBlob {
    pub(crate) file: Box<dyn DiskFile>,
    /// Length of the whole.
    pub(crate) bytes: u64,
    /// XXH3-128 of the whole; `None` while the copy is being made.
    pub(crate) digest: Option<u128>,
    /// Pieces of the copy, if they are known.
    pub(crate) pieces: Option<Arc<PartialCopy>>,
}

impl Blob for CopyBlob {
    fn length(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let read = read_full_at(&*self.file, room, offset)?;
        if read == room.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    fn digest(&self, range: &Range<u64>) -> Option<u128> {
        let whole = self.digest.filter(|_| *range == (0..self.bytes));
        whole.or_else(|| self.pieces.as_ref()?.digest(range))
    }

    fn available(&self) -> u64 {
        self.pieces.as_ref().map_or(self.bytes, |pieces| pieces.available())
    }

    fn is_valid(&self, _: &Range<u64>) -> bool {
        self.pieces.as_ref().is_none_or(|pieces| !pieces.is_void())
    }

    fn may_wait(&self) -> bool {
        true
    }
}

/// The digest of a copy, as an object of its own: a large file comes in pieces, and is compared with it at the end.
#[derive(Debug)]
pub(crate) struct DigestBlob(pub(crate) [u8; 16]);

impl Blob for DigestBlob {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let part = from.checked_add(room.len()).and_then(|end| self.0.get(from..end));
        room.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(size: u64, sec: i64) -> SharedVersion {
        SharedVersion {
            size,
            mtime: FileTime { sec, nsec: 7 },
            ctime: FileTime { sec: -3, nsec: 999 },
        }
    }

    #[test]
    fn a_name_tells_version_and_part() {
        for part in CopyPart::ALL {
            let name = version(10, -1).name(b"/data/one", part);
            assert_eq!(SharedVersion::parse(&name), Some((version(10, -1), part)));
            assert_ne!(name, version(10, -2).name(b"/data/one", part));
            assert_ne!(name, version(11, -1).name(b"/data/one", part));
            for length in 0..name.version.len() {
                let cut = BlobName {
                    version: name.version[..length].to_vec(),
                    ..name.clone()
                };
                assert_eq!(SharedVersion::parse(&cut), None, "{length}");
            }
        }
        let mut other = version(10, -1).name(b"/data/one", CopyPart::Digest);
        *other.version.last_mut().unwrap() = 9;
        assert_eq!(SharedVersion::parse(&other), None, "no such part");
    }
}
