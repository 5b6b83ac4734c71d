//! A shuffled order that keeps the samples of a block together.

use std::ops::Range;

use super::{Deal, Epoch, OrderError, Permuted, epoch_seed, key::sample_key, torch};
use crate::ids::{EpochNumber, Sample};

/// Stands for the epoch in the keys of groups: no epoch has this number.
const GROUPS: EpochNumber = EpochNumber::MAX;

/// The order of all epochs of a dataset that consists of blocks, such as its shards. Blocks come in random order, a
/// group of them at a time, and the samples of a group are mixed. So a reader that prefetches touches few blocks at a
/// time, and each sample still comes once.
///
/// Both the order of blocks and the mixing are `torch.randperm`'s, by the seeds `sum` and `sample_key(sum, 2^32 - 1,
/// group)`, where `sum` is that of seed and epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    deal: Deal,
    ends: Vec<Sample>,
    at_once: u32,
}

impl Blocks {
    /// Creates the order. `ends` holds the end of each block: the first block begins with sample 0, each other one at
    /// the end of the block before it. `at_once` blocks are mixed at a time.
    ///
    /// # Errors
    /// [`OrderError::NotBlocks`] with the first block that is empty or ends before it begins, or the number of blocks
    /// if their end is not that of the deal's samples; [`OrderError::Zero`] if `at_once` is 0.
    pub fn new(deal: Deal, ends: Vec<Sample>, at_once: u32) -> Result<Self, OrderError> {
        if at_once == 0 {
            return Err(OrderError::Zero("blocks at once"));
        }
        let mut begin = 0;
        for (index, &end) in ends.iter().enumerate() {
            if end <= begin {
                return Err(OrderError::NotBlocks { index });
            }
            begin = end;
        }
        if begin != deal.samples() {
            return Err(OrderError::NotBlocks { index: ends.len() });
        }
        Ok(Self { deal, ends, at_once })
    }

    /// The order of one epoch. Takes time linear in the dataset, and four bytes a sample.
    pub fn epoch(&self, seed: u64, number: EpochNumber) -> Epoch {
        let seed = epoch_seed(seed, number);
        let mut permutation = Vec::with_capacity(self.deal.samples() as usize);
        let mut together: Vec<Sample> = Vec::new();
        // There are no more blocks than samples.
        let blocks = torch::permutation(self.ends.len() as u32, seed);
        for (group, blocks) in (0..).zip(blocks.chunks(self.at_once as usize)) {
            together.clear();
            for &block in blocks {
                together.extend(self.samples_of(block as usize));
            }
            let mixed = torch::permutation(together.len() as u32, sample_key(seed, GROUPS, group));
            permutation.extend(mixed.iter().map(|&at| together[at as usize]));
        }
        Epoch {
            deal: self.deal,
            permuted: Permuted::Table(permutation),
        }
    }

    fn samples_of(&self, block: usize) -> Range<Sample> {
        let begin = block.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin..self.ends[block]
    }
}
