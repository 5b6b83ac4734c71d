//! Residency: the samples in each node's memory, the origin of each fetch, and the copies given up for it.
//!
//! Every node knows every rank's order, so every node comes to the same decisions: a policy holds the state of all
//! nodes, and there is no directory to ask. The simulator and the agent drive a policy through [`Residency`] alike:
//!
//! 1. [`Residency::begin`] at the start of each epoch, with the orders of this epoch and of those after it that the
//!    policy looks at.
//! 2. [`Residency::fetch`] when a node may begin to bring a sample in for one of its ranks, in the order of use, from
//!    the current step up to [`Residency::window`] iterations ahead. The answer is the origin of the sample, or that
//!    there is no room yet.
//! 3. [`Residency::arrived`] when its bytes are there (immediately for [`Origin::Local`]); its size is known from
//!    then on.
//! 4. [`Residency::consumed`] when the rank has used it. A sample that is not kept from then on is gone. An abandoned
//!    use may end only after its epoch is over.
//! 5. [`Residency::handover`] after that, until it answers `None`.
//!
//! A driver of one node among others, which decides on its own node only, calls [`Residency::passed`] instead of
//! `consumed` for samples that another node keeps, and [`Residency::offered`] for those that it reads for others. A
//! policy that [weighs replicas](Residency::weighs_replicas) decides itself which of the former to keep as well.
//!
//! A driver that stores copies asks [`Residency::given_up`] after [`Residency::consumed`] for the copies to free. It
//! remembers the last few only, so a driver that fetches much in one go finds the others by asking what the node
//! [holds](Residency::holds).
//!
//! A sample is *due* on a node if the node has consumed a sample of the same step or of the one before it. A fetch of
//! a due sample never has to wait, so training never stands still; a memory smaller than two steps' batches is
//! exceeded then.

pub mod belady;
mod cache;
pub mod choice;
mod copies;
mod first_kept;
pub mod forebay;
pub mod future;
mod given_up;
mod kept;
pub mod lobster;
pub mod lru;
pub mod nopfs;
mod queue;
pub mod replay;
mod window;

pub use belady::Belady;
pub use cache::{Cache, Grade, GradedCopy, Preference};
pub use choice::{PolicyInput, PolicyName};
pub use first_kept::FirstKept;
pub use forebay::Forebay;
pub use lobster::Lobster;
pub use lru::Lru;
pub use nopfs::Nopfs;
pub use replay::Replay;

use crate::ids::{EpochNumber, Iteration, Node, Sample};
use crate::order;

/// A future use of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The node of the rank that uses it.
    pub node: Node,
    /// Sample that is used.
    pub sample: Sample,
    /// Step within its epoch.
    pub iteration: Iteration,
    /// Its epoch: the one begun last, or the next one if the window reaches beyond the epoch's end.
    pub epoch: EpochNumber,
}

/// Origin of the bytes of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The node's own memory.
    Local,
    /// The memory of another node.
    Peer(Node),
    /// The shared storage.
    Source,
}

/// The answer to [`Residency::fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// Begin to fetch from this origin.
    From(Origin),
    /// There is no room in the window's memory: ask again when a sample has been consumed.
    Wait,
}

/// A copy that one node gives another: bytes between peers, in the lower class of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// Sample that is handed over.
    pub sample: Sample,
    /// Node that gives it: the one that consumed it last. It drops its copy once the bytes are sent.
    pub from: Node,
    /// Node that keeps it from now on.
    pub to: Node,
}

/// A policy, with the state of all nodes.
pub trait Residency: Send {
    /// Its name in tables and options.
    fn name(&self) -> &'static str;

    /// Iterations ahead of the current step that a node may fetch; `None`: as far as memory allows (unbounded
    /// prefetch).
    fn window(&self) -> Option<Iteration>;

    /// Epochs of order that [`begin`](Self::begin) is to be given, this one included.
    fn horizon(&self) -> u32;

    /// Begins an epoch. `orders[0]` is its order, `orders[1..]` those of the epochs after it.
    fn begin(&mut self, epoch: EpochNumber, orders: &[order::Epoch]);

    /// Announces the next accesses, to be fetched or consumed, so that a policy can touch their entries together. It
    /// changes nothing. A plan for millions of samples does not fit the processor's caches, and the cache misses of
    /// many accesses overlap.
    fn expect(&self, uses: &[Access]) {
        let _ = uses;
    }

    /// Asks for room for a sample on a node, and returns its origin.
    fn fetch(&mut self, access: Access) -> Fetch;

    /// Records that the bytes of a fetched sample have arrived.
    fn arrived(&mut self, access: Access, bytes: u32);

    /// Records that the sample has been used.
    fn consumed(&mut self, access: Access);

    /// Returns true if the policy itself weighs copies of samples that another node keeps for all. Otherwise the driver
    /// chooses the samples of which this node has a copy too.
    fn weighs_replicas(&self) -> bool {
        false
    }

    /// Tells the policy of one node that other nodes get its copies from now on, so that their uses count.
    fn serve_others(&mut self) {}

    /// Records that the sample has been used, and that another node keeps it for all. It is not kept here, except by a
    /// policy that [weighs replicas](Self::weighs_replicas). A policy that keeps nothing need not define it.
    fn passed(&mut self, access: Access) {
        self.consumed(access);
    }

    /// Offers a sample that was read for another node, as if it had been used here: it is kept if there is room.
    fn offered(&mut self, access: Access, bytes: u32) {
        if let Fetch::From(_) = self.fetch(access) {
            self.arrived(access, bytes);
            self.consumed(access);
        }
    }

    /// Returns a sample that was just consumed by a node without room for it, and that a node with room is to keep.
    /// It counts as held there from now on, so the driver sends it before it reuses the memory.
    fn handover(&mut self) -> Option<Handover> {
        None
    }

    /// Returns a copy that a node gave up since the last call, for policies that exchange copies: the new copy finds
    /// no room before the old one is gone. A few are remembered. The node may hold it again by now: a copy is given
    /// up for certain only if the node does not [hold](Self::holds) it.
    fn given_up(&mut self) -> Option<(Node, Sample)> {
        None
    }

    /// Returns true if the node holds the sample beyond its use in the window.
    fn holds(&self, node: Node, sample: Sample) -> bool;

    /// Bytes in the node's memory, window and residents. Above [`crate::ids::Cluster::cache_bytes`] only if due
    /// samples, or samples let in before their size was known, do not fit and there is no resident to give up.
    fn held_bytes(&self, node: Node) -> u64;

    /// Bytes in the node's memory that only wait for their use.
    fn window_bytes(&self, node: Node) -> u64;
}
