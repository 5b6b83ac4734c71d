//! The table of covered processes: an absent process is never taken for a covered one.

mod memory;

use forebay_contract::{
    Freshness, Run,
    run::{RUN_BYTES, RunSettings},
};
use memory::region;

#[test]
fn a_process_is_covered_from_its_entry_to_its_removal() {
    let settings = RunSettings {
        run: 1,
        freshness: Freshness::Immutable,
        mount_namespace: 0,
        root: (0, 0),
        agent_dir: b"/agent",
        agent_started_at: 0,
        roots: &[],
        excludes: &[],
    };
    let run = Run::create(region(RUN_BYTES), &settings).expect("fits");
    let covered = run.covered();
    let second = 1_000_000_000;
    assert!(!covered.remove(7), "never entered");
    covered.enter(7, 5 * second);
    assert!(covered.remove(7));
    assert!(!covered.remove(7), "removed");
    covered.enter(7, 5 * second);
    assert!(!covered.remove(7 + 4096), "another process with the same slot");
    covered.enter(7 + 4096, 6 * second);
    assert!(!covered.remove(7), "its slot was taken");
    assert!(covered.remove(7 + 4096));
    covered.enter(8, 5 * second);
    covered.remove_older(8, 5 * second);
    assert!(covered.remove(8), "entered since");
    covered.enter(8, 5 * second);
    covered.remove_older(8, 6 * second);
    assert!(!covered.remove(8), "entered by an earlier process");
    covered.enter(0, 5 * second);
    covered.enter(1 << 22, 5 * second);
    assert!(!covered.remove(1 << 22), "no process of Linux");
    covered.enter((1 << 22) - 1, u64::MAX);
    assert!(covered.remove((1 << 22) - 1));
}
