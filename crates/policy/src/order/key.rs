//! What a sample's own chance is seeded with.

use super::counter::{WEYL, mix};
use crate::ids::{EpochNumber, Sample};

/// The seed of everything random about a sample in an epoch: its crop, its flip. It depends on nothing else, so a sample is prepared alike
/// whichever rank, worker or thread does it, and whenever.
///
/// For one seed no two samples of any epochs have the same key: the pair is 64 bits, and mixing is a bijection of those.
pub const fn sample_key(seed: u64, epoch: EpochNumber, sample: Sample) -> u64 {
    // The seed is mixed first: those that people choose are small, as epochs and samples are.
    mix(mix(seed.wrapping_add(WEYL)) ^ ((epoch as u64) << 32 | sample as u64))
}
