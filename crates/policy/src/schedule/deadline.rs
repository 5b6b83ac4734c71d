//! Earliest deadline first in predicted time: one pool of threads for all ranks.
//!
//! The deadline of a request is the time by which its read must *begin*: when its step is predicted to begin, less how long its reading and
//! preprocessing are predicted to take. So a read from a slow source goes before one from memory that the same step needs, and even before
//! one of an earlier step where that one has time left. Of equal ones the longest goes first (it would end last), then the one that came
//! first.
//!
//! Fills of memory for later epochs are a class below: they are read only when no rank waits.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::{Request, Scheduler, StepLoad};

/// Earliest deadline first over a shared pool.
#[derive(Clone, Debug)]
pub struct EarliestDeadline {
    threads: u32,
    pushed: u64,
    heap: BinaryHeap<Waiting>,
}

impl EarliestDeadline {
    /// A pool of so many loading threads.
    pub const fn new(threads: u32) -> Self {
        Self {
            threads,
            pushed: 0,
            heap: BinaryHeap::new(),
        }
    }
}

/// The heap's greatest is the next to be read.
#[derive(Clone, Debug)]
struct Waiting {
    request: Request,
    /// How many were pushed before it.
    turn: u64,
}

impl Waiting {
    fn begin_by_s(&self) -> f64 {
        self.request.deadline_s - self.request.predicted_s
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.request.class.cmp(&self.request.class))
            .then_with(|| other.begin_by_s().total_cmp(&self.begin_by_s()))
            .then_with(|| self.request.predicted_s.total_cmp(&other.request.predicted_s))
            .then_with(|| other.turn.cmp(&self.turn))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl Scheduler for EarliestDeadline {
    fn name(&self) -> &'static str {
        "earliest_deadline"
    }

    fn push(&mut self, request: Request) {
        self.heap.push(Waiting {
            request,
            turn: self.pushed,
        });
        self.pushed += 1;
    }

    fn pick(&mut self, _busy: &[u32]) -> Option<Request> {
        self.heap.pop().map(|waiting| waiting.request)
    }

    fn assign(&mut self, _load: &StepLoad) {}

    fn loading_threads(&self) -> u32 {
        self.threads
    }

    fn waiting(&self) -> usize {
        self.heap.len()
    }
}
