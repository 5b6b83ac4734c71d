//! The tiers that runs on this host have used, so that `clean` finds them all, and how fast they were.

use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use serde::{Deserialize, Serialize};

use crate::{tiers::Chosen, write::write_private};

/// Bytes of the file that is read to measure a tier.
pub const PROBE_BYTES: usize = 1 << 20;
/// Tiers that are remembered: the last ones.
const KNOWN_MAX: usize = 64;

/// Measured time of a read from a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadTime {
    /// Opening and reading a file of [`crate::tiers::used::PROBE_BYTES`], in microseconds.
    pub us: u64,
    /// Time of the measurement, in seconds since 1970.
    pub measured_unix_s: i64,
}

/// Returns the remembered tiers.
pub fn known(state_dir: &Path) -> Vec<Chosen> {
    fs::read(file(state_dir))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default()
}

/// Remembers the tiers of a run.
pub fn remember(state_dir: &Path, tiers: &[Chosen], were_found: bool) {
    // What lies in memory goes with its agent.
    let kept = tiers.iter().filter(|tier| !tier.setting.ram);
    let mut all = known(state_dir);
    let used = kept.map(|tier| Chosen {
        was_found: were_found,
        read_time: tier.read_time.or_else(|| read_time(&all, &tier.setting.dir)),
        ..Chosen::new(tier.setting.clone(), String::new(), String::new())
    });
    let used: Vec<_> = used.collect();
    if used.iter().all(|tier| all.contains(tier)) {
        return;
    }
    all.retain(|other| used.iter().all(|tier| tier.setting.dir != other.setting.dir));
    all.extend(used);
    write(state_dir, all.get(all.len().saturating_sub(KNOWN_MAX)..).unwrap_or_default());
}

/// Returns the time of a read from a tier, if it is known.
pub fn read_time(known: &[Chosen], dir: &Path) -> Option<ReadTime> {
    known.iter().find(|tier| tier.setting.dir == dir)?.read_time
}

/// Forgets measured times, so that they are measured again at the next use.
pub fn forget_read_times(state_dir: &Path, of: impl Fn(&Path) -> bool) {
    let mut all = known(state_dir);
    let before = all.clone();
    for tier in all.iter_mut().filter(|tier| of(&tier.setting.dir)) {
        tier.read_time = None;
    }
    if all != before {
        write(state_dir, &all);
    }
}

/// Keeps other runs of this host from deciding at the same time, until it is dropped. Where there can be no lock they
/// may, and those that come to different orders do not share an agent.
pub fn lock(state_dir: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(state_dir.join(format!("tiers-{}.lock", host())), flags, Mode::RUSR | Mode::WUSR).ok()?;
    flock(&file, FlockOperation::LockExclusive).ok()?;
    Some(file)
}

/// Forgets those of which nothing is left.
pub fn forget(state_dir: &Path, gone: impl Fn(&Path) -> bool) {
    let all = known(state_dir);
    let left: Vec<_> = all.iter().filter(|tier| !gone(&tier.setting.dir)).cloned().collect();
    if left != all {
        write(state_dir, &left);
    }
}

fn write(state_dir: &Path, tiers: &[Chosen]) {
    // Without it a later run finds a smaller tier, and `clean` must be told where to look.
    let _ = serde_json::to_vec(tiers).map(|text| write_private(&file(state_dir), &text));
}

/// Homes are shared between nodes, disks are not.
fn file(state_dir: &Path) -> PathBuf {
    state_dir.join(format!("tiers-{}.json", host()))
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().replace('/', "_")
}

#[cfg(test)]
mod tests {
    use forebay_agent::tiering::TierSetting;

    use super::*;

    fn chosen(dir: &str, read_time: Option<ReadTime>) -> Chosen {
        Chosen {
            read_time,
            ..Chosen::new(TierSetting::kept(dir.into(), 1), String::new(), String::new())
        }
    }

    #[test]
    fn what_reading_takes_is_remembered_until_it_is_forgotten() {
        let state = tempfile::tempdir().unwrap();
        let time = |us| {
            Some(ReadTime {
                us,
                measured_unix_s: 1_000,
            })
        };
        let of = |dir: &str| read_time(&known(state.path()), Path::new(dir));
        remember(state.path(), &[chosen("/a", time(1)), chosen("/b", time(2))], false);
        assert_eq!((of("/a"), of("/b"), of("/c")), (time(1), time(2), None));
        // A run that asks for no order knows nothing of it.
        remember(state.path(), &[chosen("/b", None), chosen("/c", None)], false);
        assert_eq!((of("/a"), of("/b"), of("/c")), (time(1), time(2), None));
        forget_read_times(state.path(), |dir| dir == Path::new("/a"));
        assert_eq!((of("/a"), of("/b")), (None, time(2)));
        assert_eq!(known(state.path()).len(), 3);
    }

    #[test]
    fn what_earlier_versions_wrote_is_read() {
        let state = tempfile::tempdir().unwrap();
        fs::write(file(state.path()), r#"[{"dir":"/a","bytes":7,"was_found":true}]"#).unwrap();
        assert_eq!(known(state.path()).len(), 1);
        assert_eq!(read_time(&known(state.path()), Path::new("/a")), None);
    }
}
