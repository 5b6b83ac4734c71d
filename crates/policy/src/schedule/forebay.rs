//! Forebay's schedule: reads by the earliest deadline over a shared pool, and decoding threads that move between ranks.

use super::decoding::DecodingThreads;
use super::{EarliestDeadline, ReadRequest, Scheduler, StepLoad};
use crate::models::{LoadModel, Portfolio};

/// Reads as in [`EarliestDeadline`]; at each step, decoding threads by [`DecodingThreads::divide`]. If fewer threads
/// than the ranks have reach the peak of the measured throughput, only these decode. Where decoding takes less than tau
/// of a step, each rank keeps its own threads: whoever had them, nobody would gain, and what was measured of so short a
/// time is mostly noise.
#[derive(Clone, Debug)]
pub struct ForebaySchedule {
    reads: EarliestDeadline,
    decoding: DecodingThreads,
    preprocessing: Option<Portfolio>,
    tau: f64,
}

impl ForebaySchedule {
    /// Creates a pool of `threads` loading threads for `ranks`; see [`DecodingThreads::new`] for `tau`.
    pub fn new(threads: u32, ranks: u32, tau: f64) -> Self {
        Self {
            reads: EarliestDeadline::new(threads),
            decoding: DecodingThreads::new(ranks, tau),
            preprocessing: None,
            tau,
        }
    }
}

impl Scheduler for ForebaySchedule {
    fn name(&self) -> &'static str {
        "forebay"
    }

    fn push(&mut self, request: ReadRequest) {
        self.reads.push(request);
    }

    fn pick(&mut self, busy: &[u32]) -> Option<ReadRequest> {
        self.reads.pick(busy)
    }

    fn is_by_deadline(&self) -> bool {
        true
    }

    fn assigns(&self) -> bool {
        true
    }

    fn measured(&mut self, _load: LoadModel, preprocessing: Portfolio) {
        self.preprocessing = Some(preprocessing);
    }

    fn assign(&mut self, load: &StepLoad) {
        if self.decoding.keep_own(&load.decode_s, self.tau * load.train_s) {
            return;
        }
        let budget = self.decoding.budget();
        let enough = self
            .preprocessing
            .as_ref()
            .map(|models| models.nearest(load.mean_bytes()).threads_enough());
        self.decoding.divide(enough.unwrap_or(budget).min(budget), &load.decode_s);
    }

    fn loading_threads(&self) -> u32 {
        self.reads.loading_threads()
    }

    fn set_own_decoding(&mut self, own: &[u32]) {
        self.decoding.set_own(own);
    }

    fn decoding(&self) -> &[u32] {
        self.decoding.given()
    }

    fn waiting(&self) -> usize {
        self.reads.waiting()
    }
}
