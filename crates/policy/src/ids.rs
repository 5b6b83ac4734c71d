//! Numbers of samples, ranks, nodes, iterations and epochs. Plain integers, since a plan holds tens of millions of
//! them.

/// A sample by its index in the dataset; up to 2^32 - 1 of them.
pub type Sample = u32;
/// A process of the job that consumes batches; one a GPU. Ranks `n * gpus .. (n + 1) * gpus` are those of node `n`.
pub type Rank = u32;
/// A machine with a cache that its ranks share.
pub type Node = u16;
/// A step of an epoch, counted from 0; every rank consumes one batch in it.
pub type Iteration = u32;
/// A pass over the dataset, counted from 0.
pub type EpochNumber = u32;

/// The job's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Machines, each with a cache of its own.
    pub nodes: Node,
    /// Ranks of each node.
    pub gpus: u32,
    /// Memory of each node for samples in bytes, the window included.
    pub cache_bytes: u64,
    /// Part of it that is left for samples under way, in bytes: copies between uses have the rest. 0 if both share it.
    pub reserved_bytes: u64,
}

impl Cluster {
    /// Ranks of all nodes.
    pub const fn world(&self) -> u32 {
        self.nodes as u32 * self.gpus
    }

    /// Most bytes of copies that a node keeps between uses.
    pub const fn room_bytes(&self) -> u64 {
        self.cache_bytes.saturating_sub(self.reserved_bytes)
    }

    /// The node that a rank runs on.
    pub const fn node_of(&self, rank: Rank) -> Node {
        (rank / self.gpus) as Node
    }
}
