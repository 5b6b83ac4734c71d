//! Per-sample random seeds.

use crate::ids::{EpochNumber, Sample};
use crate::splitmix::{WEYL, mix};

/// Returns the seed of everything random about a sample in an epoch: its crop, its flip. It depends on nothing else,
/// so any rank, worker or thread prepares a sample alike, at any time.
///
/// It has 63 bits: torch takes seeds of 64, but programs put `torch.initial_seed()` into tensors, whose numbers are
/// signed. With one seed, at most two samples of all epochs have the same key: the pair is 64 bits, mixing is a
/// bijection of those, and one bit is dropped.
pub const fn sample_key(seed: u64, epoch: EpochNumber, sample: Sample) -> u64 {
    // The seed is mixed first: those that people choose are small, as epochs and samples are.
    mix(mix(seed.wrapping_add(WEYL)) ^ ((epoch as u64) << 32 | sample as u64)) & i64::MAX as u64
}
