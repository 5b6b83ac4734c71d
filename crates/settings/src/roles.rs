//! Starts the roles of this node that Python programs use: the loader agent and the fork agent.

use std::path::{Path, PathBuf};

use forebay_agent::{
    forks::{self, ForkConfig},
    samples::{self, LoaderConfig, protocol::DiskSetting},
};

use crate::{
    config::{Config, Flags, Origin, Setting, parse_tier},
    environment::Environment,
    mounts::Mounts,
    places,
    refusal::Refusal,
    size::parse_size,
    tiers::{self, Chosen, used},
};

/// Places for a loader's samples on this node, and the agent that keeps them.
#[derive(Debug)]
pub struct SampleCache {
    /// Most bytes in memory.
    pub memory_bytes: u64,
    /// Directories with the most bytes in each, in the order in which they were given.
    pub disks: Vec<DiskSetting>,
    /// The loader agent's directory, or the reason why it could not be started: loaders then read the source
    /// themselves.
    pub agent: Result<PathBuf, Refusal>,
}

/// Resolves the places of a loader's cache, each `DIR=SIZE` or `ram=SIZE`, and starts the loader agent unless it runs
/// already. `command` is the path of the command `forebay`; messages name `argument`. Tiers that are configured for
/// runs are not used.
///
/// # Errors
/// An invalid place, or an invalid configuration.
pub fn start_loader_agent(
    argument: &'static str,
    cache: &[String],
    environment: &Environment,
    command: &Path,
) -> Result<SampleCache, Refusal> {
    let origin = Origin::Argument(argument);
    let config = Config::resolve(&Flags::default(), environment)?;
    let (memory, disks): (Vec<_>, Vec<_>) = cache.iter().partition(|place| place.starts_with("ram="));
    let sizes = memory
        .iter()
        .map(|place| parse_size(&format!("{origin} {place}"), &place["ram=".len()..]));
    let memory_bytes = sizes.sum::<Result<u64, Refusal>>()?;
    let wishes = disks.iter().map(|place| parse_tier(&origin, environment, place.as_ref()));
    let wishes = Setting {
        value: wishes.collect::<Result<_, _>>()?,
        origin,
    };
    let mounts = Mounts::read();
    let tiers = tiers::named(&wishes, &[], &mounts)?;
    let agent = start_samples(&config, environment, &mounts, &tiers, command);
    let disks = tiers.into_iter().map(|tier| DiskSetting {
        dir: tier.setting.dir,
        bytes: tier.setting.bytes,
    });
    Ok(SampleCache {
        memory_bytes,
        disks: disks.collect(),
        agent,
    })
}

fn start_samples(
    config: &Config,
    environment: &Environment,
    mounts: &Mounts,
    tiers: &[Chosen],
    command: &Path,
) -> Result<PathBuf, Refusal> {
    let runtime_dir = places::runtime_dir(config, environment, mounts);
    let state_dir = places::state_dir(config, environment, &runtime_dir.value);
    places::make(&runtime_dir, &state_dir)?;
    let settings = LoaderConfig {
        loaders_dir: runtime_dir.value.join(samples::DIR),
        state_dir: state_dir.value,
    };
    // So that `forebay clean` finds them.
    used::remember(&settings.state_dir, tiers, false);
    samples::client::start(&settings, command).map_err(Refusal::bad_input)?;
    Ok(settings.loaders_dir)
}

/// Returns the directory of this node's fork agent, running or not.
///
/// # Errors
/// An invalid configuration.
pub fn forks_dir(environment: &Environment) -> Result<PathBuf, Refusal> {
    let config = Config::resolve(&Flags::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read());
    Ok(runtime_dir.value.join(forks::DIR))
}

/// Starts the fork agent unless it runs already, with the command `forebay`, and returns its directory.
///
/// # Errors
/// When the runtime directory is refused, or no agent answers in time.
pub fn start_fork_agent(environment: &Environment, command: &Path) -> Result<PathBuf, Refusal> {
    let config = Config::resolve(&Flags::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read());
    let state_dir = places::state_dir(&config, environment, &runtime_dir.value);
    places::make(&runtime_dir, &state_dir)?;
    let settings = ForkConfig {
        forks_dir: runtime_dir.value.join(forks::DIR),
    };
    forks::client::start(&settings, command).map_err(Refusal::bad_input)?;
    Ok(settings.forks_dir)
}
