//! The number of concurrent reads converges to the number that keeps a source busy, and follows it.

use std::collections::BTreeSet;

use forebay_policy::schedule::Concurrency;
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

/// Ends reads one after the other at the source's rate.
fn read(found: &mut Concurrency, now_s: &mut f64, source: PacedSource, bytes: u64, reads: u32) {
    for _ in 0..reads {
        *now_s += 1.0 / source.rate(found.limit(), bytes);
        found.ended(*now_s, bytes, true);
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
    fn never_none_and_never_too_many(most in 0..100_u32, reads in proptest::collection::vec((0.0..1.0_f64, 0..1_000_000_u64, any::<bool>()), 0..2000)) {
        let (mut found, mut now_s) = (Concurrency::new(most), 0.0);
        for (took_s, bytes, others_wait) in reads {
            now_s += took_s;
            found.ended(now_s, bytes, others_wait);
            prop_assert!(found.limit() >= 1 && found.limit() <= most.max(1));
        }
    }
}

/// Returns the number after `reads` of a source whose latencies are lognormal with sigma 1, and which gains by
/// each further concurrent read.
fn found_in_a_tail(seed: u64, most: u32, reads: u32) -> u32 {
    let uniform = |nth: u64| (mix(mix(seed) ^ nth) >> 11) as f64 / (1_u64 << 53) as f64;
    let latency_ms = |nth: u64| {
        let normal = (-2.0_f64 * f64::ln(1.0 - uniform(2 * nth))).sqrt() * (std::f64::consts::TAU * uniform(2 * nth + 1)).cos();
        (40.0 * normal.exp()) as u64 + 1
    };
    let mut found = Concurrency::new(most);
    let (mut ends_ms, mut begun) = (BTreeSet::new(), 0);
    let mut now_ms = 0;
    for _ in 0..reads {
        while ends_ms.len() < found.limit() as usize {
            ends_ms.insert((now_ms + latency_ms(begun), begun));
            begun += 1;
        }
        if let Some((ended_ms, _)) = ends_ms.pop_first() {
            now_ms = ended_ms;
        }
        found.ended(now_ms as f64 / 1e3, 100_000, true);
    }
    found.limit()
}

/// A round in which long reads meet is slow whatever the number is: one alone does not end the growth.
#[test]
fn a_source_with_a_latency_tail_is_kept_busy_soon() {
    let few = (0..200).filter(|seed| found_in_a_tail(*seed, 24, 1000) < 9).count();
    assert!(few <= 10, "{few} of 200 jobs have fewer than 9 concurrent reads after 1,000");
}

#[test]
fn what_nobody_waits_for_says_nothing() {
    let mut found = Concurrency::new(64);
    let before = found.limit();
    for nth in 0..10_000 {
        found.ended(f64::from(nth), 1000, false);
    }
    assert_eq!(found.limit(), before);
}
