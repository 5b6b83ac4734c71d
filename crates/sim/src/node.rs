//! A node: its threads, its links, and its queues.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_policy::ids::Rank;
use forebay_policy::residency::Origin;
use forebay_policy::schedule::{Scheduler, StepLoad};

use crate::decoders::RankDecoders;
use crate::hedging::Hedging;
use crate::learning::ReadLearning;
use crate::machine::portfolio;
use crate::pipe::Pipe;
use crate::scenario::{Decoders, Scenario};

/// A sample that waits to be preprocessed: those of the nearest step first, then in order of arrival.
type PreprocessEntry = Reverse<(u64, u64, u32)>;

pub(crate) struct NodeState {
    /// The node's first rank.
    pub(crate) first_rank: Rank,
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) memory: Pipe,
    pub(crate) incoming: Pipe,
    pub(crate) outgoing: Pipe,
    /// Models of reading that are learned, if the scheduler is not told.
    pub(crate) learning: Option<ReadLearning>,
    /// Preprocessing threads of each rank; empty if they are the node's, or worker processes.
    pub(crate) decoders: Vec<RankDecoders>,
    /// Threads at work: reading, by rank of the node (or by worker process) and in all, and preprocessing.
    pub(crate) busy: Vec<u32>,
    pub(crate) reading: u32,
    pub(crate) preparing: u32,
    /// True if the policy has no room until a step begins; likewise for samples beyond the window.
    pub(crate) full: bool,
    pub(crate) full_beyond: bool,
    pub(crate) hedging: Option<Hedging>,
    /// Steps and slots of samples requested beyond the window.
    pub(crate) fills: Vec<(u64, u32)>,
    /// Load of the latest requests, for the scheduler.
    pub(crate) load: StepLoad,
    here: BinaryHeap<PreprocessEntry>,
    came: u64,
}

impl NodeState {
    pub(crate) fn new(scenario: &Scenario, mean_bytes: f64, first_rank: Rank, mut scheduler: Box<dyn Scheduler>) -> Self {
        let gpus = scenario.machines.gpus as usize;
        let mut decoders = Vec::new();
        let mut reads = scenario.machines.loading_threads;
        if let Decoders::OfRank(threads) = scenario.loader.decoders {
            decoders.resize_with(gpus, RankDecoders::default);
            scheduler.set_own_decoding(&vec![threads; gpus]);
            // Threads that preprocess may read instead, as far as there are reading threads.
            reads = (reads + threads * scenario.machines.gpus).min(2 * reads);
        }
        let threads = scenario.machines.threads;
        let learning = scenario
            .loader
            .learns_reads
            .then(|| ReadLearning::new(reads, threads, portfolio(scenario, mean_bytes)));
        Self {
            first_rank,
            scheduler,
            memory: Pipe::new(scenario.machines.local_bytes_per_s),
            incoming: Pipe::new(scenario.machines.link.bytes_per_s),
            outgoing: Pipe::new(scenario.machines.link.bytes_per_s),
            learning,
            decoders,
            busy: vec![0; scenario.lanes() as usize],
            reading: 0,
            preparing: 0,
            full: false,
            full_beyond: false,
            hedging: (scenario.loader.hedge_budget > 0.0).then(|| Hedging::new(scenario.loader.hedge_budget)),
            fills: Vec::new(),
            load: StepLoad {
                train_s: scenario.job.step_s,
                bytes: vec![[0; 3]; gpus],
                samples: vec![0; gpus],
                sample_bytes: 0,
                decode_s: vec![0.0; gpus],
                decode_threads: vec![0; gpus],
            },
            here: BinaryHeap::new(),
            came: 0,
        }
    }

    /// Index of a rank among the node's.
    pub(crate) fn local(&self, rank: Rank) -> usize {
        (rank - self.first_rank) as usize
    }

    /// Most reads that may be under way.
    pub(crate) fn reads_limit(&self) -> u32 {
        let threads = self.scheduler.loading_threads();
        match &self.learning {
            Some(learning) if !self.scheduler.divides_loading() => threads.min(learning.concurrency.limit()),
            _ => threads,
        }
    }

    /// Queues a sample to be preprocessed.
    pub(crate) fn add_here(&mut self, step: u64, slot: u32) {
        self.came += 1;
        self.here.push(Reverse((step, self.came, slot)));
    }

    /// Takes the next sample to be preprocessed, if its step is before `limit`.
    pub(crate) fn take_here(&mut self, limit: u64) -> Option<u32> {
        let Reverse((step, _, slot)) = *self.here.peek()?;
        if step >= limit {
            return None;
        }
        self.here.pop();
        Some(slot)
    }
}

/// Index of an origin: local, peer, source.
pub(crate) fn origin_index(origin: Origin) -> usize {
    match origin {
        Origin::Local => 0,
        Origin::Peer(_) => 1,
        Origin::Source => 2,
    }
}
