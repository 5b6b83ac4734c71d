//! Starting a role's process, and waiting until it answers.

use std::{
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::error::{AgentError, io_error};

/// Longest time from the start of a role's process to its first answer.
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(60);

/// Starts an agent that has its directory at `dir`, unless one answers already; gives what `connect` gave.
pub(crate) fn start_until<T>(dir: &Path, settings: &str, command: &Path, connect: impl Fn() -> Option<T>) -> Result<T, AgentError> {
    let begun = Instant::now();
    let log = dir.join("agent.log");
    let mut child = None;
    loop {
        if let Some(connected) = connect() {
            return Ok(connected);
        }
        match &mut child {
            None => child = Some(spawn(settings, command, &log)?),
            Some(running) => {
                // It may have ended because another agent was just ending or starting, or since we were held up for so long that nobody seemed
                // to need it: then ours is tried again.
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

/// Exit status of an agent that found another one in its place.
pub const EXIT_ALREADY_RUNNING: u8 = 75;

fn spawn(settings: &str, command: &Path, log: &Path) -> Result<Child, AgentError> {
    let (reader, mut writer) = std::io::pipe().map_err(io_error("make a pipe for", log))?;
    let mut agent = Command::new(command);
    // `/` as its directory: the agent must not keep a file system busy. It makes a session of its own when it starts.
    agent
        .arg("agent")
        .env_remove("LD_PRELOAD")
        .current_dir("/")
        .stdin(reader)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // What leads to stores it is told by whoever has it read: nothing of this job's is to apply to another's.
    for name in forebay_objects::VARIABLES.into_iter().filter(|name| *name != "HOME") {
        agent.env_remove(name);
    }
    let child = agent.spawn().map_err(io_error("start", command))?;
    drop(agent);
    writer.write_all(settings.as_bytes()).map_err(io_error("write to", command))?;
    Ok(child)
}

fn last_line(log: &Path) -> String {
    let text = rustix::fs::open(
        log,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .ok()
    .and_then(|fd| std::io::read_to_string(std::fs::File::from(fd)).ok())
    .unwrap_or_default();
    text.lines().last().unwrap_or("it left no message").to_owned()
}
