//! Cost of decisions: epochs of 14.2 million samples (ImageNet-22K) on 8 nodes of 8 GPUs, as fast as decisions can be
//! made. `bench/plan.py` runs it.
//!
//!     cargo run --release -p forebay-sim --example decisions -- POLICY [SAMPLES]
//!
//! It prints a line of JSON: the CPU seconds of each epoch; the part of them that computing an order and going through
//! it takes without decisions; and the highest memory of the process, without the orders.

use std::io::Write;
use std::{env, fs, io};

use forebay_policy::ids::{EpochNumber, Iteration, Node, Sample};
use forebay_policy::order;
use forebay_policy::order::Permutation;
use forebay_policy::residency::PolicyName;
use forebay_policy::residency::{Access, Fetch, Origin, Replay, Residency};
use forebay_policy::schedule::ScheduleName;
use forebay_sim::{Dataset, Decoders, Latency, Link, LoaderSettings, Machines, Preprocessing, Scenario, SharedStorage, Sizes, TrainingJob};
use serde_json::json;

/// ImageNet-22K in the Lobster paper: 14,197,103 images in 1.3 TB, on 8 nodes of 40 GB.
const SAMPLES: u32 = 14_197_103;
const MEAN_BYTES: u32 = 92_000;
const MEMORY_SHARE: f64 = 0.246;
const WINDOW: Iteration = 4;
/// The cold epoch, one that swaps samples left by the cold one, and one like all after it.
const EPOCHS: u32 = 3;

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some(policy) = PolicyName::ALL.into_iter().find(|policy| policy.name() == name) else {
        return Err(io::Error::other(format!("there is no policy {name:?}")));
    };
    let samples = arguments
        .next()
        .map_or(Ok(SAMPLES), |samples| samples.parse())
        .map_err(io::Error::other)?;
    let scenario = scenario(policy, samples);
    let order = scenario.order().map_err(io::Error::other)?;

    // Sizes differ without a table of them: a multiplication spreads them over a factor of four.
    let bytes_of = |sample: Sample| MEAN_BYTES * 2 / 5 + sample.wrapping_mul(2_654_435_761) % (MEAN_BYTES * 6 / 5);
    let mut policy = scenario.residency(&order);
    let orders = u64::from(policy.horizon().max(2)) * 4 * u64::from(samples);
    let decided_s = epochs_s(&scenario, order, bytes_of, &mut *policy)?;
    drop(policy);
    let walked_s = epochs_s(&scenario, order, bytes_of, &mut NoDecisions)?;
    let memory_bytes = memory_bytes()?.saturating_sub(orders);
    let told = json!({ "policy": name, "samples": samples, "epochs_s": decided_s, "walks_s": walked_s, "memory_bytes": memory_bytes });
    writeln!(io::stdout(), "{told}")
}

/// CPU seconds of each epoch.
fn epochs_s(
    scenario: &Scenario,
    order: order::Order,
    bytes_of: impl Fn(Sample) -> u32,
    policy: &mut dyn Residency,
) -> io::Result<Vec<f64>> {
    let mut replay = Replay::new(scenario.cluster(), order, EPOCHS, bytes_of);
    let mut epochs_s = Vec::new();
    loop {
        let begun_s = cpu_s()?;
        if replay.epoch(policy).is_none() {
            return Ok(epochs_s);
        }
        epochs_s.push(cpu_s()? - begun_s);
    }
}

/// Decides nothing.
struct NoDecisions;

impl Residency for NoDecisions {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn window(&self) -> Option<Iteration> {
        Some(WINDOW)
    }

    fn horizon(&self) -> u32 {
        1
    }

    fn begin(&mut self, _epoch: EpochNumber, _orders: &[order::Epoch]) {}

    fn fetch(&mut self, _access: Access) -> Fetch {
        Fetch::From(Origin::Source)
    }

    fn arrived(&mut self, _access: Access, _bytes: u32) {}

    fn consumed(&mut self, _access: Access) {}

    fn holds(&self, _node: Node, _sample: Sample) -> bool {
        false
    }

    fn held_bytes(&self, _node: Node) -> u64 {
        0
    }

    fn window_bytes(&self, _node: Node) -> u64 {
        0
    }
}

fn scenario(policy: PolicyName, samples: u32) -> Scenario {
    let (nodes, gpus, batch) = (8, 8, 32);
    Scenario {
        machines: Machines {
            nodes,
            gpus,
            cache_bytes: (MEMORY_SHARE * f64::from(samples) * f64::from(MEAN_BYTES) / f64::from(nodes)) as u64,
            reserved_bytes: 0,
            threads: 2,
            loading_threads: 1,
            local_bytes_per_s: f64::INFINITY,
            link: Link {
                bytes_per_s: f64::INFINITY,
                latency_s: 0.0,
            },
        },
        source: SharedStorage {
            bytes_per_s: f64::INFINITY,
            requests_per_s: f64::INFINITY,
            stream_bytes_per_s: f64::INFINITY,
            seed: 0,
            latency: Latency { median_s: 0.0, sigma: 0.0 },
        },
        dataset: Dataset {
            samples,
            sizes: Sizes::Equal(MEAN_BYTES),
        },
        job: TrainingJob {
            batch,
            drop_last: false,
            step_s: 0.1,
            epochs: EPOCHS,
            slow_ranks: Vec::new(),
            seed: 1,
            order: Permutation::Torch,
        },
        preprocessing: Preprocessing {
            seconds_a_sample: 0.0,
            saturates_at: 1,
            decline: 0.0,
        },
        loader: LoaderSettings {
            policy,
            horizon: 2,
            window: vec![WINDOW],
            prepared: 2,
            schedule: ScheduleName::FirstCome,
            hedge_budget: 0.0,
            background_fill: false,
            decoders: Decoders::Pool,
            across_epochs: true,
            learns_reads: false,
        },
    }
}

/// CPU seconds of this process so far, independent of the load of the machine.
fn cpu_s() -> io::Result<f64> {
    let nanoseconds = fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds = nanoseconds.split(' ').next().and_then(|count| count.parse::<f64>().ok());
    nanoseconds
        .map(|nanoseconds| nanoseconds / 1e9)
        .ok_or_else(|| io::Error::other("/proc/self/schedstat holds no number"))
}

/// Highest memory of this process in bytes.
fn memory_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| io::Error::other("/proc/self/status holds no VmHWM"))
}
