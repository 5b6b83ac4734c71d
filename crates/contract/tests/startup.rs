//! Files that programs open before the first step: counted by kind and origin until the first step, and not after it.

mod memory;

use forebay_contract::{
    FileKind, Freshness, Run, TIERS_MAX,
    run::{RUN_BYTES, RunSettings},
    startup::{FirstBatches, OpenedFiles},
};
use memory::region;

fn run() -> Run<'static> {
    let settings = RunSettings {
        run: 1,
        freshness: Freshness::Immutable,
        mount_namespace: 1,
        root: (1, 1),
        agent_dir: b"/agent",
        agent_started_at: 1,
        roots: &[],
        excludes: &[],
    };
    Run::create(region(RUN_BYTES), &settings).expect("room")
}

#[test]
fn processes_count_together_by_kind_and_origin() {
    let run = run();
    let startup = run.startup();
    for process in 0..20 {
        startup.count_source(process, b"/s/a.py", 100 + process, (5, 10));
        startup.count_hit(process, b"/s/a.py", 300 + process, (1, 10));
        startup.count_hit(process, b"/s/w.gguf", 400, (TIERS_MAX - 1, 1000));
    }
    startup.count_wait(3, b"/s/w.gguf", 401, 7);
    let files = |opens, bytes| OpenedFiles { opens, bytes };
    assert_eq!(startup.from_source(FileKind::Import), (files(20, 200), 100));
    assert_eq!(startup.from_tier(FileKind::Import, 1), files(20, 200));
    assert_eq!(startup.from_tier(FileKind::Import, 0), files(0, 0));
    assert_eq!(startup.opened(FileKind::Import), Some((100, 319)));
    assert_eq!(startup.from_source(FileKind::Weights), (files(0, 0), 7));
    assert_eq!(startup.from_tier(FileKind::Weights, TIERS_MAX - 1), files(20, 20_000));
    assert_eq!(startup.opened(FileKind::Weights), Some((400, 401)));
    for kind in [FileKind::Settings, FileKind::Data] {
        assert_eq!((startup.opened(kind), startup.from_source(kind)), (None, (files(0, 0), 0)));
    }
    // The last process's last figure lies within the page, and nothing before the table is touched.
    assert_eq!(run.hits(1), (0, 0));
    assert_eq!(run.opens().counts().count(), 0);
}

#[test]
fn counting_ends_with_the_first_batch_of_any_process() {
    let run = run();
    let startup = run.startup();
    assert!(!startup.is_over());
    startup.count_source(1, b"/s/0.jpg", 10, (1, 2));
    startup.note_weights_read(15);
    startup.note_batch(17, 20);
    assert!(startup.is_over());
    startup.count_source(1, b"/s/1.jpg", 21, (1, 2));
    startup.count_hit(1, b"/s/late.py", 22, (0, 2));
    startup.note_weights_read(23);
    startup.note_batch(24, 25);
    startup.note_step(30);
    startup.note_step(31);
    startup.end(40);
    let batches = FirstBatches {
        asked: 17,
        first: 20,
        last: 25,
        processes: 2,
    };
    assert_eq!(startup.batches(), Some(batches));
    assert_eq!((startup.step(), startup.weights_read()), (Some(30), Some(15)));
    assert_eq!(startup.opened(FileKind::Data), Some((10, 10)));
    assert_eq!(startup.opened(FileKind::Import), None);
}

#[test]
fn a_program_that_tells_nothing_has_no_batch() {
    let run = run();
    run.startup().end(9);
    assert!(run.startup().is_over());
    assert_eq!(
        (run.startup().batches(), run.startup().step(), run.startup().weights_read()),
        (None, None, None)
    );
}
