//! A process that is killed while it copies, publishes, removes and rewrites its catalogue.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_store::testing::MemorySource;
use forebay_store::{Tier, clean};

use crate::alone;
use crate::common::{QUOTA, content, known, publish, read, recover, secret, uid};

const DIR: &str = "FOREBAY_TEST_KILL_DIR";
const ROUNDS: u64 = 12;
/// Length of about ten records, in bytes.
const WRITTEN_BYTES: u64 = 2000;

fn size_of(seed: u32) -> usize {
    seed as usize % 37 * 1000
}

/// The process that is killed; in a plain run of the tests it does nothing.
#[test]
fn f9_victim() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let tier = Tier::open(Path::new(&dir), QUOTA, &secret(), uid()).expect("opens");
    let mut live: Vec<_> = recover(&tier).expect("recovered").0.values().map(|kept| kept.id).collect();
    for seed in 0_u32.. {
        // Names are used only once: the time makes them differ from round to round.
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_nanos();
        let name = format!("{seed}-{now}");
        let source = MemorySource::new(1, &content(u64::from(seed), size_of(seed)));
        live.push(publish(&tier, name.as_bytes(), &source).expect("published"));
        if seed % 3 == 0 {
            tier.remove(live.swap_remove(live.len() / 2)).expect("removed");
        }
        if seed % 50 == 49 {
            tier.compact().expect("rewritten");
        }
    }
}

#[test]
fn f9_p9_killed_at_any_instant_the_next_start_finds_only_whole_copies_and_all_space() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut recovered = 0;
    for round in 0..ROUNDS {
        let mut victim = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "processes::kill::f9_victim"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(20 + 17 * round));
        } else {
            // If that is too short for it to start, it surely works in every other round.
            let catalogue = || root_in(dir.path()).and_then(|root| root.join("catalogue").metadata().ok());
            let before = catalogue().map_or(0, |metadata| metadata.len());
            let begun = Instant::now();
            while catalogue().is_none_or(|metadata| metadata.len() <= before + WRITTEN_BYTES) && begun.elapsed() < Duration::from_secs(120)
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(17 * round));
        }
        victim.kill().expect("SIGKILL");
        victim.wait().expect("it is gone");

        let tier = Tier::open(dir.path(), QUOTA, &secret(), uid()).expect("the lease is free at once");
        let (copies, _, report) = recover(&tier).expect("recovered");
        assert_eq!(report.missing, 0, "a record is removed before its file");
        for (name, kept) in &copies {
            let seed = std::str::from_utf8(name)
                .expect("text")
                .split('-')
                .next()
                .and_then(|seed| seed.parse().ok())
                .expect("a number");
            assert_eq!(read(&tier, kept.id).expect("opens"), content(u64::from(seed), size_of(seed)));
            tier.verify(kept.id, kept.checksum, &kept.object).expect("whole");
        }
        assert!(
            tier.reap(&known(&copies), 1000, &mut || {}).expect("reaped").removed <= 2,
            "one that was being made, one that was being removed"
        );
        let files = walk(tier.objects_path());
        assert_eq!(files, copies.len());
        recovered += copies.len();
    }
    assert!(recovered > 10, "it got somewhere before it was killed: {recovered}");
    assert_eq!(clean(dir.path(), uid()).expect("cleaned").left, 0);
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0);
}

/// Returns the tier's own directory, once it exists.
fn root_in(dir: &Path) -> Option<std::path::PathBuf> {
    Some(std::fs::read_dir(dir).ok()?.next()?.ok()?.path())
}

fn walk(dir: &Path) -> usize {
    let entries = |dir: &Path| std::fs::read_dir(dir).expect("listed").map(|entry| entry.expect("an entry").path());
    entries(dir).flat_map(|shard| entries(&shard)).count()
}
