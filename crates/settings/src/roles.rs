//! Starts the roles of this node that Python programs use: the loader agent and the fork agent.

use std::path::{Path, PathBuf};

use forebay_agent::{
    forks::{self, ForkConfig},
    host::start::Starter,
    samples::{self, LoaderConfig, protocol::DiskSetting},
};

use crate::{
    config::{Config, Setting, SettingOrigin, WrittenSettings, parse_ram, parse_tier},
    environment::Environment,
    mounts::Mounts,
    places,
    tiers::{self, used},
    user_error::UserError,
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
    pub agent: Result<PathBuf, UserError>,
}

/// Caller that needs an agent.
#[expect(missing_debug_implementations, reason = "a function has no text")]
pub struct RoleCaller<'a> {
    /// Environment of the caller, and of the agent.
    pub environment: &'a Environment,
    /// Path of the command `forebay`, which plays the roles.
    pub command: &'a Path,
    /// Returns true if the caller does not wait for the agent any longer.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// Resolves the places of a loader's cache, each `DIR=SIZE` or `ram=SIZE`, and starts the loader agent unless it runs
/// already. Messages name `argument`. Tiers that are configured for runs are not used.
///
/// # Errors
/// An invalid place, or an invalid configuration.
pub fn start_loader_agent(argument: String, cache: &[String], caller: &RoleCaller<'_>) -> Result<SampleCache, UserError> {
    let config = Config::resolve(&WrittenSettings::default(), caller.environment)?;
    let origin = SettingOrigin::Argument(argument);
    let (memory, disks): (Vec<_>, Vec<_>) = cache.iter().partition(|place| place.starts_with("ram="));
    let sizes = memory.iter().map(|place| parse_ram(&origin, place["ram=".len()..].as_ref()));
    let memory_bytes = sizes.sum::<Result<u64, UserError>>()?;
    let wishes = disks.iter().map(|place| parse_tier(&origin, caller.environment, place.as_ref()));
    let wishes = Setting::new(wishes.collect::<Result<_, _>>()?, origin);
    let mounts = Mounts::read();
    let tiers = tiers::named(&wishes, &[], &mounts)?;
    let agent = caller.start(&config, &mounts, |runtime_dir, state_dir, starter| {
        let settings = LoaderConfig {
            loaders_dir: runtime_dir.join(samples::DIR),
            state_dir,
        };
        // So that `forebay clean` finds them.
        used::remember(&settings.state_dir, &tiers, false);
        samples::client::start(&settings, starter).map_err(UserError::bad_input)?;
        Ok(settings.loaders_dir)
    });
    let disks = tiers.iter().map(|tier| DiskSetting {
        dir: tier.setting.dir.clone(),
        bytes: tier.setting.bytes,
    });
    Ok(SampleCache {
        memory_bytes,
        disks: disks.collect(),
        agent,
    })
}

/// Returns the directory of this node's fork agent, running or not.
///
/// # Errors
/// An invalid configuration.
pub fn forks_dir(environment: &Environment) -> Result<PathBuf, UserError> {
    let config = Config::resolve(&WrittenSettings::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read());
    Ok(runtime_dir.value.join(forks::DIR))
}

/// Returns the default path of a job's ticket for other hosts.
///
/// # Errors
/// An invalid configuration.
pub fn ticket_path(environment: &Environment, job: &str) -> Result<PathBuf, UserError> {
    let config = Config::resolve(&WrittenSettings::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read());
    let state_dir = places::state_dir(&config, environment, &runtime_dir.value);
    Ok(state_dir.value.join("tickets").join(job))
}

/// Starts the fork agent unless it runs already, and returns its directory.
///
/// # Errors
/// When the runtime directory is refused, or no agent answers in time.
pub fn start_fork_agent(caller: &RoleCaller<'_>) -> Result<PathBuf, UserError> {
    let config = Config::resolve(&WrittenSettings::default(), caller.environment)?;
    caller.start(&config, &Mounts::read(), |runtime_dir, _, starter| {
        let forks_dir = runtime_dir.join(forks::DIR);
        let settings = ForkConfig { forks_dir };
        forks::client::start(&settings, starter).map_err(UserError::bad_input)?;
        Ok(settings.forks_dir)
    })
}

impl RoleCaller<'_> {
    /// Makes the runtime and the state directory, and calls `start` with both.
    fn start(
        &self,
        config: &Config,
        mounts: &Mounts,
        start: impl FnOnce(&Path, PathBuf, Starter<'_>) -> Result<PathBuf, UserError>,
    ) -> Result<PathBuf, UserError> {
        let runtime_dir = places::runtime_dir(config, self.environment, mounts);
        let state_dir = places::state_dir(config, self.environment, &runtime_dir.value);
        places::make(&runtime_dir, &state_dir)?;
        let starter = Starter {
            command: self.command,
            variables: &self.environment.variables(),
            is_interrupted: self.is_interrupted,
        };
        start(&runtime_dir.value, state_dir.value, starter)
    }
}
