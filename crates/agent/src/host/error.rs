//! Errors of agents and of their clients.

use std::{io, path::PathBuf};

use crate::host::refusal::Refusal;

/// Errors of an agent's start, of joining it, and of requests to it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A system call on one of our own files failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// Operation that failed.
        operation: &'static str,
        /// Path that it was tried on.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A directory of ours is not private.
    #[error("{} is not a private directory of this user ({why}); remove it", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// Reason.
        why: &'static str,
    },
    /// A tier is not usable.
    #[error(transparent)]
    Store(#[from] forebay_store::StoreError),
    /// The agent did not come up in time.
    #[error("the agent did not answer within {seconds} s; its log is {}", log.display())]
    NoAnswer {
        /// Time that the client waited.
        seconds: u64,
        /// Path of its log.
        log: PathBuf,
    },
    /// The caller stopped waiting while the agent started.
    #[error("interrupted while the agent started")]
    Interrupted,
    /// A running agent does not answer.
    #[error("the agent has not answered in {seconds} s: {mend}")]
    Silent {
        /// Time that the client waited.
        seconds: u64,
        /// Remedy.
        mend: String,
    },
    /// The agent ended while it started.
    #[error("the agent could not start: {why}")]
    Failed {
        /// Its own report.
        why: String,
    },
    /// The agent refused the request.
    #[error("the agent refused: {}", .0.why)]
    Refused(Refusal),
    /// Another agent holds this directory.
    #[error("another agent is running for {}", path.display())]
    AlreadyRunning {
        /// Its directory.
        path: PathBuf,
    },
    /// Something does not fit into the shared page.
    #[error("{what} does not fit into the run page")]
    TooLarge {
        /// Value that is too large.
        what: &'static str,
    },
    /// The agent is gone, or did not take a request.
    #[error("the agent is gone: {0}")]
    Lost(String),
    /// The agent's answer is invalid.
    #[error("the agent's answer could not be read: {0}")]
    Protocol(String),
}

impl AgentError {
    /// Makes the error of an agent that has ended.
    pub fn closed() -> Self {
        Self::Lost("it closed the connection".into())
    }
}

/// Makes the error of an agent that has not answered for `waited`. It names the agent's process where that is known.
pub(crate) fn silent(waited: std::time::Duration, pid: Option<i32>) -> AgentError {
    let mend = match pid {
        Some(pid) if pid > 0 => {
            format!("where it is stopped, let it go on (kill -CONT {pid}) or end it (kill -KILL {pid}), and the next one takes its place")
        }
        _ => "is its process stopped? The next one takes its place when it has ended".into(),
    };
    AgentError::Silent {
        seconds: waited.as_secs(),
        mend,
    }
}

/// Adds path and operation to an I/O error.
pub(crate) fn io_error(operation: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> AgentError {
    let path = path.to_owned();
    move |source| AgentError::Io { operation, path, source }
}
