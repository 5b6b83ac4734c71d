//! The inodes that the kernel knows.
//!
//! An inode has the number of the file below, except the root, which FUSE fixes at 1. An `O_PATH` descriptor holds an
//! inode until the kernel forgets it. So renames and hard links need no book-keeping, an unlinked file that is still
//! open keeps its attributes, and the file system below can't give the number to another file meanwhile. Descriptors
//! are limited, though. Past a share of the limit, files are known by parent and name only, and found again each time;
//! directories are always held.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, openat, statat, statx};
use rustix::io::{Errno, Result};

/// Flags of a descriptor that holds an inode without access to its contents.
const HOLD: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Debug)]
enum NodePlace {
    Held(Arc<OwnedFd>),
    Named { parent: INodeNo, name: OsString },
}

#[derive(Debug)]
struct SlowNode {
    place: NodePlace,
    /// Number of lookups that the kernel got, less those that it forgot.
    lookups: u64,
}

#[derive(Debug)]
struct KnownInode {
    nodes: HashMap<u64, SlowNode>,
    held: usize,
}

/// The inodes that the kernel knows.
#[derive(Debug)]
pub(crate) struct Nodes {
    known: Mutex<KnownInode>,
    held_max: usize,
    root_dev: (u32, u32),
    root_ino: u64,
}

impl Nodes {
    /// Creates the table, which holds at most `held_max` files, and every directory.
    ///
    /// # Errors
    /// `src` can't be opened as a directory.
    pub(crate) fn new(src: &Path, held_max: usize) -> Result<Self> {
        let fd = openat(CWD, src, HOLD | OFlags::DIRECTORY, Mode::empty())?;
        let stat = stat_of(&fd)?;
        let root = SlowNode {
            place: NodePlace::Held(Arc::new(fd)),
            lookups: 1,
        };
        let known = Mutex::new(KnownInode {
            nodes: HashMap::from([(INodeNo::ROOT.0, root)]),
            held: 1,
        });
        Ok(Self {
            known,
            held_max,
            root_dev: (stat.stx_dev_major, stat.stx_dev_minor),
            root_ino: stat.stx_ino,
        })
    }

    /// Returns a descriptor of an inode that the kernel knows.
    ///
    /// # Errors
    /// ESTALE if the kernel does not know it, or its name leads to another file by now.
    pub(crate) fn get(&self, ino: INodeNo) -> Result<Arc<OwnedFd>> {
        let (parent, name) = match &self.lock().nodes.get(&ino.0).ok_or(Errno::STALE)?.place {
            NodePlace::Held(fd) => return Ok(Arc::clone(fd)),
            NodePlace::Named { parent, name } => (*parent, name.clone()),
        };
        // The kernel never forgets a directory while it knows a child, and directories are held: this recurs once.
        let fd = openat(self.get(parent)?, name, HOLD, Mode::empty()).map_err(|_| Errno::STALE)?;
        if self.number(stat_of(&fd)?.stx_ino) == ino {
            Ok(Arc::new(fd))
        } else {
            Err(Errno::STALE)
        }
    }

    /// Looks a name up in a directory and counts one lookup of its inode.
    ///
    /// # Errors
    /// Those of `openat`; ENOENT if another file system is mounted there, since those are not shown.
    pub(crate) fn enter(&self, parent: INodeNo, dir: impl AsFd, name: &OsStr) -> Result<FileAttr> {
        let fd = openat(dir, name, HOLD, Mode::empty())?;
        let stat = stat_of(&fd)?;
        if (stat.stx_dev_major, stat.stx_dev_minor) != self.root_dev {
            return Err(Errno::NOENT);
        }
        let attr = self.attr(&stat);
        let mut known = self.lock();
        let KnownInode { nodes, held } = &mut *known;
        let place = || NodePlace::Named {
            parent,
            name: name.to_owned(),
        };
        let node = nodes.entry(attr.ino.0).or_insert_with(|| SlowNode {
            place: place(),
            lookups: 0,
        });
        node.lookups += 1;
        if matches!(node.place, NodePlace::Named { .. }) {
            // The latest name is the most likely to still lead there.
            node.place = place();
            if attr.kind == FileType::Directory || *held < self.held_max {
                node.place = NodePlace::Held(Arc::new(fd));
                *held += 1;
            }
        }
        Ok(attr)
    }

    /// Follows a rename: an inode that is known by name only gets the new name. `dir` and `name` are its present place.
    pub(crate) fn renamed(&self, parent: INodeNo, dir: impl AsFd, name: &OsStr) {
        let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return;
        };
        if let Some(SlowNode {
            place: place @ NodePlace::Named { .. },
            ..
        }) = self.lock().nodes.get_mut(&stat.st_ino)
        {
            *place = NodePlace::Named {
                parent,
                name: name.to_owned(),
            };
        }
    }

    /// Takes back lookups; an inode without any is released.
    pub(crate) fn forget(&self, ino: INodeNo, lookups: u64) {
        let mut known = self.lock();
        let Some(node) = known.nodes.get_mut(&ino.0).filter(|_| ino != INodeNo::ROOT) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0
            && matches!(
                known.nodes.remove(&ino.0),
                Some(SlowNode {
                    place: NodePlace::Held(_),
                    ..
                })
            )
        {
            known.held -= 1;
        }
    }

    /// Returns an inode's present attributes.
    ///
    /// # Errors
    /// Those of `statx`.
    pub(crate) fn attr_of(&self, fd: impl AsFd) -> Result<FileAttr> {
        Ok(self.attr(&stat_of(fd)?))
    }

    /// Returns the number under which the kernel knows a file of the source.
    pub(crate) fn number(&self, ino: u64) -> INodeNo {
        if ino == self.root_ino { INodeNo::ROOT } else { INodeNo(ino) }
    }

    fn attr(&self, stat: &Statx) -> FileAttr {
        FileAttr {
            ino: self.number(stat.stx_ino),
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            crtime: time(stat.stx_btime),
            kind: kind(rustix::fs::FileType::from_raw_mode(u32::from(stat.stx_mode))),
            perm: stat.stx_mode & 0o7777,
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor) as u32,
            blksize: stat.stx_blksize,
            flags: 0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, KnownInode> {
        crate::pace::lock(&self.known)
    }
}

/// Returns a name of the inode behind an `O_PATH` descriptor, for calls that refuse such a descriptor itself.
pub(crate) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Returns the type of a directory entry or an inode in FUSE's terms.
pub(crate) fn kind(kind: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as Below;
    match kind {
        Below::Directory => FileType::Directory,
        Below::Symlink => FileType::Symlink,
        Below::Fifo => FileType::NamedPipe,
        Below::Socket => FileType::Socket,
        Below::CharacterDevice => FileType::CharDevice,
        Below::BlockDevice => FileType::BlockDevice,
        Below::RegularFile | Below::Unknown => FileType::RegularFile,
    }
}

/// Returns whether a name is one of the two that every directory has.
pub(crate) fn is_dot(name: &CStr) -> bool {
    name == c"." || name == c".."
}

/// Returns a C string as a file name.
pub(crate) fn os_str(name: &CStr) -> &OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name.to_bytes())
}

fn stat_of(fd: impl AsFd) -> Result<Statx> {
    statx(
        fd,
        c"",
        AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
        StatxFlags::BASIC_STATS | StatxFlags::BTIME,
    )
}

fn time(stamp: StatxTimestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(stamp.tv_nsec));
    match u64::try_from(stamp.tv_sec) {
        Ok(after) => UNIX_EPOCH + Duration::from_secs(after) + nanos,
        Err(_) => UNIX_EPOCH - Duration::from_secs(stamp.tv_sec.unsigned_abs()) + nanos,
    }
}
