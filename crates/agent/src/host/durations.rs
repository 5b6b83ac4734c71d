//! Histograms of durations.

use std::time::Duration;

use forebay_contract::latency::{BUCKETS, bucket_of, end_ns};
use serde::{Deserialize, Serialize};

/// Histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Durations {
    /// Counts by bucket of [`forebay_contract::latency`].
    buckets: Vec<u64>,
}

impl Durations {
    /// Returns the histogram with these counts by bucket.
    pub fn new(buckets: [u64; BUCKETS]) -> Self {
        Self { buckets: buckets.into() }
    }

    /// Adds one duration.
    pub(crate) fn note(&mut self, took: Duration) {
        self.buckets.resize(BUCKETS, 0);
        let bucket = bucket_of(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of the durations in seconds, at most a quarter off.
    pub fn sum_s(&self) -> f64 {
        let mut begin_ns = 0;
        let middles_s = self.buckets.iter().enumerate().map(|(bucket, count)| {
            let end_ns = end_ns(bucket).unwrap_or(begin_ns);
            let middle_s = (begin_ns + end_ns) as f64 / 2e9;
            begin_ns = end_ns;
            middle_s * *count as f64
        });
        middles_s.sum()
    }

    /// Adds the durations of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        for (sum, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += more;
        }
    }

    /// Returns the durations that were added after an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        Self {
            buckets: self
                .buckets
                .iter()
                .zip(before)
                .map(|(now, then)| now.saturating_sub(then))
                .collect(),
        }
    }

    /// Returns a quantile in seconds (`share` 0.5: the median), at most a quarter off; `None` if there are no
    /// durations. Durations over eight seconds, the start of the last bucket, count as eight seconds.
    pub fn quantile_s(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count() as f64;
        let (mut below, mut begin_ns) = (0, 0);
        for (bucket, count) in self.buckets.iter().enumerate() {
            let end = end_ns(bucket).unwrap_or(begin_ns);
            below += count;
            if *count > 0 && below as f64 >= wanted {
                return Some((begin_ns + end) as f64 / 2e9);
            }
            begin_ns = end;
        }
        None
    }

    /// Returns a bound in seconds and the number of shorter durations, for each doubling from a microsecond to eight
    /// seconds.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let counts = self.buckets.iter().copied().chain(std::iter::repeat(0));
        let all = counts
            .enumerate()
            .map_while(|(bucket, count)| Some((end_ns(bucket)?, count)))
            .scan(0, |below, (end, count)| {
                *below += count;
                Some((end as f64 / 1e9, *below))
            });
        // Every second bound is between two doublings.
        all.step_by(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times_us: impl IntoIterator<Item = u64>) -> Durations {
        let mut durations = Durations::default();
        times_us.into_iter().for_each(|us| durations.note(Duration::from_micros(us)));
        durations
    }

    #[test]
    fn quantiles_are_a_quarter_off_at_most() {
        for us in 1..5000 {
            let found = of([us]).quantile_s(0.5).unwrap() * 1e6;
            assert!((found / us as f64 - 1.0).abs() <= 0.25, "{us}: {found}");
        }
        let durations = of(1..=10_000);
        for (share, us) in [(0.5, 5_000.0), (0.9, 9_000.0), (0.99, 9_900.0)] {
            let found = durations.quantile_s(share).unwrap() * 1e6;
            assert!((found / us - 1.0_f64).abs() <= 0.25, "{share}: {found}");
        }
        assert_eq!(durations.count(), 10_000);
        assert!((durations.sum_s() / 50.0 - 1.0).abs() <= 0.25, "{}", durations.sum_s());
        assert_eq!(Durations::default().quantile_s(0.5), None);
        assert!(of([60_000_000]).quantile_s(0.5).unwrap() > 8.0);
    }

    #[test]
    fn looks_can_be_added_and_told_apart() {
        let (early, late) = (of([1, 2, 3]), of([1, 2, 3, 700, 800]));
        assert_eq!(late.since(&early), of([700, 800]));
        let mut sum = Durations::default();
        sum.add(&early);
        sum.add(&late.since(&early));
        assert_eq!(sum, late);
    }

    #[test]
    fn what_was_shorter_grows_with_the_bound() {
        let bounds: Vec<(f64, u64)> = of([1, 2, 3, 700, 800]).cumulative().collect();
        assert_eq!(bounds[..3], [(1e-6, 0), (2e-6, 1), (4e-6, 3)]);
        assert!(bounds.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        assert_eq!(bounds.last().unwrap().1, 5);
        assert!(bounds.last().unwrap().0 > 8.0);
        assert_eq!(Durations::default().cumulative().count(), bounds.len());
    }
}
