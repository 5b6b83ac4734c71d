//! Residency: which samples lie in which node's memory, from where a sample is fetched, and what is given up for it.
//!
//! Every node knows every rank's order, so every node comes to the same decisions: a policy holds the state of all nodes, and there is no
//! directory to ask. A policy is driven through [`Residency`] by the simulator and by the agent alike:
//!
//! 1. [`Residency::begin`] at the start of each epoch, with the orders of this epoch and of those after it that the policy looks at.
//! 2. [`Residency::fetch`] when a node may begin to bring a sample in for one of its ranks, in the order of use, from the current step up to
//!    [`Residency::window`] iterations ahead. The answer is where the sample comes from; or that there is no room yet.
//! 3. [`Residency::arrived`] when its bytes are there (at once for [`Origin::Local`]); its size is known from then on.
//! 4. [`Residency::consumed`] when the rank has used it. What is not kept from then on is gone. A use that nobody waits for any more may end so late that its epoch
//!    is over.
//! 5. [`Residency::handover`] after that, until it answers `None`.
//!
//! Whoever has copies lying about asks [`Residency::given_up`] after [`Residency::consumed`] which of them go. It remembers the last few only, so who fetches
//! much at once finds the others by asking what the node [holds](Residency::holds).
//!
//! What a step needs is *due* on a node when the node has consumed something of that step or of the one before it. What is due is never told to
//! wait, so nothing stands still, though a memory smaller than two steps' batches is exceeded then.

pub mod belady;
mod cache;
mod copies;
pub mod fill_first;
pub mod forebay;
pub mod future;
mod given_up;
mod kept;
pub mod lobster;
pub mod lru;
pub mod none;
pub mod nopfs;
pub mod pinned;
mod queue;
pub mod replay;
mod window;

pub use belady::Belady;
pub use cache::{Cache, Candidate, Grade, Preference};
pub use fill_first::FillFirst;
pub use forebay::Forebay;
pub use lobster::Lobster;
pub use lru::Lru;
pub use none::NoCache;
pub use nopfs::Nopfs;
pub use pinned::Pinned;
pub use replay::Replay;

use crate::ids::{EpochNumber, Iteration, Node, Sample};
use crate::order;

/// A use of a sample that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The node of the rank that uses it.
    pub node: Node,
    /// What is used.
    pub sample: Sample,
    /// When, within the epoch that was begun last; a window may reach beyond an epoch's end: then `epoch` is the next one.
    pub iteration: Iteration,
    /// Its epoch.
    pub epoch: EpochNumber,
}

/// Where the bytes of a sample come from.
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
    /// Begin, from there.
    From(Origin),
    /// There is no room in the window's memory: ask again when a sample has been consumed.
    Wait,
}

/// A copy that one node gives another: bytes between peers, in the lower class of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// What is given.
    pub sample: Sample,
    /// Who gives it: the node that consumed it last. It drops its copy once the bytes are sent.
    pub from: Node,
    /// Who keeps it from now on.
    pub to: Node,
}

/// A policy, with the state of all nodes.
pub trait Residency: Send {
    /// Its name in tables and options.
    fn name(&self) -> &'static str;

    /// Iterations ahead of the current step that a node may fetch; `None`: as far as memory allows (unthrottled prefetch).
    fn window(&self) -> Option<Iteration>;

    /// Epochs of order that [`begin`](Self::begin) is to be given, this one included.
    fn horizon(&self) -> u32;

    /// An epoch begins. `orders[0]` is its order, `orders[1..]` those of the epochs after it.
    fn begin(&mut self, epoch: EpochNumber, orders: &[order::Epoch]);

    /// These uses are asked about next, to be fetched or consumed. It changes nothing; a policy may read now what it knows of all of them. A plan
    /// for millions of samples does not fit the processor's caches, and memory gives many answers in the time of one if it is asked for them at once.
    fn expect(&self, uses: &[Access]) {
        let _ = uses;
    }

    /// A node asks to bring a sample in.
    fn fetch(&mut self, access: Access) -> Fetch;

    /// The bytes of a fetched sample are there.
    fn arrived(&mut self, access: Access, bytes: u32);

    /// The sample has been used.
    fn consumed(&mut self, access: Access);

    /// A sample that was just consumed by a node without room for it, and that a node with room is to keep. It counts as held there from now
    /// on, so it is sent before the memory that it lies in is used again.
    fn handover(&mut self) -> Option<Handover> {
        None
    }

    /// A copy that a node gave up since this was asked last, of policies that exchange some for others: what comes in its place finds no room before it is
    /// gone. The node may hold it again by now. A few are remembered; what was given up is for certain only what the
    /// node does not [hold](Self::holds).
    fn given_up(&mut self) -> Option<(Node, Sample)> {
        None
    }

    /// Whether the node holds the sample beyond its use in the window.
    fn holds(&self, node: Node, sample: Sample) -> bool;

    /// Bytes that the node's memory holds, window and residents; never above [`crate::ids::Cluster::cache_bytes`], but where what is due, or what
    /// was let in before its size was known, does not fit and there is no resident to give up.
    fn held_bytes(&self, node: Node) -> u64;

    /// Of these, the bytes that wait for their use only.
    fn window_bytes(&self, node: Node) -> u64;
}
