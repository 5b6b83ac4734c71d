//! Results of a simulation.

/// One rank's step, for the breakdown of the paper's Figure 3. Seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// The rank, of all nodes'.
    pub rank: u32,
    /// The iteration.
    pub iteration: u32,
    /// Reading of its batch, from the first request to the last byte.
    pub load_s: f64,
    /// Preprocessing of its batch.
    pub preprocess_s: f64,
    /// Training.
    pub train_s: f64,
    /// L_r = max(0, ready - end of the previous step): time in which the GPU waited for its own batch.
    pub late_s: f64,
}

/// Reads of an epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpochReads {
    /// Bytes from the source, hedged ones included. Samples count in the epoch that uses them, even if they were read
    /// before it began.
    pub source_bytes: u64,
    /// Requests to the source.
    pub source_requests: u64,
    /// Bytes from the source by repeated reads.
    pub hedged_bytes: u64,
    /// Bytes from the memory of the node itself.
    pub local_bytes: u64,
    /// Bytes from peers.
    pub peer_bytes: u64,
    /// Bytes that nodes handed over to others to keep, in addition.
    pub handed_bytes: u64,
    /// Samples by origin: local, peer, source.
    pub samples_by_origin: [u64; 3],
    /// Samples in the node's memory at the end of the step before their use, however they got there (the paper's hit
    /// ratio).
    pub samples_ready: u64,
}

/// Waits of the ranks, and times of steps, of an epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpochWaits {
    /// Seconds in which all ranks waited: the sum over iterations of min over ranks of L_r.
    pub stalled_seconds: f64,
    /// Iterations in which all ranks were late alike by more than 5 % of a step.
    pub stalled: u32,
    /// Iterations in which max L - min L exceeds 5 % of a step.
    pub imbalanced: u32,
    /// Median of the time from the end of a step to the end of the next one in seconds.
    pub step_p50_s: f64,
    /// 99th percentile of that time in seconds.
    pub step_p99_s: f64,
}

/// Figures of an epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpochFigures {
    /// Iterations.
    pub iterations: u32,
    /// Reads.
    pub reads: EpochReads,
    /// Waits, and times of steps.
    pub waits: EpochWaits,
    /// From the end of the epoch before to the end of this one's last step.
    pub seconds: f64,
    /// max(compute, bytes / bandwidth, requests / rate, CPU) in seconds, with the fewest bytes and requests that any
    /// policy could read in this epoch (`forebay_policy::bounds`).
    pub ideal_seconds: f64,
    /// Share of the time in which GPUs trained.
    pub gpu_use: f64,
    /// Most bytes of window and residents that a node held.
    pub held_bytes_max: u64,
    /// Most bytes of the window that a node held.
    pub window_bytes_max: u64,
}

/// All epochs, and the breakdown of some steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Figures by epoch; the first is the cold one.
    pub epochs: Vec<EpochFigures>,
    /// Steps of the last epoch in eight iterations each at its start, in its middle and at its end (all, where it has
    /// fewer), of the ranks of the first two nodes, by iteration and then rank: the paper's Figure 3.
    pub steps: Vec<StepTimes>,
    /// Duration of each step of the last epoch in seconds, in order: the distribution of the paper's Figure 8 (c).
    pub step_times_s: Vec<f32>,
}
