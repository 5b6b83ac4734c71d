//! A source file: only ever read, through a descriptor that somebody opened.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_contract::{Attributes, FileTime, Identity};
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use rustix::io::Errno;

use crate::disk::Result;

/// Whom to ask what a source file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// What this machine's kernel knows, as far as the file system lets it: no round trip.
    Kernel,
    /// The server, as `fstat` does.
    Server,
}

/// What a source file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStat {
    /// Which version of which file.
    pub identity: Identity,
    /// The rest that `fstat` tells.
    pub attributes: Attributes,
}

/// A file to copy from.
pub trait Source {
    /// What it is.
    fn stat(&self, ask: Ask) -> Result<SourceStat>;
    /// Reads some bytes at `offset`; 0 at the end. The file offset of the descriptor, which a program shares, is left alone.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize>;
    /// Has this machine's kernel forget the first `bytes` of it, so that the next read asks the server.
    fn forget_pages(&self, bytes: u64) -> Result<()>;
}

/// A source file by its descriptor.
#[derive(Debug)]
pub struct SourceFile(OwnedFd);

/// All that is needed, and not the access time: on FUSE a read makes that one stale, and asking for it is a round trip.
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
    /// The file behind `descriptor`, which must be open for reading.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// The descriptor again.
    pub fn into_descriptor(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for SourceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Source for SourceFile {
    fn stat(&self, ask: Ask) -> Result<SourceStat> {
        let sync = match ask {
            Ask::Kernel => AtFlags::STATX_DONT_SYNC,
            Ask::Server => AtFlags::STATX_FORCE_SYNC,
        };
        match rustix::fs::statx(&self.0, c"", AtFlags::EMPTY_PATH | sync, WANTED) {
            Ok(statx) => Ok(from_statx(&statx)),
            // Kernels and sandboxes without statx have fstat, which asks the server where the file system does.
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
    /// Whether this is a regular file.
    pub fn is_regular(&self) -> bool {
        FileType::from_raw_mode(self.attributes.mode) == FileType::RegularFile
    }

    /// Returns whether the file takes less room at the source than its size: it may have holes.
    pub fn may_have_holes(&self) -> bool {
        // Blocks of 512 bytes, whatever those of the file system.
        self.attributes.blocks.saturating_mul(512) < self.identity.size
    }

    /// Whether this is a directory, whose copy is a listing of it.
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
