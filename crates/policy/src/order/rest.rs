//! The rest of an epoch that was begun before.

use super::{BatchPlace, Deal, Epoch};
use crate::ids::{Iteration, Rank, Sample};

/// The rest of an epoch after a number of used samples, dealt to ranks that may be more or fewer than before.
///
/// Each remaining sample is used exactly once, except for samples that the deal pads or drops, as in a whole epoch.
/// Padding repeats the epoch's first samples, including those used before. So if the same number of ranks goes on
/// with batches of the same size, each gets exactly the samples that it would have got without the interruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    epoch: Epoch,
    /// Samples of the permutation that were used before.
    used: u32,
    /// Deal of the remaining samples; `None` if no step is left.
    deal: Option<Deal>,
}

impl Rest {
    pub(super) fn new(epoch: Epoch, used: u64) -> Self {
        let samples = epoch.deal().samples();
        let used = u32::try_from(used).map_or(samples, |used| used.min(samples));
        let deal = epoch.deal().of_samples(samples - used);
        Self { epoch, used, deal }
    }

    /// Steps that are left; 0 once all is used, or if the rest is dropped.
    pub fn iterations(&self) -> Iteration {
        self.deal.map_or(0, |deal| deal.iterations())
    }

    /// Returns the batch that a rank uses in a step, counted from the resumption; empty past the end.
    pub fn batch(&self, rank: Rank, iteration: Iteration) -> impl ExactSizeIterator<Item = Sample> + '_ {
        let (first, world, len) = self.deal.map_or((0, 0, 0), |deal| {
            let place = BatchPlace { rank, iteration, nth: 0 };
            (deal.position(place), u64::from(deal.world()), deal.batch_len(iteration))
        });
        let first = first + u64::from(self.used);
        (0..len).map(move |nth| self.epoch.sample_at(first + u64::from(nth) * world))
    }

    /// Returns the number of padding samples at the end of that batch: repeated, since some rank had to get one more.
    pub fn padding_of(&self, rank: Rank, iteration: Iteration) -> u32 {
        self.deal.map_or(0, |deal| {
            let position = |nth| deal.position(BatchPlace { rank, iteration, nth });
            let len = deal.batch_len(iteration);
            (0..len).rev().take_while(|&nth| position(nth) >= u64::from(deal.samples())).count() as u32
        })
    }

    /// Returns the samples of the permutation that all ranks have used after `iterations` more steps, from which
    /// others can go on. Padding does not count.
    pub fn used_after(&self, iterations: Iteration) -> u32 {
        let more = self.deal.map_or(0, |deal| {
            let steps = u64::from(iterations.min(deal.iterations()));
            let positions = steps * u64::from(deal.batch()) * u64::from(deal.world());
            positions.min(deal.positions()).min(u64::from(deal.samples())) as u32
        });
        self.used + more
    }
}
