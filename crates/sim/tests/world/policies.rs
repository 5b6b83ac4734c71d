//! The policies and schedulers in the simulated world: limits that hold for all, and closed forms.

use std::ops::ControlFlow;

use forebay_policy::bounds::{lru_share, source_bytes};
use forebay_policy::residency::PolicyName;
use forebay_policy::schedule::ScheduleName;
use forebay_sim::{Latency, Outcome, Scenario, Sizes, simulate};
use proptest::prelude::*;
use proptest::sample::select;

use crate::simple::{cases, scenario};

fn run(scenario: &Scenario) -> Outcome {
    simulate(scenario, &mut |_| ControlFlow::Continue(())).expect("it can be")
}

/// One node of four GPUs whose memory holds `share` of 20,000 samples in 500 steps, and a source at `rho` of the
/// demand.
fn one_node(policy: PolicyName, share: f64, rho: f64) -> Scenario {
    let mut one = scenario();
    one.machines.nodes = 1;
    one.machines.gpus = 4;
    one.dataset.samples = 20_000;
    one.machines.cache_bytes = (share * 20_000.0 * 1_000.0) as u64;
    one.source.bytes_per_s = rho * 40_000.0 / one.job.step_s;
    one.loader.policy = policy;
    one.job.epochs = 4;
    one
}

#[test]
fn lru_finds_what_its_closed_form_says() {
    for share in [0.3, 0.6, 0.9] {
        let figures = &run(&one_node(PolicyName::Lru, share, 2.0)).epochs[3];
        let found = figures.reads.samples_by_origin[0] as f64 / 20_000.0;
        assert!((found - lru_share(share)).abs() < 0.01, "{found} at {share}");
    }
}

#[test]
fn a_policy_that_reads_no_more_than_it_must_takes_no_longer_than_it_must() {
    for rho in [0.25, 0.5, 1.0, 2.0] {
        let figures = &run(&one_node(PolicyName::Forebay, 0.3, rho)).epochs[3];
        assert!(figures.reads.source_bytes as f64 <= 20e6 * 0.7 + 0.01 * 20e6, "{figures:?}");
        assert!(figures.seconds <= 1.03 * figures.ideal_seconds, "{figures:?}");
    }
}

#[test]
fn prefetch_without_a_window_reads_again_what_it_gave_up_where_the_source_is_fast() {
    let read = |rho| run(&one_node(PolicyName::LobsterAsWritten, 0.3, rho)).epochs[3].reads.source_bytes as f64 / 20e6;
    assert!(read(0.25) < 0.72, "{}", read(0.25));
    assert!(read(4.0) > 0.9, "{}", read(4.0));
}

#[test]
fn a_second_read_hides_the_tail_at_the_price_of_its_budget() {
    let mut tail = one_node(PolicyName::Forebay, 0.3, 2.0);
    tail.source.latency = Latency {
        median_s: 0.02,
        sigma: 1.0,
    };
    let without = run(&tail);
    tail.loader.hedge_budget = 0.01;
    let with = run(&tail);
    let seconds = |outcome: &Outcome| outcome.epochs.iter().map(|figures| figures.seconds).sum::<f64>();
    assert!(seconds(&with) < seconds(&without), "{} {}", seconds(&with), seconds(&without));
    let sum = |of: fn(&forebay_sim::EpochFigures) -> u64| with.epochs.iter().map(of).sum::<u64>() as f64;
    assert!(sum(|figures| figures.reads.hedged_bytes) > 0.0);
    assert!(sum(|figures| figures.reads.hedged_bytes) <= 0.01 * sum(|figures| figures.reads.source_bytes));
    assert!(without.epochs.iter().all(|figures| figures.reads.hedged_bytes == 0));
}

#[test]
fn background_fill_reads_ahead_of_the_window() {
    let mut cold = one_node(PolicyName::Forebay, 1.2, 1.5);
    cold.source.latency = Latency {
        median_s: 0.05,
        sigma: 1.0,
    };
    cold.loader.window = vec![1];
    let seconds = |scenario: &Scenario| run(scenario).epochs[0].seconds;
    let without = seconds(&cold);
    cold.loader.background_fill = true;
    assert!(seconds(&cold) < without, "{} {without}", seconds(&cold));
}

proptest! {
    #![proptest_config(cases(96))]

    /// With any policy, the source sends no fewer bytes than the bound, no memory is exceeded if a few steps fit it,
    /// each use is served once, and the same seed gives the same outcome.
    #[test]
    fn limits_hold_for_every_policy_and_schedule(
        policy in select(PolicyName::ALL.to_vec()),
        schedule in select(ScheduleName::ALL.to_vec()),
        shape in (1_u16..5, 1_u32..4, 1_u32..6),
        share in 0.2..1.3_f64,
        rho in 0.2..3.0_f64,
        tail in (0.0..0.2_f64, 0.0..1.2_f64),
        hedge in select(vec![0.0, 0.01, 0.1]),
        windows in (1_u32..6, any::<bool>()),
        seed in any::<u64>(),
    ) {
        let mut any = scenario();
        (any.machines.nodes, any.machines.gpus, any.job.batch) = shape;
        any.dataset.samples = 1_500;
        any.dataset.sizes = Sizes::Lognormal { mean: 1_000, sigma: 0.5 };
        any.machines.cache_bytes = (share * 1_500.0 * 1_000.0 / f64::from(any.machines.nodes)) as u64;
        any.source.bytes_per_s = rho * f64::from(any.world() * any.job.batch) * 1_000.0 / any.job.step_s;
        any.source.latency = Latency { median_s: tail.0, sigma: tail.1 };
        any.preprocessing.seconds_a_sample = 0.004;
        any.machines.loading_threads = 12;
        any.machines.threads = 24;
        (any.loader.policy, any.loader.schedule, any.loader.hedge_budget) = (policy, schedule, hedge);
        any.loader.window = vec![windows.0];
        any.loader.background_fill = windows.1;
        any.job.epochs = 4;
        any.job.seed = seed;
        let outcome = run(&any);
        prop_assert_eq!(&outcome, &run(&any));
        let uses = any.order().unwrap().deal.positions();
        let cold = &outcome.epochs[0];
        let size = cold.reads.local_bytes + cold.reads.peer_bytes + cold.reads.source_bytes - cold.reads.hedged_bytes;
        for figures in &outcome.epochs {
            prop_assert_eq!(figures.reads.samples_by_origin.iter().sum::<u64>(), uses);
            prop_assert!(figures.seconds >= f64::from(figures.iterations) * any.job.step_s * (1.0 - 1e-9));
        }
        // Padding lets some samples be used twice in an epoch, so an epoch's bytes differ a little.
        let padding = (uses - 1_500) * 20_000;
        for figures in &outcome.epochs[1..] {
            prop_assert!(figures.reads.source_bytes + padding >= source_bytes(size.saturating_sub(padding), any.cluster()));
        }
        let step_bytes = u64::from(any.machines.gpus * any.job.batch) * 20_000;
        if any.machines.cache_bytes > 4 * step_bytes {
            // A sample let in before its size was known may still be there in the second epoch. A read beyond a window
            // counts in the epoch that uses it, which may be the one after the next.
            let reads_beyond = any.loader.background_fill || any.loader.policy == PolicyName::LobsterAsWritten;
            let first = if reads_beyond { 3 } else { 2 };
            for figures in &outcome.epochs[first..] {
                prop_assert!(figures.held_bytes_max <= any.machines.cache_bytes, "{:?}", figures);
            }
        }
    }
}
