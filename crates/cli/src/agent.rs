//! `forebay agent`: what a run starts in the background. It outlives the run and must hold nothing of whoever started that.

use std::{
    fs,
    io::Read,
    os::fd::{FromRawFd, OwnedFd, RawFd},
};

use forebay_agent::{
    forks::{self, ForkConfig},
    host::{error::AgentError, start::EXIT_ALREADY_RUNNING},
    samples::{self, LoaderConfig},
    tiering::AgentConfig,
};
use serde::Deserialize;

use crate::refusal::EXIT_BAD_INPUT;

/// Which agent it is to be: one of tiers, the one of forks, or the one of loaders.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Settings {
    Tiers(AgentConfig),
    Forks(ForkConfig),
    Loaders(LoaderConfig),
}

/// The agent: its settings come on standard input, its errors go to its log. Gives the exit status.
pub fn main() -> u8 {
    close_inherited();
    let mut text = Vec::new();
    let settings = std::io::stdin()
        .read_to_end(&mut text)
        .ok()
        .and_then(|_| serde_json::from_slice(&text).ok());
    let served = settings.map(|settings| match settings {
        Settings::Tiers(config) => forebay_agent::tiering::serve(config),
        Settings::Forks(config) => forks::serve(&config),
        Settings::Loaders(config) => samples::serve(&config),
    });
    match served {
        Some(Ok(())) => 0,
        Some(Err(AgentError::AlreadyRunning { .. })) => EXIT_ALREADY_RUNNING,
        Some(Err(_)) => 1,
        None => EXIT_BAD_INPUT,
    }
}

/// Closes all but the standard streams: a pipe or lock of the shell that started the first run would stay open with us.
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
