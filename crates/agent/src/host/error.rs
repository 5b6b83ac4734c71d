//! Errors of the agent and of talking to it.

use std::{io, path::PathBuf};

/// Why an agent could not be started, joined or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A system call on one of our own files failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The directory for sockets and shared memory is not private.
    #[error("{} is not a private directory of this user ({why}); remove it, or set FOREBAY_RUNTIME_DIR to another place", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A tier can't be used.
    #[error(transparent)]
    Store(#[from] forebay_store::StoreError),
    /// The agent did not come up in time.
    #[error("the agent did not answer within {seconds} s; its log is {}", log.display())]
    NoAnswer {
        /// How long was waited.
        seconds: u64,
        /// Its log.
        log: PathBuf,
    },
    /// An agent that stands does not answer.
    #[error("the agent has not answered in {seconds} s: {mend}")]
    Silent {
        /// How long was waited.
        seconds: u64,
        /// What to do about it.
        mend: String,
    },
    /// The agent ended at once.
    #[error("the agent could not start: {why}")]
    Failed {
        /// Last line of its log.
        why: String,
    },
    /// The agent said no.
    #[error("the agent refused: {why}")]
    Refused {
        /// Why.
        why: String,
    },
    /// Another agent holds this directory.
    #[error("another agent is running for {}", path.display())]
    AlreadyRunning {
        /// Its directory.
        path: PathBuf,
    },
    /// Something does not fit into the shared page.
    #[error("{what} does not fit into the run page")]
    TooLarge {
        /// What.
        what: &'static str,
    },
    /// An answer that is none.
    #[error("the agent's answer could not be read: {0}")]
    Protocol(String),
}

/// Of an agent that has not answered for so long; its process is named where it is known.
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

/// Puts path and operation to an I/O error.
pub(crate) fn io_error(operation: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> AgentError {
    let path = path.to_owned();
    move |source| AgentError::Io { operation, path, source }
}
