//! A command's side of the control socket.

use std::{
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use forebay_contract::{
    CONTRACT_VERSION, Freshness,
    run::{RUN_BYTES, Run, RunSettings},
};

use forebay_policy::read_ahead::AheadMode;

use crate::{
    host::{
        connection,
        error::{AgentError, io_error, silent},
        peer_table::PeerTable,
        private_dir::private_dir_all,
        shared::SharedFile,
        start::{RoleSettings, START_DEADLINE, Starter, start_until},
    },
    tiering::{
        config::AgentConfig,
        limits::LEAVE_MAX,
        protocol::{ControlRequest, ControlResponse, SourceSetting, Status, Totals},
    },
};

const REPLY_DEADLINE: Duration = Duration::from_secs(60);

/// A command's connection to an agent.
#[derive(Debug)]
pub struct TieringConnection {
    connection: connection::Connection,
    /// Longest wait for an answer.
    deadline: Duration,
}

impl TieringConnection {
    /// Connects to the agent of a directory.
    pub fn open(dir: &Path) -> Result<Self, AgentError> {
        Self::open_for(dir, REPLY_DEADLINE)
    }

    /// Connects to the agent of a directory, to wait at most `deadline` for each answer.
    pub fn open_for(dir: &Path, deadline: Duration) -> Result<Self, AgentError> {
        let connection = connection::Connection::open(&dir.join("control.sock"), deadline)?;
        Ok(Self { connection, deadline })
    }

    /// Returns the agent's process; `None` where it can't be known, as from within another namespace.
    pub fn pid(&self) -> Option<i32> {
        self.connection.pid()
    }

    /// Sends a request, and waits for its answer.
    pub fn ask(&mut self, request: &ControlRequest) -> Result<ControlResponse, AgentError> {
        self.send(request)?;
        self.receive()?.ok_or_else(|| silent(self.deadline, self.pid()))
    }

    /// Sends a request. [`Self::receive`] takes its answer.
    pub fn send(&mut self, request: &ControlRequest) -> Result<(), AgentError> {
        self.connection.send(request, &[])
    }

    /// Waits for the answer to the last request; `None` if it has not come in time, and may come later.
    pub fn receive(&mut self) -> Result<Option<ControlResponse>, AgentError> {
        match self.connection.hear(self.deadline)? {
            None => Ok(None),
            Some((ControlResponse::Refused(refusal), _)) => Err(AgentError::Refused(refusal)),
            Some((response, _)) => Ok(Some(response)),
        }
    }

    /// Names the nodes of a job, which share their files from now on, and passes the socket that listens on this node's
    /// address.
    ///
    /// # Errors
    /// The agent refuses, or is gone.
    pub fn share(&mut self, job: &str, nodes: &PeerTable, listener: BorrowedFd<'_>) -> Result<(), AgentError> {
        let table = nodes.seal().map_err(|error| AgentError::Protocol(error.to_string()))?;
        let request = ControlRequest::Share { job: job.to_owned() };
        self.connection.send(&request, &[listener, table.as_fd()])?;
        match self.receive()?.ok_or_else(|| silent(self.deadline, self.pid()))? {
            ControlResponse::Sharing => Ok(()),
            other => Err(AgentError::Protocol(format!("{other:?}"))),
        }
    }

    /// Returns whether the agent shares the files of a job with other nodes.
    ///
    /// # Errors
    /// The agent refuses, or is gone.
    pub fn is_shared(&mut self, job: &str) -> Result<bool, AgentError> {
        match self.ask(&ControlRequest::IsShared { job: job.to_owned() })? {
            ControlResponse::IsShared { is_shared } => Ok(is_shared),
            other => Err(AgentError::Protocol(format!("{other:?}"))),
        }
    }

    /// Returns the counts of this connection's run, or of the agent if it has joined none.
    pub fn status(&mut self) -> Result<Status, AgentError> {
        match self.ask(&ControlRequest::Status)? {
            ControlResponse::Status(status) => Ok(status),
            other => Err(AgentError::Protocol(format!("{other:?}"))),
        }
    }

    /// Returns the counts of the agent, and of the preload libraries of all its runs, since its start.
    pub fn totals(&mut self) -> Result<Totals, AgentError> {
        match self.ask(&ControlRequest::Totals)? {
            ControlResponse::Totals(totals) => Ok(totals),
            other => Err(AgentError::Protocol(format!("{other:?}"))),
        }
    }
}

/// A run that an agent serves.
#[derive(Debug)]
pub struct JoinedRun {
    connection: TieringConnection,
    page: SharedFile,
    page_path: PathBuf,
}

/// Settings of a run for its agent.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The agent to join or start.
    pub agent: AgentConfig,
    /// Sources with every spelling.
    pub sources: Vec<SourceSetting>,
    /// Freshness.
    pub freshness: Freshness,
    /// Copy ahead of its programs while the source is idle.
    pub prefetch: bool,
    /// Choice how far files are read ahead of the programs that read them first.
    pub ahead: AheadMode,
    /// Key of the command, by which its list of what it has read is kept; `None` if there is to be no list.
    pub command_key: Option<String>,
    /// Patterns of files that are the source's alone, each with a NUL behind it; at most
    /// [`EXCLUDES_BYTES_MAX`](forebay_contract::exclude::EXCLUDES_BYTES_MAX) bytes.
    pub excludes: Vec<u8>,
    /// Name of the job, if it has several nodes that share their files.
    pub job: Option<String>,
}

impl RoleSettings for AgentConfig {
    const ROLE: &'static str = "tiering";

    fn dir(&self) -> &Path {
        &self.dir
    }
}

impl JoinedRun {
    /// Joins the agent, which `command` starts if none runs, and writes the run page.
    ///
    /// # Errors
    /// When a tier or the runtime directory is refused, or no agent answers in time. Nothing of the program has run
    /// then.
    pub fn begin(request: &RunRequest, command: &Path) -> Result<Self, AgentError> {
        private_dir_all(&request.agent.dir)?;
        let (connection, run, started_at) = join(request, command)?;
        let page_path = request.agent.dir.join(format!("run.{run}"));
        let page = SharedFile::create(&page_path, RUN_BYTES).map_err(io_error("make", &page_path))?;
        let roots: Vec<(&[u8], u64)> = request.sources.iter().map(|s| (s.path.as_os_str().as_bytes(), s.dev)).collect();
        let namespace = inode_of(Path::new("/proc/self/ns/mnt"))?;
        let settings = RunSettings {
            run,
            freshness: request.freshness,
            mount_namespace: namespace.1,
            root: inode_of(Path::new("/"))?,
            agent_dir: request.agent.dir.as_os_str().as_bytes(),
            agent_started_at: started_at,
            roots: &roots,
            excludes: &request.excludes,
        };
        Run::create(page.region(), &settings).ok_or(AgentError::TooLarge {
            what: "a path, or the number of sources,",
        })?;
        Ok(Self {
            connection,
            page,
            page_path,
        })
    }

    /// Returns the path of the run page, for the preload library.
    pub fn page_path(&self) -> &Path {
        &self.page_path
    }

    /// The agent's directory.
    pub fn agent_dir(&self) -> &Path {
        self.page_path.parent().unwrap_or(&self.page_path)
    }

    /// The run page: settings and counters.
    ///
    /// # Panics
    /// Never: the page was laid out by `begin`.
    pub fn page(&self) -> Run<'_> {
        Run::open(self.page.region()).expect("the run page was laid out when the run began")
    }

    /// Returns the agent's counts of this run.
    pub fn status(&mut self) -> Result<Status, AgentError> {
        self.connection.status()
    }

    /// Ends the run, and returns its last status. The agent ends with its last run.
    ///
    /// # Errors
    /// The agent is gone, or does not answer for half a minute: a program's end waits no longer for a stopped agent.
    pub fn leave(mut self) -> Result<Status, AgentError> {
        self.connection.deadline = LEAVE_MAX;
        match self.connection.ask(&ControlRequest::Leave)? {
            ControlResponse::Status(status) => Ok(status),
            other => Err(AgentError::Protocol(format!("{other:?}"))),
        }
    }
}

impl Drop for JoinedRun {
    fn drop(&mut self) {
        // Children that outlive the run keep their mapping; a new process of theirs finds no page and is inert.
        let _ = rustix::fs::unlink(&self.page_path);
    }
}

fn inode_of(path: &Path) -> Result<(u64, u64), AgentError> {
    let stat = rustix::fs::stat(path).map_err(|errno| io_error("stat", path)(errno.into()))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Joins an agent. If it ends, or is killed, before it has answered, the next one is joined.
fn join(request: &RunRequest, command: &Path) -> Result<(TieringConnection, u64, u64), AgentError> {
    let begun = Instant::now();
    let join = ControlRequest::Join {
        version: CONTRACT_VERSION,
        sources: request.sources.clone(),
        freshness: request.freshness,
        keep: request.agent.keep,
        prefetch: request.prefetch,
        ahead: request.ahead,
        command: request.command_key.clone(),
        excludes: request.excludes.clone(),
        job: request.job.clone(),
    };
    loop {
        let mut connection = connect_or_start(&request.agent, command)?;
        match connection.ask(&join) {
            Ok(ControlResponse::Joined { run, started_at }) => return Ok((connection, run, started_at)),
            Ok(other) => return Err(AgentError::Protocol(format!("{other:?}"))),
            Err(AgentError::Protocol(_) | AgentError::Lost(_)) if begun.elapsed() < START_DEADLINE => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
}

fn connect_or_start(config: &AgentConfig, command: &Path) -> Result<TieringConnection, AgentError> {
    let starter = Starter {
        command,
        variables: &std::env::vars_os().collect::<Vec<_>>(),
        is_interrupted: &|| false,
    };
    start_until(config, starter, || TieringConnection::open(&config.dir).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::connection::listening;

    #[test]
    fn an_agent_that_does_not_answer_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let _listener = listening(&dir.path().join("control.sock")).unwrap();
        let mut connection = TieringConnection::open_for(dir.path(), Duration::from_millis(20)).unwrap();
        let error = connection.status().unwrap_err();
        assert!(matches!(error, AgentError::Silent { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("(kill -CONT {})", std::process::id())),
            "{error}"
        );
    }
}
