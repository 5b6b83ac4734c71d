//! Tiers in memory, in the directory of their agent. The agent removes its tier when it ends; if it was killed, the
//! next agent of any tiers does. Otherwise the memory would be lost to the node until a person cleans it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use forebay_store::{CleanReport, StoreError};
use rustix::process::geteuid;

use crate::{host::lock::lock, host::private_dir::paths_in};

/// Name of the tier's directory in the directory of its agent.
pub(crate) const DIR: &str = "ram";

/// Returns the tiers in memory of all agents, living and dead, below a runtime directory. A runtime directory that is
/// not private has none.
pub fn tiers_in(runtime_dir: &Path) -> Vec<PathBuf> {
    let agents = paths_in(runtime_dir).into_iter();
    agents.map(|agent| agent.join(DIR)).filter(|dir| dir.is_dir()).collect()
}

/// Returns true if the agent of a tier in memory is running.
pub fn is_live(tier: &Path) -> bool {
    tier.parent()
        .is_some_and(|agent| agent.join("lock").exists() && lock(agent).is_err())
}

/// Removes a tier in memory that is not in use.
pub(crate) fn remove(tier: &Path) -> Result<CleanReport, StoreError> {
    let report = forebay_store::clean(tier, geteuid().as_raw())?;
    // Foreign files in it were counted, and keep the directory.
    let _ = fs::remove_dir(tier);
    Ok(report)
}

/// Removes the tiers in memory of agents that were killed, except the one in `own`, the directory of the agent that
/// asks, which takes its tier over. Files that can't be removed stay for `clean`.
pub(crate) fn reap(own: &Path) -> CleanReport {
    let mut all = CleanReport::default();
    for tier in tiers_in(own.parent().unwrap_or(own)) {
        let agent = tier.parent().filter(|agent| *agent != own);
        // While we hold its lock, no agent can start there.
        if let Some(Ok(_lock)) = agent.map(lock)
            && let Ok(report) = remove(&tier)
        {
            all.removed += report.removed;
            all.removed_bytes += report.removed_bytes;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn tier(runtime_dir: &Path, key: &str) -> PathBuf {
        let tier = runtime_dir.join(key).join(DIR);
        fs::create_dir_all(&tier).unwrap();
        tier
    }

    #[test]
    fn s10_tiers_of_dead_agents_go_and_those_of_the_living_stay() {
        let runtime_dir = tempfile::tempdir().unwrap();
        fs::set_permissions(runtime_dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let [dead, living, own] = ["0", "1", "2"].map(|key| tier(runtime_dir.path(), key));
        let _lock = lock(living.parent().unwrap()).unwrap();
        assert!(is_live(&living) && !is_live(&dead));
        reap(own.parent().unwrap());
        assert_eq!([&dead, &living, &own].map(|tier| tier.exists()), [false, true, true]);
    }
}
