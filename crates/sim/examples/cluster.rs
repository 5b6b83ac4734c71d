//! Prints how a job of many nodes fares while some of them fail, a line of JSON for each: the figures of
//! docs/inside/peers.md, which `papers/cluster_page.py` makes tables and a drawing of.
//!
//! `cargo run --release -p forebay-sim --example cluster [NODES...]`

#![expect(clippy::print_stdout, reason = "figures are its purpose")]

use forebay_sim::cluster::{ClusterFault, ClusterJob};

/// Nodes, most nodes of a group (0: all are one), samples of a node in a step (the largest jobs have fewer, so that
/// they end in minutes), and samples that all nodes together can keep, as a share of the dataset: groups can hold all.
const JOBS: [(u16, u16, u32, f64); 6] = [
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
    for (nodes, group_max, batch, kept) in JOBS.into_iter().filter(|(nodes, ..)| wanted.is_empty() || wanted.contains(nodes)) {
        let groups = if group_max == 0 {
            String::new()
        } else {
            format!(" in groups of {group_max}")
        };
        for window in WINDOWS {
            for (fault, name) in ClusterFault::ALL {
                let job = ClusterJob {
                    window,
                    group_max,
                    kept,
                    ..ClusterJob::new(nodes, batch, fault)
                };
                let outcome = job.simulate();
                let seconds: Vec<f64> = outcome.epochs.iter().map(|epoch| epoch.seconds).collect();
                let waits_s: Vec<f64> = outcome.epochs.iter().map(|epoch| epoch.wait_p99_s).collect();
                let shares: Vec<f64> = (0..outcome.epochs.len()).map(|epoch| outcome.source_share(job, epoch)).collect();
                println!(
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
                );
            }
        }
    }
}

/// Returns a number of nodes as tables write it.
fn with_comma(nodes: u16) -> String {
    if nodes < 1000 {
        nodes.to_string()
    } else {
        format!("{},{:03}", nodes / 1000, nodes % 1000)
    }
}
