//! Deal of a permuted dataset to ranks and batches.

use std::fmt;
use std::ops::Range;

use crate::ids::{Iteration, Rank};

/// torch's `DistributedSampler`, then batches of each rank's samples. Checked on construction: every step of every
/// rank has at least one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deal {
    samples: u32,
    world: u32,
    batch: u32,
    sampler_drop_last: bool,
    loader_drop_last: bool,
    samples_a_rank: u32,
    iterations: Iteration,
}

/// A use within an epoch: the `nth` sample of the batch that `rank` uses in step `iteration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchPlace {
    /// Rank that uses the sample.
    pub rank: Rank,
    /// Step of the epoch.
    pub iteration: Iteration,
    /// Index within the batch, from 0.
    pub nth: u32,
}

/// An impossible order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderError {
    /// This must be at least 1: `samples`, `world`, `batch` or `blocks at once`.
    Zero(&'static str),
    /// Indices are 32 bits wide.
    TooManySamples,
    /// Dropping what can't be dealt evenly leaves no batch at all.
    NoBatch {
        /// Samples of the dataset.
        samples: u32,
        /// Ranks.
        world: u32,
        /// Samples of a batch.
        batch: u32,
    },
    /// Blocks that do not make up the dataset.
    NotBlocks {
        /// The first that is empty or ends before it begins, or the number of blocks where they end elsewhere than
        /// the dataset.
        index: usize,
    },
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(what) => write!(f, "{what} must be at least 1"),
            Self::TooManySamples => write!(f, "at most {} samples can be counted", u32::MAX - 1),
            Self::NoBatch { samples, world, batch } => {
                write!(
                    f,
                    "{samples} samples give {world} ranks no full batch of {batch}, and what is not full is dropped"
                )
            }
            Self::NotBlocks { index } => {
                write!(
                    f,
                    "blocks must follow each other, none empty, and make up the dataset: they don't at block {index}"
                )
            }
        }
    }
}

impl std::error::Error for OrderError {}

impl Deal {
    /// Deals `samples` to `world` ranks in batches of `batch`. What can't be dealt evenly is padded, and last batches
    /// may be partial, as is torch's default; [`Self::sampler_drop_last`] and [`Self::loader_drop_last`] change that.
    ///
    /// # Errors
    /// [`OrderError::Zero`] and [`OrderError::TooManySamples`].
    pub const fn new(samples: u32, world: u32, batch: u32) -> Result<Self, OrderError> {
        match (samples, world, batch) {
            (0, _, _) => Err(OrderError::Zero("samples")),
            (_, 0, _) => Err(OrderError::Zero("world")),
            (_, _, 0) => Err(OrderError::Zero("batch")),
            (u32::MAX, _, _) => Err(OrderError::TooManySamples),
            _ => {
                let deal = Self {
                    samples,
                    world,
                    batch,
                    sampler_drop_last: false,
                    loader_drop_last: false,
                    samples_a_rank: 0,
                    iterations: 0,
                };
                Ok(deal.counted())
            }
        }
    }

    /// Sets `DistributedSampler(drop_last=drop)`: the tail of the permutation that can't be dealt evenly is left out,
    /// instead of repeating samples from its start.
    ///
    /// # Errors
    /// [`OrderError::NoBatch`] if nothing is left.
    pub fn sampler_drop_last(self, drop: bool) -> Result<Self, OrderError> {
        Self {
            sampler_drop_last: drop,
            ..self
        }
        .checked()
    }

    /// Sets `DataLoader(drop_last=drop)`: each rank leaves out a last batch that is not full.
    ///
    /// # Errors
    /// [`OrderError::NoBatch`] if nothing is left.
    pub fn loader_drop_last(self, drop: bool) -> Result<Self, OrderError> {
        Self {
            loader_drop_last: drop,
            ..self
        }
        .checked()
    }

    fn checked(self) -> Result<Self, OrderError> {
        let deal = self.counted();
        if deal.iterations == 0 {
            return Err(OrderError::NoBatch {
                samples: self.samples,
                world: self.world,
                batch: self.batch,
            });
        }
        Ok(deal)
    }

    /// Returns this deal for fewer samples; `None` if that leaves no step.
    pub(super) fn of_samples(self, samples: u32) -> Option<Self> {
        let deal = Self { samples, ..self }.counted();
        (deal.iterations > 0).then_some(deal)
    }

    /// Computes the fields that follow from the others.
    const fn counted(self) -> Self {
        let Self { samples, world, batch, .. } = self;
        let samples_a_rank = if self.sampler_drop_last {
            samples / world
        } else {
            samples.div_ceil(world)
        };
        let iterations = if self.loader_drop_last {
            samples_a_rank / batch
        } else {
            samples_a_rank.div_ceil(batch)
        };
        Self {
            samples_a_rank,
            iterations,
            ..self
        }
    }

    /// Samples of the dataset.
    pub const fn samples(&self) -> u32 {
        self.samples
    }

    /// Ranks.
    pub const fn world(&self) -> u32 {
        self.world
    }

    /// Samples of a full batch of one rank.
    pub const fn batch(&self) -> u32 {
        self.batch
    }

    /// Samples that the sampler gives each rank: `len(DistributedSampler)`.
    pub const fn samples_a_rank(&self) -> u32 {
        self.samples_a_rank
    }

    /// Steps of an epoch: `len(DataLoader)` of each rank.
    pub const fn iterations(&self) -> Iteration {
        self.iterations
    }

    /// Samples of each rank's batch in a step: 0 past the end.
    pub const fn batch_len(&self, iteration: Iteration) -> u32 {
        if iteration >= self.iterations() {
            return 0;
        }
        let left = self.samples_a_rank() as u64 - iteration as u64 * self.batch as u64;
        if left < self.batch as u64 { left as u32 } else { self.batch }
    }

    /// Uses of an epoch, by all ranks; repeated samples counted, dropped ones not.
    pub const fn positions(&self) -> u64 {
        let full = self.iterations() as u64 * self.batch as u64;
        let dealt = self.samples_a_rank() as u64;
        (if full < dealt { full } else { dealt }) * self.world as u64
    }

    /// Positions of one step; empty past the end.
    pub const fn step_positions(&self, iteration: Iteration) -> Range<u64> {
        let first = iteration as u64 * self.batch as u64 * self.world as u64;
        first..first + self.batch_len(iteration) as u64 * self.world as u64
    }

    /// The position of a use.
    pub const fn position(&self, place: BatchPlace) -> u64 {
        (place.iteration as u64 * self.batch as u64 + place.nth as u64) * self.world as u64 + place.rank as u64
    }

    /// Returns the use at a position; `None` past the end.
    pub const fn place(&self, position: u64) -> Option<BatchPlace> {
        if position >= self.positions() {
            return None;
        }
        let rank = (position % self.world as u64) as Rank;
        let of_rank = position / self.world as u64;
        Some(BatchPlace {
            rank,
            iteration: (of_rank / self.batch as u64) as Iteration,
            nth: (of_rank % self.batch as u64) as u32,
        })
    }
}
