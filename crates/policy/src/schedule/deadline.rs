//! Earliest deadline first in predicted time: one pool of threads for all ranks.
//!
//! The deadline of a request is the time by which its read must *begin*: the predicted start of its step, less the
//! predicted time of its reading and preprocessing. So a read from a slow source goes before one from memory that the
//! same step needs, and even before one of an earlier step that has time left. Of equal deadlines the longest read
//! goes first (it would end last), then the one that came first.
//!
//! Fills of memory for later epochs are a class below: they are read only when no rank waits.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::{ReadRequest, Scheduler, StepLoad};

/// Earliest deadline first over a shared pool.
#[derive(Clone, Debug)]
pub struct EarliestDeadline {
    threads: u32,
    pushed: u64,
    heap: BinaryHeap<QueuedRead>,
}

impl EarliestDeadline {
    /// Creates a pool of `threads` loading threads.
    pub const fn new(threads: u32) -> Self {
        Self {
            threads,
            pushed: 0,
            heap: BinaryHeap::new(),
        }
    }
}

/// A queued read; the heap's greatest is read next.
#[derive(Clone, Debug)]
struct QueuedRead {
    request: ReadRequest,
    /// Sequence number: the count of earlier pushes.
    turn: u64,
}

impl QueuedRead {
    fn begin_by_s(&self) -> f64 {
        self.request.deadline_s - self.request.predicted_s
    }
}

impl Ord for QueuedRead {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.request.class.cmp(&self.request.class))
            .then_with(|| other.begin_by_s().total_cmp(&self.begin_by_s()))
            .then_with(|| self.request.predicted_s.total_cmp(&other.request.predicted_s))
            .then_with(|| other.turn.cmp(&self.turn))
    }
}

impl PartialOrd for QueuedRead {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for QueuedRead {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for QueuedRead {}

impl Scheduler for EarliestDeadline {
    fn name(&self) -> &'static str {
        "earliest_deadline"
    }

    fn push(&mut self, request: ReadRequest) {
        self.heap.push(QueuedRead {
            request,
            turn: self.pushed,
        });
        self.pushed += 1;
    }

    fn pick(&mut self, _busy: &[u32]) -> Option<ReadRequest> {
        self.heap.pop().map(|waiting| waiting.request)
    }

    fn is_by_deadline(&self) -> bool {
        true
    }

    fn assign(&mut self, _load: &StepLoad) {}

    fn loading_threads(&self) -> u32 {
        self.threads
    }

    fn waiting(&self) -> usize {
        self.heap.len()
    }
}
