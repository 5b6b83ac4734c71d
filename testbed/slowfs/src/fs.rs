//! Operations on the source. The server takes each in first: counts, delays, perhaps fails it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileHandle, INodeNo, Request, TimeOrNow};
use rustix::fs::{self as below, AtFlags, CWD, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid};
use rustix::io::{Errno, Result};

use crate::control::{Op, SlowServer};
use crate::node::{Nodes, proc_path};
use crate::pace::lock;

/// Flags of an open that the kernel or the mount handles: names are resolved before, offsets are absolute, and our
/// buffers are not aligned for direct I/O.
pub(crate) const NOT_PASSED_ON: OFlags = OFlags::APPEND
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::DIRECT)
    .union(OFlags::NOATIME);

/// The file system: SRC, shown slowly.
#[derive(Debug)]
pub(crate) struct SlowFs {
    pub(crate) server: Arc<SlowServer>,
    pub(crate) nodes: Nodes,
    files: Mutex<HashMap<u64, Arc<File>>>,
    next_handle: AtomicU64,
    pub(crate) readdirplus: bool,
    /// True for root: created files are given to the user who asked.
    give_away: bool,
}

impl SlowFs {
    /// Creates the file system of `src`.
    ///
    /// # Errors
    /// `src` is not a directory that can be opened.
    pub(crate) fn new(src: &Path, server: Arc<SlowServer>, readdirplus: bool, held_max: usize) -> Result<Self> {
        Ok(Self {
            server,
            nodes: Nodes::new(src, held_max)?,
            files: Mutex::default(),
            next_handle: AtomicU64::new(1),
            readdirplus,
            give_away: rustix::process::geteuid().is_root(),
        })
    }

    pub(crate) fn keep(&self, file: OwnedFd) -> FileHandle {
        let handle = self.next_handle.fetch_add(1, Relaxed);
        lock(&self.files).insert(handle, Arc::new(File::from(file)));
        FileHandle(handle)
    }

    pub(crate) fn file(&self, handle: FileHandle) -> Result<Arc<File>> {
        lock(&self.files).get(&handle.0).map(Arc::clone).ok_or(Errno::BADF)
    }

    pub(crate) fn let_go(&self, handle: FileHandle) {
        lock(&self.files).remove(&handle.0);
    }

    pub(crate) fn reopen(&self, ino: INodeNo, flags: OFlags) -> Result<OwnedFd> {
        below::openat(CWD, proc_path(&self.nodes.get(ino)?), flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Makes a name, gives the result to the user who asked, and enters it.
    pub(crate) fn make(
        &self,
        op: Op,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        make: impl FnOnce(&OwnedFd) -> Result<()>,
    ) -> Result<FileAttr> {
        self.server.take(op)?;
        let dir = self.nodes.get(parent)?;
        make(&dir)?;
        self.give_to(req, &dir, name)?;
        self.nodes.enter(parent, &dir, name)
    }

    fn give_to(&self, req: &Request, parent: &OwnedFd, name: &OsStr) -> Result<()> {
        if !self.give_away {
            return Ok(());
        }
        // In a set-group-id directory the group is the directory's; the file system below has set it.
        let inherits_group = Mode::from_raw_mode(below::statat(parent, c".", AtFlags::empty())?.st_mode).contains(Mode::SGID);
        let group = (!inherits_group).then(|| Gid::from_raw(req.gid()));
        below::chownat(parent, name, Some(Uid::from_raw(req.uid())), group, AtFlags::SYMLINK_NOFOLLOW)
    }

    pub(crate) fn create_file(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Result<(FileAttr, FileHandle)> {
        self.server.take(Op::Create)?;
        let dir = self.nodes.get(parent)?;
        // The kernel sends a create for a name that it believes absent. If another user has made it since, it must not
        // be given away.
        let flags = (open_flags(flags) & !NOT_PASSED_ON) | (open_flags(flags) & OFlags::EXCL) | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let file = match below::openat(&dir, name, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => below::openat(&dir, name, flags, Mode::empty())?,
            made => {
                let made = made?;
                self.give_to(req, &dir, name)?;
                if mode.intersects(Mode::SUID | Mode::SGID) {
                    // Changing the owner has cleared them.
                    below::fchmod(&made, mode)?;
                }
                made
            }
        };
        let attr = self.nodes.enter(parent, &dir, name)?;
        Ok((attr, self.keep(file)))
    }

    pub(crate) fn read_into(&self, handle: FileHandle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.server.take(Op::Read)?;
        let file = self.file(handle)?;
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(interrupted) if interrupted.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(below_error(&error)),
            }
        }
        self.server.send(filled);
        Ok(filled)
    }

    pub(crate) fn write_from(&self, handle: FileHandle, offset: u64, data: &[u8]) -> Result<()> {
        self.server.take(Op::Write)?;
        self.server.receive(data.len());
        self.file(handle)?.write_all_at(data, offset).map_err(|error| below_error(&error))
    }

    pub(crate) fn change(&self, ino: INodeNo, change: &AttrChange, handle: Option<FileHandle>) -> Result<FileAttr> {
        self.server.take(Op::Setattr)?;
        let node = self.nodes.get(ino)?;
        let path = proc_path(&node);
        if change.uid.is_some() || change.gid.is_some() {
            below::chownat(&*node, c"", change.uid, change.gid, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(mode) = change.mode {
            below::chmod(path.as_str(), mode)?;
        }
        match (change.size, handle) {
            (Some(size), Some(handle)) => below::ftruncate(&*self.file(handle)?, size)?,
            (Some(size), None) => below::ftruncate(self.reopen(ino, OFlags::WRONLY)?, size)?,
            (None, _) => {}
        }
        if change.atime.is_some() || change.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(change.atime),
                last_modification: timespec(change.mtime),
            };
            below::utimensat(&*node, c"", &times, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.nodes.attr_of(&*node)
    }

    /// Calls `add` for the entries from `offset` on until it reports that the answer is full. It counts as one request.
    pub(crate) fn list(
        &self,
        op: Op,
        handle: FileHandle,
        offset: u64,
        mut add: impl FnMut(&File, &below::RawDirEntry<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.server.take(op)?;
        let dir = self.file(handle)?;
        below::seek(&*dir, SeekFrom::Start(offset))?;
        let mut buffer = Vec::with_capacity(32 * 1024);
        let mut entries = below::RawDir::new(&*dir, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            if add(&dir, &entry?)? {
                break;
            }
        }
        Ok(())
    }
}

/// Changes that a setattr requests.
#[derive(Debug)]
pub(crate) struct AttrChange {
    pub(crate) mode: Option<Mode>,
    pub(crate) uid: Option<Uid>,
    pub(crate) gid: Option<Gid>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<TimeOrNow>,
    pub(crate) mtime: Option<TimeOrNow>,
}

/// Returns flags as the kernel sends them.
pub(crate) fn open_flags(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags as u32)
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |nanos| Timespec { tv_sec: 0, tv_nsec: nanos };
    match time {
        None => special(below::UTIME_OMIT),
        Some(TimeOrNow::Now) => special(below::UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timespec {
                tv_sec: after.as_secs() as i64,
                tv_nsec: i64::from(after.subsec_nanos()),
            },
            // fuser subtracts the nanoseconds of a time before 1970 instead of adding them: this undoes it.
            Err(before) => {
                let span = before.duration();
                Timespec {
                    tv_sec: -(span.as_secs() as i64),
                    tv_nsec: i64::from(span.subsec_nanos()),
                }
            }
        },
    }
}

fn below_error(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
