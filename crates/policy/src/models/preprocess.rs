//! Preprocessing time by threads (Lobster, Section 4.1), and the number of threads past which it stops gaining.
//!
//! The paper fits the *time* of a sample by piecewise-linear regression. Time falls as one over the number of
//! threads, which bends everywhere; throughput rises as a straight line up to a break and is flat past it (its Figure
//! 6). So this model fits throughput, and the time is one over it.

use super::{FitError, PiecewiseLinear};

/// A thread that adds less than this share of what the threads before it add on average is one too many.
const GAIN_MIN: f64 = 0.1;

/// Preprocessing of samples of one size: throughput of a node by threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocessing {
    line: PiecewiseLinear,
    /// Fewest and most threads measured.
    threads_min: u32,
    threads_max: u32,
    /// Least throughput measured: noise must not make the line fall below it, to zero and less.
    samples_per_s_min: f64,
}

impl Preprocessing {
    /// From measurements (threads, samples a second of all threads together).
    ///
    /// # Errors
    /// Fewer than two different numbers of threads; zero threads; a throughput that is not above zero.
    pub fn fit(measured: &[(u32, f64)]) -> Result<Self, FitError> {
        let points: Vec<(f64, f64)> = measured.iter().map(|&(threads, rate)| (f64::from(threads), rate)).collect();
        if let Some(&point) = points.iter().find(|&&(threads, rate)| threads < 1.0 || rate <= 0.0) {
            return Err(FitError::Unusable { point });
        }
        let line = PiecewiseLinear::fit(&points)?;
        let threads = || measured.iter().map(|point| point.0);
        Ok(Self {
            line,
            threads_min: threads().min().unwrap_or(1),
            threads_max: threads().max().unwrap_or(1),
            samples_per_s_min: points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min),
        })
    }

    /// Samples a second of `threads` together. Proportional below the fewest measured, constant past the most
    /// measured.
    pub fn samples_per_s(&self, threads: u32) -> f64 {
        let measured = threads.clamp(self.threads_min, self.threads_max);
        let rate = self.line.at(f64::from(measured)).max(self.samples_per_s_min);
        rate * f64::from(threads.min(self.threads_min)) / f64::from(self.threads_min)
    }

    /// Seconds that `threads` together take for a sample; infinite for no threads.
    pub fn seconds_a_sample(&self, threads: u32) -> f64 {
        self.samples_per_s(threads).recip()
    }

    /// The number of threads past which preprocessing stops gaining: the first after which one more adds less than a
    /// tenth of what a thread added on average; the most measured where there is none.
    pub fn threads_enough(&self) -> u32 {
        let gains = |threads: u32| {
            let rate = self.samples_per_s(threads);
            self.samples_per_s(threads + 1) - rate >= GAIN_MIN * rate / f64::from(threads)
        };
        (1..self.threads_max).find(|&threads| !gains(threads)).unwrap_or(self.threads_max)
    }
}

/// A model for each of some sample sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Portfolio {
    /// Models with their sample size in bytes, ascending; never empty.
    models: Vec<(u64, Preprocessing)>,
}

impl Portfolio {
    /// One model for all sizes.
    pub fn of(model: Preprocessing) -> Self {
        Self { models: vec![(0, model)] }
    }

    /// From models by sample size in bytes; the last of those with the same size counts. `None` where there is no
    /// model.
    pub fn new(models: impl IntoIterator<Item = (u64, Preprocessing)>) -> Option<Self> {
        let mut models: Vec<_> = models.into_iter().collect();
        models.reverse();
        models.sort_by_key(|model| model.0);
        models.dedup_by_key(|model| model.0);
        (!models.is_empty()).then_some(Self { models })
    }

    /// The model whose sample size is closest; the smaller of two as close.
    pub fn nearest(&self, sample_bytes: u64) -> &Preprocessing {
        let after = self.models.partition_point(|model| model.0 < sample_bytes);
        let (Some(above), Some(below)) = (self.models.get(after), after.checked_sub(1).map(|before| &self.models[before])) else {
            return &self.models[after.min(self.models.len() - 1)].1;
        };
        if above.0 - sample_bytes < sample_bytes - below.0 {
            &above.1
        } else {
            &below.1
        }
    }
}
