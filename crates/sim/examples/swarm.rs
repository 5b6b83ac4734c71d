//! Prints how long a hot object takes to all nodes of a job, and how much its owner sends: the table of
//! docs/benchmarks.md.
//!
//! `cargo run --release -p forebay-sim --example swarm`

#![expect(clippy::print_stdout, reason = "a table is its purpose")]

use forebay_sim::swarm::Swarm;

const PIECES: u16 = 64;
const PIECE_BYTES: f64 = (4 << 20) as f64;
const LINK_BYTES_PER_S: f64 = 125e6;

fn main() {
    println!(
        "| nodes | dead | time, of S / B | owner sends, of S | the most that another sends, of S | requests a piece and node | read from the source |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (nodes, dead_per_mille) in [(8, 0), (64, 0), (64, 10), (512, 0), (512, 10), (4096, 0), (4096, 10)] {
        let swarm = Swarm {
            nodes,
            pieces: PIECES,
            piece_bytes: PIECE_BYTES,
            link_bytes_per_s: LINK_BYTES_PER_S,
            at_once: 8,
            dead_per_mille,
            seed: 1,
        };
        let Some(outcome) = swarm.simulate() else {
            println!("| {nodes} | {dead_per_mille} ‰ | did not end | | | | |");
            continue;
        };
        let bytes = f64::from(PIECES) * PIECE_BYTES;
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let requests = outcome.requests as f64 / f64::from(PIECES) / f64::from(nodes - 1);
        println!(
            "| {nodes} | {dead_per_mille} ‰ | {:.2} | {:.2} | {:.2} | {requests:.1} | {} |",
            outcome.seconds * LINK_BYTES_PER_S / bytes,
            outcome.owner_bytes / bytes,
            outcome.most_bytes / bytes,
            outcome.from_source
        );
    }
}
