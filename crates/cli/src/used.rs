//! The tiers that runs on this host have used, so that `clean` finds them all.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{record::write_private, tiers::Chosen};

/// Tiers that are remembered: the last ones.
const KNOWN_MAX: usize = 64;

/// A tier that was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedTier {
    /// Its directory.
    pub dir: PathBuf,
    /// Its quota.
    pub bytes: u64,
    /// Whether nobody had named it.
    pub was_found: bool,
}

/// Those that are known.
pub fn known(state_dir: &Path) -> Vec<UsedTier> {
    fs::read(file(state_dir))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default()
}

/// Remembers the tiers of a run.
pub fn remember(state_dir: &Path, tiers: &[Chosen], were_found: bool) {
    // What lies in memory goes with its agent.
    let kept = tiers.iter().filter(|tier| !tier.setting.ram);
    let used = kept.map(|tier| UsedTier {
        dir: tier.setting.dir.clone(),
        bytes: tier.setting.bytes,
        was_found: were_found,
    });
    let used: Vec<_> = used.collect();
    let mut all = known(state_dir);
    if used.iter().all(|tier| all.contains(tier)) {
        return;
    }
    all.retain(|other| used.iter().all(|tier| tier.dir != other.dir));
    all.extend(used);
    write(state_dir, all.get(all.len().saturating_sub(KNOWN_MAX)..).unwrap_or_default());
}

/// Forgets those of which nothing is left.
pub fn forget(state_dir: &Path, gone: impl Fn(&Path) -> bool) {
    let all = known(state_dir);
    let left: Vec<_> = all.iter().filter(|tier| !gone(&tier.dir)).cloned().collect();
    if left != all {
        write(state_dir, &left);
    }
}

fn write(state_dir: &Path, tiers: &[UsedTier]) {
    // Without it a later run finds a smaller tier, and `clean` must be told where to look.
    let _ = serde_json::to_vec(tiers).map(|text| write_private(&file(state_dir), &text));
}

/// Homes are shared between nodes, disks are not.
fn file(state_dir: &Path) -> PathBuf {
    let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "_");
    state_dir.join(format!("tiers-{host}.json"))
}
