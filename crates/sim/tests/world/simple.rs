//! The simplest policies and scheduler, and a scenario in which nothing but training takes time.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use forebay_policy::ids::{EpochNumber, Iteration, Node, Sample};
use forebay_policy::order::Epoch;
use forebay_policy::order::Permutation;
use forebay_policy::residency::PolicyName;
use forebay_policy::residency::{Access, Fetch, Origin, Residency};
use forebay_policy::schedule::ScheduleName;
use forebay_policy::schedule::{ReadRequest, Scheduler, StepLoad};
use forebay_sim::{
    Dataset, Decoders, Latency, Link, LoaderSettings, Machines, Outcome, Preprocessing, Scenario, SharedStorage, Sizes, TrainingJob,
    simulate_with,
};
use proptest::test_runner::{Config as ProptestConfig, RngSeed};

/// Keeps nothing: every use is a read of the source.
pub(crate) struct Nothing;

impl Residency for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn window(&self) -> Option<Iteration> {
        Some(1)
    }

    fn horizon(&self) -> u32 {
        1
    }

    fn begin(&mut self, _: EpochNumber, _: &[Epoch]) {}

    fn fetch(&mut self, _: Access) -> Fetch {
        Fetch::From(Origin::Source)
    }

    fn arrived(&mut self, _: Access, _: u32) {}

    fn consumed(&mut self, _: Access) {}

    fn holds(&self, _: Node, _: Sample) -> bool {
        false
    }

    fn held_bytes(&self, _: Node) -> u64 {
        0
    }

    fn window_bytes(&self, _: Node) -> u64 {
        0
    }
}

/// Node 0 keeps every sample that any node has read; there is room for this number of bytes of the others.
pub(crate) struct KeepsEverything {
    kept: Vec<bool>,
    room: u64,
    bytes: u64,
}

impl KeepsEverything {
    pub(crate) fn new(samples: u32, room: u64) -> Self {
        Self {
            kept: vec![false; samples as usize],
            room,
            bytes: 0,
        }
    }
}

impl Residency for KeepsEverything {
    fn name(&self) -> &'static str {
        "everything"
    }

    fn window(&self) -> Option<Iteration> {
        None
    }

    fn horizon(&self) -> u32 {
        2
    }

    fn begin(&mut self, _: EpochNumber, _: &[Epoch]) {}

    fn fetch(&mut self, access: Access) -> Fetch {
        if self.room == 0 {
            return Fetch::Wait;
        }
        match (self.kept[access.sample as usize], access.node) {
            (true, 0) => Fetch::From(Origin::Local),
            (true, _) => Fetch::From(Origin::Peer(0)),
            (false, _) => Fetch::From(Origin::Source),
        }
    }

    fn arrived(&mut self, access: Access, bytes: u32) {
        let kept = &mut self.kept[access.sample as usize];
        self.bytes += if *kept { 0 } else { u64::from(bytes) };
        *kept = true;
    }

    fn consumed(&mut self, _: Access) {}

    fn holds(&self, node: Node, sample: Sample) -> bool {
        node == 0 && self.kept[sample as usize]
    }

    fn held_bytes(&self, node: Node) -> u64 {
        if node == 0 { self.bytes } else { 0 }
    }

    fn window_bytes(&self, _: Node) -> u64 {
        0
    }
}

/// One queue in order of arrival.
pub(crate) struct ArrivalQueue {
    pub(crate) waiting: VecDeque<ReadRequest>,
    pub(crate) threads: u32,
}

impl Scheduler for ArrivalQueue {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn push(&mut self, request: ReadRequest) {
        self.waiting.push_back(request);
    }

    fn pick(&mut self, _: &[u32]) -> Option<ReadRequest> {
        self.waiting.pop_front()
    }

    fn assign(&mut self, _: &StepLoad) {}

    fn loading_threads(&self) -> u32 {
        self.threads
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Returns the configuration for `cases` cases, the same in each run.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Two nodes of two GPUs, 4,000 samples of 1,000 bytes in 100 steps an epoch of 0.1 s; nothing else takes time.
pub(crate) fn scenario() -> Scenario {
    Scenario {
        machines: Machines {
            nodes: 2,
            gpus: 2,
            cache_bytes: 1_000_000,
            reserved_bytes: 0,
            threads: 128,
            loading_threads: 64,
            local_bytes_per_s: f64::INFINITY,
            link: Link {
                bytes_per_s: f64::INFINITY,
                latency_s: 0.0,
            },
        },
        source: SharedStorage {
            bytes_per_s: f64::INFINITY,
            requests_per_s: f64::INFINITY,
            stream_bytes_per_s: f64::INFINITY,
            latency: Latency { median_s: 0.0, sigma: 0.0 },
            seed: 0,
        },
        dataset: Dataset {
            samples: 4_000,
            sizes: Sizes::Equal(1_000),
        },
        job: TrainingJob {
            batch: 10,
            drop_last: false,
            step_s: 0.1,
            epochs: 3,
            slow_ranks: Vec::new(),
            seed: 7,
            order: Permutation::Torch,
        },
        preprocessing: Preprocessing {
            seconds_a_sample: 0.0,
            saturates_at: 64,
            decline: 0.0,
        },
        loader: LoaderSettings {
            policy: PolicyName::None,
            horizon: 2,
            window: vec![4],
            prepared: 2,
            schedule: ScheduleName::FirstCome,
            hedge_budget: 0.0,
            background_fill: false,
            decoders: Decoders::Pool,
            across_epochs: true,
            learns_reads: false,
        },
    }
}

/// Runs the scenario with nothing kept, and a queue a node.
pub(crate) fn run(scenario: &Scenario) -> Outcome {
    let mut queues = || -> Box<dyn Scheduler> {
        Box::new(ArrivalQueue {
            waiting: VecDeque::new(),
            threads: scenario.machines.loading_threads,
        })
    };
    simulate_with(scenario, Box::new(Nothing), &mut queues, &mut |_| ControlFlow::Continue(())).expect("it can be")
}

/// Runs the scenario with everything kept by node 0, and a queue a node.
pub(crate) fn run_keeping(scenario: &Scenario) -> Outcome {
    let mut queues = || -> Box<dyn Scheduler> {
        Box::new(ArrivalQueue {
            waiting: VecDeque::new(),
            threads: scenario.machines.loading_threads,
        })
    };
    let everything = KeepsEverything::new(scenario.dataset.samples, 1);
    simulate_with(scenario, Box::new(everything), &mut queues, &mut |_| ControlFlow::Continue(())).expect("it can be")
}
