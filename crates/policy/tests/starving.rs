//! No schedule starves a rank that has requests; the test detects a schedule that gives one rank all threads.

use std::collections::VecDeque;

use forebay_policy::models::{LoadModel, Portfolio, Preprocessing, ThroughputCurve};
use forebay_policy::residency::Origin;
use forebay_policy::schedule::lobster::{Erratum, TAU};
use forebay_policy::schedule::{
    EarliestDeadline, FirstCome, LobsterSchedule, NodeModel, ReadClass, ReadRequest, Scheduler, Static, StepLoad,
};

const RANKS: u32 = 4;
const THREADS: u32 = 8;
/// Requests of a rank: a step's batch of eight, and eight steps.
const BATCH: u32 = 8;
const STEPS: u32 = 8;

/// Gives all threads to the first rank, and one at a time to others that have none: no rank waits for ever.
#[derive(Default)]
struct FavouriteRank {
    queues: [VecDeque<ReadRequest>; RANKS as usize],
}

impl Scheduler for FavouriteRank {
    fn name(&self) -> &'static str {
        "all_to_one"
    }

    fn push(&mut self, request: ReadRequest) {
        self.queues[request.local_rank as usize].push_back(request);
    }

    fn pick(&mut self, busy: &[u32]) -> Option<ReadRequest> {
        let first = self.queues[0].pop_front();
        first.or_else(|| {
            let waits = |rank: &usize| busy[*rank] == 0 && !self.queues[*rank].is_empty();
            let rank = (1..self.queues.len()).find(waits)?;
            self.queues[rank].pop_front()
        })
    }

    fn assign(&mut self, _load: &StepLoad) {}

    fn loading_threads(&self) -> u32 {
        THREADS
    }

    fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }
}

/// A node whose source gives each thread 1000 bytes a second; one thread preprocesses in no time.
fn node() -> NodeModel {
    let linear = |rate: f64| ThroughputCurve::new(&[(64, rate * 64.0)]).expect("measured");
    NodeModel {
        threads: THREADS + 1,
        ranks: RANKS,
        load: LoadModel {
            origins: [linear(1e6), linear(1e5), linear(1000.0)],
        },
        preprocessing: Portfolio::of(Preprocessing::fit(&[(1, 1e9), (2, 1e9)]).expect("measured")),
        tau: TAU,
    }
}

fn right() -> Vec<Box<dyn Scheduler>> {
    vec![
        Box::new(FirstCome::new(THREADS)),
        Box::new(EarliestDeadline::new(THREADS)),
        Box::new(Static::new(THREADS, RANKS)),
        Box::new(LobsterSchedule::corrected(node())),
    ]
}

/// Returns schedulers with errors of the paper's text, which take threads from ranks that are late.
fn wrong() -> Vec<Box<dyn Scheduler>> {
    vec![
        Box::new(LobsterSchedule::as_written(node())),
        Box::new(LobsterSchedule::with("unbounded", node(), &[Erratum::UnboundedSum])),
    ]
}

/// Returns the rounds until each rank has all that it asked for, divided by the fewest possible. In a round all
/// threads at work end. Each rank asks for a step's batch at a time, of samples of 1000 bytes, and all begin the next
/// step together; `train_s` decides if they count as late.
fn rounds(scheduler: &mut dyn Scheduler, train_s: f64) -> f64 {
    let mut rounds = 0;
    for step in 0..STEPS {
        for number in 0..BATCH * RANKS {
            scheduler.push(ReadRequest {
                ticket: number,
                local_rank: number % RANKS,
                sample: step * BATCH * RANKS + number,
                bytes: 1000,
                origin: Origin::Source,
                step: step.into(),
                deadline_s: step.into(),
                predicted_s: 1.0,
                queued_s: step.into(),
                class: ReadClass::Demand,
            });
        }
        scheduler.assign(&StepLoad {
            train_s,
            bytes: vec![[0, 0, u64::from(BATCH) * 1000]; RANKS as usize],
            samples: vec![BATCH; RANKS as usize],
            ..StepLoad::default()
        });
        while scheduler.waiting() > 0 {
            let mut busy = [0; RANKS as usize];
            while busy.iter().sum::<u32>() < scheduler.loading_threads() {
                let Some(request) = scheduler.pick(&busy) else { break };
                busy[request.local_rank as usize] += 1;
            }
            rounds += 1;
        }
    }
    f64::from(rounds) / f64::from((STEPS * BATCH * RANKS).div_ceil(THREADS))
}

#[test]
fn each_schedule_serves_ranks_that_need_alike_as_fast_as_all_threads_can() {
    let in_time = right().into_iter().chain(wrong()).map(|scheduler| (scheduler, 100.0));
    let late = right().into_iter().map(|scheduler| (scheduler, 0.5));
    for (mut scheduler, train_s) in in_time.chain(late) {
        let found = rounds(scheduler.as_mut(), train_s);
        assert!(
            found <= 1.25,
            "{}: {found:.2} times as long as all threads take, with steps of {train_s} s",
            scheduler.name()
        );
    }
}

#[test]
fn a_schedule_that_gives_one_rank_all_threads_is_found_out() {
    let found = rounds(&mut FavouriteRank::default(), 0.5);
    assert!(found > 1.25, "{found:.2} times as long");
}
