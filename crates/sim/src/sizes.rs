//! Sizes of the samples, and the part of them known so far.

use forebay_policy::ids::Sample;

use crate::draw::{Draw, Purpose};
use crate::scenario::{self, Scenario};

#[derive(Debug)]
pub(crate) struct DrawnSizes {
    bytes: Vec<u32>,
    mean: f64,
    is_known: Vec<bool>,
}

impl DrawnSizes {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let draw = Draw::new(scenario.job.seed, Purpose::Size);
        let samples = scenario.dataset.samples;
        let bytes: Vec<u32> = match &scenario.dataset.sizes {
            scenario::Sizes::Equal(bytes) => vec![*bytes; samples as usize],
            scenario::Sizes::Lognormal { mean, sigma } => {
                let median = f64::from(*mean) / (sigma * sigma / 2.0).exp();
                (0..samples)
                    .map(|sample| (draw.lognormal(median, *sigma, u64::from(sample), 0) as u32).max(1))
                    .collect()
            }
            scenario::Sizes::Listed(listed) => listed.clone(),
        };
        let total: u64 = bytes.iter().map(|&bytes| u64::from(bytes)).sum();
        Self {
            mean: total as f64 / f64::from(samples),
            is_known: vec![false; samples as usize],
            bytes,
        }
    }

    /// The size of a sample.
    pub(crate) fn of(&self, sample: Sample) -> u32 {
        self.bytes[sample as usize]
    }

    /// Sizes by sample.
    pub(crate) fn all(&self) -> &[u32] {
        &self.bytes
    }

    /// The size of the largest sample.
    pub(crate) fn largest(&self) -> u32 {
        self.bytes.iter().copied().max().unwrap_or(0)
    }

    /// Mean over all samples.
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// Records that a sample has been read: its size is known from now on.
    pub(crate) fn learn(&mut self, sample: Sample) {
        self.is_known[sample as usize] = true;
    }

    /// Expected size of a sample: the mean until it has been read.
    pub(crate) fn expected(&self, sample: Sample) -> u32 {
        if self.is_known[sample as usize] {
            self.of(sample)
        } else {
            self.mean as u32
        }
    }
}
