//! The private root of a tier, created and checked through descriptors, so that no name is resolved twice (S1, S2).

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::disk::Name;
use crate::error::{Lack, StoreError};

/// Identity of the machine's boot. Copies written in another boot may have lost what was never synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Returns the running boot. If the kernel does not tell it, the identity is random, and no earlier copy is trusted
    /// without verification.
    pub fn current() -> Self {
        let mut text = [0_u8; 36];
        let mut id = [0_u8; 16];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let read = rustix::fs::open("/proc/sys/kernel/random/boot_id", flags, Mode::empty())
            .and_then(|fd| rustix::io::read(fd, &mut text))
            .unwrap_or(0);
        if read == text.len() {
            id.copy_from_slice(&blake3::hash(&text).as_bytes()[..16]);
        } else {
            crate::secret::fill_random(&mut id);
        }
        Self(id)
    }
}

/// Returns the path of the private root of the user `uid` in the tier directory `dir`.
pub fn root_path(dir: &Path, uid: u32) -> PathBuf {
    dir.join(format!("forebay-{uid}"))
}

/// Returns the path of the copy `id` of the user `uid` in the tier directory `dir`.
pub fn copy_path(dir: &Path, uid: u32, id: u64) -> PathBuf {
    root_path(dir, uid).join(OsStr::from_bytes(Name::Object(id).path().as_bytes()))
}

/// Opens the private root in `dir`, which must exist, and creates the root if it is missing.
pub(crate) fn open_or_make(dir: &Path, uid: u32) -> Result<OwnedFd, StoreError> {
    let dir_fd = open_dir(dir)?;
    let path = root_path(dir, uid);
    let name = format!("forebay-{uid}");
    let is_new = make(&dir_fd, &name, &path)?;
    let opened = open_checked(&dir_fd, &name, &path, uid);
    if is_new && opened.is_err() && is_open_to_others(&dir_fd, &name) {
        let _ = rustix::fs::unlinkat(&dir_fd, &name, AtFlags::REMOVEDIR);
        return Err(forgets_permissions(dir));
    }
    opened?.ok_or_else(|| StoreError::tier(&path, "open", Errno::NOENT))
}

/// Calls `with` with a new private directory in `dir`, and removes it afterwards; `with` leaves it empty.
pub(crate) fn with_temporary<T>(dir: &Path, uid: u32, with: impl FnOnce(OwnedFd) -> T) -> Result<T, StoreError> {
    let dir_fd = open_dir(dir)?;
    let name = format!("forebay-{uid}.trial-{:08x}", crate::secret::random_u32());
    let path = dir.join(&name);
    if !make(&dir_fd, &name, &path)? {
        return Err(StoreError::tier(&path, "create", Errno::EXIST));
    }
    let answer = match open_checked(&dir_fd, &name, &path, uid) {
        Err(_) if is_open_to_others(&dir_fd, &name) => Err(forgets_permissions(dir)),
        Ok(None) => Err(StoreError::tier(&path, "open", Errno::NOENT)),
        Ok(Some(fd)) => Ok(with(fd)),
        Err(error) => Err(error),
    };
    let _ = rustix::fs::unlinkat(&dir_fd, &name, AtFlags::REMOVEDIR);
    answer
}

/// Creates a directory for its owner alone. Returns whether it is new.
fn make(dir: &OwnedFd, name: &str, path: &Path) -> Result<bool, StoreError> {
    match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(StoreError::tier(path, "create", errno)),
    }
}

/// Returns whether a directory that was created for its owner alone gives others rights.
fn is_open_to_others(dir: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_mode & 0o077 != 0)
}

fn forgets_permissions(dir: &Path) -> StoreError {
    StoreError::Unfit {
        path: dir.to_owned(),
        lack: Lack::Permissions,
    }
}

/// Opens the private root in `dir`, if there is one.
pub(crate) fn open_existing(dir: &Path, uid: u32) -> Result<Option<OwnedFd>, StoreError> {
    let dir_fd = open_dir(dir)?;
    open_checked(&dir_fd, &format!("forebay-{uid}"), &root_path(dir, uid), uid)
}

/// Removes the private root, which must be empty and still be the directory that is open as `root`.
pub(crate) fn remove(dir: &Path, uid: u32, root: &Stat) -> Result<(), StoreError> {
    let path = root_path(dir, uid);
    let name = format!("forebay-{uid}");
    let dir_fd = open_dir(dir)?;
    let named = rustix::fs::statat(&dir_fd, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| StoreError::tier(&path, "stat", errno))?;
    if (named.st_dev, named.st_ino) != (root.st_dev, root.st_ino) {
        return Err(StoreError::NotPrivate {
            path,
            why: "it was exchanged while it was being removed".to_owned(),
        });
    }
    rustix::fs::unlinkat(&dir_fd, &name, AtFlags::REMOVEDIR).map_err(|errno| StoreError::tier(&path, "remove", errno))
}

/// Opens the directory that the user named; links on the way to it are the user's own choice.
fn open_dir(dir: &Path) -> Result<OwnedFd, StoreError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::empty()).map_err(|errno| StoreError::tier(dir, "open", errno))?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| StoreError::tier(dir, "stat", errno))?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX) {
        let why = "everybody may rename its contents: use a directory of your own in it, or set its sticky bit".to_owned();
        return Err(StoreError::NotPrivate { path: dir.to_owned(), why });
    }
    Ok(fd)
}

fn open_checked(dir: &OwnedFd, name: &str, path: &Path, uid: u32) -> Result<Option<OwnedFd>, StoreError> {
    let refused = |why: String| StoreError::NotPrivate {
        path: path.to_owned(),
        why,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(refused("it is a link or no directory: remove it".to_owned())),
        Err(Errno::ACCESS) => {
            return Err(refused(
                "it belongs to somebody else: remove it, or use another directory".to_owned(),
            ));
        }
        Err(errno) => return Err(StoreError::tier(path, "open", errno)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(|errno| StoreError::tier(path, "stat", errno))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(refused("it is not a directory: remove it".to_owned()));
    }
    if stat.st_uid != uid {
        return Err(refused(format!(
            "it belongs to user {}: remove it, or use another directory",
            stat.st_uid
        )));
    }
    // The set-group-id bit is inherited from the directory above and gives nobody access.
    if stat.st_mode & 0o5777 != 0o700 {
        return Err(refused(format!(
            "its mode is {:04o}, not 0700: remove it, or change its mode",
            stat.st_mode & 0o7777
        )));
    }
    Ok(Some(fd))
}
