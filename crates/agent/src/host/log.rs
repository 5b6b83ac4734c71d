//! The agent's log: what a person needs to know when something went wrong. Names of files never appear in it.

use std::{fs::File, io::Write, path::Path, sync::Arc};

use rustix::fs::{Mode, OFlags};

use crate::host::{
    clock::unix_s,
    error::{AgentError, io_error},
};

/// Appends lines to `agent.log`.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<File>);

impl Log {
    /// Starts the log anew.
    pub(crate) fn create(dir: &Path) -> Result<Self, AgentError> {
        let path = dir.join("agent.log");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| io_error("open", &path)(e.into()))?;
        Ok(Self(Arc::new(File::from(file))))
    }

    /// One line with its time.
    pub(crate) fn line(&self, text: &str) {
        // A log that can't be written must not stop the agent.
        let _ = self.0.as_ref().write_all(format!("{} {text}\n", unix_s()).as_bytes());
    }
}
