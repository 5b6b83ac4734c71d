//! The loader agent in a thread, its ranks in others: samples arrive with the contents of their files, once from the
//! source and then from memory or disk.

use std::{
    fs,
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, fs::PermissionsExt},
    },
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use forebay_agent::{
    host::error::AgentError,
    samples::{
        Figures, LoaderConfig, SampleStatus,
        client::{LoaderRank, Registering},
        protocol::Variables,
        serve,
        table::Table,
        worker::{Seat, Worker},
    },
};

const SAMPLES: u32 = 64;
const BATCH: usize = 4;
const WAIT: Duration = Duration::from_secs(60);
/// The agent's own limit, plus the error of its clock of whole seconds.
const SETTLED: Duration = Duration::from_secs(4);

/// A node: files, and an agent that runs as long as a client is connected.
struct LoaderNode {
    root: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

fn content(sample: u32) -> Vec<u8> {
    (0..sample * 61 % 2000).map(|at| (at * at + sample) as u8).collect()
}

impl LoaderNode {
    fn new() -> Self {
        // A short path, for sockets, and a file system that is not nearly full.
        let root = tempfile::tempdir_in("/dev/shm").expect("there is memory");
        fs::create_dir(root.path().join("cache")).expect("it is new");
        let paths: Vec<PathBuf> = (0..SAMPLES).map(|sample| root.path().join(format!("{sample}.bin"))).collect();
        for (sample, path) in (0..).zip(&paths) {
            fs::write(path, content(sample)).expect("there is room");
        }
        Self { root, paths }
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join("loaders")
    }

    /// Waits until the times of the files are sure to show the next change (fault F5): before that no copy is left to
    /// other jobs.
    fn settle(&self) {
        let is_recent = |path: &PathBuf| {
            let changed = fs::metadata(path).and_then(|metadata| metadata.modified()).expect("it is there");
            changed.elapsed().is_ok_and(|since| since < SETTLED)
        };
        while self.paths.iter().any(is_recent) {
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn serve(&self) -> thread::JoinHandle<Result<(), AgentError>> {
        let config = LoaderConfig {
            loaders_dir: self.dir(),
            state_dir: self.root.path().join("state"),
        };
        thread::spawn(move || serve(&config))
    }

    fn settings(&self, loader: &str, local_rank: u32, local_ranks: u32, seed: u64, memory_bytes: u64) -> String {
        // Loaders that test a policy are named after it.
        let policy = loader.strip_prefix("by ").unwrap_or("forebay");
        let cache = self.root.path().join("cache");
        serde_json::json!({
            "loader": loader, "rank": local_rank, "local_rank": local_rank, "local_ranks": local_ranks,
            "alike": {
                "dataset": "abc", "extents": SAMPLES, "seed": seed, "order": "sequential",
                "deal": {"samples": SAMPLES, "batch": BATCH, "world": local_ranks, "sampler_drop_last": false, "drop_last": false},
                "policy": policy, "schedule": "earliest_deadline", "window": 3, "ahead": 3, "background_fill": false, "reads_max": 8, "hedge_budget": 0.0, "threads": {"tau": 0.05, "steps": 1},
                "room": {"window_bytes": 1 << 20, "memory_bytes": memory_bytes, "disks": [{"dir": cache, "bytes": 1 << 24}]},
            },
        })
        .to_string()
    }

    /// Registers; the agent may only just be starting.
    fn register(&self, settings: &str, with_extents: bool) -> Registering {
        let mut table = Table::default();
        for path in &self.paths {
            table.add(path.as_os_str().as_bytes(), 0, None, 0).expect("it is a path");
        }
        let table = with_extents.then(|| table.seal().expect("there is memory"));
        let begun = Instant::now();
        loop {
            match Registering::begin(&self.dir(), settings, table.as_ref().map(AsFd::as_fd), Variables::default()) {
                Ok(registering) => return registering,
                Err(error) => assert!(begun.elapsed() < WAIT, "{error}"),
            }
            thread::yield_now();
        }
    }
}

fn registered(registering: Registering) -> LoaderRank {
    match registering.wait(WAIT) {
        Ok(Ok(rank)) => rank,
        other => panic!("{other:?}"),
    }
}

/// Runs one epoch of a rank, some steps ahead, and checks all samples.
fn epoch(rank: &LoaderRank, number: u32, samples: &[u32]) {
    let steps: Vec<&[u32]> = samples.chunks(BATCH).collect();
    let number = rank.begin_epoch(number);
    let mut turns = Vec::new();
    for (iteration, step) in steps.iter().enumerate() {
        while turns.len() < steps.len().min(iteration + 3) {
            let next = turns.len();
            turns.push(rank.ask(steps[next], number, next as u32).expect("there is room on the ring"));
        }
        rank.begin_step(number, iteration as u32);
        for (turn, &sample) in (turns[iteration]..).zip(*step) {
            match rank.wait(turn, WAIT) {
                SampleStatus::Ready { offset, length } => {
                    let found = rank.arena().bytes(offset, u64::from(length)).expect("it lies in the arena");
                    assert_eq!(found, content(sample), "sample {sample}");
                }
                told => panic!("sample {sample}: {told:?}, {:?}", rank.lost()),
            }
        }
        rank.release(turns[iteration]..turns[iteration] + step.len() as u64);
    }
}

/// A worker sees the answers to its rank, and the rank sees when the worker is done.
fn work(rank: &LoaderRank) {
    let seat = rank.seat().expect("its files are there");
    let moved = Seat {
        arena: (seat.arena.0, seat.arena.1 + 1),
        ..seat
    };
    for wrong in [moved, Seat { ring: seat.arena, ..seat }, Seat { rank: i32::MAX, ..seat }] {
        assert!(Worker::new(&wrong).is_err(), "{wrong:?}");
    }
    let worker = Worker::new(&seat).expect("it is of the same process");
    let number = rank.begin_epoch(0);
    let first = rank.ask(&[1, 2, 3], number, 0).expect("there is room on the ring");
    for (turn, sample) in (first..).zip(1..=3) {
        let SampleStatus::Ready { offset, length } = worker.wait(turn, WAIT) else {
            panic!("sample {sample}: {:?}", worker.lost());
        };
        assert_eq!(worker.arena().bytes(offset, u64::from(length)), Some(&*content(sample)));
    }
    assert!(!rank.is_done(first + 1));
    worker.done(first + 1);
    assert!(rank.is_done(first + 1) && !rank.is_done(first));
    rank.release(first..first + 3);
    assert_eq!(worker.lost(), None);
}

/// A job of two ranks and three epochs.
fn train(node: &LoaderNode, loader: &str, memory_bytes: u64) -> Figures {
    let ranks: Vec<Registering> = (0..2)
        .map(|rank| node.register(&node.settings(loader, rank, 2, 0, memory_bytes), rank == 0))
        .collect();
    let mut ranks: Vec<LoaderRank> = ranks.into_iter().map(registered).collect();
    assert!(ranks[0].notes().is_empty(), "{:?}", ranks[0].notes());
    for number in 0..3 {
        thread::scope(|scope| {
            for (index, rank) in (0..2_u32).zip(&ranks) {
                let samples: Vec<u32> = (0..SAMPLES).filter(|sample| sample % 2 == index).collect();
                scope.spawn(move || epoch(rank, number, &samples));
            }
        });
    }
    let (figures, of_rank) = ranks[1].figures().expect("the agent is there");
    assert!(of_rank.reads > 0 && of_rank.reads <= figures.from_source + figures.from_disk);
    // The other rank is told of one that leaves.
    drop(ranks.remove(0));
    let begun = Instant::now();
    while ranks[0].gone() != [0] {
        assert!(begun.elapsed() < WAIT && ranks[0].lost().is_none());
        thread::yield_now();
    }
    figures
}

#[test]
fn ranks_are_served_from_memory_and_from_disk_and_disagreement_is_told_to_all() {
    let node = LoaderNode::new();
    let agent = node.serve();
    // The agent stays until the next job, however late, since a rank waits for another one.
    let waiting = node.register(&node.settings("waiting", 0, 2, 0, 0), true);
    let figures = train(&node, "memory", 1 << 20);
    assert_eq!(figures.from_source, u64::from(SAMPLES), "{figures:?}");
    assert_eq!((figures.from_memory, figures.lost), (u64::from(2 * SAMPLES), 0), "{figures:?}");
    work(&registered(node.register(&node.settings("worked for", 0, 1, 0, 1 << 20), true)));
    node.settle();
    let figures = train(&node, "disk", 0);
    assert!(figures.from_source < u64::from(2 * SAMPLES) && figures.from_disk > 0, "{figures:?}");
    let figures = train(&node, "next", 0);
    assert!(
        figures.left_by_others > 0 && figures.from_source < u64::from(SAMPLES),
        "{figures:?}"
    );

    for policy in ["by belady", "by lobster", "by lobster_as_written", "by nopfs"] {
        let figures = train(&node, policy, 32 << 10);
        assert!(figures.from_source < u64::from(3 * SAMPLES), "{policy}: {figures:?}");
    }

    let disagreeing = [(0, 0), (1, 9)].map(|(rank, seed)| node.register(&node.settings("other", rank, 3, seed, 0), rank == 0));
    for registering in disagreeing {
        let line = "the agent refused: rank 0 and rank 1 of other disagree on the seed: 0 and 9; give all ranks the same";
        match registering.wait(WAIT) {
            Err(error @ AgentError::Refused { .. }) => assert_eq!(error.to_string(), line),
            other => panic!("{other:?}"),
        }
    }
    let mode = fs::metadata(node.dir()).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
    drop(waiting);
    assert!(matches!(agent.join(), Ok(Ok(()))), "it ends when nobody is connected any more");
}
