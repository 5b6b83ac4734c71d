//! Prints how a job of many nodes fares while some of them fail, a line of JSON for each: the figures of
//! docs/inside/peers.md, which `papers/cluster_page.py` makes tables and a drawing of.
//!
//! `cargo run --release -p forebay-sim --example cluster [NODES...]`

#![expect(clippy::print_stdout, reason = "figures are its purpose")]

use std::{
    collections::BTreeMap,
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use forebay_sim::cluster::{ClusterFault, ClusterJob};

/// Nodes, most nodes of a group (0: all are one), samples of a node in a step (the largest jobs have fewer, so that
/// they end in minutes), and samples that all nodes together can keep, as a share of the dataset: groups can hold all.
type SimulatedJob = (u16, u16, u32, f64);

const JOBS: [SimulatedJob; 6] = [
    (8, 0, 32, 1.1),
    (64, 0, 32, 1.1),
    (512, 0, 16, 1.1),
    (512, 64, 16, 8.8),
    (4096, 0, 4, 1.1),
    (4096, 128, 4, 35.2),
];
/// Steps of half a second that samples are requested ahead.
const WINDOWS: [u32; 2] = [16, 4];

fn main() {
    let wanted: Vec<u16> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let wanted_jobs = JOBS.into_iter().filter(|(nodes, ..)| wanted.is_empty() || wanted.contains(nodes));
    let with_windows = wanted_jobs.flat_map(|job| WINDOWS.map(|window| (job, window)));
    let runs: Vec<_> = with_windows
        .flat_map(|(job, window)| ClusterFault::ALL.map(|fault| (job, window, fault)))
        .collect();
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    // The last runs are the longest, so they come first.
    let work = || {
        while let Some(number) = runs.len().checked_sub(1 + next.fetch_add(1, Relaxed)) {
            let line = line_of(runs[number]);
            lines.lock().expect("no run panicked").insert(number, line);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    for line in lines.into_inner().expect("no run panicked").values() {
        println!("{line}");
    }
}

/// Simulates a job, and returns its line.
fn line_of(((nodes, group_max, batch, kept), window, (fault, name)): (SimulatedJob, u32, (ClusterFault, &str))) -> String {
    let job = ClusterJob {
        window,
        group_max,
        kept,
        ..ClusterJob::new(nodes, batch, fault)
    };
    let groups = if group_max == 0 {
        String::new()
    } else {
        format!(" in groups of {group_max}")
    };
    let outcome = job.simulate();
    let seconds: Vec<f64> = outcome.epochs.iter().map(|epoch| epoch.seconds).collect();
    let waits_s: Vec<f64> = outcome.epochs.iter().map(|epoch| epoch.wait_p99_s).collect();
    let shares: Vec<f64> = (0..outcome.epochs.len()).map(|epoch| outcome.source_share(job, epoch)).collect();
    format!(
        "{{\"job\": \"{}{groups}\", \"window\": {window}, \"fault\": \"{name}\", \"seconds\": {seconds:?}, \"wait_p99_s\": {waits_s:?}, \
         \"source\": {shares:?}, \"tries\": {:?}, \"connections\": {}, \"bytes\": {}, \"handshakes\": {}, \"failed\": {}, \
         \"probes\": {}, \"wanted\": {}, \"oldest_s\": {:?}, \"oldest_allowed_s\": {:?}}}",
        with_comma(nodes),
        outcome.tries(),
        outcome.connections_max,
        outcome.connection_bytes(job),
        outcome.requests.handshakes,
        outcome.requests.failed,
        outcome.requests.probes,
        outcome.requests.wanted,
        outcome.oldest_s,
        outcome.oldest_allowed_s(),
    )
}

/// Returns a number of nodes as tables write it.
fn with_comma(nodes: u16) -> String {
    if nodes < 1000 {
        nodes.to_string()
    } else {
        format!("{},{:03}", nodes / 1000, nodes % 1000)
    }
}
