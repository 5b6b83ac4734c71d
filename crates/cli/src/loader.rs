//! `forebay loader-agent`: starts the loader agent of this node for `forebay.loader`.

use std::path::PathBuf;

use forebay_agent::samples::protocol::DiskSetting;
use forebay_settings::{environment::Environment, refusal::Refusal, roles};
use serde::Serialize;

use crate::args::LoaderAgentArgs;

/// Answer to the Python package, as JSON.
#[derive(Debug, Serialize)]
struct LoaderAnswer {
    /// The agent's directory; `None` if the agent could not be started.
    directory: Option<PathBuf>,
    /// The reason why it could not.
    why: Option<String>,
    memory_bytes: u64,
    disks: Vec<DiskSetting>,
}

/// Starts the loader agent unless it runs already. Returns its directory and the places for samples, to be printed.
/// Without an agent loaders read the source themselves.
///
/// # Errors
/// An invalid place for samples.
pub fn loader_agent(args: &LoaderAgentArgs, environment: &Environment) -> Result<String, Refusal> {
    let memory = args.ram.iter().map(|size| format!("ram={}", size.to_string_lossy()));
    let disks = args.tier.iter().map(|tier| tier.to_string_lossy().into_owned());
    let cache: Vec<String> = memory.chain(disks).collect();
    let command = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let started = roles::start_loader_agent("--tier", &cache, environment, &command)?;
    let (directory, why) = match started.agent {
        Ok(directory) => (Some(directory), None),
        Err(refusal) => (None, Some(refusal.to_string())),
    };
    let answer = LoaderAnswer {
        directory,
        why,
        memory_bytes: started.memory_bytes,
        disks: started.disks,
    };
    Ok(serde_json::to_string(&answer).map_err(Refusal::bad_input)? + "\n")
}
