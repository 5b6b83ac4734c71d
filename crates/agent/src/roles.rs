//! The roles that a process of the agent may play.

use serde::Deserialize;

use crate::{
    forks::{self, ForkConfig},
    host::error::AgentError,
    samples::{self, LoaderConfig},
    tiering::{self, AgentConfig},
};

/// Settings of a process, with its role as the tag `role`.
#[derive(Debug, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum RoleSetup {
    /// Copies files into the tiers of one set.
    Tiering(AgentConfig),
    /// Fetches samples for data loaders.
    Samples(LoaderConfig),
    /// Hands states of training jobs to their clones.
    Forks(ForkConfig),
}

/// Plays a role until it ends.
///
/// # Errors
/// [`AgentError::AlreadyRunning`] if another process holds the role's directory; else the error that ended it.
pub fn serve(setup: RoleSetup) -> Result<(), AgentError> {
    match setup {
        RoleSetup::Tiering(config) => tiering::serve(config),
        RoleSetup::Samples(config) => samples::serve(&config),
        RoleSetup::Forks(config) => forks::serve(&config),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::start::tagged;

    #[test]
    fn a_process_plays_the_role_that_its_settings_name() {
        let dir = std::path::PathBuf::from("/run/x");
        let forks = tagged(&ForkConfig { forks_dir: dir.clone() }).unwrap();
        let samples = tagged(&LoaderConfig {
            loaders_dir: dir.clone(),
            state_dir: dir.clone(),
        })
        .unwrap();
        let tiering = tagged(&AgentConfig {
            dir,
            state_dir: "/state".into(),
            tiers: Vec::new(),
            policy: forebay_policy::eviction::TierPolicy::default(),
            keep: false,
            index_spare: 1,
        })
        .unwrap();
        let setup = |text: &str| serde_json::from_str(text).unwrap();
        assert!(matches!(setup(&forks), RoleSetup::Forks(config) if config.forks_dir == std::path::Path::new("/run/x")));
        assert!(matches!(setup(&samples), RoleSetup::Samples(_)));
        assert!(matches!(setup(&tiering), RoleSetup::Tiering(_)));
        assert!(serde_json::from_str::<RoleSetup>(&forks.replace("forks\"", "other\"")).is_err());
    }
}
