//! Hash function of the shared tables: fast on short strings, seeded for each index so that nobody can choose names
//! that collide.
//!
//! Equality never depends on it: tables compare whole names, and a collision of tombstones only costs a comparison with
//! the source.

const K0: u64 = 0x9E37_79B9_7F4A_7C15;
const K1: u64 = 0xE703_7ED1_A0B4_28DB;

/// Constants that the preload library and the agent share.
pub(crate) const LAYOUT: &[&[u64]] = &[&[K0, K1]];

/// Multiplies 64x64 to 128 bits and folds the halves, so that each input bit reaches both.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let wide = (a as u128).wrapping_mul(b as u128);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Returns the hash of a byte string.
#[inline]
pub fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = seed ^ K0;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        // `chunks_exact` returns eight bytes; the fallback keeps the optimiser from leaving a panic here.
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or([0; 8]));
        state = fold(state ^ word, K1);
    }
    let mut last = 0u64;
    for (shift, byte) in chunks.remainder().iter().enumerate() {
        last |= (*byte as u64) << (8 * (shift & 7));
    }
    fold(state ^ last, K0 ^ (bytes.len() as u64))
}

/// Returns the hash of two numbers, such as a device and an inode.
#[inline]
pub fn hash_pair(seed: u64, a: u64, b: u64) -> u64 {
    // Folds once more than mixing needs: inodes are often consecutive, and one multiplication would put them into
    // adjacent slots.
    fold(fold(fold(seed ^ a ^ K0, K1) ^ b, K0), K1)
}
