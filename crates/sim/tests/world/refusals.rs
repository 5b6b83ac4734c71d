//! Invalid scenarios, and simulations that are stopped.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use forebay_policy::schedule::Scheduler;
use forebay_sim::{Failure, Scenario, Sizes, simulate_with};

use crate::simple::{ArrivalQueue, KeepsEverything, scenario};

/// A change of a valid scenario, and the words of its refusal.
type Refused = (fn(&mut Scenario), &'static str);

fn are_refused(changes: &[Refused]) {
    for (change, words) in changes {
        let mut bad = scenario();
        change(&mut bad);
        assert_eq!(bad.check().expect_err("it cannot be").to_string(), format!("{words} is allowed"));
    }
}

#[test]
fn a_scenario_that_cannot_be_is_refused_by_key_value_and_what_is_allowed() {
    assert_eq!(scenario().check(), Ok(()));
    are_refused(&[
        (|bad| bad.job.batch = 1_001, "job.batch = 1001: 1 to 1000 (dataset.samples / ranks)"),
        (|bad| bad.job.batch = 0, "job.batch = 0: 1 or more"),
        (|bad| bad.machines.nodes = 0, "cluster.nodes = 0: 1 or more"),
        (|bad| bad.machines.gpus = 0, "cluster.gpus = 0: 1 or more"),
        (
            |bad| bad.machines.gpus = 40_000,
            "cluster.gpus = 40000: at most 32767 (65,535 ranks in all)",
        ),
        (
            |bad| bad.machines.threads = 0,
            "cluster.threads = 0: 2 or more: one that loads, one that preprocesses",
        ),
        (
            |bad| bad.machines.loading_threads = 0,
            "cluster.loading_threads = 0: 1 to 127 (one fewer than cluster.threads)",
        ),
        (|bad| bad.machines.cache_bytes = 0, "cluster.cache = 0: 1 or more"),
    ]);
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    are_refused(&[
        (|bad| bad.source.bytes_per_s = f64::NAN, "source.bandwidth = NaN: a number above 0"),
        (|bad| bad.source.bytes_per_s = -1.0, "source.bandwidth = -1: a number above 0"),
        (
            |bad| bad.source.latency.sigma = f64::NAN,
            "source.tail = NaN: a number of 0 or more",
        ),
        (
            |bad| bad.source.latency.median_s = f64::INFINITY,
            "source.latency = inf: a number of 0 or more",
        ),
        (|bad| bad.job.step_s = 0.0, "job.step = 0: a number above 0"),
        (|bad| bad.job.step_s = f64::INFINITY, "job.step = inf: a number of 0 or more"),
        (|bad| bad.job.epochs = 0, "job.epochs = 0: 1 or more"),
        (|bad| bad.loader.window = vec![4, 0, 4, 4], "loader.window = 0: 1 or more"),
        (
            |bad| bad.loader.window = vec![4, 4],
            "loader.window = 2 numbers: one number, or one for each of 4 ranks",
        ),
        (|bad| bad.loader.hedge_budget = 1.5, "loader.hedge = 1.5: a share from 0 to 1"),
        (|bad| bad.job.slow_ranks = vec![(4, 2.0)], "job.slow_ranks = 4: a rank from 0 to 3"),
        (
            |bad| bad.job.slow_ranks = vec![(0, 0.5)],
            "job.slow_ranks = 0.5: a factor of 1 or more",
        ),
        (|bad| bad.dataset.sizes = Sizes::Equal(0), "dataset.size = 0: 1 or more"),
        (
            |bad| bad.dataset.sizes = Sizes::Listed(vec![1; 3]),
            "dataset.listing = 3 sizes: as many as dataset.samples (4000)",
        ),
        (
            |bad| bad.preprocessing.seconds_a_sample = -1.0,
            "preprocessing.seconds = -1: a number of 0 or more",
        ),
    ]);
}

#[test]
fn a_policy_without_room_for_the_next_step_ends_the_simulation() {
    let scenario = scenario();
    let mut queues = || -> Box<dyn Scheduler> {
        Box::new(ArrivalQueue {
            waiting: VecDeque::new(),
            threads: 1,
        })
    };
    let nothing_fits = KeepsEverything::new(4_000, 0);
    let found = simulate_with(&scenario, Box::new(nothing_fits), &mut queues, &mut |_| ControlFlow::Continue(()));
    let Err(Failure::Scenario(error)) = found else {
        panic!("{found:?}")
    };
    assert_eq!(
        error.to_string(),
        "cluster.cache = 1000000: room for a node's samples of one step (20000 bytes would do), and what the policy keeps besides is allowed"
    );
}

#[test]
fn a_watcher_sees_each_step_and_may_stop() {
    let scenario = scenario();
    let mut seen = Vec::new();
    let mut queues = || -> Box<dyn Scheduler> {
        Box::new(ArrivalQueue {
            waiting: VecDeque::new(),
            threads: 1,
        })
    };
    let everything = Box::new(KeepsEverything::new(4_000, 1));
    let found = simulate_with(&scenario, everything, &mut queues, &mut |progress| {
        seen.push((progress.steps, progress.of));
        if progress.steps == 3 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!(found, Err(Failure::Stopped));
    assert_eq!(seen, [(1, 300), (2, 300), (3, 300)]);
}
