//! Messages of a process to the page of its `forebay run`: its first batch, its first step boundary.

use std::path::{Path, PathBuf};

use forebay_agent::host::{clock::boot_ns, shared::SharedFile};
use forebay_contract::{Run, Startup};
use pyo3::prelude::*;

/// Does something with the table of a run's page. Returns false if there is no such page, or of another version.
fn with_startup(page: &Path, then: impl FnOnce(&Startup<'_>)) -> bool {
    let Ok(page) = SharedFile::open(page) else { return false };
    let run = Run::open(page.region());
    run.inspect(|run| then(&run.startup())).is_some()
}

/// Tells the page of a run that this process has its first batch, which it asked for `waited_ns` ago. Returns false if
/// the run has ended.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's path is ours")]
pub(crate) fn tell_first_batch(py: Python<'_>, page: PathBuf, waited_ns: u64) -> bool {
    let now = boot_ns();
    py.detach(|| with_startup(&page, |startup| startup.note_batch(now.saturating_sub(waited_ns), now)))
}

/// Tells the page of a run that this process is at its first step boundary. Returns false if the run has ended.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's path is ours")]
pub(crate) fn tell_first_step(py: Python<'_>, page: PathBuf) -> bool {
    let now = boot_ns();
    py.detach(|| with_startup(&page, |startup| startup.note_step(now)))
}
