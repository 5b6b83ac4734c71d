//! `forebay loader-agent`: what `forebay.loader` asks for the agent of this node.

use std::{env::current_exe, path::PathBuf};

use forebay_agent::samples::{self, LoaderConfig, protocol::DiskSetting};
use forebay_settings::{
    config::{Config, Flags},
    environment::Environment,
    mounts::Mounts,
    places,
    refusal::Refusal,
    tiers::{self, Chosen, used},
};
use serde::Serialize;

use crate::args::{Choices, LoaderAgentArgs};

/// What is printed, as JSON.
#[derive(Debug, Default, Serialize)]
struct Place {
    /// The agent's; none where it could not be started, and why.
    directory: Option<PathBuf>,
    why: Option<String>,
    memory_bytes: u64,
    disks: Vec<DiskSetting>,
}

/// Starts the loader agent, if none stands; says where, and where samples are to be kept, to be printed. Without an agent loaders read by themselves.
///
/// # Errors
/// When a tier can't be one.
pub fn loader_agent(args: &LoaderAgentArgs, environment: &Environment) -> Result<String, Refusal> {
    let choices = Choices {
        tier: args.tier.clone(),
        ram: args.ram.clone(),
        ..Choices::default()
    };
    let config = Config::resolve(&Flags::from(&choices), environment)?;
    let mounts = Mounts::read();
    // Only what was given here: where the tiers of runs lie says nothing of loaders.
    let disks = if args.tier.is_empty() {
        Vec::new()
    } else {
        tiers::named(&config.tiers, &[], &mounts)?
    };
    let mut place = Place {
        memory_bytes: args.ram.as_ref().and(config.ram.value).unwrap_or(0),
        ..Place::default()
    };
    match start(&config, environment, &mounts, &disks) {
        Ok(directory) => place.directory = Some(directory),
        Err(refusal) => place.why = Some(refusal.to_string()),
    }
    place.disks.extend(disks.into_iter().map(|tier| DiskSetting {
        dir: tier.setting.dir,
        bytes: tier.setting.bytes,
    }));
    let text = serde_json::to_string(&place).map_err(Refusal::bad_input)?;
    Ok(text + "\n")
}

fn start(config: &Config, environment: &Environment, mounts: &Mounts, disks: &[Chosen]) -> Result<PathBuf, Refusal> {
    let runtime_dir = places::runtime_dir(config, environment, mounts);
    let state_dir = places::state_dir(config, environment, &runtime_dir.value);
    places::make(&runtime_dir, &state_dir)?;
    let exe = current_exe().map_err(|error| Refusal::bad_input(format_args!("/proc/self/exe: {error}; mount /proc")))?;
    let agent = LoaderConfig {
        loaders_dir: runtime_dir.value.join(samples::DIR),
        state_dir: state_dir.value,
    };
    // So that `clean` finds them.
    used::remember(&agent.state_dir, disks, false);
    samples::client::start(&agent, &exe).map_err(Refusal::bad_input)?;
    Ok(agent.loaders_dir)
}
