//! Random numbers as a function of a seed and of their purpose: no state, so the same read of the same step has the
//! same latency under every policy, and policies are compared in the same world.

use std::f64::consts::TAU;

use forebay_policy::splitmix::{WEYL, mix};

/// Purpose of random numbers. Each has a sequence of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Sizes of samples.
    Size = 1,
    /// Latencies of the source.
    Latency = 2,
}

/// A generator of one purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    key: u64,
}

impl Draw {
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        Self {
            key: mixed(seed ^ mixed(purpose as u64)),
        }
    }

    /// Returns a number in (0, 1] for a pair of indices.
    fn uniform(self, index: u64, nth: u64) -> f64 {
        const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;
        let bits = mixed(mixed(self.key.wrapping_add(index)).wrapping_add(nth));
        ((bits >> 11) + 1) as f64 * UNIT
    }

    /// Returns a lognormal number with this median (Box and Muller's transform).
    pub(crate) fn lognormal(self, median: f64, sigma: f64, index: u64, nth: u64) -> f64 {
        if sigma == 0.0 {
            return median;
        }
        let radius = (-2.0 * self.uniform(index, 2 * nth).ln()).sqrt();
        let normal = radius * (TAU * self.uniform(index, 2 * nth + 1)).cos();
        median * (sigma * normal).exp()
    }
}

/// Returns the output of splitmix64 for a state: a bijection whose outputs for successive states pass statistical
/// tests.
const fn mixed(state: u64) -> u64 {
    mix(state.wrapping_add(WEYL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lognormal_has_its_median_and_mean() {
        let draw = Draw::new(7, Purpose::Latency);
        let mut drawn: Vec<f64> = (0..100_000).map(|index| draw.lognormal(2.0, 1.0, index, 0)).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        drawn.sort_by(f64::total_cmp);
        assert!((drawn[50_000] / 2.0 - 1.0).abs() < 0.02, "{}", drawn[50_000]);
        assert!((mean / (2.0 * 0.5_f64.exp()) - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn purposes_and_places_draw_apart() {
        let sizes = Draw::new(7, Purpose::Size);
        let latencies = Draw::new(7, Purpose::Latency);
        assert_ne!(sizes.uniform(3, 0).to_bits(), latencies.uniform(3, 0).to_bits());
        assert_ne!(sizes.uniform(3, 0).to_bits(), sizes.uniform(3, 1).to_bits());
        assert_ne!(sizes.uniform(3, 1).to_bits(), sizes.uniform(4, 0).to_bits());
    }
}
