//! A source file: only read, through a descriptor that a program opened.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_contract::{Attributes, FileTime, Identity};
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use rustix::io::Errno;

use crate::disk::Result;

/// Authority on the state of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatFrom {
    /// This machine's kernel, as far as the file system allows: without a round trip.
    Kernel,
    /// The server, as with `fstat`.
    Server,
}

/// Identity and attributes of a source file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStat {
    /// Version of the file.
    pub identity: Identity,
    /// Attributes that `fstat` reports besides.
    pub attributes: Attributes,
}

/// A file to copy from.
pub trait CopySource {
    /// Returns the file's identity and attributes.
    fn stat(&self, ask: StatFrom) -> Result<SourceStat>;
    /// Reads some bytes at `offset`; returns 0 at the end. Leaves the file offset of the descriptor alone, which a
    /// program shares.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize>;
    /// Drops the first `bytes` of the file from this machine's page cache, so that the next read asks the server.
    fn forget_pages(&self, bytes: u64) -> Result<()>;
}

/// A source file, accessed through its descriptor.
#[derive(Debug)]
pub struct SourceFile(OwnedFd);

/// Fields of `statx` that are needed. The access time is not: on FUSE a read makes it stale, and asking for it costs a
/// round trip.
const WANTED: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::MODE)
    .union(StatxFlags::NLINK)
    .union(StatxFlags::UID)
    .union(StatxFlags::GID)
    .union(StatxFlags::MTIME)
    .union(StatxFlags::CTIME)
    .union(StatxFlags::INO)
    .union(StatxFlags::SIZE)
    .union(StatxFlags::BLOCKS);

impl SourceFile {
    /// Wraps `descriptor`, which must be open for reading.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for SourceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl CopySource for SourceFile {
    fn stat(&self, ask: StatFrom) -> Result<SourceStat> {
        let sync = match ask {
            StatFrom::Kernel => AtFlags::STATX_DONT_SYNC,
            StatFrom::Server => AtFlags::STATX_FORCE_SYNC,
        };
        match rustix::fs::statx(&self.0, c"", AtFlags::EMPTY_PATH | sync, WANTED) {
            Ok(statx) => Ok(from_statx(&statx)),
            // Kernels and sandboxes without statx have fstat, which asks the server if the file system does.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => from_fstat(&self.0),
            Err(errno) => Err(errno),
        }
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        rustix::io::pread(&self.0, bytes, offset)
    }

    fn forget_pages(&self, bytes: u64) -> Result<()> {
        rustix::fs::fadvise(&self.0, 0, std::num::NonZeroU64::new(bytes), rustix::fs::Advice::DontNeed)
    }
}

impl SourceStat {
    /// Returns whether this is a regular file.
    pub fn is_regular(&self) -> bool {
        FileType::from_raw_mode(self.attributes.mode) == FileType::RegularFile
    }

    /// Returns whether the file takes less room at the source than its size: it may have holes.
    pub fn may_have_holes(&self) -> bool {
        // Blocks have 512 bytes on every file system.
        self.attributes.blocks.saturating_mul(512) < self.identity.size
    }

    /// Returns whether this is a directory, whose copy is a cached directory.
    pub fn is_directory(&self) -> bool {
        self.attributes.is_directory()
    }
}

fn from_statx(statx: &Statx) -> SourceStat {
    let time = |time: rustix::fs::StatxTimestamp| FileTime {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    };
    SourceStat {
        identity: Identity {
            dev: rustix::fs::makedev(statx.stx_dev_major, statx.stx_dev_minor),
            ino: statx.stx_ino,
            size: statx.stx_size,
            mtime: time(statx.stx_mtime),
            ctime: time(statx.stx_ctime),
        },
        attributes: Attributes {
            mode: u32::from(statx.stx_mode),
            uid: statx.stx_uid,
            gid: statx.stx_gid,
            nlink: statx.stx_nlink,
            blksize: statx.stx_blksize,
            blocks: statx.stx_blocks,
        },
    }
}

fn from_fstat(fd: &OwnedFd) -> Result<SourceStat> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(SourceStat {
        identity: crate::disk::identity_of(&stat),
        attributes: Attributes {
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            nlink: stat.st_nlink as u32,
            blksize: stat.st_blksize as u32,
            blocks: stat.st_blocks as u64,
        },
    })
}
