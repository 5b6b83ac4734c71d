//! Talking to an agent: the command's side.

use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    os::unix::{ffi::OsStrExt, net::UnixStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use forebay_contract::{
    CONTRACT_VERSION, Freshness,
    run::{RUN_BYTES, Run, RunSettings},
};

use crate::{
    host::{
        error::{AgentError, io_error, silent},
        private_dir::private_dir_all,
        shared::SharedFile,
        start::{RoleSettings, START_DEADLINE, start_until},
    },
    tiering::{
        config::AgentConfig,
        limits::LEAVE_MAX,
        protocol::{Reply, Request, RunFreshness, SourceSetting, Status, Totals},
    },
};

const REPLY_DEADLINE: Duration = Duration::from_secs(60);

/// A connection to an agent's control socket.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
    /// What has come of an answer.
    answer: Vec<u8>,
}

impl Connection {
    /// Connects to the agent that has its directory at `dir`.
    pub fn open(dir: &Path) -> Result<Self, AgentError> {
        Self::open_for(dir, REPLY_DEADLINE)
    }

    /// As [`Self::open`], for who waits no longer than this for each answer.
    pub fn open_for(dir: &Path, deadline: Duration) -> Result<Self, AgentError> {
        let path = dir.join("control.sock");
        let stream = UnixStream::connect(&path).map_err(io_error("connect to", &path))?;
        stream.set_read_timeout(Some(deadline)).map_err(io_error("set up", &path))?;
        Ok(Self {
            stream: BufReader::new(stream),
            answer: Vec::new(),
        })
    }

    /// The agent's process; `None` where it can't be known, as from within another namespace.
    pub fn pid(&self) -> Option<i32> {
        let peer = rustix::net::sockopt::socket_peercred(self.stream.get_ref()).ok()?;
        Some(peer.pid.as_raw_nonzero().get())
    }

    /// One request and its reply.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, AgentError> {
        self.send(request)?;
        let waits = self.stream.get_ref().read_timeout().ok().flatten().unwrap_or(REPLY_DEADLINE);
        self.receive()?.ok_or_else(|| silent(waits, self.pid()))
    }

    /// From now on no answer is waited for longer than this.
    fn wait_no_longer_than(&self, deadline: Duration) -> Result<(), AgentError> {
        self.stream.get_ref().set_read_timeout(Some(deadline)).map_err(|e| broken(&e))
    }

    /// Sends a request, the reply to which [`Self::receive`] takes.
    pub fn send(&mut self, request: &Request) -> Result<(), AgentError> {
        let mut line = serde_json::to_vec(request).map_err(|e| broken(&e))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(|e| broken(&e))
    }

    /// The reply to the last request; `None` if it has not come in time, and may come later.
    pub fn receive(&mut self) -> Result<Option<Reply>, AgentError> {
        match self.stream.read_until(b'\n', &mut self.answer) {
            Ok(_) if self.answer.last() == Some(&b'\n') => {}
            Ok(_) => return Err(broken(&"it closed the connection")),
            // What has come of it is kept.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
            Err(error) => return Err(broken(&error)),
        }
        match serde_json::from_slice(&std::mem::take(&mut self.answer)).map_err(|e| broken(&e))? {
            Reply::Refused { why } => Err(AgentError::Refused(why.into())),
            reply => Ok(Some(reply)),
        }
    }

    /// What the agent has done (for this connection's run, if it has joined one).
    pub fn status(&mut self) -> Result<Status, AgentError> {
        match self.ask(&Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => Err(AgentError::Protocol(format!("{other:?}"))),
        }
    }

    /// What the agent and the doors of all its runs have done since it started.
    pub fn totals(&mut self) -> Result<Totals, AgentError> {
        match self.ask(&Request::Totals)? {
            Reply::Totals(totals) => Ok(totals),
            other => Err(AgentError::Protocol(format!("{other:?}"))),
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> AgentError {
    AgentError::Protocol(error.to_string())
}

/// A run that an agent serves.
#[derive(Debug)]
pub struct JoinedRun {
    connection: Connection,
    page: SharedFile,
    page_path: PathBuf,
}

/// What a run asks of its agent.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The agent to join or start.
    pub agent: AgentConfig,
    /// Sources with every spelling.
    pub sources: Vec<SourceSetting>,
    /// Freshness.
    pub freshness: RunFreshness,
    /// Copy ahead of its programs while the source is idle.
    pub prefetch: bool,
    /// Patterns of files that are the source's alone, each with a NUL behind it; at most
    /// [`EXCLUDES_BYTES_MAX`](forebay_contract::exclude::EXCLUDES_BYTES_MAX) bytes.
    pub excludes: Vec<u8>,
}

impl RoleSettings for AgentConfig {
    const ROLE: &'static str = "tiering";

    fn dir(&self) -> &Path {
        &self.dir
    }
}

impl JoinedRun {
    /// Joins the agent, starting it with `COMMAND agent` if none stands, and writes the run page.
    ///
    /// # Errors
    /// When a tier or the runtime directory is refused, or no agent answers in time. Nothing of the program has run then.
    pub fn begin(request: &RunRequest, command: &Path) -> Result<Self, AgentError> {
        private_dir_all(&request.agent.dir)?;
        let (connection, run, started_at) = join(request, command)?;
        let page_path = request.agent.dir.join(format!("run.{run}"));
        let page = SharedFile::create(&page_path, RUN_BYTES).map_err(io_error("make", &page_path))?;
        let roots: Vec<(&[u8], u64)> = request.sources.iter().map(|s| (s.path.as_os_str().as_bytes(), s.dev)).collect();
        let namespace = inode_of(Path::new("/proc/self/ns/mnt"))?;
        let settings = RunSettings {
            run,
            freshness: match request.freshness {
                RunFreshness::Ttl(seconds) => Freshness::Ttl(seconds.saturating_mul(1_000_000_000)),
                RunFreshness::Immutable => Freshness::Immutable,
                RunFreshness::OnOpen => Freshness::OnOpen,
            },
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

    /// Path of the run page, for the door.
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

    /// What the agent has done for this run.
    pub fn status(&mut self) -> Result<Status, AgentError> {
        self.connection.status()
    }

    /// Ends the run; the agent ends with its last one. Gives the last status.
    ///
    /// # Errors
    /// The agent is gone, or does not answer for half a minute: a program's end waits no longer for one that is stopped.
    pub fn leave(mut self) -> Result<Status, AgentError> {
        self.connection.wait_no_longer_than(LEAVE_MAX)?;
        match self.connection.ask(&Request::Leave)? {
            Reply::Status(status) => Ok(status),
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

/// Joins an agent. One that ends, or is killed, before it has answered was not the one to join: the next one is.
fn join(request: &RunRequest, command: &Path) -> Result<(Connection, u64, u64), AgentError> {
    let begun = Instant::now();
    let join = Request::Join {
        version: CONTRACT_VERSION,
        sources: request.sources.clone(),
        freshness: request.freshness,
        keep: request.agent.keep,
        prefetch: request.prefetch,
        excludes: request.excludes.clone(),
    };
    loop {
        let mut connection = connect_or_start(&request.agent, command)?;
        match connection.ask(&join) {
            Ok(Reply::Joined { run, started_at }) => return Ok((connection, run, started_at)),
            Ok(other) => return Err(AgentError::Protocol(format!("{other:?}"))),
            Err(AgentError::Protocol(_) | AgentError::Lost(_)) if begun.elapsed() < START_DEADLINE => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
}

fn connect_or_start(config: &AgentConfig, command: &Path) -> Result<Connection, AgentError> {
    start_until(config, command, || Connection::open(&config.dir).ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn an_agent_that_does_not_answer_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(dir.path().join("control.sock")).unwrap();
        let mut connection = Connection::open_for(dir.path(), Duration::from_millis(20)).unwrap();
        let error = connection.status().unwrap_err();
        assert!(matches!(error, AgentError::Silent { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("(kill -CONT {})", std::process::id())),
            "{error}"
        );
    }
}
