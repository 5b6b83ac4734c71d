//! Static: each rank has threads of its own, always the same equal number, as if each rank's process had its own
//! loader.

use super::queues::RankQueues;
use super::{ReadRequest, Scheduler, StepLoad};

/// An equal share of the threads for each rank. A thread that has nothing to read for its rank does not help another.
#[derive(Clone, Debug)]
pub struct Static {
    threads: Vec<u32>,
    queues: RankQueues,
}

impl Static {
    /// Shares `threads` out among `ranks`; the first ranks have one more if that is uneven.
    pub fn new(threads: u32, ranks: u32) -> Self {
        let (each, over) = (threads / ranks, threads % ranks);
        Self {
            threads: (0..ranks).map(|rank| each + u32::from(rank < over)).collect(),
            queues: RankQueues::new(ranks),
        }
    }
}

impl Scheduler for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn push(&mut self, request: ReadRequest) {
        self.queues.push(request);
    }

    fn pick(&mut self, busy: &[u32]) -> Option<ReadRequest> {
        self.queues.pick(&self.threads, busy)
    }

    fn assign(&mut self, _load: &StepLoad) {}

    fn loading_threads(&self) -> u32 {
        self.threads.iter().sum()
    }

    fn waiting(&self) -> usize {
        self.queues.waiting()
    }
}
