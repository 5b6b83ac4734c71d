//! The lock that makes a role's process the only one of its directory.

use std::{os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    io::Errno,
};

use super::error::{AgentError, io_error};

/// Takes the lock of the agent's directory. The kernel releases it when the process ends.
pub(crate) fn lock(dir: &Path) -> Result<OwnedFd, AgentError> {
    let path = dir.join("lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| io_error("open", &path)(e.into()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(AgentError::AlreadyRunning { path: dir.to_owned() }),
        Err(errno) => Err(io_error("lock", &path)(errno.into())),
    }
}
