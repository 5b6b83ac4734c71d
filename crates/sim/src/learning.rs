//! Models of reading that a node learns while it runs, as the agent does, instead of those of [`crate::machine`].

use forebay_policy::models::{LearnedReads, Portfolio};
use forebay_policy::schedule::{Concurrency, EndedRead, Scheduler};

/// Measurements of a node's reads of the source. The time of preprocessing is told: the loader's threads measure it
/// sample by sample.
#[derive(Debug)]
pub(crate) struct ReadLearning {
    /// Number of concurrent reads, found by trial.
    pub(crate) concurrency: Concurrency,
    reads: LearnedReads,
    preprocessing: Portfolio,
    threads: u32,
}

impl ReadLearning {
    /// Begins with no measurement. `reads` is the most concurrent reads, and `threads` all threads that may read.
    pub(crate) fn new(reads: u32, threads: u32, preprocessing: Portfolio) -> Self {
        Self {
            concurrency: Concurrency::new(reads),
            reads: LearnedReads::default(),
            preprocessing,
            threads,
        }
    }

    /// Records the end of a read of the source, with `threads` at work.
    pub(crate) fn ended(&mut self, now_s: f64, read: EndedRead, threads: u32, others_wait: bool) {
        if let Some(took_s) = read.took_s {
            self.reads.observe(true, threads, read.bytes, took_s);
        }
        self.concurrency.ended(now_s, read, others_wait);
    }

    /// Tells a scheduler what is known so far.
    pub(crate) fn tell(&self, scheduler: &mut dyn Scheduler) {
        let (load, preprocessing) = self.reads.models(Some(self.preprocessing.clone()), self.threads);
        scheduler.measured(load, preprocessing);
    }
}
