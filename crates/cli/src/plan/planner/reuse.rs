//! Reuse distances: how many steps pass at a node between two uses of a sample (the paper's Figure 4).

use forebay_policy::ids::Sample;

/// Distances are counted in so many bins of equal width.
pub const BINS: usize = 40;

/// Uses of samples that were used before, by the number of steps since.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Steps a bin.
    pub bin_steps: u32,
    /// Uses by bin.
    pub counts: Vec<u64>,
    /// Steps of an epoch.
    pub epoch_steps: u32,
}

impl Histogram {
    /// Share of uses whose distance is at least so many steps' bin.
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    pub fn share_from(&self, steps: u32) -> f64 {
        let all: u64 = self.counts.iter().sum();
        let far: u64 = self.counts.iter().skip((steps / self.bin_steps) as usize).sum();
        far as f64 / all.max(1) as f64
    }
}

/// Counts distances between uses. `steps`: the node's samples, step by step, over a few epochs.
pub fn histogram(samples: u32, epoch_steps: u32, epochs: u32, mut step: impl FnMut(u32, u32, &mut Vec<Sample>)) -> Histogram {
    const NEVER: u32 = u32::MAX;
    let most = epoch_steps * epochs;
    let bin_steps = most.div_ceil(BINS as u32).max(1);
    let mut counts = vec![0; most.div_ceil(bin_steps).max(1) as usize];
    let mut last_use = vec![NEVER; samples as usize];
    let mut used = Vec::new();
    for epoch in 0..epochs {
        for iteration in 0..epoch_steps {
            used.clear();
            step(epoch, iteration, &mut used);
            let now = epoch * epoch_steps + iteration;
            for &sample in &used {
                let Some(last) = last_use.get_mut(sample as usize) else { continue };
                if *last != NEVER
                    && let Some(count) = counts.get_mut(((now - *last) / bin_steps) as usize)
                {
                    *count += 1;
                }
                *last = now;
            }
        }
    }
    Histogram {
        bin_steps,
        counts,
        epoch_steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_steps_between_uses() {
        // Four samples, one a step: the second epoch backwards, so distances 1, 3, 5, 7 and, from then to the third
        // (forwards), 1, 3, 5, 7.
        let order = |epoch: u32, step: u32| if epoch == 1 { 3 - step } else { step };
        let found = histogram(4, 4, 3, |epoch, step, used| used.push(order(epoch, step)));
        assert_eq!(found.bin_steps, 1);
        assert_eq!(found.counts, [0, 2, 0, 2, 0, 2, 0, 2, 0, 0, 0, 0]);
        assert!((found.share_from(4) - 0.5).abs() < 1e-12);
    }
}
