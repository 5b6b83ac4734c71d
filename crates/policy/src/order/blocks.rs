//! A permutation that keeps together what lies together.

use super::{OrderError, key::sample_key, torch};
use crate::ids::{EpochNumber, Sample};

/// In the place of an epoch's number, in the keys of groups: no epoch's samples have these.
const GROUPS: EpochNumber = EpochNumber::MAX;

/// Shuffles blocks of the dataset, such as its shards: they come in an order that `seed` draws, `at_once` of them at a time, and the samples of
/// these are mixed. So whoever reads ahead goes through few blocks at a time, and each sample still comes once.
///
/// Both the order of blocks and the mixing are `torch.randperm`'s, by the seeds `seed` and `sample_key(seed, 2^32 - 1, group)`.
///
/// `ends` has where each block ends: the first one begins with sample 0, each other where the one before it ends.
///
/// # Errors
/// [`OrderError::NotBlocks`] with the first block that is empty or ends before it begins, or the number of blocks where their end is not that
/// of `samples`; [`OrderError::Zero`] if none is to be mixed at once.
pub fn block_permutation(samples: u32, ends: &[Sample], at_once: u32, seed: u64) -> Result<Vec<Sample>, OrderError> {
    if at_once == 0 {
        return Err(OrderError::Zero("blocks at once"));
    }
    let begin = |block: usize| block.checked_sub(1).map_or(0, |before| ends[before]);
    if let Some(index) = (0..ends.len()).find(|&block| ends[block] <= begin(block)) {
        return Err(OrderError::NotBlocks { index });
    }
    if begin(ends.len()) != samples {
        return Err(OrderError::NotBlocks { index: ends.len() });
    }
    let mut permutation = Vec::with_capacity(samples as usize);
    let mut together: Vec<Sample> = Vec::new();
    // There are no more blocks than samples.
    let blocks = torch::permutation(ends.len() as u32, seed);
    for (group, blocks) in (0..).zip(blocks.chunks(at_once as usize)) {
        together.clear();
        for &block in blocks {
            together.extend(begin(block as usize)..ends[block as usize]);
        }
        let mixed = torch::permutation(together.len() as u32, sample_key(seed, GROUPS, group));
        permutation.extend(mixed.iter().map(|&at| together[at as usize]));
    }
    Ok(permutation)
}
