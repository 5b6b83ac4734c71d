//! What the command decides and an agent is started with. Frozen: nobody below reads the environment.

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
    /// Most bytes of files kept there.
    pub bytes: u64,
    /// It lies in memory below the agent's own directory: made when the agent starts, removed when it ends.
    #[serde(default)]
    pub ram: bool,
}

impl TierSetting {
    /// A directory that outlives the agent.
    pub const fn kept(dir: PathBuf, bytes: u64) -> Self {
        Self { dir, bytes, ram: false }
    }

    /// One that lives in memory with the agent. Where, [`AgentConfig::for_tiers`] decides.
    pub fn in_ram(bytes: u64) -> Self {
        Self {
            dir: PathBuf::new(),
            bytes,
            ram: true,
        }
    }

    /// What people call it.
    pub fn label(&self) -> String {
        label(&self.dir, self.ram)
    }
}

/// What people call a tier.
pub(crate) fn label(dir: &Path, ram: bool) -> String {
    if ram { "RAM".into() } else { dir.display().to_string() }
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
    /// What makes room where a file does not fit.
    #[serde(default)]
    pub policy: TierPolicy,
    /// Stay after the last run has ended.
    pub keep: bool,
    /// Files that the shared index has room for beside those that it is made for.
    #[serde(default = "index_spare")]
    pub index_spare: u64,
}

const fn index_spare() -> u64 {
    INDEX_SPARE
}

impl AgentConfig {
    /// The configuration of the agent for these tiers. Its directory's name is a digest of the tiers, so that runs with the same tiers meet.
    pub fn for_tiers(runtime_dir: &Path, state_dir: &Path, tiers: &[TierSetting], policy: TierPolicy, keep: bool) -> Self {
        let mut digest = 0;
        for tier in tiers {
            // No absolute path is called so.
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
