//! Read time of a batch (Lobster, Equation 1), from throughputs by threads of a node's own memory (T_l), of its
//! peers' (T_r) and of the source (T_PFS).
//!
//! [`LoadModel::as_written`] is Equation 1 as printed. [`LoadModel::shares`] corrects its errors:
//!
//! - It multiplies a throughput by the number of threads. Table 1 gives the throughput of all threads together; the
//!   text calls two of the three that of a single thread. Here it is always that of all together, as it is measured.
//! - It adds the times of three sources that are read concurrently, by threads of their own. Here threads take the
//!   next read from any source, so they are shared out such that all three end together.
//! - It takes the throughput of one rank's threads as though the other ranks of the node read nothing. Here
//!   throughput is that of all loading threads of the node, and a rank has the share of its threads.

use super::FitError;

/// Bytes a second of all threads together by the number of threads: linear from zero threads to the first measurement
/// and between measurements, flat past the last. It never falls: a thread may stay idle.
#[derive(Clone, Debug, PartialEq)]
pub struct ThroughputCurve {
    /// (threads, bytes a second), ascending in both; the first is (0, 0).
    knots: Vec<(f64, f64)>,
}

impl ThroughputCurve {
    /// From measurements (threads, bytes a second of all threads together); the last of several at one number of
    /// threads counts.
    ///
    /// # Errors
    /// No measurement; zero threads; a throughput that is not above zero and finite.
    pub fn new(measured: &[(u32, f64)]) -> Result<Self, FitError> {
        if measured.is_empty() {
            return Err(FitError::TooFew { distinct: 0 });
        }
        if let Some(&(threads, rate)) = measured
            .iter()
            .find(|(threads, rate)| *threads == 0 || !rate.is_finite() || *rate <= 0.0)
        {
            return Err(FitError::Unusable {
                point: (f64::from(threads), rate),
            });
        }
        let mut sorted = measured.to_vec();
        sorted.reverse();
        sorted.sort_by_key(|point| point.0);
        sorted.dedup_by_key(|point| point.0);
        let mut knots = vec![(0.0, 0.0)];
        let mut most = 0.0_f64;
        for (threads, rate) in sorted {
            most = most.max(rate);
            knots.push((f64::from(threads), most));
        }
        Ok(Self { knots })
    }

    /// Returns bytes a second of `threads`; a fraction is a thread that works for a part of the time.
    pub fn bytes_per_s(&self, threads: f64) -> f64 {
        let after = self.knots.partition_point(|knot| knot.0 < threads);
        if after == 0 {
            return 0.0;
        }
        let (x0, y0) = self.knots[after - 1];
        self.knots
            .get(after)
            .map_or(y0, |&(x1, y1)| y0 + (y1 - y0) * (threads - x0) / (x1 - x0))
    }

    /// Bytes a second with any number of threads.
    pub fn bytes_per_s_max(&self) -> f64 {
        self.knots[self.knots.len() - 1].1
    }

    /// Returns the fewest threads that read `bytes_per_s`, or, if that is out of reach, that read most.
    fn threads_for(&self, bytes_per_s: f64) -> f64 {
        let rate = bytes_per_s.min(self.bytes_per_s_max());
        let after = self.knots.partition_point(|knot| knot.1 < rate);
        let ((x0, y0), (x1, y1)) = (self.knots[after - 1], self.knots[after]);
        x0 + (x1 - x0) * (rate - y0) / (y1 - y0)
    }
}

/// Share of its throughput that a thread may lose beside at least twice as many threads, while more threads still count
/// as gaining.
const LOSS_MAX: f64 = 0.25;

/// Returns the throughput that is expected of `threads`, more than were measured: each does as much as one of the most
/// that were measured. `None` if these are no fewer, or if each of them does clearly less than one of half as many
/// threads did: then throughput grows no longer.
pub fn extrapolated(measured: &[(u32, f64)], threads: u32) -> Option<(u32, f64)> {
    let one_of = |&(threads, rate): &(u32, f64)| rate / f64::from(threads);
    let most = measured.iter().max_by_key(|point| point.0).filter(|most| most.0 < threads)?;
    let fewer = measured.iter().filter(|point| 2 * point.0 <= most.0).max_by_key(|point| point.0);
    let grows = fewer.is_none_or(|fewer| one_of(most) >= (1.0 - LOSS_MAX) * one_of(fewer));
    grows.then(|| (threads, f64::from(threads) * one_of(most)))
}

/// Division of a node's loading threads among origins, while they read the batches of all its ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Seconds until all are read.
    pub seconds: f64,
    /// Threads at work for local reads, peers and the source: alpha, beta and gamma of Equation 1; together all
    /// threads where anything is read.
    pub threads: [f64; 3],
    /// Bytes a second of one thread for each; infinite where nothing is read.
    pub thread_bytes_per_s: [f64; 3],
}

impl Shares {
    /// Seconds that one thread takes to read `bytes`; a rank with `n` threads takes one `n`-th.
    pub fn thread_seconds(&self, bytes: [u64; 3]) -> f64 {
        let seconds = |(&bytes, rate): (&u64, f64)| if bytes == 0 { 0.0 } else { bytes as f64 / rate };
        bytes.iter().zip(self.thread_bytes_per_s).map(seconds).sum()
    }
}

/// Throughputs of a node by origin.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadModel {
    /// T_l, T_r, T_PFS.
    pub origins: [ThroughputCurve; 3],
}

/// Halvings of the interval of times in [`LoadModel::shares`]: as many as a double has bits.
const HALVINGS: u32 = 53;

impl LoadModel {
    /// Returns the seconds of Equation 1 as printed: `threads` of a rank are shared out in proportion to the bytes
    /// (the paper does not say how). Each term divides by the number of threads times the throughput of that number
    /// of threads, and all three are added. Infinite without threads.
    pub fn as_written(&self, bytes: [u64; 3], threads: u32) -> f64 {
        let all: u64 = bytes.iter().sum();
        let seconds = |(origin, &bytes): (&ThroughputCurve, &u64)| {
            if bytes == 0 {
                return 0.0;
            }
            let share = f64::from(threads) * bytes as f64 / all as f64;
            bytes as f64 / (share * origin.bytes_per_s(share))
        };
        self.origins.iter().zip(&bytes).map(seconds).sum()
    }

    /// Returns the corrected shares of Equation 1: `threads` (at least one) of a node read `bytes`, shared out among
    /// the three origins such that all end together, which is the earliest end.
    pub fn shares(&self, bytes: [u64; 3], threads: u32) -> Shares {
        let threads = f64::from(threads);
        let needed = |seconds: f64| -> [f64; 3] {
            std::array::from_fn(|origin| match bytes[origin] {
                0 => 0.0,
                bytes_of => self.origins[origin].threads_for(bytes_of as f64 / seconds),
            })
        };
        let least = |(origin, &bytes): (&ThroughputCurve, &u64)| bytes as f64 / origin.bytes_per_s_max();
        let mut early: f64 = self.origins.iter().zip(&bytes).map(least).fold(0.0, f64::max);
        let enough = |seconds: f64| needed(seconds).iter().sum::<f64>() <= threads;
        let mut late = early;
        while !enough(late) {
            (early, late) = (late, 2.0 * late);
        }
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(early, late);
            if enough(middle) {
                late = middle;
            } else {
                early = middle;
            }
        }
        let used = needed(late);
        // If throughput allows no more, threads are left over: they work too, and each reads proportionally less.
        let scale = threads / used.iter().sum::<f64>();
        let shared = used.map(|used| if used > 0.0 { used * scale } else { 0.0 });
        Shares {
            seconds: late,
            threads: shared,
            thread_bytes_per_s: std::array::from_fn(|origin| match bytes[origin] {
                0 => f64::INFINITY,
                bytes_of => bytes_of as f64 / (late * shared[origin]),
            }),
        }
    }
}
