//! Prints how a job of many nodes fares while some of them fail, a line of JSON for each: the figures of
//! docs/inside/peers.md, which `papers/cluster_page.py` makes tables and a drawing of.
//!
//! `cargo run --release -p forebay-sim --example cluster [NODES...]`

#![expect(clippy::print_stdout, reason = "figures are its purpose")]

use forebay_sim::cluster::{ClusterFault, ClusterJob};

/// Samples of a node in a step, by the number of nodes: the largest job has fewer, so that it ends in minutes.
const BATCHES: [(u16, u32); 4] = [(8, 32), (64, 32), (512, 16), (4096, 4)];
/// Steps of half a second that samples are requested ahead.
const WINDOWS: [u32; 2] = [16, 4];

fn main() {
    let wanted: Vec<u16> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    for (nodes, batch) in BATCHES.into_iter().filter(|(nodes, _)| wanted.is_empty() || wanted.contains(nodes)) {
        for window in WINDOWS {
            for (fault, name) in ClusterFault::ALL {
                let job = ClusterJob {
                    window,
                    ..ClusterJob::new(nodes, batch, fault)
                };
                let outcome = job.simulate();
                let seconds: Vec<f64> = outcome.epochs.iter().map(|epoch| epoch.seconds).collect();
                let waits_s: Vec<f64> = outcome.epochs.iter().map(|epoch| epoch.wait_p99_s).collect();
                let shares: Vec<f64> = (0..outcome.epochs.len()).map(|epoch| outcome.source_share(job, epoch)).collect();
                println!(
                    "{{\"nodes\": {nodes}, \"window\": {window}, \"fault\": \"{name}\", \"seconds\": {seconds:?}, \"wait_p99_s\": {waits_s:?}, \
                     \"source\": {shares:?}, \"tries\": {:?}, \"connections\": {}, \"bytes\": {}, \"handshakes\": {}, \"failed\": {}, \
                     \"probes\": {}, \"wanted\": {}, \"oldest_s\": {:?}, \"oldest_allowed_s\": {:?}}}",
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
