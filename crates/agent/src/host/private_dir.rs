//! Directories that nobody else can have prepared for us (fault S2).

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{self, FileType, Mode, OFlags};

use crate::host::error::{AgentError, io_error};

/// Makes `path` (its parent must exist) or takes it if it is a directory of this user with mode 0700 and no link; else
/// refuses it. Gives a descriptor of the very directory that was checked.
pub fn private_dir(path: &Path) -> Result<OwnedFd, AgentError> {
    match fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(io_error("make", path)(errno.into())),
    }
    let refuse = |why| AgentError::NotPrivate {
        path: path.to_owned(),
        why,
    };
    let dir = match fs::open(
        path,
        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Ok(dir) => dir,
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => return Err(refuse("it is a link or no directory")),
        Err(rustix::io::Errno::ACCESS) => return Err(refuse("it belongs to another user")),
        Err(errno) => return Err(io_error("open", path)(errno.into())),
    };
    let stat = fs::fstat(&dir).map_err(|errno| io_error("stat", path)(io::Error::from(errno)))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(refuse("it is not a directory"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refuse("it belongs to another user"));
    }
    // A umask may have taken bits from a directory that we made; only bits for others are a danger.
    if stat.st_mode & 0o077 != 0 {
        return Err(refuse("others can read or write it"));
    }
    Ok(dir)
}

/// Returns true for a directory that [`private_dir`] takes; makes none.
pub fn is_private_dir(path: &Path) -> bool {
    path.is_dir() && private_dir(path).is_ok()
}

/// Returns the paths in a private directory, sorted. One that is not private has none: it is not ours.
pub fn paths_in(dir: &Path) -> Vec<PathBuf> {
    if !is_private_dir(dir) {
        return Vec::new();
    }
    let entries = dir.read_dir().into_iter().flatten().filter_map(Result::ok);
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Makes or takes a private directory like [`private_dir`], and makes its missing parents. Existing parents are not
/// checked.
pub fn private_dir_all(path: &Path) -> Result<OwnedFd, AgentError> {
    let mut missing: Vec<PathBuf> = Vec::new();
    let mut at = path.parent();
    while let Some(dir) = at {
        if dir.as_os_str().is_empty() || fs::stat(dir).is_ok() {
            break;
        }
        missing.push(dir.to_owned());
        at = dir.parent();
    }
    for dir in missing.iter().rev() {
        private_dir(dir)?;
    }
    private_dir(path)
}
