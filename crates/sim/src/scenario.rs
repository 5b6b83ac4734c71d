//! Scenarios. Times are seconds, sizes bytes, rates per second.

use std::fmt;

use forebay_policy::{order::Permutation, residency::PolicyName, schedule::ScheduleName};

/// The shared storage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedStorage {
    /// Bytes a second for all nodes together.
    pub bytes_per_s: f64,
    /// Requests a second for all nodes together; infinite for no limit.
    pub requests_per_s: f64,
    /// Bytes a second of one stream.
    pub stream_bytes_per_s: f64,
    /// Time to the first byte.
    pub latency: Latency,
    /// `source.seed`: of the latencies, beside `job.seed`. Another one draws others for the same order of samples.
    pub seed: u64,
}

/// A lognormal latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Median in seconds.
    pub median_s: f64,
    /// Sigma of the logarithm; 0: constant, 1.5: a heavy tail.
    pub sigma: f64,
}

/// Network interface of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second each way.
    pub bytes_per_s: f64,
    /// Time to the first byte in seconds.
    pub latency_s: f64,
}

/// Sizes of the samples.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// All equal, in bytes.
    Equal(u32),
    /// Lognormal with this mean in bytes and sigma of the logarithm.
    Lognormal {
        /// Bytes.
        mean: u32,
        /// Sigma of the logarithm; 0.5 for photographs.
        sigma: f64,
    },
    /// One by one, from a listing.
    Listed(Vec<u32>),
}

/// The samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// Number of samples.
    pub samples: u32,
    /// Their sizes.
    pub sizes: Sizes,
}

/// The CPU work on samples: throughput of a node by threads, saturating as in the paper's Figure 6. A sample takes time
/// in proportion to its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preprocessing {
    /// Seconds that a sample of the mean size takes on one thread of an idle node.
    pub seconds_a_sample: f64,
    /// Threads past which the throughput of a node no longer rises (six in the paper's Figure 6).
    pub saturates_at: u32,
    /// Share of the highest throughput that each thread past `saturates_at` costs ("slightly worse" in Figure 6); 0:
    /// none.
    pub decline: f64,
}

/// The machines: keys `cluster` of a plan file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machines {
    /// `cluster.nodes`: machines.
    pub nodes: u16,
    /// `cluster.gpus`: GPUs, so ranks, of each.
    pub gpus: u32,
    /// `cluster.cache`: memory of a node for samples in bytes, the window included.
    pub cache_bytes: u64,
    /// `cluster.reserved`: part of that which samples between uses can't have, in bytes.
    pub reserved_bytes: u64,
    /// `cluster.threads`: threads of a node for loading and preprocessing together. A thread that waits for a read is
    /// in use.
    pub threads: u32,
    /// `cluster.loading_threads`: those of them that load, if the scheduler does not choose.
    pub loading_threads: u32,
    /// `cluster.memory`: bytes a second that a node reads from its own memory tier (T_l), all threads together.
    pub local_bytes_per_s: f64,
    /// `cluster.link`, `cluster.link_latency`: between nodes, and to the source.
    pub link: Link,
}

/// The training job: keys `job` of a plan file.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingJob {
    /// `job.batch`: samples of a batch of one rank.
    pub batch: u32,
    /// `job.drop_last`: as `DistributedSampler` and `DataLoader` have it.
    pub drop_last: bool,
    /// `job.step`: forward, backward and update in seconds.
    pub step_s: f64,
    /// `job.epochs`: the cold one included.
    pub epochs: u32,
    /// `job.slow_ranks`: ranks whose reads and preprocessing take this many times as long as others'.
    pub slow_ranks: Vec<(u32, f64)>,
    /// `job.seed`: of the order, the sizes and the latencies.
    pub seed: u64,
    /// `job.order`: permutation of epochs.
    pub order: Permutation,
}

/// Threads or processes that preprocess: keys `loader.decoders`, `loader.workers` of a plan file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decoders {
    /// The threads of a node that do not load. They take whichever sample has come.
    #[default]
    Pool,
    /// `loader.decoders`: each rank has as many threads of its own beside those that load, as with the data loader and
    /// its agent. They take parts of batches in order, and wait for the bytes of each sample.
    OfRank(u32),
    /// `loader.workers`: each rank has as many processes, which take whole batches in turn, and read and preprocess one
    /// sample after the other, as torch's data loader.
    Workers(u32),
}

/// Settings of the loader: keys `loader` of a plan file.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderSettings {
    /// `loader.policy`: residency.
    pub policy: PolicyName,
    /// `loader.horizon`: epochs after the current one that `belady` looks ahead (2 is usual; the other policies look as
    /// far as they need).
    pub horizon: u32,
    /// `loader.window`: steps ahead that a rank's samples are read: one number for all, or one a rank. Unthrottled
    /// policies ignore it.
    pub window: Vec<u32>,
    /// `loader.prepared`: steps ahead that batches are preprocessed, of those that are read (2 is usual, as torch's
    /// `prefetch_factor`).
    pub prepared: u32,
    /// `loader.schedule`: order of reads.
    pub schedule: ScheduleName,
    /// `loader.hedge`: share of requests and bytes that may be read again, past the 95th percentile of latency; 0: no
    /// hedging.
    pub hedge_budget: f64,
    /// `loader.background_fill`: samples beyond the window are read too while the policy has room for them, in a lower
    /// class.
    pub background_fill: bool,
    /// Threads or processes that preprocess.
    pub decoders: Decoders,
    /// `loader.across_epochs`: samples of the next epoch are read while the last steps of this one run. Otherwise an
    /// epoch begins with nothing requested.
    pub across_epochs: bool,
    /// `loader.learns_reads`: the node learns what reading takes, as the agent does: the number of concurrent reads by
    /// trial, with `cluster.loading_threads` as the most, throughput from the reads that have ended, and a step's time
    /// from the beginnings of steps.
    pub learns_reads: bool,
}

/// A scenario. The comment of each field of its parts begins with its key, by which [`ScenarioError`] names it: that of
/// a plan file, if plan files have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The machines.
    pub machines: Machines,
    /// `source.bandwidth`, `source.requests`, `source.stream`, `source.latency`, `source.tail`, `source.seed`: the
    /// shared storage.
    pub source: SharedStorage,
    /// `dataset.samples`, `dataset.size`, `dataset.sigma`, `dataset.listing`: the samples.
    pub dataset: Dataset,
    /// The training job.
    pub job: TrainingJob,
    /// `preprocessing.seconds`, `preprocessing.saturates_at`, `preprocessing.decline`: CPU work.
    pub preprocessing: Preprocessing,
    /// Settings of the loader.
    pub loader: LoaderSettings,
}

/// An invalid scenario: the key, its value, the allowed values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// The key as in a plan file, such as `job.batch`.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// Allowed values.
    pub allowed: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} = {}: {} is allowed", self.key, self.value, self.allowed)
    }
}

impl std::error::Error for ScenarioError {}
