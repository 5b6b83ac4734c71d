//! The simulated machine as `forebay profile` would measure it, for schedulers and predictions.

use forebay_policy::models::{LearnedReads, LoadModel, Portfolio, Preprocessing, ThroughputCurve};
use forebay_policy::residency::Origin;
use forebay_policy::schedule::lobster::{NodeModel, TAU};

use crate::node::origin_index;
use crate::scenario::{Decoders, Scenario};

/// Stands for an infinite rate, and a time of zero, in measurements.
const BYTES_PER_S_MAX: f64 = 1e15;
const SECONDS_MIN: f64 = 1e-9;
/// Sample sizes at which preprocessing is measured, relative to the mean.
const SIZES: [f64; 3] = [0.5, 1.0, 2.0];

/// The models of a node; `mean_bytes` of a sample.
pub(crate) fn node_model(scenario: &Scenario, mean_bytes: f64) -> NodeModel {
    // Threads that the ranks have of their own are added when the scheduler hears of them.
    let threads = match scenario.loader.decoders {
        Decoders::OfRank(_) => scenario.machines.loading_threads.max(scenario.machines.gpus) + 1,
        Decoders::Pool | Decoders::Workers(_) => scenario.machines.threads,
    };
    // As the agent, a scheduler that has to learn begins with nothing.
    let (load, preprocessing) = if scenario.loader.learns_reads {
        LearnedReads::default().models(None, scenario.machines.loading_threads)
    } else {
        (load_model(scenario, mean_bytes), portfolio(scenario, mean_bytes))
    };
    NodeModel {
        threads,
        ranks: scenario.machines.gpus,
        load,
        preprocessing,
        tau: TAU,
    }
}

/// Returns throughput by threads: each reads one sample after the other, until a shared resource is full.
fn load_model(scenario: &Scenario, mean_bytes: f64) -> LoadModel {
    let measure = |latency_s: f64, stream_bytes_per_s: f64, shared_bytes_per_s: f64| {
        let alone = mean_bytes / (latency_s + mean_bytes / stream_bytes_per_s).max(SECONDS_MIN);
        let rate = |threads: u32| (f64::from(threads) * alone).min(shared_bytes_per_s).min(BYTES_PER_S_MAX);
        let measured: Vec<(u32, f64)> = (1..=scenario.machines.threads).map(|threads| (threads, rate(threads))).collect();
        ThroughputCurve::new(&measured).expect("rates were checked to be above zero")
    };
    let source = &scenario.source;
    let mean_latency_s = source.latency.median_s * (source.latency.sigma * source.latency.sigma / 2.0).exp();
    let share = source.bytes_per_s.min(source.requests_per_s * mean_bytes) / f64::from(scenario.machines.nodes);
    let link = scenario.machines.link;
    LoadModel {
        origins: [
            measure(0.0, scenario.machines.local_bytes_per_s, scenario.machines.local_bytes_per_s),
            measure(link.latency_s, link.bytes_per_s, link.bytes_per_s),
            measure(mean_latency_s, source.stream_bytes_per_s, share.min(link.bytes_per_s)),
        ],
    }
}

/// The models of preprocessing, by size of samples.
pub(crate) fn portfolio(scenario: &Scenario, mean_bytes: f64) -> Portfolio {
    // As in the agent: threads of ranks may read, and reading threads may preprocess.
    let most = match scenario.loader.decoders {
        Decoders::OfRank(threads) => (scenario.machines.loading_threads + threads * scenario.machines.gpus).max(2),
        Decoders::Pool | Decoders::Workers(_) => scenario.machines.threads,
    };
    let models = SIZES.map(|size| {
        let alone_s = (scenario.preprocessing.seconds_a_sample * size).max(SECONDS_MIN);
        let rate = |threads: u32| f64::from(threads) / (alone_s * scenario.preprocessing.slowdown(threads));
        let measured: Vec<(u32, f64)> = (1..=most).map(|threads| (threads, rate(threads))).collect();
        (
            (mean_bytes * size) as u64,
            Preprocessing::fit(&measured).expect("there are two threads, and rates above zero"),
        )
    });
    Portfolio::new(models).expect("there are some models")
}

/// Predicted times of reads and preprocessing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction {
    read_s_a_byte: [f64; 3],
    prepare_s_a_byte: f64,
}

impl Prediction {
    pub(crate) fn new(scenario: &Scenario, mean_bytes: f64) -> Self {
        let threads = f64::from(scenario.machines.loading_threads);
        let preprocessing = portfolio(scenario, mean_bytes);
        let nearest = preprocessing.nearest(mean_bytes as u64);
        Self {
            read_s_a_byte: load_model(scenario, mean_bytes)
                .origins
                .map(|origin| threads / origin.bytes_per_s(threads)),
            prepare_s_a_byte: nearest.seconds_a_sample(1) / mean_bytes,
        }
    }

    /// Seconds that one thread takes to read a sample and another to preprocess it.
    pub(crate) fn seconds(&self, origin: Origin, bytes: u32) -> f64 {
        f64::from(bytes) * (self.read_s_a_byte[origin_index(origin)] + self.prepare_s_a_byte)
    }
}
