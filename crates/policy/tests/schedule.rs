//! Schedulers: rules for all of them, and the purpose of each.

use forebay_policy::models::{LoadModel, Portfolio, Preprocessing, ThroughputCurve};
use forebay_policy::residency::Origin;
use forebay_policy::schedule::lobster::{Erratum, TAU, proportional};
use forebay_policy::schedule::{
    DaliLike, EarliestDeadline, FirstCome, ForebaySchedule, LobsterSchedule, NodeModel, ReadClass, ReadRequest, Scheduler, Static, StepLoad,
};
use proptest::prelude::*;

fn request(sample: u32, local_rank: u32) -> ReadRequest {
    ReadRequest {
        local_rank,
        ticket: 0,
        sample,
        bytes: 1000,
        origin: Origin::Source,
        step: 0,
        deadline_s: 1.0,
        predicted_s: 0.1,
        queued_s: 0.0,
        class: ReadClass::Demand,
    }
}

/// Returns a node whose source gives each thread 1000 bytes a second, up to `source_threads`; memory and peers are
/// not used. Preprocessing runs at `samples_per_s` a thread, up to `preprocessing_threads`.
pub(super) fn node(threads: u32, ranks: u32, source_threads: u32, preprocessing_threads: u32, samples_per_s: f64) -> NodeModel {
    let linear = |rate: f64, threads: u32| ThroughputCurve::new(&[(threads, rate * f64::from(threads))]).expect("measured");
    let measured: Vec<_> = (1..=preprocessing_threads + 4)
        .map(|threads| (threads, samples_per_s * f64::from(threads.min(preprocessing_threads))))
        .collect();
    NodeModel {
        threads,
        ranks,
        load: LoadModel {
            origins: [linear(1e6, 64), linear(1e5, 64), linear(1000.0, source_threads)],
        },
        preprocessing: Portfolio::of(Preprocessing::fit(&measured).expect("measured")),
        tau: TAU,
    }
}

/// Returns a step in which each rank reads `source_bytes` from the source, in a batch of eight samples.
pub(super) fn step(train_s: f64, source_bytes: &[u64]) -> StepLoad {
    StepLoad {
        train_s,
        bytes: source_bytes.iter().map(|&bytes| [0, 0, bytes]).collect(),
        samples: vec![8; source_bytes.len()],
        sample_bytes: source_bytes.iter().sum(),
        decode_s: vec![0.0; source_bytes.len()],
        decode_threads: vec![0; source_bytes.len()],
    }
}

/// All schedulers for a node of 12 threads and 4 ranks.
fn all() -> Vec<Box<dyn Scheduler>> {
    vec![
        Box::new(FirstCome::new(8)),
        Box::new(EarliestDeadline::new(8)),
        Box::new(ForebaySchedule::new(8, 4, TAU)),
        Box::new(DaliLike::new(8)),
        Box::new(Static::new(8, 4)),
        Box::new(Static::new(3, 4)),
        Box::new(LobsterSchedule::corrected(node(12, 4, 16, 4, 1000.0))),
        Box::new(LobsterSchedule::as_written(node(12, 4, 16, 4, 1000.0))),
        Box::new(LobsterSchedule::with(
            "unbounded",
            node(12, 4, 16, 4, 1000.0),
            &[Erratum::UnboundedSum],
        )),
        Box::new(LobsterSchedule::corrected(node(1, 4, 16, 4, 1000.0))),
    ]
}

#[derive(Clone, Debug)]
enum ScheduleMove {
    Push { rank: u32, deadline: u8, fill: bool },
    Pick,
    Finish(usize),
    Assign(Vec<u64>),
}

fn moves() -> impl Strategy<Value = Vec<ScheduleMove>> {
    let one = prop_oneof![
        4 => (0..4_u32, any::<u8>(), any::<bool>()).prop_map(|(rank, deadline, fill)| ScheduleMove::Push { rank, deadline, fill }),
        3 => Just(ScheduleMove::Pick),
        2 => any::<usize>().prop_map(ScheduleMove::Finish),
        1 => proptest::collection::vec(prop_oneof![1 => Just(0_u64), 3 => 1..40_000_u64], 4).prop_map(ScheduleMove::Assign),
    ];
    proptest::collection::vec(one, 0..120)
}

/// A node's threads at work.
struct Driver {
    scheduler: Box<dyn Scheduler>,
    busy: Vec<u32>,
    at_work: Vec<ReadRequest>,
    picked: Vec<ReadRequest>,
    waiting: Vec<ReadRequest>,
}

impl Driver {
    fn new(scheduler: Box<dyn Scheduler>) -> Self {
        Self {
            scheduler,
            busy: vec![0; 4],
            at_work: Vec::new(),
            picked: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn pick(&mut self) -> bool {
        if self.at_work.len() >= self.scheduler.loading_threads() as usize {
            return false;
        }
        let Some(request) = self.scheduler.pick(&self.busy) else {
            for request in &self.waiting {
                assert!(
                    self.busy[request.local_rank as usize] > 0,
                    "{}: {request:?} waits for nobody",
                    self.scheduler.name()
                );
            }
            return false;
        };
        self.busy[request.local_rank as usize] += 1;
        let place = self.waiting.iter().position(|waiting| *waiting == request).expect("waiting");
        self.waiting.remove(place);
        self.at_work.push(request);
        self.picked.push(request);
        true
    }

    fn finish(&mut self, nth: usize) {
        if !self.at_work.is_empty() {
            let request = self.at_work.swap_remove(nth % self.at_work.len());
            self.busy[request.local_rank as usize] -= 1;
        }
    }

    fn run(&mut self, moves: &[ScheduleMove]) {
        for (nth, one) in moves.iter().enumerate() {
            match one {
                ScheduleMove::Push { rank, deadline, fill } => {
                    let request = ReadRequest {
                        deadline_s: f64::from(*deadline),
                        class: if *fill { ReadClass::Fill } else { ReadClass::Demand },
                        ..request(nth as u32, *rank)
                    };
                    self.scheduler.push(request);
                    self.waiting.push(request);
                }
                ScheduleMove::Pick => drop(self.pick()),
                ScheduleMove::Finish(nth) => self.finish(*nth),
                ScheduleMove::Assign(bytes) => self.scheduler.assign(&step(1.0, bytes)),
            }
            assert_eq!(self.scheduler.waiting(), self.waiting.len());
        }
    }
}

proptest! {
    #![proptest_config(crate::drawn::cases(200))]

    #[test]
    fn every_pushed_request_is_picked_exactly_once_whatever_the_scheduler(moves in moves()) {
        let pushed = moves.iter().filter(|one| matches!(one, ScheduleMove::Push { .. })).count();
        for scheduler in all() {
            let mut driver = Driver::new(scheduler);
            driver.run(&moves);
            while driver.scheduler.waiting() > 0 {
                // The assertion in `pick` fails if nothing is at work and nothing could be picked.
                if !driver.pick() {
                    driver.finish(0);
                }
            }
            prop_assert_eq!(driver.picked.len(), pushed);
            prop_assert!(driver.waiting.is_empty());
            driver.busy = vec![0; 4];
            prop_assert!(driver.scheduler.pick(&driver.busy).is_none());
        }
    }

    #[test]
    fn earliest_deadline_takes_demand_before_fill_and_by_the_time_to_begin(
        waiting in proptest::collection::vec((0..6_u8, 0..6_u8, any::<bool>()), 1..60),
    ) {
        let mut scheduler = EarliestDeadline::new(1);
        for (sample, &(deadline, predicted, fill)) in waiting.iter().enumerate() {
            scheduler.push(ReadRequest {
                deadline_s: f64::from(deadline),
                predicted_s: f64::from(predicted),
                class: if fill { ReadClass::Fill } else { ReadClass::Demand },
                ..request(sample as u32, 0)
            });
        }
        let mut expected: Vec<_> = (0..waiting.len()).collect();
        expected.sort_by_key(|&sample| {
            let (deadline, predicted, fill) = waiting[sample];
            (fill, i16::from(deadline) - i16::from(predicted), std::cmp::Reverse(predicted))
        });
        let order: Vec<_> = std::iter::from_fn(|| scheduler.pick(&[0])).map(|request| request.sample as usize).collect();
        prop_assert_eq!(order, expected);
    }

    #[test]
    fn proportional_gives_all_threads_and_the_next_to_who_needs_it_most(pending in proptest::collection::vec(0..50_u64, 1..9), threads in 0..40_u32) {
        let given = proportional(&pending, threads);
        prop_assert_eq!(given.iter().sum::<u32>(), threads);
        let requests = |rank: usize| if pending.iter().all(|&requests| requests == 0) { 1 } else { pending[rank] };
        for a in 0..pending.len() {
            prop_assert!(requests(a) > 0 || given[a] == 0);
            for b in 0..pending.len() {
                // Had a's last thread gone to b, it would have served fewer requests.
                let taken = given[a].saturating_sub(1);
                prop_assert!(given[a] == 0 || requests(a) * u64::from(given[b]) >= requests(b) * u64::from(taken));
                prop_assert!(given[a] < 2 || given[b] > 0 || requests(b) == 0, "{given:?} for {pending:?}");
            }
        }
    }

    #[test]
    fn corrected_keeps_the_sum_and_no_other_split_has_a_shorter_longest_wait(
        bytes in proptest::collection::vec(prop_oneof![1 => Just(0_u64), 5 => 1..60_000_u64], 4), threads in 1..24_u32,
        queued in proptest::collection::vec(0..40_u32, 4),
    ) {
        // One thread preprocesses in no time, so that only loading counts.
        let mut lobster = LobsterSchedule::corrected(node(threads, 4, 64, 1, 1e9));
        for (rank, &queued) in queued.iter().enumerate() {
            (0..queued).for_each(|sample| lobster.push(request(sample, rank as u32)));
        }
        let load = step(1.0, &bytes);
        lobster.assign(&load);
        let loading = threads.max(2) - 1;
        prop_assert_eq!(lobster.loading_threads(), loading);
        let assigned = lobster.assigned();
        prop_assert_eq!(assigned.iter().sum::<u32>(), loading, "{:?}", assigned);

        let seconds = |rank: usize, threads: u32| if bytes[rank] == 0 { 0.0 } else { bytes[rank] as f64 / (1000.0 * f64::from(threads)) };
        let longest = |threads: &[u32]| (0..4).map(|rank| seconds(rank, threads[rank])).fold(0.0, f64::max);
        let mut best = [0; 4];
        for _ in 0..loading {
            let slowest = (0..4).max_by(|&a, &b| seconds(a, best[a]).total_cmp(&seconds(b, best[b]))).expect("ranks");
            best[slowest] += 1;
        }
        let (ours, least) = (longest(assigned), longest(&best));
        prop_assert!(ours < 1.0 + TAU || ours <= least * (1.0 + 1e-9), "{assigned:?}: {ours} s, and {least} s with {best:?}");
        for a in 0..4 {
            for b in 0..4 {
                prop_assert!(assigned[a] < 2 || assigned[b] > 0 || bytes[b] == 0, "{assigned:?} for {bytes:?}");
            }
        }
    }

    #[test]
    fn threads_of_a_node_are_never_exceeded(
        bytes in proptest::collection::vec(0..60_000_u64, 4), threads in 2..24_u32, rate in 1.0_f64..200.0, enough in 1..9_u32, saturated in 1..24_u32,
    ) {
        let node = node(threads, 4, saturated, enough, rate);
        for mut lobster in [LobsterSchedule::corrected(node.clone()), LobsterSchedule::as_written(node)] {
            for _ in 0..2 {
                let loading = lobster.loading_threads();
                prop_assert!((1..threads).contains(&loading), "one of each at least");
                prop_assert!(threads - loading <= enough, "{loading} of {threads} load");
                prop_assert!(lobster.assigned().iter().sum::<u32>() <= loading || lobster.name() == "lobster_as_written");
                lobster.assign(&step(1.0, &bytes));
            }
        }
    }
}

#[test]
fn a_hundred_thousand_requests_wait() {
    for mut scheduler in all() {
        for sample in 0..100_000 {
            scheduler.push(ReadRequest {
                deadline_s: f64::from(sample * 7919 % 100_000),
                ..request(sample, sample % 4)
            });
        }
        let mut seen = vec![false; 100_000];
        while let Some(request) = scheduler.pick(&[0; 4]) {
            assert!(!std::mem::replace(&mut seen[request.sample as usize], true));
        }
        assert!(seen.iter().all(|&seen| seen), "{}", scheduler.name());
    }
}

#[test]
fn first_come_takes_what_came_first() {
    let mut scheduler = FirstCome::new(2);
    for (sample, class) in [(3, ReadClass::Fill), (1, ReadClass::Demand), (2, ReadClass::Demand)] {
        scheduler.push(ReadRequest {
            class,
            deadline_s: f64::from(sample),
            ..request(sample, 0)
        });
    }
    let order: Vec<_> = std::iter::from_fn(|| scheduler.pick(&[0])).map(|request| request.sample).collect();
    assert_eq!(order, [3, 1, 2]);
    assert_eq!((scheduler.name(), scheduler.loading_threads()), ("first_come", 2));
    assert_eq!(
        (EarliestDeadline::new(3).name(), EarliestDeadline::new(3).loading_threads()),
        ("earliest_deadline", 3)
    );
}

#[test]
fn a_static_thread_does_not_help_another_rank() {
    let mut scheduler = Static::new(5, 2);
    assert_eq!((scheduler.name(), scheduler.loading_threads()), ("static", 5));
    for sample in 0..9 {
        scheduler.push(request(sample, 0));
    }
    assert_eq!(scheduler.pick(&[2, 0]).map(|request| request.sample), Some(0));
    assert_eq!(scheduler.pick(&[3, 0]), None, "three of five are its own");
    scheduler.push(request(9, 1));
    assert_eq!(scheduler.pick(&[3, 0]).map(|request| request.sample), Some(9));
    assert_eq!(scheduler.pick(&[3, 1]), None);
}

#[test]
fn a_rank_without_a_thread_is_served_once_no_other_can_be() {
    let mut scheduler = Static::new(1, 2);
    scheduler.push(request(0, 1));
    scheduler.push(request(1, 0));
    scheduler.push(request(2, 1));
    assert_eq!(
        scheduler.pick(&[0, 0]).map(|request| request.sample),
        Some(1),
        "the rank that has the thread, though it came later"
    );
    assert_eq!(scheduler.pick(&[0, 0]).map(|request| request.sample), Some(0));
    assert_eq!(scheduler.pick(&[0, 1]), None, "one at a time");
    assert_eq!(scheduler.pick(&[0, 0]).map(|request| request.sample), Some(2));
}

#[test]
fn the_rank_with_the_least_of_its_threads_at_work_comes_first() {
    let mut scheduler = Static::new(6, 2);
    for sample in 0..4 {
        scheduler.push(request(sample, sample % 2));
    }
    assert_eq!(scheduler.pick(&[2, 1]).map(|request| request.sample), Some(1));
    assert_eq!(
        scheduler.pick(&[1, 1]).map(|request| request.sample),
        Some(0),
        "the oldest of equal ones"
    );
    // One thread of three is less than one of two, though its rank's request came later.
    let mut uneven = Static::new(5, 2);
    uneven.push(request(0, 1));
    uneven.push(request(1, 0));
    assert_eq!(uneven.pick(&[1, 1]).map(|request| request.sample), Some(1));
    let mut even = Static::new(6, 2);
    even.push(request(0, 1));
    even.push(request(1, 0));
    assert_eq!(even.pick(&[1, 1]).map(|request| request.sample), Some(0), "whichever rank's it is");
}

/// Two ranks with queues alike, eight loading threads, nothing to speak of for preprocessing; the first reads 3.5
/// times what four threads can read in a step, the second next to nothing.
fn two_ranks(errata: &[Erratum]) -> LobsterSchedule {
    let mut lobster = LobsterSchedule::with("lobster", node(9, 2, 64, 1, 1e9), errata);
    lobster.assign(&step(1.0, &[7000, 100]));
    lobster
}

#[test]
fn algorithm_1_corrected_gives_the_late_rank_what_the_early_one_does_not_need() {
    let lobster = two_ranks(&[]);
    assert_eq!((lobster.name(), lobster.loading_threads()), ("lobster", 8));
    assert_eq!(lobster.assigned(), [7, 1]);
}

#[test]
fn algorithm_1_where_nobody_is_late_is_proportional_to_the_queues() {
    for errata in [&[][..], &[Erratum::UnboundedSum]] {
        let mut lobster = LobsterSchedule::with("lobster", node(9, 2, 64, 1, 1e9), errata);
        for sample in 0..24 {
            lobster.push(request(sample, 0));
        }
        lobster.assign(&step(1.0, &[1000, 1000]));
        assert_eq!(
            lobster.assigned(),
            [6, 2],
            "24 requests wait for one, a batch of 8 will for the other"
        );
    }
}

#[test]
fn a_rank_may_get_all_threads_and_one_without_reads_none() {
    let mut lobster = LobsterSchedule::corrected(node(9, 2, 64, 1, 1e9));
    lobster.assign(&step(1.0, &[8000, 0]));
    assert_eq!(lobster.assigned(), [8, 0]);
}

#[test]
fn the_search_ends_within_tau() {
    // By 20 threads 0.97 s, and it is in time by 19 too, in 1.02 s. The other rank is late, or nothing would be
    // searched for.
    let mut lobster = LobsterSchedule::with("unbounded", node(41, 2, 64, 1, 1e9), &[Erratum::UnboundedSum]);
    lobster.assign(&step(1.0, &[19_400, 30_000]));
    assert_eq!(lobster.assigned()[0], 20);
}

#[test]
fn a_rank_is_late_by_preprocessing_too() {
    // 16 samples at 40 a second: 0.4 s. 3200 bytes by four threads are 0.8 s, by five 0.64.
    let mut lobster = LobsterSchedule::corrected(node(9, 2, 64, 1, 40.0));
    lobster.assign(&step(1.0, &[3200, 100]));
    assert_eq!(lobster.assigned(), [5, 3]);
}

#[test]
fn threads_are_assigned_by_what_was_measured_last() {
    let mut lobster = LobsterSchedule::corrected(node(10, 2, 64, 3, 100.0));
    lobster.assign(&step(2.0, &[0, 0]));
    assert_eq!(lobster.loading_threads(), 7, "three preprocess as fast as more of them");
    assert!(lobster.assigns() && !EarliestDeadline::new(8).assigns());
    let NodeModel { load, preprocessing, .. } = node(10, 2, 64, 1, 1e9);
    lobster.measured(load, preprocessing);
    lobster.assign(&step(1.0, &[4000, 100]));
    assert_eq!(lobster.assigned(), [5, 4]);
    let NodeModel { load, preprocessing, .. } = node(10, 2, 2, 1, 1e9);
    lobster.measured(load, preprocessing);
    lobster.assign(&step(1.0, &[4000, 100]));
    assert!(
        lobster.assigned()[0] > 5,
        "of a source that two threads exhaust, the late rank gets more"
    );
}

#[test]
fn preprocessing_is_that_of_samples_of_their_size() {
    let gaining = |threads: u32| node(10, 2, 64, threads, 100.0).preprocessing.nearest(0).clone();
    let mut lobster = LobsterSchedule::corrected(NodeModel {
        preprocessing: Portfolio::new([(100, gaining(1)), (10_000, gaining(4))]).expect("two models"),
        ..node(10, 2, 64, 1, 100.0)
    });
    for (bytes, loading) in [(80_000, 6), (800, 9)] {
        lobster.assign(&StepLoad {
            bytes: vec![[bytes, 0, 0]; 2],
            sample_bytes: 2 * bytes,
            ..step(2.0, &[0, 0])
        });
        assert_eq!(lobster.loading_threads(), loading, "samples of {} bytes", bytes / 8);
    }
}

#[test]
fn left_over_threads_go_to_the_ranks_by_what_waits() {
    let mut lobster = LobsterSchedule::corrected(node(13, 3, 64, 1, 1e9));
    for sample in 0..64 {
        lobster.push(request(sample, 2));
    }
    // In proportion, the first two would have one thread each of twelve and the first be late. It needs four, the
    // others one each.
    lobster.assign(&step(1.0, &[4000, 100, 100]));
    assert_eq!(lobster.assigned(), [4, 1, 7]);
}

#[test]
fn lines_12_to_15_as_written_leave_a_late_rank_late() {
    // The upper bound is lowered to what was too few, so that fewer still are tried, and none of them kept.
    assert_eq!(two_ranks(&[Erratum::InvertedBounds, Erratum::UnboundedSum]).assigned()[0], 4);
    assert_eq!(two_ranks(&[Erratum::UnboundedSum]).assigned()[0], 7);
}

#[test]
fn lines_13_and_15_as_written_never_leave_the_first_midpoint() {
    // From four threads the middle of four and eight, again and again.
    assert_eq!(two_ranks(&[Erratum::StaleCandidate, Erratum::UnboundedSum]).assigned()[0], 6);
}

#[test]
fn line_18_as_written_keeps_the_worse_candidate() {
    // 4 (late) was first, then 6 (late by less), 7: in time, and never kept.
    assert_eq!(two_ranks(&[Erratum::KeepsWorse, Erratum::UnboundedSum]).assigned()[0], 4);
}

#[test]
fn nothing_as_written_keeps_the_sum_within_the_threads() {
    let load = step(1.0, &[7000, 7000]);
    let mut unbounded = LobsterSchedule::with("unbounded", node(9, 2, 64, 1, 1e9), &[Erratum::UnboundedSum]);
    unbounded.assign(&load);
    assert_eq!((unbounded.assigned(), unbounded.loading_threads()), (&[7, 7][..], 8));
    // Each rank gets its share of the threads that there are.
    for sample in 0..16 {
        unbounded.push(request(sample, sample / 8));
    }
    let mut busy = [0, 0];
    while busy[0] + busy[1] < unbounded.loading_threads() {
        busy[unbounded.pick(&busy).expect("sixteen wait").local_rank as usize] += 1;
    }
    assert_eq!(busy, [4, 4]);

    let mut corrected = LobsterSchedule::corrected(node(9, 2, 64, 1, 1e9));
    corrected.assign(&load);
    assert_eq!(corrected.assigned(), [4, 4]);
}

#[test]
fn equation_1_as_written_takes_a_late_rank_for_an_early_one() {
    // 7000 bytes by four threads at 1000 bytes a second each: 1.75 s; as written, throughput times threads: 0.4375 s.
    assert_eq!(two_ranks(&[Erratum::Equation1]).assigned(), [4, 4]);
}

#[test]
fn all_errors_together_take_threads_from_the_rank_that_is_late() {
    let mut lobster = LobsterSchedule::as_written(node(9, 2, 64, 1, 1e9));
    assert_eq!((lobster.name(), lobster.assigned()), ("lobster_as_written", &[4, 4][..]));
    lobster.assign(&step(0.1, &[7000, 100]));
    assert_eq!(lobster.assigned(), [2, 4]);
}

#[test]
fn threads_go_from_preprocessing_to_loading_as_long_as_both_together_get_shorter() {
    // 16 samples by 4 threads at 100 a second: 0.04 s, by one 0.16 s. Loading has six of ten threads: 9000 bytes in
    // 1.5 s.
    let mut lobster = LobsterSchedule::corrected(node(10, 2, 64, 4, 100.0));
    assert_eq!(lobster.loading_threads(), 6);
    lobster.assign(&step(1.0, &[4500, 4500]));
    assert_eq!(
        lobster.loading_threads(),
        8,
        "9000 bytes by eight threads are 1.125 s, and nine would not divide by two"
    );
    lobster.assign(&step(2.0, &[4500, 4500]));
    assert_eq!(lobster.loading_threads(), 6, "in time");
}

#[test]
fn step_2_as_written_takes_threads_that_gain_nothing() {
    // The source is at its limit with two threads: 9000 bytes take 4.5 s whatever is done.
    let load = step(1.0, &[4500, 4500]);
    let mut as_written = LobsterSchedule::with("greedy", node(10, 2, 2, 4, 10.0), &[Erratum::TakesWithoutGain]);
    as_written.assign(&load);
    assert_eq!(as_written.loading_threads(), 9);
    let mut corrected = LobsterSchedule::corrected(node(10, 2, 2, 4, 10.0));
    corrected.assign(&load);
    assert_eq!(corrected.loading_threads(), 6);
}

#[test]
fn threads_stay_with_preprocessing_where_it_would_take_longest() {
    // 16 samples at 10 a second a thread: 0.4 s with four threads, 0.53 with three, 0.8 with two. Loading: 0.5 s with
    // six, 0.43 with seven.
    let node = node(10, 2, 64, 4, 10.0);
    for errata in [&[][..], &[Erratum::TakesWithoutGain]] {
        let mut lobster = LobsterSchedule::with("lobster", node.clone(), errata);
        lobster.assign(&step(0.5, &[1500, 1500]));
        assert_eq!(lobster.loading_threads(), 6, "{errata:?}");
    }
}
