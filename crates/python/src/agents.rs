//! Starts the agents that serve this process, and finds their directories.

use std::{
    cell::RefCell,
    ffi::OsString,
    path::{Path, PathBuf},
};

use forebay_settings::{
    environment::Environment,
    roles::{self, RoleCaller},
    user_error::UserError,
};
use pyo3::{exceptions::PyValueError, prelude::*};

/// Bytes in memory, directories with the most bytes in each, and the agent's directory or the reason why there is none.
type FoundCache = (u64, Vec<(OsString, u64)>, Option<OsString>, Option<String>);

/// Resolves the places of a loader's cache, and starts the loader agent with the program `command` unless it runs
/// already. Messages name `argument`.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's path is ours")]
pub(crate) fn start_loader_agent(py: Python<'_>, argument: String, cache: Vec<OsString>, command: PathBuf) -> PyResult<FoundCache> {
    let cache: Vec<String> = cache.into_iter().map(|place| place.to_string_lossy().into_owned()).collect();
    let found = interruptible(py, &command, |caller| roles::start_loader_agent(argument, &cache, caller))?;
    let (directory, why) = match found.agent {
        Ok(directory) => (Some(directory.into_os_string()), None),
        Err(refusal) => (None, Some(refusal.to_string())),
    };
    let disks = found.disks.into_iter().map(|disk| (disk.dir.into_os_string(), disk.bytes));
    Ok((found.memory_bytes, disks.collect(), directory, why))
}

/// Starts the fork agent with the program `command` unless it runs already. Returns its directory.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's path is ours")]
pub(crate) fn start_fork_agent(py: Python<'_>, command: PathBuf) -> PyResult<OsString> {
    interruptible(py, &command, roles::start_fork_agent).map(PathBuf::into_os_string)
}

/// Calls a function that waits for an agent, and raises what a signal handler raises meanwhile.
fn interruptible<T: Send>(
    py: Python<'_>,
    command: &Path,
    start: impl FnOnce(&RoleCaller<'_>) -> Result<T, UserError> + Send,
) -> PyResult<T> {
    // Read while no other thread of Python's can change it.
    let environment = &Environment::current();
    let (started, interrupt) = py.detach(|| {
        let interrupt = RefCell::new(None);
        let is_interrupted = || {
            let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
            raised.is_some_and(|raised| interrupt.replace(Some(raised)).is_none())
        };
        let caller = RoleCaller {
            environment,
            command,
            is_interrupted: &is_interrupted,
        };
        let started = start(&caller);
        (started, interrupt.into_inner())
    });
    match interrupt {
        Some(raised) => Err(raised),
        None => started.map_err(|refusal| PyValueError::new_err(refusal.to_string())),
    }
}
