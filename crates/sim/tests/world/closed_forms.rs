//! Durations of epochs in which only one resource takes time.

use std::ops::ControlFlow;

use forebay_policy::residency::PolicyName;
use forebay_sim::{Decoders, Latency, Scenario, Sizes, simulate};

use crate::simple::{run, run_keeping, scenario};

const ITERATIONS: f64 = 100.0;
const STEP_S: f64 = 0.1;
const SAMPLES: f64 = 4_000.0;
const BYTES: f64 = 4_000_000.0;

fn about(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found}, not {expected}");
}

/// Checks that each epoch after the first takes this long, to `share`.
fn epochs_take(scenario: &Scenario, expected_s: f64, share: f64) {
    for figures in &run(scenario).epochs[1..] {
        about(figures.seconds, expected_s, share);
    }
}

#[test]
fn training_alone_takes_its_steps() {
    for figures in run(&scenario()).epochs {
        about(figures.seconds, ITERATIONS * STEP_S, 1e-9);
        about(figures.gpu_use, 1.0, 1e-9);
        assert_eq!((figures.waits.stalled, figures.waits.imbalanced), (0, 0));
    }
}

#[test]
fn the_first_fill_comes_on_top() {
    let mut latent = scenario();
    latent.source.latency.median_s = 0.03;
    latent.preprocessing.seconds_a_sample = 0.002;
    let epochs = run(&latent).epochs;
    // Ten samples of each of two ranks are read concurrently, and preprocessed concurrently by 64 threads.
    about(epochs[0].seconds, ITERATIONS * STEP_S + 0.032, 1e-9);
    about(epochs[1].seconds, ITERATIONS * STEP_S, 1e-9);
    about(epochs[0].waits.stalled_seconds, 0.032, 1e-9);
}

#[test]
fn a_slow_source_takes_its_bytes_over_its_bandwidth() {
    for rho in [0.25, 0.5, 0.9] {
        let mut slow = scenario();
        slow.source.bytes_per_s = rho * BYTES / (ITERATIONS * STEP_S);
        epochs_take(&slow, ITERATIONS * STEP_S / rho, 0.001);
    }
}

#[test]
fn a_fast_source_is_not_seen() {
    let mut fast = scenario();
    fast.source.bytes_per_s = 1.1 * BYTES / (ITERATIONS * STEP_S);
    epochs_take(&fast, ITERATIONS * STEP_S, 1e-9);
}

#[test]
fn a_source_that_admits_few_requests_takes_their_number_over_its_rate() {
    let mut busy = scenario();
    busy.source.requests_per_s = 0.5 * SAMPLES / (ITERATIONS * STEP_S);
    epochs_take(&busy, 2.0 * ITERATIONS * STEP_S, 0.001);
}

#[test]
fn few_threads_take_latency_times_reads_over_their_number() {
    let mut few = scenario();
    few.machines.loading_threads = 4;
    few.source.latency.median_s = 0.08;
    // Two nodes of four threads that wait 80 ms for each of 2,000 samples.
    epochs_take(&few, SAMPLES / 2.0 * 0.08 / 4.0, 0.001);
}

#[test]
fn one_stream_is_as_fast_as_one_stream() {
    let mut narrow = scenario();
    narrow.machines.loading_threads = 1;
    narrow.source.stream_bytes_per_s = 100_000.0;
    epochs_take(&narrow, SAMPLES / 2.0 * 0.01, 0.001);
}

#[test]
fn links_take_the_bytes_of_their_node() {
    let mut narrow = scenario();
    narrow.machines.link.bytes_per_s = 0.5 * BYTES / 2.0 / (ITERATIONS * STEP_S);
    epochs_take(&narrow, 2.0 * ITERATIONS * STEP_S, 0.001);
}

#[test]
fn a_node_that_serves_its_peer_takes_the_bytes_over_its_link() {
    let mut narrow = scenario();
    narrow.machines.link.bytes_per_s = 0.5 * BYTES / 2.0 / (ITERATIONS * STEP_S);
    let epochs = run_keeping(&narrow).epochs;
    assert_eq!(epochs[2].reads.peer_bytes, 2_000_000);
    about(epochs[2].seconds, 2.0 * ITERATIONS * STEP_S, 0.001);
}

#[test]
fn memory_takes_the_bytes_that_are_read_from_it() {
    let mut slow = scenario();
    slow.machines.local_bytes_per_s = 0.5 * BYTES / 2.0 / (ITERATIONS * STEP_S);
    let epochs = run_keeping(&slow).epochs;
    assert_eq!(epochs[2].reads.local_bytes, 2_000_000);
    about(epochs[2].seconds, 2.0 * ITERATIONS * STEP_S, 0.001);
}

#[test]
fn preprocessing_gains_nothing_past_the_threads_where_it_saturates() {
    // 20 samples a node and step of 20 ms each: four threads just keep up, and so do sixty-four that are no faster
    // together.
    for (threads, saturates_at, decline, factor) in [
        (4, 64, 0.0, 1.0),
        (2, 64, 0.0, 2.0),
        (64, 4, 0.0, 1.0),
        (64, 2, 0.0, 2.0),
        (5, 4, 0.2, 1.25),
    ] {
        let mut busy = scenario();
        busy.machines.threads = busy.machines.loading_threads + threads;
        busy.preprocessing.seconds_a_sample = 0.02;
        busy.preprocessing.saturates_at = saturates_at;
        busy.preprocessing.decline = decline;
        busy.loader.window = vec![16];
        busy.loader.prepared = 16;
        epochs_take(&busy, factor * ITERATIONS * STEP_S, 0.01);
    }
}

#[test]
fn a_constant_latency_within_the_window_is_hidden_and_one_beyond_is_not() {
    let mut latent = scenario();
    latent.loader.window = vec![2];
    latent.source.latency.median_s = 0.19;
    epochs_take(&latent, ITERATIONS * STEP_S, 1e-9);
    // With two steps read at a time, each pair of steps takes one latency.
    latent.source.latency.median_s = 0.5;
    epochs_take(&latent, ITERATIONS / 2.0 * (0.5 + STEP_S) / 1.0, 0.2);
}

#[test]
fn large_samples_take_longer_in_proportion() {
    let mut mixed = scenario();
    mixed.machines.nodes = 1;
    mixed.machines.gpus = 1;
    mixed.job.batch = 40;
    mixed.dataset.sizes = Sizes::Listed((0..4_000).map(|sample| if sample % 2 == 0 { 500 } else { 1_500 }).collect());
    mixed.machines.threads = mixed.machines.loading_threads + 1;
    mixed.preprocessing.seconds_a_sample = 0.005;
    mixed.loader.prepared = 4;
    epochs_take(&mixed, SAMPLES * 0.005, 0.01);
}

#[test]
fn a_tail_makes_steps_late_that_its_median_would_not() {
    let mut tail = scenario();
    tail.source.latency = Latency {
        median_s: 0.02,
        sigma: 1.5,
    };
    tail.loader.window = vec![1];
    let figures = &run(&tail).epochs[1];
    assert!(figures.waits.imbalanced > 20, "{figures:?}");
    assert!(figures.waits.step_p99_s > 2.0 * figures.waits.step_p50_s, "{figures:?}");
    tail.source.latency.sigma = 0.0;
    let figures = &run(&tail).epochs[1];
    assert_eq!((figures.waits.imbalanced, figures.waits.stalled), (0, 0));
}

#[test]
fn an_epoch_that_begins_with_nothing_waits_for_its_first_step() {
    let mut empty = scenario();
    empty.loader.across_epochs = false;
    empty.source.latency.median_s = 0.03;
    for decoders in [Decoders::Pool, Decoders::OfRank(2)] {
        empty.loader.decoders = decoders;
        for figures in run(&empty).epochs {
            about(figures.seconds, ITERATIONS * STEP_S + 0.03, 1e-9);
            about(figures.waits.stalled_seconds, 0.03, 1e-9);
        }
    }
}

#[test]
fn threads_of_a_rank_take_its_samples_over_their_number() {
    // Ten samples of 20 ms a step.
    for (threads, factor) in [(1, 2.0), (2, 1.0), (4, 1.0)] {
        let mut busy = scenario();
        busy.loader.decoders = Decoders::OfRank(threads);
        busy.preprocessing.seconds_a_sample = 0.02;
        epochs_take(&busy, factor * ITERATIONS * STEP_S, 0.01);
    }
}

#[test]
fn worker_processes_take_the_time_of_whole_batches_over_their_number() {
    let mut torch = scenario();
    torch.source.latency.median_s = 0.03;
    torch.preprocessing.seconds_a_sample = 0.01;
    torch.loader.across_epochs = false;
    for workers in [1, 2, 8] {
        torch.loader.decoders = Decoders::Workers(workers);
        torch.loader.window = vec![2 * workers];
        let epochs = simulate(&torch, &mut |_| ControlFlow::Continue(())).expect("it can be").epochs;
        // Ten samples one after the other, of which the first step waits.
        let batch_s = 10.0 * (0.03 + 0.01);
        let step_s = (batch_s / f64::from(workers)).max(STEP_S);
        about(epochs[2].seconds, batch_s + ITERATIONS * step_s, 0.02);
    }
}

#[test]
fn a_number_of_reads_that_is_found_by_trial_is_enough_after_a_while() {
    let mut found = scenario();
    found.source.latency.median_s = 0.08;
    found.loader.across_epochs = false;
    let at_once = run(&found).epochs;
    found.loader.learns_reads = true;
    let by_trial = run(&found).epochs;
    assert!(by_trial[0].seconds > 1.05 * at_once[0].seconds, "{}", by_trial[0].seconds);
    about(by_trial[2].seconds, at_once[2].seconds, 0.05);
}

/// Each of two nodes has room for half of the samples, and a quarter of that is left for those under way.
#[test]
fn no_sample_is_kept_in_what_is_reserved() {
    for policy in PolicyName::ALL {
        let mut half = scenario();
        half.machines.cache_bytes = BYTES as u64 / 2;
        half.machines.reserved_bytes = BYTES as u64 / 8;
        half.loader.policy = policy;
        let epochs = simulate(&half, &mut |_| ControlFlow::Continue(())).expect("it can be").epochs;
        let [_, _, source] = epochs[2].reads.samples_by_origin;
        // Some that one epoch uses last, and the next one first, need not be kept.
        let (least, most) = (SAMPLES as u64 / 4, SAMPLES as u64);
        assert!((least - 50..=most).contains(&source), "{}: {source} are read again", policy.name());
        if policy == PolicyName::Forebay {
            assert_eq!(source, least, "no sample is on both nodes");
        }
    }
}
