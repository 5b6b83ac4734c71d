//! Results of a simulated job of many nodes.

use super::{ClusterJob, OWNER_WITHIN_S, SUBSTITUTE_WITHIN_S};

/// Figures of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClusterEpoch {
    /// Seconds from the beginning of its first step to the end of its last.
    pub seconds: f64,
    /// Bytes that all nodes read from the source.
    pub source_bytes: u64,
    /// Wait of a rank for its batch that 99 of 100 waits do not exceed, in seconds.
    pub wait_p99_s: f64,
    /// Longest wait of a rank for its batch in seconds.
    pub wait_max_s: f64,
    /// Time of a step, the wait included, that 99 of 100 steps do not exceed, in seconds.
    pub step_p99_s: f64,
}

/// Counts of requests between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterRequests {
    /// Samples for which another node was asked.
    pub wanted: u64,
    /// Requests that were sent for them.
    pub sent: u64,
    /// Samples that came.
    pub came: u64,
    /// Requests without an answer in time, or whose connection failed.
    pub failed: u64,
    /// Requests that a node with another table of members refused.
    pub other_members: u64,
    /// Probes of nodes that were silent.
    pub probes: u64,
    /// Samples of other owners that a node read from the source.
    pub left_to_source: u64,
    /// Connections that were made.
    pub handshakes: u64,
}

/// Results of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterOutcome {
    /// Figures by epoch; the first is the cold one.
    pub epochs: Vec<ClusterEpoch>,
    /// Counts of requests between nodes.
    pub requests: ClusterRequests,
    /// Most connections that one node had at a time, those that it made and those that it took.
    pub connections_max: u32,
    /// Longest time from the request of a sample to its arrival in seconds.
    pub oldest_s: f64,
    /// Longest read of the source in seconds.
    pub source_read_max_s: f64,
}

/// Memory of a connection in bytes, as measured of one that is served.
const CONNECTION_BYTES: u64 = 31 << 10;
/// Memory of a node's entry in the table of members, in bytes.
const MEMBER_BYTES: u64 = 128;

impl ClusterOutcome {
    /// Bytes that were read from the source in an epoch, as a share of the dataset.
    pub fn source_share(&self, job: ClusterJob, epoch: usize) -> f64 {
        self.epochs[epoch].source_bytes as f64 / job.dataset_bytes() as f64
    }

    /// Requests that were sent for each sample that another node was asked for.
    pub fn tries(&self) -> f64 {
        self.requests.sent as f64 / self.requests.wanted.max(1) as f64
    }

    /// Memory of a node for connections and the table of members, in bytes.
    pub fn connection_bytes(&self, job: ClusterJob) -> u64 {
        u64::from(self.connections_max) * CONNECTION_BYTES + u64::from(job.nodes) * MEMBER_BYTES
    }

    /// Longest time that a sample may take: the time of its owner, of the substitute, and a read of the source.
    pub fn oldest_allowed_s(&self) -> f64 {
        OWNER_WITHIN_S + SUBSTITUTE_WITHIN_S + self.source_read_max_s
    }
}

/// Returns the smallest value that this share of all does not exceed; 0 of none.
pub(super) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let place = (share * values.len() as f64).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
}
