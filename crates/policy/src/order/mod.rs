//! The order in which ranks use samples: the sample of each rank in each step of an epoch.
//!
//! A permutation of the dataset is dealt to ranks as torch's `DistributedSampler` deals it, and each rank's share is
//! cut into batches as torch's `DataLoader` cuts it. [`Order`] describes all epochs; [`Order::epoch`] computes one.
//! In an epoch a *position* counts the uses of all ranks: rank `r` uses positions `r`, `r + world`, `r + 2 *
//! world`... So the positions of one step are contiguous, and ascending positions are the order of use.
//!
//! [`Epoch::rest`] is an epoch from a step on, dealt to any number of ranks. [`sample_key`] seeds the random
//! generators of one sample. [`Blocks`] describes all epochs of a permutation that keeps the samples of a block
//! together.

mod blocks;
mod counter;
mod deal;
mod key;
mod rest;
mod torch;

pub use blocks::Blocks;
pub use counter::Counter;
pub use deal::{BatchPlace, Deal, OrderError};
pub use key::sample_key;
pub use rest::Rest;

use crate::ids::{EpochNumber, Iteration, Rank, Sample};

/// Permutation of the dataset in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permutation {
    /// The identity, as `DistributedSampler(shuffle=False)`.
    Sequential,
    /// The permutation of `torch.randperm` with a CPU generator seeded with seed + epoch, as `DistributedSampler` has
    /// it. Four bytes a sample.
    Torch,
    /// The permutation of a keyed bijection, [`Counter`]: no memory, and any sample is computed in constant time. Not
    /// torch's order.
    Counter,
}

/// The order of all epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Permutation of the dataset.
    pub permutation: Permutation,
    /// The sampler's seed.
    pub seed: u64,
    /// Deal of the permuted dataset to ranks.
    pub deal: Deal,
}

impl Order {
    /// The order of one epoch. Takes time linear in the dataset for [`Permutation::Torch`] and none for the others.
    pub fn epoch(&self, number: EpochNumber) -> Epoch {
        let seed = epoch_seed(self.seed, number);
        let samples = self.deal.samples();
        let permuted = match self.permutation {
            Permutation::Sequential => Permuted::Sequential,
            Permutation::Torch => Permuted::Table(torch::permutation(samples, seed)),
            Permutation::Counter => Permuted::Counter(Counter::new(samples, seed)),
        };
        Epoch { deal: self.deal, permuted }
    }
}

/// Returns the seed of an epoch's permutation.
fn epoch_seed(seed: u64, number: EpochNumber) -> u64 {
    // torch seeds its generator with the sum; a sum above 2^64 is an error there, and wraps here.
    seed.wrapping_add(u64::from(number))
}

/// The order of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    deal: Deal,
    permuted: Permuted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Permuted {
    Sequential,
    Table(Vec<Sample>),
    Counter(Counter),
}

impl Epoch {
    /// Deal of samples to ranks.
    pub const fn deal(&self) -> Deal {
        self.deal
    }

    /// Returns the rest of the epoch after the first `used` samples of the permutation, dealt as this epoch deals.
    /// All of it for 0.
    pub fn rest(self, used: u64) -> Rest {
        Rest::new(self, used)
    }

    /// Steps of the epoch: batches of each rank.
    pub const fn iterations(&self) -> Iteration {
        self.deal.iterations()
    }

    /// Returns the sample used at a position below [`Deal::positions`]. Past the dataset's length it starts again:
    /// that is the padding.
    pub fn sample_at(&self, position: u64) -> Sample {
        self.sample_of((position % u64::from(self.deal.samples())) as u32)
    }

    /// The sample at an index of the permutation.
    fn sample_of(&self, index: u32) -> Sample {
        match &self.permuted {
            Permuted::Sequential => index,
            Permuted::Table(table) => table[index as usize],
            Permuted::Counter(counter) => counter.at(index),
        }
    }

    /// The batch that a rank uses in a step; empty past the end.
    pub fn batch(&self, rank: Rank, iteration: Iteration) -> impl ExactSizeIterator<Item = Sample> + '_ {
        let first = self.deal.position(BatchPlace { rank, iteration, nth: 0 });
        let world = u64::from(self.deal.world());
        (0..self.deal.batch_len(iteration)).map(move |nth| self.sample_at(first + u64::from(nth) * world))
    }

    /// All uses of a step, in order of position; empty past the end.
    pub fn step(&self, iteration: Iteration) -> impl Iterator<Item = (Rank, Sample)> + '_ {
        // A step begins with the first rank's first sample.
        let ranks = (0..self.deal.world()).cycle();
        ranks.zip(self.samples(self.deal.step_positions(iteration)).map(|(_, sample)| sample))
    }

    /// The samples at a range of positions, each with its position, in order of use. `0..deal.positions()` is the
    /// whole epoch.
    pub fn samples(&self, positions: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Sample)> + '_ {
        let samples = self.deal.samples();
        let mut index = (positions.start % u64::from(samples)) as u32;
        positions.map(move |position| {
            let sample = self.sample_of(index);
            index = if index + 1 < samples { index + 1 } else { 0 };
            (position, sample)
        })
    }
}
