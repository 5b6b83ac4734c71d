//! `--tier-order speed`: the tiers in the order of what reading from them takes. That is measured once and
//! remembered; what order follows, [`forebay_policy::tier_order`] decides.
//!
//! Runs share an agent only if they have the same tiers in the same order. So an agent that stands keeps its order,
//! whatever has been measured since.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use forebay_agent::tiering::TieringConnection;
use forebay_policy::tier_order::{fastest_first, is_due};
use forebay_settings::{
    places::agents_in,
    text::{self, time_text},
    tiers::{
        Chosen,
        used::{self, PROBE_BYTES, ReadTime},
    },
};

use crate::inspect::measure::ProbeFile;

/// Files that are read to measure a tier, each another one.
const PROBES: usize = 5;
/// Time after which no further file is read to measure a tier.
const PROBES_MAX: Duration = Duration::from_secs(1);
/// A tier that has not answered by then is not waited for.
const DEADLINE: Duration = Duration::from_secs(30);
/// An agent that has not answered by then can't be joined.
const AGENT_DEADLINE: Duration = Duration::from_secs(5);

/// Puts tiers into order; memory stays above. What each took is noted with it, for [`used::remember`] to keep.
pub fn arrange(tiers: &mut Vec<Chosen>, runtime_dir: &Path, state_dir: &Path) {
    let (above, mut kept): (Vec<Chosen>, Vec<Chosen>) = tiers.drain(..).partition(|tier| tier.setting.ram);
    if kept.len() > 1 {
        kept = match order_of_agent(&kept, !above.is_empty(), runtime_dir) {
            Some(dirs) => as_there(kept, &dirs),
            None => by_speed(kept, &used::known(state_dir)),
        };
    }
    tiers.extend(above.into_iter().chain(kept));
}

/// The directories of these tiers, in the order of an agent that stands for them.
fn order_of_agent(kept: &[Chosen], with_ram: bool, runtime_dir: &Path) -> Option<Vec<PathBuf>> {
    let sorted = |mut dirs: Vec<PathBuf>| {
        dirs.sort();
        dirs
    };
    let ours = sorted(kept.iter().map(|tier| tier.setting.dir.clone()).collect());
    agents_in(runtime_dir).into_iter().find_map(|agent| {
        let status = TieringConnection::open_for(&agent, AGENT_DEADLINE).ok()?.status().ok()?;
        let has_ram = status.tiers.iter().any(|tier| tier.ram);
        let dirs: Vec<PathBuf> = status.tiers.into_iter().filter(|tier| !tier.ram).map(|tier| tier.dir).collect();
        (has_ram == with_ram && sorted(dirs.clone()) == ours).then_some(dirs)
    })
}

fn as_there(mut kept: Vec<Chosen>, dirs: &[PathBuf]) -> Vec<Chosen> {
    kept.sort_by_key(|tier| dirs.iter().position(|dir| *dir == tier.setting.dir));
    for tier in &mut kept {
        tier.why.push_str(", in the order of the agent that stands");
    }
    kept
}

fn by_speed(kept: Vec<Chosen>, known: &[Chosen]) -> Vec<Chosen> {
    let now_unix_s = unix_s();
    let measured: Vec<(Chosen, bool)> = kept
        .into_iter()
        .map(|mut tier| {
            let remembered = used::read_time(known, &tier.setting.dir).filter(|time| !is_due(time.measured_unix_s, now_unix_s));
            tier.read_time = remembered.or_else(|| measure(&tier.setting.dir));
            (tier, remembered.is_some())
        })
        .collect();
    let read_us: Vec<Option<u64>> = measured.iter().map(|(tier, _)| tier.read_time.map(|time| time.us)).collect();
    let mut places: Vec<Option<Chosen>> = measured
        .into_iter()
        .map(|(mut tier, is_remembered)| {
            let words = tier
                .read_time
                .map_or_else(|| "its speed could not be measured".into(), |time| words(time, is_remembered));
            tier.why = format!("{}, {words}", tier.why);
            Some(tier)
        })
        .collect();
    fastest_first(&read_us)
        .into_iter()
        .filter_map(|at| places.get_mut(at)?.take())
        .collect()
}

/// `1 MiB read in 0.42 ms`, and, if it was, when that was measured.
pub fn words(time: ReadTime, is_remembered: bool) -> String {
    let took = time_text(time.us as f64 / 1e6);
    let when = if is_remembered {
        let since_1970 = Duration::from_secs(time.measured_unix_s.try_into().unwrap_or(0));
        format!(
            " (measured {})",
            text::timestamp(UNIX_EPOCH.checked_add(since_1970).unwrap_or(UNIX_EPOCH))
        )
    } else {
        String::new()
    };
    format!("{} read in {took}{when}", text::bytes(PROBE_BYTES as u64))
}

/// Measures the time of a read from a directory's disk, and leaves nothing there. Gives up on a disk that hangs.
fn measure(dir: &Path) -> Option<ReadTime> {
    let (done, result) = channel();
    let dir = dir.to_owned();
    thread::Builder::new()
        .name("probe".into())
        .spawn(move || done.send(probe(&dir)))
        .ok()?;
    Some(ReadTime {
        us: result.recv_timeout(DEADLINE).ok()??,
        measured_unix_s: unix_s(),
    })
}

/// The median, in microseconds; `None` where nothing can be written or read.
fn probe(dir: &Path) -> Option<u64> {
    let bytes = noise(PROBE_BYTES);
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < PROBES && (times.is_empty() || begun.elapsed() < PROBES_MAX) {
        let time = ProbeFile::write(dir, &bytes).and_then(|copy| copy.read_cold()).ok()?;
        times.push(time.as_micros() as u64);
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Bytes that no file system makes shorter.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    });
    words.flat_map(u64::to_le_bytes).take(bytes).collect()
}

fn unix_s() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use forebay_agent::tiering::TierSetting;

    use super::*;

    fn chosen(dir: &Path) -> Chosen {
        Chosen::new(TierSetting::kept(dir.to_owned(), 1), "ext4".into(), "named".into())
    }

    #[test]
    fn what_is_remembered_is_not_measured_again_and_what_is_new_is() {
        let root = tempfile::tempdir().unwrap();
        let dirs = ["slow", "fast", "new", "gone"].map(|name| root.path().join(name));
        for dir in &dirs[..3] {
            std::fs::create_dir(dir).unwrap();
        }
        let remembered = |at: usize, us| Chosen {
            read_time: Some(ReadTime {
                us,
                measured_unix_s: unix_s(),
            }),
            ..chosen(&dirs[at])
        };
        let ordered = by_speed(
            dirs.iter().map(|dir| chosen(dir)).collect(),
            &[remembered(0, u64::MAX / 8), remembered(1, 0)],
        );
        let order: Vec<&Path> = ordered.iter().map(|tier| tier.setting.dir.as_path()).collect();
        assert_eq!(order, [&dirs[1], &dirs[2], &dirs[0], &dirs[3]]);
        assert!(ordered[1].read_time.is_some_and(|time| time.us > 0), "measured");
        assert!(ordered[1].why.starts_with("named, 1 MiB read in ") && !ordered[1].why.contains("(measured"));
        assert!(ordered[0].why.contains("read in 0 s (measured 20"), "{}", ordered[0].why);
        assert!(ordered[3].why.ends_with("its speed could not be measured"));
        assert_eq!(std::fs::read_dir(&dirs[2]).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn an_agent_keeps_its_order_and_memory_stays_above() {
        let dirs = ["/a", "/b", "/c"].map(PathBuf::from);
        let kept = as_there(
            dirs.iter().map(|dir| chosen(dir)).collect(),
            &[dirs[2].clone(), dirs[0].clone(), dirs[1].clone()],
        );
        assert_eq!(
            kept.iter().map(|tier| tier.setting.dir.to_str().unwrap()).collect::<String>(),
            "/c/a/b"
        );
        let mut tiers = vec![chosen(&dirs[0]), chosen(&dirs[1])];
        tiers[0].setting = TierSetting::in_ram(1);
        let before = tiers.clone();
        arrange(&mut tiers, Path::new("/nowhere"), Path::new("/nowhere"));
        assert_eq!(tiers, before, "one alone is not measured");
    }

    #[test]
    fn noise_is_as_long_as_it_is_asked_for() {
        assert_eq!(noise(13).len(), 13);
        assert!(noise(4096).chunks(8).collect::<std::collections::BTreeSet<_>>().len() == 512);
    }
}
