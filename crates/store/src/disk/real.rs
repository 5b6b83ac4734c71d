//! A disk that is a directory: the kernel resolves every path below a held descriptor, through no link and no mount.

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

use forebay_contract::{FileTime, Identity};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::process::Pid;

use super::{Disk, DiskFile, DiskRoom, DiskStat, Folder, Lease, Name, Result, uninterrupted, write_all_at};
use crate::limits;

/// A directory of the operating system. Its descriptor is held, so later changes of its name do not matter.
#[derive(Debug)]
pub struct RealDisk {
    root: OwnedFd,
    dev: u64,
    has_openat2: bool,
}

impl RealDisk {
    /// Creates a disk whose root is the open directory `root`. The caller checks that it is private.
    pub fn new(root: OwnedFd) -> Result<Self> {
        let dev = rustix::fs::fstat(&root)?.st_dev;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let has_openat2 = rustix::fs::openat2(&root, ".", flags, Mode::empty(), ResolveFlags::BENEATH).is_ok();
        Ok(Self { root, dev, has_openat2 })
    }

    /// Creates a disk that walks from directory to directory as on kernels before 5.6, for tests on newer ones.
    pub fn without_openat2(root: OwnedFd) -> Result<Self> {
        Ok(Self {
            has_openat2: false,
            ..Self::new(root)?
        })
    }

    fn open(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if self.has_openat2 {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            // AGAIN: a rename elsewhere in the system made the kernel unsure whether the walk stayed below; it asks to
            // try again.
            for _ in 0..limits::INTERRUPTIONS_MAX {
                match rustix::fs::openat2(&self.root, path, flags, mode, resolve) {
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    answer => return answer,
                }
            }
            return Err(Errno::AGAIN);
        }
        self.walk(path, flags, mode)
    }

    fn walk(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let mut at: Option<OwnedFd> = None;
        let mut rest = path;
        while let Some(slash) = rest.iter().position(|byte| *byte == b'/') {
            let next = self.walk_into(at.as_ref(), &rest[..slash])?;
            at = Some(next);
            rest = &rest[slash + 1..];
        }
        let from = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
        uninterrupted(|| rustix::fs::openat(from, rest, flags, mode))
    }

    fn walk_into(&self, at: Option<&OwnedFd>, part: &[u8]) -> Result<OwnedFd> {
        let from = at.map_or(self.root.as_fd(), AsFd::as_fd);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = uninterrupted(|| rustix::fs::openat(from, part, flags, Mode::empty()))?;
        if rustix::fs::fstat(&next)?.st_dev == self.dev {
            Ok(next)
        } else {
            Err(Errno::XDEV)
        }
    }

    fn folder(&self, folder: Folder) -> Result<OwnedFd> {
        self.open(folder.path().as_bytes(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
    }

    /// Calls `with` with the directory that holds `path` and the last part of `path`.
    fn parent<T>(&self, folder: Folder, path: &[u8], with: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<T>) -> Result<T> {
        let last = path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[slash + 1..]);
        match folder {
            Folder::Root => with(self.root.as_fd(), last),
            _ => with(self.folder(folder)?.as_fd(), last),
        }
    }

    fn parent_of_folder(folder: Folder) -> Result<Folder> {
        match folder {
            Folder::Root => Err(Errno::BUSY),
            Folder::Objects => Ok(Folder::Root),
            Folder::Shard(_) => Ok(Folder::Objects),
        }
    }

    /// Returns whether anybody holds the lease; creates and changes nothing.
    pub(crate) fn is_leased(&self) -> Result<bool> {
        let fd = match self.open(Name::Lease.path().as_bytes(), OFlags::RDONLY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(false),
            answer => answer?,
        };
        match uninterrupted(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared)) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// Tries once to take the lease; `None` if the name no longer leads to the locked file.
    fn try_lock(&self) -> Result<Option<RealLease>> {
        let path = Name::Lease.path();
        let mode = Mode::from_raw_mode(Name::Lease.mode());
        let fd = self.open(path.as_bytes(), OFlags::RDWR | OFlags::CREATE, mode)?;
        uninterrupted(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive))?;
        let held = rustix::fs::fstat(&fd)?;
        match rustix::fs::statat(&self.root, path.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) if named.st_ino == held.st_ino && named.st_dev == held.st_dev => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let file = RealFile(fd);
        // The number only serves messages; a full disk must not prevent the lease.
        let pid = rustix::process::getpid();
        let _ = file
            .truncate(0)
            .and_then(|()| write_all_at(&file, format!("{}\n", Pid::as_raw(Some(pid))).as_bytes(), 0));
        Ok(Some(RealLease { _file: file }))
    }
}

impl Disk for RealDisk {
    fn create(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        let mode = Mode::from_raw_mode(name.mode());
        let fd = self.open(name.path().as_bytes(), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)?;
        Ok(Box::new(RealFile(fd)))
    }

    fn open_read(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        let fd = self.open(name.path().as_bytes(), OFlags::RDONLY, Mode::empty())?;
        Ok(Box::new(RealFile(fd)))
    }

    fn open_write(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        let fd = self.open(name.path().as_bytes(), OFlags::RDWR, Mode::empty())?;
        Ok(Box::new(RealFile(fd)))
    }

    fn make_dir(&self, folder: Folder) -> Result<()> {
        self.parent(Self::parent_of_folder(folder)?, folder.path().as_bytes(), |parent, last| {
            rustix::fs::mkdirat(parent, last, Mode::RWXU)
        })
    }

    fn remove(&self, name: Name) -> Result<()> {
        self.parent(name.folder(), name.path().as_bytes(), |parent, last| {
            rustix::fs::unlinkat(parent, last, AtFlags::empty())
        })
    }

    fn remove_dir(&self, folder: Folder) -> Result<()> {
        self.parent(Self::parent_of_folder(folder)?, folder.path().as_bytes(), |parent, last| {
            rustix::fs::unlinkat(parent, last, AtFlags::REMOVEDIR)
        })
    }

    fn rename(&self, from: Name, to: Name) -> Result<()> {
        if from.folder() != Folder::Root || to.folder() != Folder::Root {
            return Err(Errno::INVAL);
        }
        rustix::fs::renameat(&self.root, from.path().as_bytes(), &self.root, to.path().as_bytes())
    }

    fn list(&self, folder: Folder, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let fd = self.open(folder.path().as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut entries = rustix::fs::RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            match entry?.file_name().to_bytes() {
                b"." | b".." => {}
                name => each(name),
            }
        }
        Ok(())
    }

    fn stat(&self, name: Name) -> Result<DiskStat> {
        self.parent(name.folder(), name.path().as_bytes(), |parent, last| {
            Ok(disk_stat(&rustix::fs::statat(parent, last, AtFlags::SYMLINK_NOFOLLOW)?))
        })
    }

    fn stat_root(&self) -> Result<DiskStat> {
        Ok(disk_stat(&rustix::fs::fstat(&self.root)?))
    }

    fn room(&self) -> Result<DiskRoom> {
        // Another file system may be mounted over the root, so ask for the one of the descriptor that we write to.
        let fs = rustix::fs::fstatfs(&self.root)?;
        let block = fs.f_bsize as u64;
        // Some file systems (btrfs, many network ones) have no fixed number of inodes and report 0.
        let inodes = |count: u64| if fs.f_files == 0 { u64::MAX } else { count };
        Ok(DiskRoom {
            total_bytes: fs.f_blocks.saturating_mul(block),
            free_bytes: fs.f_bavail.saturating_mul(block),
            total_inodes: inodes(fs.f_files),
            free_inodes: inodes(fs.f_ffree),
            fs_magic: fs.f_type as u64,
        })
    }

    fn lock(&self) -> Result<Box<dyn Lease>> {
        for _ in 0..limits::LEASE_ATTEMPTS_MAX {
            match self.try_lock() {
                Ok(Some(lease)) => return Ok(Box::new(lease)),
                Ok(None) => {}
                // A process that only checks the lease ([`RealDisk::is_leased`]) holds it for an instant.
                Err(Errno::WOULDBLOCK) => std::thread::sleep(limits::LEASE_PAUSE),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::WOULDBLOCK)
    }
}

/// The lock lives as long as the descriptor.
#[derive(Debug)]
struct RealLease {
    _file: RealFile,
}

impl Lease for RealLease {}

#[derive(Debug)]
struct RealFile(OwnedFd);

impl DiskFile for RealFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        rustix::io::pwrite(&self.0, bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        rustix::io::pread(&self.0, bytes, offset)
    }

    fn stat(&self) -> Result<DiskStat> {
        Ok(disk_stat(&rustix::fs::fstat(&self.0)?))
    }

    fn truncate(&self, size: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.0, size)
    }

    fn set_read_only(&self) -> Result<()> {
        rustix::fs::fchmod(&self.0, Mode::RUSR)
    }

    fn forget_pages(&self) -> Result<()> {
        // Dirty pages can't be dropped.
        rustix::fs::fdatasync(&self.0)?;
        rustix::fs::fadvise(&self.0, 0, None, rustix::fs::Advice::DontNeed)
    }

    fn close(self: Box<Self>) -> Result<()> {
        close(self.0)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// Closes a descriptor and returns the result of `close`, which `Drop` swallows.
#[expect(unsafe_code, reason = "the one place: close with its answer has no safe form")]
fn close(fd: OwnedFd) -> Result<()> {
    // SAFETY: `into_raw_fd` gives up ownership, so the descriptor is open, ours alone, and closed by nobody else
    // afterwards.
    unsafe { rustix::io::try_close(fd.into_raw_fd()) }
}

fn disk_stat(stat: &Stat) -> DiskStat {
    DiskStat {
        identity: identity_of(stat),
        mode: stat.st_mode,
        uid: stat.st_uid,
    }
}

/// Returns the identity in a result of `fstat`.
pub(crate) fn identity_of(stat: &Stat) -> Identity {
    let time = |sec: i64, nsec: u64| FileTime { sec, nsec: nsec as u32 };
    Identity {
        dev: stat.st_dev,
        ino: stat.st_ino,
        size: stat.st_size as u64,
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}
