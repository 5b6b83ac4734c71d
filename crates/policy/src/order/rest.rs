//! What is left of an epoch that was begun before.

use super::{Deal, Epoch, Place};
use crate::ids::{Iteration, Rank, Sample};

/// An epoch from a place in its permutation on: what ranks before these have used of it is over, and the rest is dealt to these, who may be
/// more or fewer.
///
/// Each sample that is left is used exactly once, but for what the deal pads or drops, as in a whole epoch. Padding repeats the epoch's first
/// samples, those that were used before the place included. So where as many ranks go on with batches of the same size, they get exactly what
/// they would have got had nobody stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    epoch: Epoch,
    /// Samples of the permutation that were used before.
    used: u32,
    /// How the others are dealt; none where no step is left.
    deal: Option<Deal>,
}

impl Rest {
    pub(super) fn new(epoch: Epoch, used: u64) -> Self {
        let samples = epoch.deal().samples();
        let used = u32::try_from(used).map_or(samples, |used| used.min(samples));
        let deal = epoch.deal().of_samples(samples - used);
        Self { epoch, used, deal }
    }

    /// Steps that are left; none once all is used, or if what is left is dropped.
    pub fn iterations(&self) -> Iteration {
        self.deal.map_or(0, |deal| deal.iterations())
    }

    /// The batch that a rank uses in a step, counted from the place on; empty past the end.
    pub fn batch(&self, rank: Rank, iteration: Iteration) -> impl ExactSizeIterator<Item = Sample> + '_ {
        let (first, world, len) = self.deal.map_or((0, 0, 0), |deal| {
            let place = Place { rank, iteration, nth: 0 };
            (deal.position(place), u64::from(deal.world()), deal.batch_len(iteration))
        });
        let first = first + u64::from(self.used);
        (0..len).map(move |nth| self.epoch.sample_at(first + u64::from(nth) * world))
    }

    /// How many samples at the end of that batch are padding: repeated, since some rank had to get one more.
    pub fn padding_of(&self, rank: Rank, iteration: Iteration) -> u32 {
        self.deal.map_or(0, |deal| {
            let position = |nth| deal.position(Place { rank, iteration, nth });
            let len = deal.batch_len(iteration);
            (0..len).rev().take_while(|&nth| position(nth) >= u64::from(deal.samples())).count() as u32
        })
    }

    /// Samples of the permutation that were used after so many more steps, by all ranks; the place from which others can go on. Padding does
    /// not count.
    pub fn used_after(&self, iterations: Iteration) -> u32 {
        let more = self.deal.map_or(0, |deal| {
            let steps = u64::from(iterations.min(deal.iterations()));
            let positions = steps * u64::from(deal.batch()) * u64::from(deal.world());
            positions.min(deal.positions()).min(u64::from(deal.samples())) as u32
        });
        self.used + more
    }
}
