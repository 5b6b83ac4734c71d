//! The number of concurrent reads converges to the number that keeps a source busy, and follows it.

use std::collections::BTreeSet;

use forebay_policy::schedule::{Concurrency, EndedRead};
use forebay_policy::splitmix::mix;
use proptest::prelude::*;

/// A source that answers each read after `latency_s`, and gives `bytes_per_s` in all.
#[derive(Clone, Copy, Debug)]
struct PacedSource {
    latency_s: f64,
    bytes_per_s: f64,
}

impl PacedSource {
    /// Returns the reads of `bytes` a second with `at_once` concurrent reads.
    fn rate(self, at_once: u32, bytes: u64) -> f64 {
        (f64::from(at_once) / self.latency_s).min(self.bytes_per_s / bytes as f64)
    }

    /// Returns the number of concurrent reads that keep the source busy.
    fn enough(self, bytes: u64) -> f64 {
        self.bytes_per_s / bytes as f64 * self.latency_s
    }
}

fn of_rank(local_rank: u32, bytes: u64, took_s: f64) -> EndedRead {
    EndedRead {
        local_rank,
        bytes,
        took_s: Some(took_s),
    }
}

/// Ends reads one after the other at the source's rate.
fn read(found: &mut Concurrency, now_s: &mut f64, source: PacedSource, bytes: u64, reads: u32) {
    for _ in 0..reads {
        let (at_once, rate) = (found.limit(), source.rate(found.limit(), bytes));
        *now_s += 1.0 / rate;
        found.ended(*now_s, of_rank(0, bytes, f64::from(at_once) / rate), true);
    }
}

/// Returns the mean number over some thousand reads.
fn settled(found: &mut Concurrency, now_s: &mut f64, source: PacedSource, bytes: u64) -> f64 {
    read(found, now_s, source, bytes, 50_000);
    let mut sum = 0.0;
    for _ in 0..50_000 {
        read(found, now_s, source, bytes, 1);
        sum += f64::from(found.limit());
    }
    sum / 50_000.0
}

/// Returns a pause, the bytes of a read, its rank and time, and whether others wait.
fn any_read() -> impl Strategy<Value = (f64, u64, (u32, Option<f64>), bool)> {
    let of_rank = (0..5_u32, proptest::option::of(0.0..1.0_f64));
    (0.0..1.0_f64, 0..1_000_000_u64, of_rank, any::<bool>())
}

proptest! {
    #![proptest_config(crate::drawn::cases(40))]

    #[test]
    fn as_many_as_keep_the_source_busy_and_not_many_more(latency_ms in 1..50_u32, enough in 1..60_u32) {
        const BYTES: u64 = 100_000;
        let latency_s = f64::from(latency_ms) / 1e3;
        let source = PacedSource { latency_s, bytes_per_s: f64::from(enough) / latency_s * BYTES as f64 };
        prop_assert!((source.enough(BYTES) - f64::from(enough)).abs() < 1e-6);
        let (mut found, mut now_s) = (Concurrency::new(64), 0.0);
        let mean = settled(&mut found, &mut now_s, source, BYTES);
        let enough = f64::from(enough);
        prop_assert!(mean >= 0.8 * enough - 1.0 && mean <= 1.6 * enough + 2.0, "{mean} where {enough} are enough");
        // Then the source changes.
        let quicker = PacedSource { latency_s: latency_s / 8.0, ..source };
        let mean = settled(&mut found, &mut now_s, quicker, BYTES);
        prop_assert!(mean <= 1.6 * enough / 8.0 + 4.0, "{mean} where {} are enough", enough / 8.0);
    }

    #[test]
    fn never_none_and_never_too_many(most in 0..100_u32, reads in proptest::collection::vec(any_read(), 0..2000)) {
        let (mut found, mut now_s) = (Concurrency::new(most), 0.0);
        for (pause_s, bytes, (local_rank, took_s), others_wait) in reads {
            now_s += pause_s;
            found.ended(now_s, EndedRead { local_rank, bytes, took_s }, others_wait);
            prop_assert!(found.limit() >= 1 && found.limit() <= most.max(1));
        }
    }
}

/// Reads under way, as many as the number allows, each of which takes its own time whatever the others do.
struct Reads {
    found: Concurrency,
    /// Time of the end in microseconds, number, rank, and duration.
    under_way: BTreeSet<(u64, u64, u32, u64)>,
    begun: u64,
    now_us: u64,
}

impl Reads {
    fn new(most: u32) -> Self {
        Self {
            found: Concurrency::new(most),
            under_way: BTreeSet::new(),
            begun: 0,
            now_us: 0,
        }
    }

    /// Ends one read; `next` gives the rank of the n-th, and its duration in microseconds.
    fn end_one(&mut self, next: impl Fn(u64) -> (u32, u64)) {
        while self.under_way.len() < self.found.limit() as usize {
            let (rank, took_us) = next(self.begun);
            self.under_way.insert((self.now_us + took_us, self.begun, rank, took_us));
            self.begun += 1;
        }
        if let Some((ended_us, _, rank, took_us)) = self.under_way.pop_first() {
            self.now_us = ended_us;
            self.found
                .ended(ended_us as f64 / 1e6, of_rank(rank, 100_000, took_us as f64 / 1e6), true);
        }
    }
}

/// Returns a number from 0 to 1 for each `nth`.
fn uniform(seed: u64, nth: u64) -> f64 {
    (mix(mix(seed) ^ nth) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns the number after `reads` of a source whose latencies are lognormal with sigma 1, and which gains by
/// each further concurrent read.
fn found_in_a_tail(seed: u64, most: u32, reads: u32) -> u32 {
    let latency_us = |nth: u64| {
        let radius = (-2.0_f64 * f64::ln(1.0 - uniform(seed, 2 * nth))).sqrt();
        let normal = radius * (std::f64::consts::TAU * uniform(seed, 2 * nth + 1)).cos();
        (40_000.0 * normal.exp()) as u64 + 1
    };
    let mut read = Reads::new(most);
    for _ in 0..reads {
        read.end_one(|nth| (0, latency_us(nth)));
    }
    read.found.limit()
}

/// A round in which long reads meet is slow whatever the number is: one alone does not end the growth.
#[test]
fn a_source_with_a_latency_tail_is_kept_busy_soon() {
    let few = (0..200).filter(|seed| found_in_a_tail(*seed, 24, 1000) < 9).count();
    assert!(few <= 10, "{few} of 200 jobs have fewer than 9 concurrent reads after 1,000");
}

/// A round of reads of quick files does not make fewer concurrent reads look enough: ranks would wait then.
#[test]
fn reads_that_take_longer_for_one_rank_do_not_lower_the_number() {
    const MOST: u32 = 5;
    for seed in 0..50 {
        // Ranks take turns at random, for up to sixty reads.
        let next = |nth: u64| {
            let rank = (uniform(seed, nth / (1 + 60 * (seed % 2))) * 4.0) as u32;
            (rank, if rank == 3 { 24_000 } else { 6_000 })
        };
        let mut reads = Reads::new(MOST);
        let numbers: Vec<u32> = (0..20_000)
            .map(|_| {
                reads.end_one(next);
                reads.found.limit()
            })
            .collect();
        let few = numbers.iter().filter(|number| **number < MOST).count();
        assert!(
            few < numbers.len() / 20,
            "fewer than {MOST} in {few} of {} reads, seed {seed}",
            numbers.len()
        );
    }
}

#[test]
fn what_nobody_waits_for_says_nothing() {
    let mut found = Concurrency::new(64);
    let before = found.limit();
    for nth in 0..10_000 {
        found.ended(f64::from(nth), of_rank(0, 1000, 1.0), false);
    }
    assert_eq!(found.limit(), before);
}
