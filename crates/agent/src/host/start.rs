//! Starting a role's process, and waiting until it answers.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, PipeReader, Read, Seek, Write},
    path::Path,
    process::{Command, Stdio},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use serde::Serialize;

use super::{
    error::{AgentError, io_error},
    log::LOG_NAMES,
};

/// Longest time from the start of a role's process to its first answer.
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(60);

/// Settings of a role's process. They travel as JSON on its standard input, with the role's name as `role`.
pub(crate) trait RoleSettings: Serialize {
    /// Name of the role.
    const ROLE: &'static str;

    /// Returns the agent's directory.
    fn dir(&self) -> &Path;
}

/// Settings with the tag by which the process knows its role.
#[derive(Serialize)]
struct Tagged<'a, S> {
    role: &'static str,
    #[serde(flatten)]
    settings: &'a S,
}

/// Returns the settings as the agent's process reads them.
pub(crate) fn tagged<S: RoleSettings>(settings: &S) -> Result<String, AgentError> {
    let tagged = Tagged { role: S::ROLE, settings };
    serde_json::to_string(&tagged).map_err(|error| AgentError::Protocol(error.to_string()))
}

/// The command that starts agents, for a caller that waits until one answers.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "a function has no text")]
pub struct Starter<'a> {
    /// Path of the command `forebay`.
    pub command: &'a Path,
    /// Environment of the caller.
    pub variables: &'a [(OsString, OsString)],
    /// Returns true if the caller does not wait any longer. Called every few milliseconds.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// Longest report of an agent in bytes: the kernel hands it over in one piece.
pub const PIPE_BUF: usize = 4096;

/// Starts a role's process, `COMMAND agent`, unless one answers already. Returns the result of `connect`.
pub(crate) fn start_until<S: RoleSettings, T>(settings: &S, by: Starter<'_>, connect: impl Fn() -> Option<T>) -> Result<T, AgentError> {
    let begun = Instant::now();
    let log = settings.dir().join(LOG_NAMES[0]);
    let settings = &tagged(settings)?;
    let mut starting = None;
    loop {
        if let Some(connected) = connect() {
            return Ok(connected);
        }
        match &mut starting {
            None => starting = Some(by.start(settings)?),
            // It ends by itself if another agent is just ending or starting, or if we were held up for so long that it
            // saw no client. Then we start another one.
            Some(agent) => match end_of(agent) {
                Poll::Pending => {}
                Poll::Ready(why) if why.is_empty() => starting = None,
                Poll::Ready(why) => return Err(AgentError::Failed { why }),
            },
        }
        if (by.is_interrupted)() {
            return Err(AgentError::Interrupted);
        }
        if begun.elapsed() > START_DEADLINE {
            return Err(AgentError::NoAnswer {
                seconds: START_DEADLINE.as_secs(),
                log,
            });
        }
        thread::sleep(Duration::from_millis(5));
    }
}

impl Starter<'_> {
    /// Starts an agent. It does not become a child of this process: its parent ends before this returns. Returns the
    /// pipe on which the agent reports how it ended, in one line.
    fn start(&self, settings: &str) -> Result<PipeReader, AgentError> {
        let failed = || io_error("start", self.command);
        // Memory instead of a pipe: writing to an agent that has ended would be a signal to this process.
        let mut stdin = File::from(memfd_create("forebay-settings", MemfdFlags::CLOEXEC).map_err(|e| failed()(e.into()))?);
        stdin
            .write_all(settings.as_bytes())
            .and_then(|()| stdin.rewind())
            .map_err(failed())?;
        let (reports, stdout) = io::pipe().map_err(failed())?;
        fcntl_setfl(&reports, OFlags::NONBLOCK).map_err(|e| failed()(e.into()))?;
        // Clients send the variables that lead to their stores: those of the job that starts the agent must not apply
        // to other jobs.
        let is_dropped = |name: &OsString| {
            let is_of_loader = name == "LD_PRELOAD" || name == "LD_AUDIT";
            is_of_loader || (name != "HOME" && forebay_objects::VARIABLES.iter().any(|one| name == one))
        };
        let mut parent = Command::new(self.command)
            .args(["agent", "--detached"])
            .env_clear()
            .envs(self.variables.iter().filter(|(name, _)| !is_dropped(name)).cloned())
            .stdin(stdin)
            .stdout(stdout)
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed())?;
        match parent.wait() {
            Ok(exit) if !exit.success() => Err(failed()(io::Error::other(exit.to_string()))),
            // Another thread of this process may have waited for all of its children.
            _ => Ok(reports),
        }
    }
}

/// Returns an agent's report if it has ended: the reason why it could not start or had to end, or no text.
fn end_of(reports: &mut PipeReader) -> Poll<String> {
    let mut line = [0; PIPE_BUF];
    match reports.read(&mut line) {
        Ok(0) => Poll::Ready("it was killed".into()),
        Ok(length) => Poll::Ready(String::from_utf8_lossy(&line[..length]).trim_end().into()),
        Err(_) => Poll::Pending,
    }
}
