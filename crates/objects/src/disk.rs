//! Calls on the local file system, each by descriptor and beneath one directory: no link that somebody put into a view
//! leads a write or a removal out of it.

use std::{
    ffi::{CStr, OsStr},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags, RawDir},
    io::Errno,
    process::geteuid,
};
use twox_hash::XxHash3_128;

use crate::{Error, limits};

/// Size and times of a fetched file, from `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FetchedStat {
    pub(crate) size: u64,
    pub(crate) modified_ms: i64,
}

/// An open directory, and its name for messages.
#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
}

const DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl Dir {
    /// Opens the directory that the user named; links on the way to it are the user's own choice.
    pub(crate) fn named(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, Mode::empty()).map_err(|errno| Error::disk(path, "open", errno))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a directory in it, if there is one.
    pub(crate) fn dir(&self, name: &str) -> Result<Option<Self>, Error> {
        match fs::openat(&self.fd, name, DIR, Mode::empty()) {
            Ok(fd) => Ok(Some(Self {
                fd,
                path: self.path.join(name),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error(name, "open", errno)),
        }
    }

    /// Opens a directory in it, or creates it for its owner alone.
    pub(crate) fn make_dir(&self, name: &str) -> Result<Self, Error> {
        match fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.error(name, "create", errno)),
        }
        self.dir(name)?.ok_or_else(|| self.error(name, "open", Errno::NOENT))
    }

    /// Refuses a directory that another user could have prepared (S2).
    pub(crate) fn check_private(&self) -> Result<(), Error> {
        let stat = fs::fstat(&self.fd).map_err(|errno| Error::disk(&self.path, "stat", errno))?;
        let others = Mode::from_raw_mode(stat.st_mode).intersection(Mode::RWXG | Mode::RWXO);
        if stat.st_uid == geteuid().as_raw() && others.is_empty() {
            return Ok(());
        }
        Err(Error::Input(format!(
            "{} is not this user's alone: remove it, or name another directory",
            self.path.display()
        )))
    }

    /// Refuses a directory that another user has made or may write to, since its files may be anybody's.
    pub(crate) fn check_own(&self) -> Result<(), Error> {
        let stat = fs::fstat(&self.fd).map_err(|errno| Error::disk(&self.path, "stat", errno))?;
        let writers = Mode::from_raw_mode(stat.st_mode).intersection(Mode::WGRP | Mode::WOTH);
        if stat.st_uid == geteuid().as_raw() && writers.is_empty() {
            return Ok(());
        }
        Err(Error::Input(format!(
            "{} belongs to somebody else, or others may write in it: write chmod go-w if it is yours, or name another directory",
            self.path.display()
        )))
    }

    /// Returns the `stat` of the regular file of this name, if there is one.
    pub(crate) fn stat(&self, name: &str) -> Result<Option<FetchedStat>, Error> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Ok(Some(FetchedStat {
                size: stat.st_size as u64,
                modified_ms: stat.st_mtime.saturating_mul(1000) + stat.st_mtime_nsec as i64 / 1_000_000,
            })),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error(name, "stat", errno)),
        }
    }

    /// Returns the checksum of a file.
    pub(crate) fn checksum(&self, name: &str) -> Result<String, Error> {
        let failed = |error: io::Error| Error::disk(&self.path.join(name), "read", error);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&self.fd, name, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        checksum(File::from(fd)).map_err(failed)
    }

    /// Returns all names in it.
    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        self.each(&mut |name| {
            names.extend(name.to_str().ok().map(str::to_owned));
        })?;
        Ok(names)
    }

    pub(crate) fn is_empty(&self) -> Result<bool, Error> {
        let mut is_empty = true;
        self.each(&mut |_| is_empty = false)?;
        Ok(is_empty)
    }

    fn each(&self, call: &mut dyn FnMut(&CStr)) -> Result<(), Error> {
        // A descriptor of its own, since a descriptor keeps a position of reading.
        let failed = |errno| Error::disk(&self.path, "list", errno);
        let fd = fs::openat(&self.fd, ".", DIR, Mode::empty()).map_err(failed)?;
        let mut room = Vec::with_capacity(32 << 10);
        let mut entries = RawDir::new(fd, room.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed)?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                call(entry.file_name());
            }
        }
        Ok(())
    }

    /// Removes a file; a missing file does not count as an error.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Error> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error(name, "remove", errno)),
        }
    }

    /// Removes a directory if it is empty. Returns whether it is gone.
    pub(crate) fn remove_dir(&self, name: &str) -> Result<bool, Error> {
        match fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(self.error(name, "remove", errno)),
        }
    }

    /// Moves a file or directory to another name in another directory.
    pub(crate) fn rename(&self, name: &str, to: &Self, new: &str) -> Result<(), Errno> {
        fs::renameat(&self.fd, name, &to.fd, new)
    }

    /// Blocks until all writes to its file system are on the disk.
    pub(crate) fn sync_all(&self) -> Result<(), Error> {
        fs::syncfs(&self.fd).map_err(|errno| Error::disk(&self.path, "write", errno))
    }

    /// Blocks until the names in it are on the disk.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        fs::fsync(&self.fd).map_err(|errno| Error::disk(&self.path, "write", errno))
    }

    /// Returns the room of its file system above the part that stays free: bytes, and inodes if they are counted.
    pub(crate) fn room(&self) -> Result<(u64, u64), Error> {
        let stat = fs::fstatvfs(&self.fd).map_err(|errno| Error::disk(&self.path, "ask the room of", errno))?;
        let part = |total: u64| total / 100 * limits::FLOOR_PERCENT;
        let bytes = stat.f_bavail.saturating_sub(part(stat.f_blocks)).saturating_mul(stat.f_frsize);
        let inodes = if stat.f_files == 0 {
            u64::MAX
        } else {
            stat.f_favail.saturating_sub(part(stat.f_files))
        };
        Ok((bytes, inodes))
    }

    pub(crate) fn error(&self, name: &str, operation: &'static str, errno: Errno) -> Error {
        Error::disk(&self.path.join(OsStr::from_bytes(name.as_bytes())), operation, errno)
    }
}

/// Returns the XXH3-128 checksum of a reader's bytes, in hexadecimal digits.
pub(crate) fn checksum(mut reader: impl Read) -> io::Result<String> {
    let mut hasher = Box::new(XxHash3_128::new());
    let mut piece = vec![0; limits::PIECE_BYTES];
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Ok(format!("{:032x}", hasher.finish_128())),
            Ok(count) => hasher.write(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Creates a file in a directory, private to its owner, or truncates an existing one.
pub(crate) fn create(dir: &Dir, name: &str) -> Result<File, Error> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = fs::openat(&dir.fd, name, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| dir.error(name, "create", errno))?;
    Ok(File::from(fd))
}

/// A tree of directories, for access to one path after the other: in sorted order each directory is opened once.
#[derive(Debug)]
pub(crate) struct DirectoryTree {
    root: Dir,
    last: Option<(String, Dir)>,
}

impl DirectoryTree {
    pub(crate) fn new(root: Dir) -> Self {
        Self { root, last: None }
    }

    /// Returns the directory of a path, and the last name; `None` if the directory is missing. Follows no link.
    pub(crate) fn find<'a>(&mut self, path: &'a str, make: bool) -> Result<Option<(&Dir, &'a str)>, Error> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        if above.is_empty() {
            return Ok(Some((&self.root, name)));
        }
        if self.last.as_ref().is_none_or(|(known, _)| known != above) {
            let mut at: Option<Dir> = None;
            for part in above.split('/') {
                let dir = at.as_ref().unwrap_or(&self.root);
                let next = if make { dir.make_dir(part).map(Some) } else { dir.dir(part) };
                match next {
                    Ok(Some(next)) => at = Some(next),
                    Ok(None) => return Ok(None),
                    // Without a directory there is no file; an attempt to make one meets the obstacle and reports it.
                    Err(_) if !make && is_no_dir(dir, part) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            let Some(dir) = at else { return Ok(None) };
            self.last = Some((above.to_owned(), dir));
        }
        Ok(self.last.as_ref().map(|(_, dir)| (dir, name)))
    }

    /// Forgets the open directory, since it may be removed.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }
}

fn is_no_dir(dir: &Dir, name: &str) -> bool {
    fs::statat(dir.fd.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory)
}
