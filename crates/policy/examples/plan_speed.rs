//! Cost of planning: CPU seconds of an epoch of decisions, and bytes of memory a sample, for each policy.
//!
//!     cargo run --release -p forebay-policy --example plan_speed -- [SAMPLES [NODES [PERCENT]]]
//!
//! Without arguments: 14.2 million samples (ImageNet-22K), 8 nodes of 8 GPUs, batches of 64, and memory for 25 % and
//! for 110 % of the data. The time is that of a replay, with going through the order and counting, but without
//! computing the order, which is reported separately. Bytes are those of the policy and of the orders that it was
//! given.

#![expect(clippy::print_stdout, reason = "it prints a table")]

use forebay_policy::ids::{Cluster, Sample};
use forebay_policy::order::{Deal, Order, Permutation};
use forebay_policy::residency::{FirstKept, Forebay, Replay, Residency};

const GPUS: u32 = 8;
const BATCH: u32 = 64;
const AHEAD: u32 = 4;
const EPOCHS: u32 = 4;
const MEAN_BYTES: u32 = 92_000;

/// CPU seconds of this process.
fn cpu_s() -> f64 {
    let times = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    times
        .split(' ')
        .next()
        .and_then(|nanoseconds| nanoseconds.parse::<f64>().ok())
        .unwrap_or(f64::NAN)
        / 1e9
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(f64::NAN) * 1024.0
}

/// Returns a size between half and one and a half times the mean. It is computed: looking it up would cost as much as
/// a decision.
fn size_of(sample: Sample) -> u32 {
    MEAN_BYTES / 2 + (sample.wrapping_mul(0x9e37_79b9) >> 16) * MEAN_BYTES / (1 << 16)
}

fn measure(new: impl FnOnce() -> Box<dyn Residency>, cluster: Cluster, order: Order, percent: u64) {
    let before = resident_bytes();
    let mut policy = new();
    let mut replay = Replay::new(cluster, order, EPOCHS, size_of);
    let start = cpu_s();
    for number in 0..=EPOCHS {
        let _ = order.epoch(number);
    }
    let order_s = (cpu_s() - start) / f64::from(EPOCHS + 1);
    for epoch in 0..EPOCHS {
        let start = cpu_s();
        let Some(traffic) = replay.epoch(&mut *policy) else { return };
        // The first epoch makes its own order and the next one's, the last none.
        let orders = f64::from(u8::from(epoch + 1 < EPOCHS) + u8::from(epoch == 0));
        let seconds = cpu_s() - start - orders * order_s;
        let bytes: u64 = traffic.bytes.iter().sum();
        let [local, peer, source] = traffic.bytes.map(|of_origin| of_origin as f64 / bytes as f64);
        let memory = (resident_bytes() - before) / f64::from(order.deal.samples());
        let name = policy.name();
        println!("{name:16} {percent:7} % {epoch:6} {seconds:8.2} {memory:9.1} {local:8.3} {peer:8.3} {source:8.3}");
    }
}

fn main() {
    let argument = |nth| std::env::args().nth(nth).and_then(|text| text.parse::<u32>().ok());
    let samples = argument(1).unwrap_or(14_200_000);
    let nodes = argument(2).unwrap_or(8);
    let percents = argument(3).map_or_else(|| vec![25, 110], |percent| vec![u64::from(percent)]);
    let deal = Deal::new(samples, nodes * GPUS, BATCH).expect("samples and nodes to deal them to");
    let order = Order {
        permutation: Permutation::Torch,
        seed: 1,
        deal,
    };
    let total: u64 = (0..samples).map(|sample| u64::from(size_of(sample))).sum();
    println!("{samples} samples, {nodes} nodes of {GPUS} GPUs, batches of {BATCH}");
    println!("policy              memory   epoch    CPU s  B/sample    local     peer   source");
    for percent in percents {
        let cluster = Cluster {
            nodes: nodes as u16,
            gpus: GPUS,
            cache_bytes: total / u64::from(nodes) * percent / 100,
            reserved_bytes: 0,
        };
        measure(|| Box::new(FirstKept::nothing(cluster, samples, AHEAD)), cluster, order, percent);
        measure(|| Box::new(FirstKept::fill_first(cluster, samples, AHEAD)), cluster, order, percent);
        measure(|| Box::new(FirstKept::pinned(cluster, samples, AHEAD)), cluster, order, percent);
        measure(|| Box::new(Forebay::new(cluster, samples, AHEAD)), cluster, order, percent);
        measure(|| Box::new(Forebay::rotating(cluster, samples, AHEAD)), cluster, order, percent);
    }
}
