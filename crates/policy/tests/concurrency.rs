//! The number of concurrent reads converges to the number that keeps a source busy, and follows it.

use forebay_policy::schedule::Concurrency;
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

#[test]
fn what_nobody_waits_for_says_nothing() {
    let mut found = Concurrency::new(64);
    let before = found.limit();
    for nth in 0..10_000 {
        found.ended(f64::from(nth), 1000, false);
    }
    assert_eq!(found.limit(), before);
}
