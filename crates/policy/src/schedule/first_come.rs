//! First come, first served: one queue in order of arrival, all threads for all ranks.

use std::collections::VecDeque;

use super::{ReadRequest, Scheduler, StepLoad};

/// One queue, one pool.
#[derive(Clone, Debug)]
pub struct FirstCome {
    threads: u32,
    queue: VecDeque<ReadRequest>,
}

impl FirstCome {
    /// Creates a pool of `threads` loading threads.
    pub const fn new(threads: u32) -> Self {
        Self {
            threads,
            queue: VecDeque::new(),
        }
    }
}

impl Scheduler for FirstCome {
    fn name(&self) -> &'static str {
        "first_come"
    }

    fn push(&mut self, request: ReadRequest) {
        self.queue.push_back(request);
    }

    fn pick(&mut self, _busy: &[u32]) -> Option<ReadRequest> {
        self.queue.pop_front()
    }

    fn assign(&mut self, _load: &StepLoad) {}

    fn loading_threads(&self) -> u32 {
        self.threads
    }

    fn waiting(&self) -> usize {
        self.queue.len()
    }
}
