//! No schedule starves a rank: ranks that need equally much and train together get their batches about as fast as all
//! threads can read. A schedule that gives one rank all threads answers each request as well, in the end; this test
//! detects it.

use std::collections::VecDeque;

use forebay_policy::schedule::{ReadRequest, StepLoad};

use forebay_policy::schedule::{Concurrency, EndedRead};

use super::*;

const THREADS: u32 = 8;

/// Gives all threads to one rank. Each request is picked once, and no rank waits for ever: the others have one read at
/// a time.
struct AllToOne {
    favoured: usize,
    queues: Vec<VecDeque<ReadRequest>>,
}

impl AllToOne {
    fn new(ranks: u32, favoured: usize) -> Self {
        Self {
            favoured,
            queues: (0..ranks).map(|_| VecDeque::new()).collect(),
        }
    }
}

impl Scheduler for AllToOne {
    fn name(&self) -> &'static str {
        "all_to_one"
    }

    fn push(&mut self, request: ReadRequest) {
        self.queues[request.local_rank as usize].push_back(request);
    }

    fn pick(&mut self, busy: &[u32]) -> Option<ReadRequest> {
        let favoured = self.queues[self.favoured].pop_front();
        favoured.or_else(|| {
            let waits = |rank: &usize| busy[*rank] == 0 && !self.queues[*rank].is_empty();
            let rank = (0..self.queues.len()).find(waits)?;
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

/// Returns the number of rounds that all epochs take. In a round all reads that are under way end. The ranks need
/// equally much, nothing is kept, and ranks train together, as fast as the last of them gets its batch.
fn rounds(world: MachineWorld, scheduler: Box<dyn Scheduler>) -> u32 {
    let ranks = world.ranks as usize;
    let mut play = Play::new(world, Vec::new());
    play.core = world.core_with(scheduler);
    let mut rounds = 0;
    while !play.is_over() {
        play.core.reads.concurrency = all_threads();
        // Alternately, each as far as it can.
        while (0..ranks).fold(false, |moved, rank| {
            let is_in_step = (0..ranks).all(|other| step_of(&play, rank) <= step_of(&play, other));
            (is_in_step && play.release(rank, 49)) || play.ask(rank) || moved
        }) {}
        let under_way = play.reads.len();
        assert!(under_way > 0 || play.is_over(), "it stands still");
        play.now_s += 0.01;
        (0..under_way).for_each(|_| play.end_read(0, 99));
        rounds += 1;
    }
    rounds
}

/// The step whose batch a rank has or waits for.
pub(super) fn step_of(play: &Play, rank: usize) -> usize {
    let seen = &play.seen[rank];
    seen.iter().position(|seen| *seen != RequestView::Released).unwrap_or(seen.len()) / play.world.batch as usize
}

/// Returns a concurrency limit that has grown to all threads, as over a source that gained by each further concurrent
/// read. Under a limit of a few reads no rank could be starved of its share.
fn all_threads() -> Concurrency {
    let (mut grown, mut now_s) = (Concurrency::new(THREADS), 0.0);
    let read = EndedRead {
        local_rank: 0,
        bytes: 1_000_000,
        took_s: Some(1.0),
    };
    while grown.limit() < THREADS {
        now_s += 1.0 / f64::from(grown.limit());
        grown.ended(now_s, read, true);
    }
    grown
}

fn without_memory(ranks: u32, scheduler: u8) -> MachineWorld {
    MachineWorld {
        ranks,
        batch: 5,
        window: 4,
        window_bytes: 60_000,
        memory_bytes: 0,
        scheduler,
        ..roomy()
    }
}

/// Returns the rounds of a schedule over those of one pool for all ranks, whose threads are idle only when no request
/// waits.
fn over_a_pool(world: MachineWorld, scheduler: Box<dyn Scheduler>) -> f64 {
    f64::from(rounds(world, scheduler)) / f64::from(rounds(world, Box::new(FirstCome::new(THREADS))))
}

/// Ranks of a static schedule take 1.3 times as long: three of them share eight threads.
const OVER_A_POOL_MAX: f64 = 1.5;

#[test]
fn each_schedule_serves_all_ranks() {
    for ranks in [2, 3] {
        for number in 0..6 {
            let world = without_memory(ranks, number);
            let scheduler = world.scheduler();
            let name = scheduler.name();
            let found = over_a_pool(world, scheduler);
            assert!(
                found <= OVER_A_POOL_MAX,
                "{name}, {ranks} ranks: {found:.2} times as long as one pool for all"
            );
        }
    }
}

#[test]
fn a_schedule_that_gives_one_rank_all_threads_is_found_out() {
    for ranks in [2, 3] {
        for favoured in 0..ranks as usize {
            let found = over_a_pool(without_memory(ranks, 0), Box::new(AllToOne::new(ranks, favoured)));
            assert!(
                found > OVER_A_POOL_MAX,
                "{found:.2} times as long, where rank {favoured} of {ranks} has all threads"
            );
        }
    }
}

#[test]
fn reads_that_wait_keep_the_order_of_steps_when_steps_turn_out_to_be_shorter() {
    let world = MachineWorld {
        window: 8,
        ..without_memory(1, 0)
    };
    let mut play = Play::new(world, Vec::new());
    let batch = world.batch as usize;
    let begin = |play: &mut Play, steps, after_s| {
        play.now_s += after_s;
        let step = RankStep {
            steps,
            epoch: 0,
            iteration: 0,
        };
        play.happen(&[MachineEvent::Stepped { rank: 0, step }]);
    };
    (0..4).for_each(|_| assert!(play.ask_next(0)));
    begin(&mut play, 1, 0.0);
    begin(&mut play, 2, 1.0);
    // Due in five seconds, as it seems.
    assert!(play.ask_next(0));
    (3..8).for_each(|steps| begin(&mut play, steps, 0.01));
    (0..2).for_each(|_| assert!(play.ask_next(0)));
    let mut began: Vec<u32> = Vec::new();
    while !play.reads.is_empty() {
        let new = play
            .reads
            .iter()
            .map(|(_, sample, _)| *sample)
            .filter(|sample| !began.contains(sample));
        began.extend(new.collect::<Vec<_>>());
        play.end_read(0, 99);
    }
    let step_of = |sample: &u32| {
        play.wanted[0]
            .iter()
            .position(|wanted| wanted.sample == *sample)
            .expect("it was asked for")
            / batch
    };
    let steps: Vec<usize> = began.iter().map(step_of).collect();
    assert_eq!(steps.len(), 7 * batch);
    assert!(steps.is_sorted(), "{steps:?}");
}
