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

use rustix::fs::{MemfdFlags, Mode, OFlags, fcntl_setfl, memfd_create};
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

/// Exit status of an agent whose directory another agent has locked.
pub const EXIT_ALREADY_RUNNING: u8 = 75;

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
                Poll::Ready(Some(0 | EXIT_ALREADY_RUNNING)) => starting = None,
                Poll::Ready(_) => return Err(AgentError::Failed { why: last_line(&log) }),
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
    /// Starts an agent, which is no child of this process: its parent ends before this returns. Returns the pipe on
    /// which the agent reports its exit status.
    fn start(&self, settings: &str) -> Result<PipeReader, AgentError> {
        let failed = || io_error("start", self.command);
        // Memory instead of a pipe: writing to an agent that has ended would be a signal to this process.
        let mut stdin = File::from(memfd_create("forebay-settings", MemfdFlags::CLOEXEC).map_err(|e| failed()(e.into()))?);
        stdin
            .write_all(settings.as_bytes())
            .and_then(|()| stdin.rewind())
            .map_err(failed())?;
        let (status, stdout) = io::pipe().map_err(failed())?;
        fcntl_setfl(&status, OFlags::NONBLOCK).map_err(|e| failed()(e.into()))?;
        // Clients send the variables that lead to their stores: those of the job that starts the agent must not apply
        // to other jobs.
        let is_dropped =
            |name: &OsString| name == "LD_PRELOAD" || (name != "HOME" && forebay_objects::VARIABLES.iter().any(|one| name == one));
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
            _ => Ok(status),
        }
    }
}

/// Returns the exit status of an agent if it has ended, and `None` in its place if it could not report one.
fn end_of(status: &mut PipeReader) -> Poll<Option<u8>> {
    let mut reported = [0];
    match status.read(&mut reported) {
        Ok(0) => Poll::Ready(None),
        Ok(_) => Poll::Ready(Some(reported[0])),
        Err(_) => Poll::Pending,
    }
}

/// Returns the last line of a log, without its time and level.
fn last_line(log: &Path) -> String {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(log, flags, Mode::empty()).map(File::from);
    let text = file.ok().and_then(|file| io::read_to_string(file).ok()).unwrap_or_default();
    let message = text.lines().last().and_then(|line| line.splitn(3, ' ').nth(2));
    message.unwrap_or("it left no message").to_owned()
}
