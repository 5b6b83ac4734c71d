//! A job of up to thousands of nodes that share their samples, while some of them fail: the bytes of the source, the
//! waits of ranks, and the connections that it takes.
//!
//! The decisions are those of a running loader, from `forebay_policy::peers`: [`SampleShares`] says whom to ask for a
//! sample and who keeps it, `PeerFetch` when to give up on a node, and `Health` when not to ask it. This module has
//! links, a source, a clock and faults. Each node has one rank; ranks train in step, and a rank's samples are
//! requested a window of steps ahead.
//!
//! Left out: processors, batches of small samples, and the time in which nodes find each other.

mod network;
mod node;
mod outcome;
mod world;

#[cfg(test)]
mod tests;

use forebay_policy::ids::{Cluster, Node};
use forebay_policy::order::{Deal, Order, Permutation};
use forebay_policy::peers::{NodeGroups, SampleShares};

pub use outcome::{ClusterEpoch, ClusterOutcome};

/// Seconds in which a sample's owner has to give it, and its substitute: the values of a running loader.
pub const OWNER_WITHIN_S: f64 = 4.0;
/// Seconds in which the substitute of an owner has to give a sample.
pub const SUBSTITUTE_WITHIN_S: f64 = 1.0;
/// Seconds in which a node has to take a connection.
pub const CONNECT_WITHIN_S: f64 = 1.0;
/// Connections that a node takes at most.
pub const CONNECTIONS_MAX: usize = 1024;

/// Fault of some nodes, from the beginning of the second epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFault {
    /// None.
    Healthy,
    /// Their links have a tenth of the rate and ten times the latency.
    Slow,
    /// Their agents have ended: connections are refused, copies are lost, and their ranks read the source.
    Dead,
    /// They neither hear nor are heard for five seconds, are well for five seconds, and so on.
    Flapping,
    /// They hear other nodes and are not heard, so no exchange with them succeeds.
    CutOff,
    /// Half of all nodes have an older table of members: each half refuses the other.
    OldMembers,
    /// None, but all nodes start with their own samples on disks and without connections.
    WarmRestart,
}

impl ClusterFault {
    /// All faults, with the name that tables use.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Healthy, "healthy"),
        (Self::Slow, "slow"),
        (Self::Dead, "dead"),
        (Self::Flapping, "flapping"),
        (Self::CutOff, "cut off one way"),
        (Self::OldMembers, "half with old members"),
        (Self::WarmRestart, "restart, warm"),
    ];
}

/// A job, and the machines on which it runs.
#[derive(Clone, Copy, Debug)]
pub struct ClusterJob {
    /// Number of nodes.
    pub nodes: Node,
    /// Most nodes of a group that keeps everything once; 0 for one group of all.
    pub group_max: Node,
    /// Steps of an epoch.
    pub steps: u32,
    /// Samples of a node in a step.
    pub batch: u32,
    /// Steps ahead that samples are requested.
    pub window: u32,
    /// Epochs.
    pub epochs: u32,
    /// Bytes of a sample.
    pub sample_bytes: u32,
    /// Seconds that a step computes.
    pub step_s: f64,
    /// Bytes a second of each node's link, in each direction.
    pub link_bytes_per_s: f64,
    /// Seconds from one node to another.
    pub latency_s: f64,
    /// Bytes a second of the source, for all nodes.
    pub source_bytes_per_s: f64,
    /// Median latency of the source in seconds.
    pub source_latency_s: f64,
    /// Samples that all nodes together can keep, as a share of the dataset.
    pub kept: f64,
    /// Fault of some nodes.
    pub fault: ClusterFault,
    /// Seed of the order, of the latencies, and of the choice of nodes that have the fault.
    pub seed: u64,
}

impl ClusterJob {
    /// Returns a job of steps of half a second, on links of 1 Gbit/s, whose source sustains 1.25 times what the first
    /// epoch reads in a second of training.
    pub fn new(nodes: Node, batch: u32, fault: ClusterFault) -> Self {
        let (step_s, sample_bytes) = (0.5, 100_000);
        Self {
            nodes,
            group_max: 0,
            steps: 40,
            batch,
            window: 16,
            epochs: 3,
            sample_bytes,
            step_s,
            link_bytes_per_s: 125e6,
            latency_s: 1e-4,
            source_bytes_per_s: 1.25 * f64::from(nodes) * f64::from(batch) * f64::from(sample_bytes) / step_s,
            source_latency_s: 0.02,
            kept: 1.1,
            fault,
            seed: 1,
        }
    }

    /// Runs the job.
    ///
    /// # Panics
    /// If there are no nodes, steps, samples or epochs.
    pub fn simulate(self) -> ClusterOutcome {
        world::ClusterWorld::new(self).run()
    }

    /// Bytes of the dataset.
    pub fn dataset_bytes(self) -> u64 {
        u64::from(self.samples()) * u64::from(self.sample_bytes)
    }

    fn samples(self) -> u32 {
        u32::from(self.nodes) * self.steps * self.batch
    }

    fn order(self) -> Order {
        Order {
            permutation: Permutation::Torch,
            seed: self.seed,
            deal: Deal::new(self.samples(), self.nodes.into(), self.batch).expect("a job has nodes and samples"),
        }
    }

    fn shares(self) -> SampleShares {
        let cluster = Cluster {
            nodes: self.nodes,
            gpus: 1,
            cache_bytes: 0,
            reserved_bytes: 0,
        };
        SampleShares::by_first_use(
            &self.order().epoch(0),
            cluster,
            NodeGroups::of_at_most(self.nodes, self.group_max),
            0,
        )
    }

    /// Bytes that a node keeps at most.
    fn room_bytes(self) -> u64 {
        (self.kept * self.dataset_bytes() as f64 / f64::from(self.nodes)) as u64
    }
}
