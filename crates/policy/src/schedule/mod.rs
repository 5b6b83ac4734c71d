//! Schedules: which waiting read a thread of a node takes next, how many threads each rank's queue may use, and how many of a node's
//! threads load at all.
//!
//! One queue a rank (Lobster, Section 4.2) or one pool for all; each request carries its deadline. A scheduler is driven through
//! [`Scheduler`] by the simulator and by the agent alike. Whichever it is, it holds that
//!
//! - every pushed request is picked exactly once;
//! - as long as fewer threads are at work than load, [`Scheduler::pick`] leaves a request waiting only if a thread is at work for its rank
//!   already: nobody waits for ever, not even a rank that was given no thread.
//!
//! Hedging is beside them: [`Hedge`] says which read that is under way is to be made once more. So is [`Concurrency`], which says how many
//! are made at once where that is not a scheduler's own choice.

mod queues;

pub mod concurrency;
pub mod deadline;
pub mod first_come;
pub mod fixed;
pub mod hedge;
pub mod lobster;

pub use concurrency::Concurrency;
pub use deadline::EarliestDeadline;
pub use first_come::FirstCome;
pub use fixed::Static;
pub use hedge::Hedge;
pub use lobster::{Lobster, NodeModel};

use crate::ids::Sample;
use crate::models::{LoadModel, Portfolio};
use crate::residency::Origin;

/// Why a read is made. Only [`EarliestDeadline`] tells them apart; elsewhere a fill waits in line like any other read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A rank waits for it, or will at its deadline.
    Demand,
    /// It fills memory for a later epoch: only when nothing of [`Class::Demand`] waits.
    Fill,
}

/// A read that waits for a thread. Times are seconds on the driver's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// The driver's own number for it, handed back untouched.
    pub ticket: u32,
    /// The rank that will use it, counted within its node: `0..gpus`.
    pub local_rank: u32,
    /// What to read.
    pub sample: Sample,
    /// Its size in bytes, or what is expected where it was never read.
    pub bytes: u32,
    /// From where.
    pub origin: Origin,
    /// The step that needs it, counted over all epochs.
    pub step: u64,
    /// When that step is predicted to begin, in seconds; for [`Class::Fill`] when its memory is needed, which only orders fills.
    pub deadline_s: f64,
    /// How long the read and the preprocessing of it are predicted to take, in seconds.
    pub predicted_s: f64,
    /// When it was asked for, in seconds.
    pub queued_s: f64,
    /// Why.
    pub class: Class,
}

/// What a scheduler is told at the start of each step of a node, to assign threads: one entry a rank of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLoad {
    /// Duration of a training step (forward, backward, update) in seconds: T_train.
    pub train_s: f64,
    /// By rank of the node: bytes of the batch to be read locally, from peers, and from the source (the sums of Equation 1).
    pub bytes: Vec<[u64; 3]>,
    /// By rank of the node: samples of the batch, all to be preprocessed.
    pub samples: Vec<u32>,
}

/// A scheduler of one node.
pub trait Scheduler: Send {
    /// Its name in tables and options.
    fn name(&self) -> &'static str;

    /// A request joins its rank's queue.
    fn push(&mut self, request: Request);

    /// A thread is free (fewer than [`loading_threads`](Self::loading_threads) are at work): what it reads next. `busy[r]` is the number of
    /// threads at work for the node's `r`-th rank.
    fn pick(&mut self, busy: &[u32]) -> Option<Request>;

    /// Whether [`assign`](Self::assign) does anything.
    fn assigns(&self) -> bool {
        false
    }

    /// The node was measured anew. Schedulers that ask no model ignore it.
    fn measured(&mut self, load: LoadModel, preprocessing: Portfolio) {
        let _ = (load, preprocessing);
    }

    /// A step begins: assign threads. Schedulers that do not, ignore it.
    fn assign(&mut self, load: &StepLoad);

    /// Threads of the node that load; the others preprocess (the two-step choice of Section 4.1). May change with
    /// [`assign`](Self::assign); threads above a lower number finish what they read.
    fn loading_threads(&self) -> u32;

    /// Requests that wait.
    fn waiting(&self) -> usize;
}
