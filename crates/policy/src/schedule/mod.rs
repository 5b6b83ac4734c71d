//! Schedules: choose the next read of a node's thread, the number of threads for each rank's queue, the number of a
//! node's threads that load at all, and the number of threads with which each rank decodes.
//!
//! There is one queue a rank (Lobster, Section 4.2) or one pool for all; each request carries its deadline. The
//! simulator and the agent drive a scheduler through [`Scheduler`] alike. For every scheduler,
//!
//! - every pushed request is picked exactly once;
//! - as long as fewer threads are at work than load, [`Scheduler::pick`] leaves a request waiting only if a thread is
//!   at work for its rank already: no rank waits for ever, not even one that was given no thread.
//!
//! Beside them, [`Hedge`] chooses reads under way to be made once more, and [`Concurrency`] the number of concurrent
//! reads if the scheduler does not choose it itself ([`Scheduler::divides_loading`]).

mod queues;

pub mod choice;
pub mod concurrency;
pub mod dali;
pub mod deadline;
pub mod decoding;
pub mod first_come;
pub mod fixed;
pub mod forebay;
pub mod hedge;
pub mod lobster;

pub use choice::ScheduleName;
pub use concurrency::{Concurrency, EndedRead};
pub use dali::DaliLike;
pub use deadline::EarliestDeadline;
pub use decoding::DecodingThreads;
pub use first_come::FirstCome;
pub use fixed::Static;
pub use forebay::ForebaySchedule;
pub use hedge::Hedge;
pub use lobster::{LobsterSchedule, NodeModel};

use crate::ids::Sample;
use crate::models::{LoadModel, Portfolio};
use crate::residency::Origin;

/// Purpose of a read. Only [`EarliestDeadline`] tells them apart; in other schedules a fill waits in line like any
/// other read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadClass {
    /// A rank waits for it, or will at its deadline.
    Demand,
    /// It fills memory for a later epoch: only when nothing of [`ReadClass::Demand`] waits.
    Fill,
}

/// A read that waits for a thread. Times are seconds on the driver's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadRequest {
    /// The driver's own number for it, handed back untouched.
    pub ticket: u32,
    /// The rank that will use it, counted within its node: `0..gpus`.
    pub local_rank: u32,
    /// Sample to read.
    pub sample: Sample,
    /// Its size in bytes; an estimate if it was never read.
    pub bytes: u32,
    /// Origin of its bytes.
    pub origin: Origin,
    /// The step that needs it, counted over all epochs.
    pub step: u64,
    /// Predicted start of that step in seconds; for [`ReadClass::Fill`] the time at which its memory is needed, which
    /// only orders fills.
    pub deadline_s: f64,
    /// Predicted duration of the read and the preprocessing in seconds.
    pub predicted_s: f64,
    /// Time of the request in seconds.
    pub queued_s: f64,
    /// Purpose.
    pub class: ReadClass,
}

/// Load of one step of a node, from which a scheduler assigns threads: one entry for each rank of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLoad {
    /// Duration of a training step (forward, backward, update) in seconds: T_train.
    pub train_s: f64,
    /// Bytes of each rank's batch that are read locally, from peers, and from the source (the sums of Equation 1).
    pub bytes: Vec<[u64; 3]>,
    /// Samples of each rank's batch, all to be preprocessed.
    pub samples: Vec<u32>,
    /// Bytes of all of these samples together, wherever they are.
    pub sample_bytes: u64,
    /// Seconds in which one thread preprocesses each rank's batch; 0 while that was not measured.
    pub decode_s: Vec<f64>,
    /// Threads of the node that preprocessed when that was measured, by rank; 0 if that is not known.
    pub decode_threads: Vec<u32>,
}

impl StepLoad {
    /// Returns the mean size of the step's samples in bytes; 0 without samples.
    pub fn mean_bytes(&self) -> u64 {
        let samples: u64 = self.samples.iter().copied().map(u64::from).sum();
        self.sample_bytes.checked_div(samples).unwrap_or(0)
    }
}

/// A scheduler of one node.
pub trait Scheduler: Send {
    /// Its name in tables and options.
    fn name(&self) -> &'static str;

    /// Adds a request to its rank's queue.
    fn push(&mut self, request: ReadRequest);

    /// Returns the next read of a free thread (fewer than [`loading_threads`](Self::loading_threads) are at work).
    /// `busy[r]` is the number of threads at work for the node's `r`-th rank.
    fn pick(&mut self, busy: &[u32]) -> Option<ReadRequest>;

    /// Returns true if it picks by deadline. A request whose deadline has become earlier is pushed again then, and its
    /// other entry is skipped once it is picked.
    fn is_by_deadline(&self) -> bool {
        false
    }

    /// Returns true if [`assign`](Self::assign) does anything.
    fn assigns(&self) -> bool {
        false
    }

    /// Takes new measurements of the node. Schedulers that ask no model ignore them.
    fn measured(&mut self, load: LoadModel, preprocessing: Portfolio) {
        let _ = (load, preprocessing);
    }

    /// Assigns threads at the beginning of a step. Schedulers that do not assign ignore it.
    fn assign(&mut self, load: &StepLoad);

    /// Threads of the node that load; the others preprocess (the two-step choice of Section 4.1). May change with
    /// [`assign`](Self::assign); threads above a lower number finish what they read.
    fn loading_threads(&self) -> u32;

    /// Returns true if it divides the node's threads between loading and preprocessing by measurements of both. Then
    /// [`loading_threads`](Self::loading_threads) is the number of reads to make, and not only the most.
    fn divides_loading(&self) -> bool {
        false
    }

    /// Sets the decoding threads that each rank has of its own. Schedules that do not move them ignore it.
    fn set_own_decoding(&mut self, own: &[u32]) {
        let _ = own;
    }

    /// Decoding threads by rank, as last assigned; empty if each rank keeps its own.
    fn decoding(&self) -> &[u32] {
        &[]
    }

    /// Requests that wait.
    fn waiting(&self) -> usize;
}
