//! Tiers that live in memory with their agent, in its own directory: removed when it ends, and by the next agent of whatever tiers
//! where it was killed. Memory that nobody uses any more would otherwise be lost to the node until somebody cleans.

use std::{
    fs,
    path::{Path, PathBuf},
};

use forebay_store::{CleanReport, StoreError};
use rustix::process::geteuid;

use crate::{host::lock::lock, host::private_dir::private_dir};

/// Name of the tier's directory in its agent's.
pub(crate) const DIR: &str = "ram";

/// Tiers in memory of all agents, living and dead, below a runtime directory. One that is not ours alone holds none of ours.
pub fn tiers_in(runtime_dir: &Path) -> Vec<PathBuf> {
    if !runtime_dir.is_dir() || private_dir(runtime_dir).is_err() {
        return Vec::new();
    }
    let agents = fs::read_dir(runtime_dir).into_iter().flatten().filter_map(Result::ok);
    agents.map(|agent| agent.path().join(DIR)).filter(|dir| dir.is_dir()).collect()
}

/// Whether the agent of such a tier stands.
pub fn is_live(tier: &Path) -> bool {
    tier.parent()
        .is_some_and(|agent| agent.join("lock").exists() && lock(agent).is_err())
}

/// Removes such a tier, which must not be in use.
pub(crate) fn remove(tier: &Path) -> Result<CleanReport, StoreError> {
    let report = forebay_store::clean(tier, geteuid().as_raw())?;
    // What is not ours in it was counted, and keeps it.
    let _ = fs::remove_dir(tier);
    Ok(report)
}

/// Removes what agents that were killed have left in memory; `own` is the directory of the agent that asks, whose tier it takes over. What
/// can't be removed stays for `clean`.
pub(crate) fn reap(own: &Path) -> CleanReport {
    let mut all = CleanReport::default();
    for tier in tiers_in(own.parent().unwrap_or(own)) {
        let agent = tier.parent().filter(|agent| *agent != own);
        // Holding its lock, no agent can start there meanwhile.
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
