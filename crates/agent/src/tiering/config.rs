//! Settings of the tiering role. The command decides them, and no code below it reads the environment.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use forebay_policy::eviction::TierPolicy;
use serde::{Deserialize, Serialize};

use crate::tiering::{limits::INDEX_SPARE, ram};

/// A tier: a directory on a local disk, or in memory, and how much of it may be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSetting {
    /// Directory in which the agent makes its private one.
    pub dir: PathBuf,
    /// Quota in bytes.
    pub bytes: u64,
    /// True for a tier in memory, below the agent's own directory. The agent makes it when it starts and removes it
    /// when it ends.
    #[serde(default)]
    pub ram: bool,
}

impl TierSetting {
    /// Returns a tier in a directory that outlives the agent.
    pub const fn kept(dir: PathBuf, bytes: u64) -> Self {
        Self { dir, bytes, ram: false }
    }

    /// Returns a tier in memory that ends with the agent. [`AgentConfig::for_tiers`] decides its directory.
    pub fn in_ram(bytes: u64) -> Self {
        Self {
            dir: PathBuf::new(),
            bytes,
            ram: true,
        }
    }

    /// Returns its name for people.
    pub fn label(&self) -> String {
        label(&self.dir, self.ram)
    }
}

/// Returns the name of a tier for people.
pub(crate) fn label(dir: &Path, ram: bool) -> String {
    if ram { "RAM".into() } else { dir.display().to_string() }
}

/// Settings with which an agent is started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentConfig {
    /// Private directory of the agent, for sockets and shared memory.
    pub dir: PathBuf,
    /// Directory of the user's secret.
    pub state_dir: PathBuf,
    /// Tiers, top first.
    pub tiers: Vec<TierSetting>,
    /// Replacement of copies when a file does not fit.
    #[serde(default)]
    pub policy: TierPolicy,
    /// True if the agent stays after its last run.
    pub keep: bool,
    /// Room in the shared index, in files, in addition to the copies of earlier runs.
    #[serde(default = "index_spare")]
    pub index_spare: u64,
}

const fn index_spare() -> u64 {
    INDEX_SPARE
}

impl AgentConfig {
    /// Returns the settings of the agent for these tiers. The name of its directory is a digest of the tiers, so runs
    /// with the same tiers share an agent.
    pub fn for_tiers(runtime_dir: &Path, state_dir: &Path, tiers: &[TierSetting], policy: TierPolicy, keep: bool) -> Self {
        let mut digest = 0;
        for tier in tiers {
            // No absolute path has this name.
            let name = if tier.ram { OsStr::new(ram::DIR) } else { tier.dir.as_os_str() };
            digest = forebay_contract::hash_bytes(digest, name.as_bytes());
        }
        let dir = runtime_dir.join(format!("{digest:016x}"));
        let tiers = tiers.iter().cloned().map(|mut tier| {
            if tier.ram {
                tier.dir = dir.join(ram::DIR);
            }
            tier
        });
        Self {
            tiers: tiers.collect(),
            dir,
            state_dir: state_dir.to_owned(),
            policy,
            keep,
            index_spare: INDEX_SPARE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_meet_whatever_sizes_they_ask_for_but_only_with_the_same_tiers() {
        let config =
            |tiers: &[TierSetting]| AgentConfig::for_tiers(Path::new("/run"), Path::new("/state"), tiers, TierPolicy::default(), false);
        let disk = TierSetting::kept("/scratch".into(), 10);
        let both = config(&[TierSetting::in_ram(1), disk.clone()]);
        assert_eq!(both.dir, config(&[TierSetting::in_ram(2), disk.clone()]).dir);
        assert_ne!(both.dir, config(std::slice::from_ref(&disk)).dir);
        assert_ne!(both.dir, config(&[disk, TierSetting::in_ram(1)]).dir);
        let [ram, _] = both.tiers.as_slice() else { panic!() };
        assert_eq!((ram.dir.as_path(), ram.label().as_str()), (both.dir.join("ram").as_path(), "RAM"));
    }
}
