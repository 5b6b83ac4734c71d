//! The seam between a tier and its storage: operations below one private root.
//!
//! Names come from our own alphabet ([`Name`], [`Folder`]): no string from a catalogue, a directory or a message
//! becomes a path (S3). All implementations pass the same conformance suite ([`crate::testing`]).

mod failing;
mod memory;
mod real;
mod throttled;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use forebay_contract::Identity;
use rustix::io::Errno;

pub use failing::{FailingDisk, Fault, FaultKind, When};
pub use memory::MemoryDisk;
pub use real::RealDisk;
pub(crate) use real::identity_of;
pub use throttled::{Throttle, ThrottledDisk};

/// Result with an error number of the system.
pub type Result<T> = std::result::Result<T, Errno>;

/// A file of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// Locked by the agent that uses the tier.
    Lease,
    /// Names the layout.
    Format,
    /// The log of published copies.
    Catalogue,
    /// Replacement of the catalogue, while it is being written.
    CatalogueNew,
    /// A copy.
    Object(u64),
    /// A segment. It has the path of the copy of that number, and its owner can write to it.
    Segment(u64),
}

/// A directory of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Folder {
    /// The private root itself.
    Root,
    /// `objects`.
    Objects,
    /// `objects/XX`.
    Shard(u8),
}

/// A path below the root, as bytes.
#[derive(Clone, Copy, Debug)]
pub struct RelativePath {
    bytes: [u8; 32],
    len: usize,
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl RelativePath {
    fn of(parts: &[&[u8]]) -> Self {
        let mut path = Self { bytes: [0; 32], len: 0 };
        for part in parts {
            path.bytes[path.len..path.len + part.len()].copy_from_slice(part);
            path.len += part.len();
        }
        path
    }

    /// Returns the path, without a leading or trailing slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn shard_digits(shard: u8) -> [u8; 2] {
    [DIGITS[usize::from(shard >> 4)], DIGITS[usize::from(shard & 15)]]
}

impl Name {
    /// Returns the path of the file below the root.
    pub fn path(self) -> RelativePath {
        match self {
            Self::Lease => RelativePath::of(&[b"lease"]),
            Self::Format => RelativePath::of(&[b"FORMAT"]),
            Self::Catalogue => RelativePath::of(&[b"catalogue"]),
            Self::CatalogueNew => RelativePath::of(&[b"catalogue.new"]),
            Self::Object(id) | Self::Segment(id) => {
                let digits: [u8; 16] = std::array::from_fn(|place| DIGITS[(id >> (60 - 4 * place) & 15) as usize]);
                RelativePath::of(&[b"objects/", &shard_digits(id as u8), b"/", &digits])
            }
        }
    }

    /// Returns the directory of the file.
    pub fn folder(self) -> Folder {
        match self {
            Self::Object(id) | Self::Segment(id) => Folder::Shard(id as u8),
            _ => Folder::Root,
        }
    }

    /// Returns the mode with which the file is created, whatever the umask.
    pub fn mode(self) -> u32 {
        match self {
            Self::Object(_) => 0o400,
            _ => 0o600,
        }
    }

    /// Returns the name under which the file is stored: a segment's is that of the copy of its number.
    pub(super) fn file(self) -> Self {
        match self {
            Self::Segment(id) => Self::Object(id),
            name => name,
        }
    }

    /// Returns the number of the copy that the entry `entry` of a part is, if it is ours: 16 lower-case hexadecimal
    /// digits that belong there.
    pub fn parse_object(shard: u8, entry: &[u8]) -> Option<u64> {
        let digits: &[u8; 16] = entry.try_into().ok()?;
        let id = digits.iter().try_fold(0_u64, |id, digit| Some(id << 4 | hex_value(*digit)?))?;
        (id as u8 == shard).then_some(id)
    }
}

impl Folder {
    /// Returns the path of the directory below the root.
    pub fn path(self) -> RelativePath {
        match self {
            Self::Root => RelativePath::of(&[b"."]),
            Self::Objects => RelativePath::of(&[b"objects"]),
            Self::Shard(shard) => RelativePath::of(&[b"objects/", &shard_digits(shard)]),
        }
    }

    /// Returns the part of `objects` that the entry `entry` is, if it is ours.
    pub fn parse_shard(entry: &[u8]) -> Option<u8> {
        let &[high, low] = entry else { return None };
        Some((hex_value(high)? << 4 | hex_value(low)?) as u8)
    }
}

fn hex_value(digit: u8) -> Option<u64> {
    match digit {
        b'0'..=b'9' => Some(u64::from(digit - b'0')),
        b'a'..=b'f' => Some(u64::from(digit - b'a') + 10),
        _ => None,
    }
}

/// Identity, mode and owner of a file on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskStat {
    /// Device, inode, size and times.
    pub identity: Identity,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
}

/// Size and free room of a disk's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Number of bytes that an unprivileged user may still take.
    pub free_bytes: u64,
    /// Number of inodes; `u64::MAX` if the file system does not report it.
    pub total_inodes: u64,
    /// Number of inodes that may still be taken; `u64::MAX` if the file system does not report it.
    pub free_inodes: u64,
    /// The file system's magic number (`f_type` of statfs).
    pub fs_magic: u64,
}

/// A held lock; dropping it (or the death of the process) releases it.
pub trait Lease: Send + Sync + Debug {}

/// Operations below one private root. Each is one attempt: the caller decides whether to repeat it.
pub trait Disk: Send + Sync + Debug {
    /// Creates a file that does not exist, and opens it for reading and writing. Whatever the umask, only its owner can
    /// read it, and write it unless it is a copy. `EEXIST` if the name exists; `ENOENT` if its directory is missing.
    fn create(&self, name: Name) -> Result<Box<dyn DiskFile>>;
    /// Opens an existing file for reading.
    fn open_read(&self, name: Name) -> Result<Box<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open_write(&self, name: Name) -> Result<Box<dyn DiskFile>>;
    /// Creates a directory with mode 0700.
    fn make_dir(&self, folder: Folder) -> Result<()>;
    /// Removes a file. Open descriptors stay readable.
    fn remove(&self, name: Name) -> Result<()>;
    /// Removes an empty directory (not the root).
    fn remove_dir(&self, folder: Folder) -> Result<()>;
    /// Replaces a file of the same directory by another, atomically.
    fn rename(&self, from: Name, to: Name) -> Result<()>;
    /// Reports the name of each entry of a directory except `.` and `..`, in no order.
    fn list(&self, folder: Folder, each: &mut dyn FnMut(&[u8])) -> Result<()>;
    /// Returns identity and mode of a file; a link is not followed.
    fn stat(&self, name: Name) -> Result<DiskStat>;
    /// Returns identity and mode of the root.
    fn stat_root(&self) -> Result<DiskStat>;
    /// Returns size and free room of the file system.
    fn room(&self) -> Result<DiskRoom>;
    /// Locks [`Name::Lease`], which is created if it is missing, and writes this process's number into it.
    /// `EWOULDBLOCK` if another process holds it.
    fn lock(&self) -> Result<Box<dyn Lease>>;
}

/// An open file of a disk.
pub trait DiskFile: Send + Sync + Debug {
    /// Writes some of `bytes` at `offset`. Returns their number.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize>;
    /// Reads some bytes at `offset`; returns 0 at the end.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize>;
    /// Returns identity and mode of the file.
    fn stat(&self) -> Result<DiskStat>;
    /// Sets the file's length.
    fn truncate(&self, size: u64) -> Result<()>;
    /// Makes the file read-only, and only for its owner.
    fn set_read_only(&self) -> Result<()>;
    /// Writes all dirty pages and drops the file from the page cache, so that the next read asks the disk.
    fn forget_pages(&self) -> Result<()>;
    /// Closes the file, and returns errors that the file system kept back until then (some report a lack of room only
    /// here).
    fn close(self: Box<Self>) -> Result<()>;
    /// Returns the kernel's descriptor, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// Writes all of `bytes` at `offset`. It goes on after short writes and interruptions; a write without progress is an
/// error (F4).
pub fn write_all_at(file: &dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        // A disk that takes nothing and reports no error is broken; repeating would spin.
        let written = match uninterrupted(|| file.write_at(bytes, offset))? {
            0 => return Err(Errno::IO),
            written => written.min(bytes.len()),
        };
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// Fills `bytes` from `offset` up to the file's end. Returns the number of bytes read.
pub fn read_full_at(file: &dyn DiskFile, bytes: &mut [u8], offset: u64) -> Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match uninterrupted(|| file.read_at(&mut bytes[filled..], offset + filled as u64))? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// Closes a file, and returns errors kept back until then. Linux closes it even if it reports an interruption.
pub(crate) fn close(file: Box<dyn DiskFile>) -> Result<()> {
    match file.close() {
        Err(Errno::INTR) => Ok(()),
        answer => answer,
    }
}

/// Repeats an operation that was interrupted before it did anything, up to a limit.
pub(crate) fn uninterrupted<T>(mut operation: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..crate::limits::INTERRUPTIONS_MAX {
        match operation() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
    Err(Errno::INTR)
}
