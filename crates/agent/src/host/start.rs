//! Starting a role's process, and waiting until it answers.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{Mode, OFlags};
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

/// Starts a role's process, `COMMAND agent`, unless one answers already. Returns the result of `connect`.
pub(crate) fn start_until<S: RoleSettings, T>(settings: &S, command: &Path, connect: impl Fn() -> Option<T>) -> Result<T, AgentError> {
    let begun = Instant::now();
    let log = settings.dir().join(LOG_NAMES[0]);
    let settings = &tagged(settings)?;
    let mut child = None;
    loop {
        if let Some(connected) = connect() {
            return Ok(connected);
        }
        match &mut child {
            None => child = Some(spawn(settings, command, &log)?),
            Some(running) => {
                // It ends by itself if another agent is just ending or starting, or if we were held up for so long that
                // it saw no client. Then we start another one.
                if let Ok(Some(exit)) = running.try_wait() {
                    if !matches!(exit.code(), Some(code) if code == 0 || code == i32::from(EXIT_ALREADY_RUNNING)) {
                        return Err(AgentError::Failed { why: last_line(&log) });
                    }
                    child = None;
                }
            }
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

/// Exit status of an agent whose directory another agent has locked.
pub const EXIT_ALREADY_RUNNING: u8 = 75;

fn spawn(settings: &str, command: &Path, log: &Path) -> Result<Child, AgentError> {
    let (reader, mut writer) = io::pipe().map_err(io_error("make a pipe for", log))?;
    let mut agent = Command::new(command);
    // The working directory is `/`: the agent must not keep a file system busy. It starts a session of its own.
    agent
        .arg("agent")
        .env_remove("LD_PRELOAD")
        .current_dir("/")
        .stdin(reader)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Clients send the variables that lead to their stores: those of the job that starts the agent must not apply to
    // other jobs.
    for name in forebay_objects::VARIABLES.into_iter().filter(|name| *name != "HOME") {
        agent.env_remove(name);
    }
    let child = agent.spawn().map_err(io_error("start", command))?;
    drop(agent);
    writer.write_all(settings.as_bytes()).map_err(io_error("write to", command))?;
    Ok(child)
}

/// Returns the last line of a log, without its time and level.
fn last_line(log: &Path) -> String {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(log, flags, Mode::empty()).map(File::from);
    let text = file.ok().and_then(|file| io::read_to_string(file).ok()).unwrap_or_default();
    let message = text.lines().last().and_then(|line| line.splitn(3, ' ').nth(2));
    message.unwrap_or("it left no message").to_owned()
}
