//! Opens of the files of a run: exact for few files, a fair sample of many, counted from the first open on; and
//! durations of opens of the source.

mod memory;

use std::thread;

use forebay_contract::{
    Counter, Freshness, Region, Run, TIERS_MAX,
    latency::{BUCKETS, bucket_of},
    run::{RUN_BYTES, RunSettings},
};
use memory::region;

fn run_in(memory: Region<'static>) -> Run<'static> {
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
    Run::create(memory, &settings).expect("room")
}

fn run() -> Run<'static> {
    run_in(region(RUN_BYTES))
}

fn open_all(run: &Run<'_>, files: std::ops::Range<u64>) {
    for file in files {
        run.opens()
            .note(format!("/data/train/class-{}/image-{file}.jpg", file % 1000).as_bytes());
    }
}

#[test]
fn few_files_are_counted_each() {
    let run = run();
    assert_eq!(run.opens().counts().count(), 0);
    open_all(&run, 0..1000);
    open_all(&run, 0..1000);
    open_all(&run, 0..10);
    let mut counts: Vec<u32> = run.opens().counts().collect();
    counts.sort_unstable();
    assert_eq!(run.opens().one_in(), 1);
    assert_eq!(counts, [vec![2; 990], vec![3; 10]].concat());
}

#[test]
fn of_many_files_a_fair_sample_is_counted_from_the_first_open_on() {
    const FILES: u64 = 300_000;
    let run = run();
    for _ in 0..3 {
        open_all(&run, 0..FILES);
    }
    let counts: Vec<u32> = run.opens().counts().collect();
    // A sample of a thousand is within three percent two times in three.
    let estimate = counts.len() as u64 * run.opens().one_in();
    assert!(estimate.abs_diff(FILES) < FILES / 6, "{estimate}");
    assert!((500..4096).contains(&counts.len()), "{}", counts.len());
    assert!(counts.iter().all(|count| *count == 3), "{counts:?}");
}

#[test]
fn processes_count_together() {
    let run = run();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| open_all(&run, 0..200)));
        }
    });
    let counts: Vec<u32> = run.opens().counts().collect();
    assert_eq!(counts.len(), 200);
    // A process that loses a slot to others again and again leaves an open uncounted.
    let sum: u32 = counts.iter().sum();
    assert!((39_900..=40_000).contains(&sum), "{sum}");
}

#[test]
fn opens_of_the_source_are_counted_by_the_time_that_they_took() {
    let run = run();
    for (process, ns) in (0..40).zip([300, 1_200, 5_000_000, 20_000_000_000].into_iter().cycle()) {
        run.count_source_open(process, ns);
    }
    let mut expected = [0; BUCKETS];
    for ns in [300, 1_200, 5_000_000, 20_000_000_000] {
        expected[bucket_of(ns)] = 10;
    }
    assert_eq!(run.source_opens_by_time(), expected);
    assert_eq!(run.total(Counter::SourceOpenNs), 10 * 20_005_001_500);
    // Nothing beside the table is touched.
    assert_eq!(run.opens().counts().count(), 0);
    assert!((0..TIERS_MAX).all(|tier| run.hits(tier) == (0, 0)));
    let others = Counter::ALL.iter().filter(|counter| **counter != Counter::SourceOpenNs);
    assert_eq!(others.map(|counter| run.total(*counter)).sum::<u64>(), 0);
}

#[test]
fn a_page_that_was_written_over_gives_some_figures_and_no_more() {
    let memory = region(RUN_BYTES);
    let run = run_in(memory);
    // SAFETY: the test's own memory, which holds only atomics there.
    unsafe { memory.base().as_ptr().add(RUN_BYTES - 33_000).write_bytes(0xFF, 33_000) };
    open_all(&run, 0..10_000);
    assert!(run.opens().counts().count() <= 4096);
    assert!(run.opens().one_in() > 1);
}
