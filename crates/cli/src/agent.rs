//! `forebay agent`: the background process of a role. It outlives the run that started it, and keeps none of that
//! run's descriptors.

use std::{
    fs,
    io::{self, Read, Write},
    os::fd::{FromRawFd, OwnedFd, RawFd},
    process::{Command, Stdio},
};

use forebay_agent::{
    RoleSetup,
    host::{error::AgentError, start::PIPE_BUF},
};
use forebay_settings::user_error::EXIT_BAD_INPUT;

/// Exit status of an agent whose directory another agent has locked.
const EXIT_ALREADY_RUNNING: u8 = 75;

/// Plays the role that the settings on standard input name, and returns the exit status. One line on standard output,
/// and the log, then tell the error that ended it; the line is empty if there was none. `is_detached` leaves the role
/// to another process, an orphan, and returns without waiting for it.
pub fn main(is_detached: bool) -> u8 {
    close_inherited();
    if is_detached {
        return u8::from(start_orphan().is_err());
    }
    let mut text = Vec::new();
    let setup = io::stdin()
        .read_to_end(&mut text)
        .map_err(|error| error.to_string())
        .and_then(|_| serde_json::from_slice::<RoleSetup>(&text).map_err(|error| error.to_string()));
    let (status, why) = match setup.map(forebay_agent::serve) {
        Ok(Ok(())) => (0, String::new()),
        Ok(Err(AgentError::AlreadyRunning { .. })) => (EXIT_ALREADY_RUNNING, String::new()),
        Ok(Err(error)) => (1, error.to_string()),
        Err(error) => (EXIT_BAD_INPUT, format!("invalid settings: {error}")),
    };
    let line = why.replace('\n', " ") + "\n";
    let mut out = io::stdout();
    // Whoever started the agent reads no longer once it has answered.
    let _ = out
        .write_all(&line.as_bytes()[..line.len().min(PIPE_BUF)])
        .and_then(|()| out.flush());
    status
}

/// Starts the agent with this process's standard streams. It becomes an orphan when this process ends, which is at
/// once. Its working directory is `/`: it must not keep a file system busy.
fn start_orphan() -> io::Result<()> {
    let agent = Command::new(std::env::current_exe()?)
        .arg("agent")
        .current_dir("/")
        .stderr(Stdio::null())
        .spawn();
    agent.map(drop)
}

/// Closes all but the standard streams: this process would keep pipes and locks of the shell open that started the
/// first run.
#[expect(unsafe_code, reason = "descriptors that this process was started with belong to nobody in it")]
fn close_inherited() {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(Result::ok);
    let numbers: Vec<RawFd> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The listing's own descriptor is in the list, and closed by now.
        if fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok() {
            // SAFETY: this is the first thing that the process does: it is open, and no value here owns it.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}
