//! A permutation that is computed, not stored.

/// A keyed bijection of `0..len`: a Feistel network over the smallest power of two that holds `len`, walked along its
/// cycle until it comes back within `len` (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002: less
/// than two walks on average).
///
/// It needs no memory and computes any index's value, and any value's index, in constant time. It shuffles well
/// enough for training, keeps no secret, and gives another order than torch.
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

/// Steps of the Weyl sequence of splitmix64: the odd number next to 2^64 over the golden ratio.
pub(super) const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of splitmix64 (Steele, Lea, Flood, 2014): a bijection of 64 bits in which each bit depends on
/// all.
pub(super) const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

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

    /// The value at an index below `len`.
    pub fn at(&self, index: u32) -> u32 {
        self.walk(index, Self::encrypt)
    }

    /// The index at which a value below `len` stands: the inverse of [`Self::at`].
    pub fn index_of(&self, value: u32) -> u32 {
        self.walk(value, Self::decrypt)
    }

    /// Follows the cycle that `from` lies on until the next element within `len`. It ends: `from` itself lies on that
    /// cycle.
    fn walk(&self, from: u32, step: impl Fn(&Self, u32) -> u32) -> u32 {
        debug_assert!(from < self.len);
        let mut at = step(self, from);
        while at >= self.len {
            at = step(self, at);
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

    fn decrypt(&self, block: u32) -> u32 {
        let (mut left, mut right) = self.halves(block);
        for pair in self.keys.chunks_exact(2).rev() {
            right ^= self.right(left, pair[1]);
            left ^= self.left(right, pair[0]);
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
    use super::{Counter, WEYL, mix};

    /// Its published generator, seeded with 1234567.
    #[test]
    fn the_function_is_that_of_splitmix64() {
        let state = |nth: u64| 1_234_567_u64.wrapping_add(WEYL.wrapping_mul(nth));
        assert_eq!(
            [1, 2, 3, 4, 5].map(|nth| mix(state(nth))),
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn none_is_empty() {
        assert!(Counter::new(0, 1).is_empty());
    }
}
