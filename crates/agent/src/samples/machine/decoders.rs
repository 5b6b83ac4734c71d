//! Threads with which ranks decode: what ranks measured, and the numbers that the schedule chose.

use std::time::Duration;

use forebay_contract::request_ring::RankDecoding;
use forebay_policy::models::{LearnedDecoding, Portfolio, Preprocessing};
use forebay_policy::schedule::Scheduler;

use super::figures::RankFigures;
use super::{Actions, MachineAction};

/// Most decoding threads of a rank: a rank says a number itself, and memory may be damaged.
const DECODERS_MAX: u32 = 1024;

/// Decoding threads of a loader's ranks.
pub(super) struct Decoders {
    /// Threads that each rank has of its own; 0 before it has said, or if it decodes in processes.
    own: Vec<u32>,
    /// Threads that each rank was told last; 0 before.
    told: Vec<u32>,
    learned: LearnedDecoding,
    /// Samples of a rank's batch.
    batch: u32,
}

impl Decoders {
    /// Creates the threads of `ranks`, which have said nothing yet, with batches of `batch` samples.
    pub(super) fn new(learned: LearnedDecoding, ranks: usize, batch: u32) -> Self {
        Self {
            own: vec![0; ranks],
            told: vec![0; ranks],
            learned,
            batch,
        }
    }

    /// Number of ranks.
    pub(super) const fn ranks(&self) -> usize {
        self.own.len()
    }

    /// Speed of decoding, as measured.
    pub(super) const fn learned(&self) -> &LearnedDecoding {
        &self.learned
    }

    /// Returns the seconds in which a rank decodes a batch with its present threads; 0 before it has measured.
    pub(super) fn batch_s(&self, rank: usize) -> f64 {
        let threads = [self.told[rank], self.own[rank]].into_iter().find(|threads| *threads > 0);
        self.learned.recent_s(rank) * f64::from(self.batch) / f64::from(threads.unwrap_or(1))
    }

    /// Returns throughput up to a number of threads. Where a rank decodes in processes, no thread can move: then it is
    /// that of one thread that is as fast as all ranks together.
    pub(super) fn models(&self, threads: u32) -> Option<Portfolio> {
        if self.is_movable() {
            return self.learned.portfolio(threads);
        }
        let slowest_s = (0..self.own.len()).map(|rank| self.learned.recent_s(rank)).fold(0.0, f64::max);
        let samples_per_s = self.own.len() as f64 / slowest_s;
        Preprocessing::fit(&[(1, samples_per_s), (2, samples_per_s)])
            .ok()
            .map(Portfolio::of)
    }

    /// Own threads of all ranks together.
    pub(super) fn budget(&self) -> u32 {
        self.own.iter().sum()
    }

    /// Takes what a rank measured. Threads may move once each rank has said how many it has.
    pub(super) fn measured(&mut self, rank: usize, decoding: RankDecoding, scheduler: &mut dyn Scheduler) {
        let own = decoding.threads.min(DECODERS_MAX);
        if own != self.own[rank] {
            self.own[rank] = own;
            if self.is_movable() {
                scheduler.set_own_decoding(&self.own);
            }
        }
        let told: u32 = self.told.iter().sum();
        let at_work = self.is_movable().then(|| if told > 0 { told } else { self.budget() });
        let seconds = Duration::from_nanos(decoding.sample_ns).as_secs_f64();
        self.learned.observe(rank, decoding.sample_bytes.into(), seconds, at_work);
    }

    /// Tells ranks the numbers that have changed.
    pub(super) fn tell(&mut self, scheduler: &dyn Scheduler, figures: &mut [RankFigures], actions: &mut Actions) {
        if !self.is_movable() {
            return;
        }
        for (rank, &threads) in scheduler.decoding().iter().enumerate() {
            if threads != self.told[rank] {
                self.told[rank] = threads;
                figures[rank].decodes(threads);
                actions.push(MachineAction::GiveDecoders { rank, threads });
            }
        }
    }

    fn is_movable(&self) -> bool {
        self.own.iter().all(|&threads| threads > 0)
    }
}
