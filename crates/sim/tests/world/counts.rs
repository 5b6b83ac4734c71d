//! Counts of a simulation.

use forebay_sim::{Latency, Sizes};
use proptest::prelude::*;

use crate::simple::{cases, run, run_keeping, scenario};

#[test]
fn ranks_that_are_late_alike_stall_and_one_that_is_late_alone_is_an_imbalance() {
    let mut late = scenario();
    late.loader.window = vec![1];
    late.source.latency.median_s = 0.15;
    let figures = &run(&late).epochs[1];
    assert_eq!((figures.waits.stalled, figures.waits.imbalanced), (100, 0));
    assert!((figures.waits.stalled_seconds - 100.0 * 0.05).abs() < 1e-6, "{figures:?}");

    late.source.latency.median_s = 0.09;
    late.job.slow_ranks = vec![(3, 2.0)];
    let outcome = run(&late);
    let figures = &outcome.epochs[1];
    assert_eq!((figures.waits.stalled, figures.waits.imbalanced), (0, 100));
    assert!(figures.waits.stalled_seconds.abs() < 1e-6, "{figures:?}");
    // Ready 0.18 s after it was asked for, 0.08 s after the step before ended.
    let slow: Vec<_> = outcome.steps.iter().filter(|step| step.rank == 3).collect();
    assert_eq!(slow.len(), 24);
    assert!(
        slow.iter()
            .all(|step| (step.late_s - 0.08).abs() < 1e-9 && (step.load_s - 0.18).abs() < 1e-9),
        "{slow:?}"
    );
    assert!(outcome.steps.iter().all(|step| step.rank == 3 || step.late_s == 0.0));
}

#[test]
fn a_lateness_of_a_twentieth_of_a_step_is_not_noticed() {
    let mut late = scenario();
    late.loader.window = vec![1];
    late.source.latency.median_s = 0.1;
    late.job.slow_ranks = vec![(0, 1.049)];
    assert_eq!(run(&late).epochs[1].waits.imbalanced, 0);
    late.job.slow_ranks = vec![(0, 1.051)];
    assert_eq!(run(&late).epochs[1].waits.imbalanced, 100);
}

#[test]
fn samples_are_found_ready_by_the_share_of_them_that_the_source_can_send_in_a_step() {
    for rho in [0.25, 0.5, 0.75] {
        let mut slow = scenario();
        slow.source.bytes_per_s = rho * 400_000.0;
        slow.loader.window = vec![1];
        let figures = &run(&slow).epochs[1];
        let found = figures.reads.samples_ready as f64 / 4_000.0;
        assert!((found - rho).abs() < 0.03, "{found} at {rho}");
    }
    assert_eq!(run(&scenario()).epochs[1].reads.samples_ready, 4_000);
}

#[test]
fn what_is_kept_is_not_read_again() {
    let epochs = run_keeping(&scenario()).epochs;
    assert_eq!((epochs[0].reads.source_bytes, epochs[0].reads.source_requests), (4_000_000, 4_000));
    assert_eq!((epochs[2].reads.source_bytes, epochs[2].reads.source_requests), (0, 0));
    assert_eq!(epochs[2].reads.samples_by_origin, [2_000, 2_000, 0]);
    assert_eq!(epochs[2].held_bytes_max, 4_000_000);
}

#[test]
fn figures_of_epochs_add_up() {
    let mut slow = scenario();
    slow.source.bytes_per_s = 300_000.0;
    let outcome = run(&slow);
    let last: f64 = outcome.step_times_s.iter().copied().map(f64::from).sum();
    assert!((last / outcome.epochs[2].seconds - 1.0).abs() < 1e-5);
    assert_eq!(outcome.step_times_s.len(), 100);
    let figures = &outcome.epochs[2];
    assert!((figures.gpu_use - 100.0 * 0.1 / figures.seconds).abs() < 1e-12);
}

proptest! {
    #![proptest_config(cases(64))]

    /// For any resource that takes time, every byte that is used was sent once, the same seed gives the same outcome,
    /// and nothing is faster than its slowest resource alone.
    #[test]
    fn nothing_is_lost_and_nothing_is_random(
        shape in (1_u16..4, 1_u32..4, 1_u32..20, 200_u32..600),
        rates in (1e4..1e7_f64, 10.0..1e5_f64, 1e4..1e6_f64),
        tail in (0.0..0.3_f64, 0.0..1.5_f64),
        threads in (1_u32..9, 1_u32..9, 0.0..0.01_f64),
        window in 1_u32..6,
        drop_last in any::<bool>(),
        keeps in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut any = scenario();
        (any.machines.nodes, any.machines.gpus, any.job.batch, any.dataset.samples) = shape;
        any.dataset.sizes = Sizes::Lognormal { mean: 1_000, sigma: 0.7 };
        (any.source.bytes_per_s, any.source.requests_per_s, any.source.stream_bytes_per_s) = rates;
        any.source.latency = Latency { median_s: tail.0, sigma: tail.1 };
        any.machines.loading_threads = threads.0;
        any.machines.threads = threads.0 + threads.1;
        any.preprocessing.seconds_a_sample = threads.2;
        any.loader.window = vec![window];
        any.job.drop_last = drop_last;
        any.job.epochs = 2;
        any.job.seed = seed;
        let outcome = if keeps { run_keeping(&any) } else { run(&any) };
        prop_assert_eq!(&outcome, &if keeps { run_keeping(&any) } else { run(&any) });
        let order = any.order().unwrap();
        for figures in &outcome.epochs {
            let used = order.deal.positions();
            prop_assert_eq!(figures.reads.samples_by_origin.iter().sum::<u64>(), used);
            prop_assert_eq!(figures.reads.source_requests, figures.reads.samples_by_origin[2]);
            prop_assert!(figures.reads.samples_ready <= used);
            prop_assert!(figures.waits.stalled + figures.waits.imbalanced <= figures.iterations);
            if keeps {
                prop_assert!(figures.reads.local_bytes > 0 || figures.reads.peer_bytes > 0 || figures.reads.source_bytes > 0);
            } else {
                prop_assert_eq!(figures.reads.local_bytes + figures.reads.peer_bytes, 0);
            }
        }
        let seconds: f64 = outcome.epochs.iter().map(|figures| figures.seconds).sum();
        let sent: u64 = outcome.epochs.iter().map(|figures| figures.reads.source_bytes).sum();
        let requests: u64 = outcome.epochs.iter().map(|figures| figures.reads.source_requests).sum();
        let trained = f64::from(outcome.epochs[0].iterations) * any.job.step_s * 2.0;
        prop_assert!(seconds >= trained * (1.0 - 1e-9));
        prop_assert!(seconds >= sent as f64 / any.source.bytes_per_s);
        prop_assert!(seconds >= (requests - 1) as f64 / any.source.requests_per_s);
    }
}
