//! The life of a role's process, from its detachment to its last log line.

use std::path::Path;

use rustix::{
    fs::Mode,
    process::{Resource, Rlimit, setrlimit},
};

use crate::host::{error::AgentError, lock::lock, log, private_dir::private_dir, shared::raise_descriptor_limit};

/// Runs a role in this process: detaches it, takes the lock of its directory, starts its log, and serves. The reason
/// why it could not start, or had to end, is also the last line of the log.
///
/// # Errors
/// [`AgentError::AlreadyRunning`] if another process holds the directory; else the error that ended the role.
pub(crate) fn live(dir: &Path, serve: impl FnOnce() -> Result<(), AgentError>) -> Result<(), AgentError> {
    // Signals to the program's terminal and process group must not reach us.
    let _ = rustix::process::setsid();
    // A umask that takes rights from the owner would make our own directories unusable.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    // A core file would hold secrets: keys of jobs, credentials of stores.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    raise_descriptor_limit();
    private_dir(dir)?;
    let _lock = lock(dir)?;
    log::start(dir)?;
    let result = serve();
    if let Err(error) = &result {
        tracing::error!("{error}");
    }
    result
}
