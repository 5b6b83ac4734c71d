//! What the command decides and an agent is started with. Frozen: nobody below reads the environment.

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// A tier: a directory on a local disk and how much of it may be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSetting {
    /// Directory in which the agent makes its private one.
    pub dir: PathBuf,
    /// Most bytes of files kept there.
    pub bytes: u64,
}

/// Everything an agent needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentConfig {
    /// The agent's private directory: sockets and shared memory.
    pub dir: PathBuf,
    /// Directory of the user's secret.
    pub state_dir: PathBuf,
    /// Tiers, top first.
    pub tiers: Vec<TierSetting>,
    /// Stay after the last run has ended.
    pub keep: bool,
}

impl AgentConfig {
    /// The configuration of the agent for these tiers. Its directory's name is a digest of the tiers, so that runs with the same tiers meet.
    pub fn for_tiers(runtime_dir: &Path, state_dir: &Path, tiers: &[TierSetting], keep: bool) -> Self {
        let mut digest = 0;
        for tier in tiers {
            digest = forebay_contract::hash_bytes(digest, tier.dir.as_os_str().as_bytes());
        }
        Self {
            dir: runtime_dir.join(format!("{digest:016x}")),
            state_dir: state_dir.to_owned(),
            tiers: tiers.to_owned(),
            keep,
        }
    }
}
