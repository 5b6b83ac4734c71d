//! A permutation that is computed, not stored.

use crate::splitmix::{WEYL, mix};

/// A keyed bijection of `0..len`: a Feistel network over the smallest power of two that holds `len`, walked along its
/// cycle until it comes back within `len` (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002: less
/// than two walks on average).
///
/// It needs no memory and computes any index's value in constant time. It shuffles well enough for training, keeps no
/// secret, and gives another order than torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    len: u32,
    /// Bits of the left and of the right half; they differ by one where the domain has an odd number of bits.
    left_bits: u32,
    right_bits: u32,
    keys: [u64; ROUNDS],
}

/// Each half is replaced four times. Four rounds with random functions suffice against statistical tests (Luby and
/// Rackoff); small domains and a weaker function get twice that.
const ROUNDS: usize = 8;

impl Counter {
    /// The permutation of `0..len` that `seed` keys.
    pub fn new(len: u32, seed: u64) -> Self {
        let bits = len.saturating_sub(1).checked_ilog2().map_or(0, |highest| highest + 1);
        let mut state = mix(seed ^ u64::from(len).rotate_left(32));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(WEYL);
            mix(state)
        });
        Self {
            len,
            left_bits: bits / 2,
            right_bits: bits - bits / 2,
            keys,
        }
    }

    /// Number of values.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value at an index below `len`: the first one within `len` on the cycle that the index lies on. There
    /// is one, since the index itself lies on that cycle.
    pub fn at(&self, index: u32) -> u32 {
        debug_assert!(index < self.len);
        let mut at = self.encrypt(index);
        while at >= self.len {
            at = self.encrypt(at);
        }
        at
    }

    fn encrypt(&self, block: u32) -> u32 {
        let (mut left, mut right) = self.halves(block);
        for pair in self.keys.chunks_exact(2) {
            left ^= self.left(right, pair[0]);
            right ^= self.right(left, pair[1]);
        }
        left << self.right_bits | right
    }

    const fn halves(&self, block: u32) -> (u32, u32) {
        (block >> self.right_bits, block & low_bits(self.right_bits))
    }

    const fn left(&self, right: u32, key: u64) -> u32 {
        mix(key ^ right as u64) as u32 & low_bits(self.left_bits)
    }

    const fn right(&self, left: u32, key: u64) -> u32 {
        mix(key ^ left as u64) as u32 & low_bits(self.right_bits)
    }
}

/// A mask of at most 16 bits: half of an index.
const fn low_bits(bits: u32) -> u32 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::Counter;

    #[test]
    fn none_is_empty() {
        assert!(Counter::new(0, 1).is_empty());
    }
}
