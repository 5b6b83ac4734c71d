//! Copies blocks of 1,024 bytes and mixes them into eight sums.

use std::ptr::null_mut;

/// Eight sums of 64 bits.
pub(crate) type Sums = [u64; LANES];

const LANES: usize = 8;
pub(crate) const STRIPE_BYTES: usize = 64;
/// Number of stripes of a block: each begins eight bytes further in the secret, and the last one still has 64 of them
/// before its end.
const STRIPES: usize = (SECRET.len() - STRIPE_BYTES) / 8;
pub(crate) const BLOCK_BYTES: usize = STRIPES * STRIPE_BYTES;
/// Position in the secret for the last stripe, which may overlap the stripe before it.
const LAST_SECRET_AT: usize = SECRET.len() - STRIPE_BYTES - 7;
const SCRAMBLE_AT: usize = SECRET.len() - STRIPE_BYTES;
/// Positions in the secret for the lower and the higher half of the digest.
const MERGE_AT: (usize, usize) = (11, SECRET.len() - STRIPE_BYTES - 11);

/// Length in bytes from which the target bypasses the caches: they hold what a step will use next, and a line that
/// bypasses them need not be read before it is written.
#[cfg(target_arch = "x86_64")]
const PAST_CACHES_FROM: usize = 64 << 10;

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
const PRIME_MX1: u64 = 0x1656_6791_9E37_79F9;

/// Initial values of the sums.
pub(crate) const SUMS: Sums = [
    PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
];

/// Default secret of the specification.
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90,
    0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d,
    0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28,
    0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e,
    0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b,
    0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83,
    0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16,
    0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// Copies blocks, and mixes in the copied bytes.
///
/// # Safety
///
/// Both pointers are valid for this number of blocks, and do not overlap.
pub(crate) unsafe fn copy(sums: &mut Sums, source: *const u8, target: *mut u8, blocks: usize, of_bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        let is_past_caches = of_bytes >= PAST_CACHES_FROM && target.addr().is_multiple_of(avx2::ALIGNMENT_BYTES);
        // SAFETY: the caller's, and the processor supports it.
        return unsafe {
            if is_past_caches {
                avx2::blocks::<{ avx2::PAST_CACHES }>(sums, source, target, blocks);
            } else {
                avx2::blocks::<{ avx2::STORED }>(sums, source, target, blocks);
            }
        };
    }
    let _ = of_bytes;
    // SAFETY: the caller's.
    unsafe { portable(sums, source, target, blocks) };
}

/// Mixes in whole blocks.
pub(crate) fn see(sums: &mut Sums, bytes: &[u8]) {
    let blocks = bytes.len() / BLOCK_BYTES;
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the bytes are that many blocks, nothing is stored, and the processor supports it.
        return unsafe { avx2::blocks::<{ avx2::SEEN }>(sums, bytes.as_ptr(), null_mut(), blocks) };
    }
    // SAFETY: the bytes are that many blocks, and nothing is stored.
    unsafe { portable(sums, bytes.as_ptr(), null_mut(), blocks) };
}

/// Copies and mixes blocks on any processor. Stores nothing if there is no target.
unsafe fn portable(sums: &mut Sums, source: *const u8, target: *mut u8, blocks: usize) {
    let mut lanes = *sums;
    for block in 0..blocks {
        let mut bytes = [0; BLOCK_BYTES];
        // SAFETY: the caller's: source and target have that many blocks.
        unsafe {
            source
                .add(block * BLOCK_BYTES)
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), BLOCK_BYTES);
            if !target.is_null() {
                bytes.as_ptr().copy_to_nonoverlapping(target.add(block * BLOCK_BYTES), BLOCK_BYTES);
            }
        }
        for (number, stripe) in bytes.as_chunks().0.iter().enumerate() {
            mix(&mut lanes, stripe, 8 * number);
        }
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum = (*sum ^ (*sum >> 47) ^ word(&SECRET, SCRAMBLE_AT + 8 * lane)).wrapping_mul(PRIME32_1);
        }
    }
    *sums = lanes;
}

/// Mixes in the rest: the stripes of the last block, and the last 64 bytes, which may overlap them.
pub(crate) fn end(sums: &mut Sums, last_block: &[u8], last_stripe: &[u8]) {
    let stripes = (last_block.len() - 1) / STRIPE_BYTES;
    for (number, stripe) in last_block.as_chunks().0[..stripes].iter().enumerate() {
        mix(sums, stripe, 8 * number);
    }
    let mut stripe = [0; STRIPE_BYTES];
    stripe.copy_from_slice(last_stripe);
    mix(sums, &stripe, LAST_SECRET_AT);
}

/// Returns the digest from the sums over `length` bytes.
pub(crate) fn merged(sums: &Sums, length: usize) -> u128 {
    let half = |begin: u64, secret_at: usize| {
        let products = sums.as_chunks::<2>().0.iter().enumerate().map(|(pair, [one, other])| {
            let at = secret_at + 16 * pair;
            let product = u128::from(one ^ word(&SECRET, at)) * u128::from(other ^ word(&SECRET, at + 8));
            (product as u64) ^ ((product >> 64) as u64)
        });
        let sum = products.fold(begin, u64::wrapping_add);
        let sum = (sum ^ (sum >> 37)).wrapping_mul(PRIME_MX1);
        sum ^ (sum >> 32)
    };
    let length = length as u64;
    let low = half(length.wrapping_mul(PRIME64_1), MERGE_AT.0);
    let high = half(!length.wrapping_mul(PRIME64_2), MERGE_AT.1);
    (u128::from(high) << 64) | u128::from(low)
}

fn mix(sums: &mut Sums, stripe: &[u8; STRIPE_BYTES], secret_at: usize) {
    for lane in 0..LANES {
        let data = word(stripe, 8 * lane);
        let key = data ^ word(&SECRET, secret_at + 8 * lane);
        sums[lane ^ 1] = sums[lane ^ 1].wrapping_add(data);
        sums[lane] = sums[lane].wrapping_add((key & 0xFFFF_FFFF) * (key >> 32));
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// For processors with AVX2.
#[cfg(target_arch = "x86_64")]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "the loads and stores here accept any address, or get an aligned one"
)]
mod avx2 {
    use super::{BLOCK_BYTES, PRIME32_1, SCRAMBLE_AT, SECRET, STRIPE_BYTES, STRIPES, Sums};
    use std::arch::x86_64::{
        __m256i, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm256_add_epi64, _mm256_loadu_si256, _mm256_mul_epu32, _mm256_set1_epi64x,
        _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256,
    };

    /// Vectors are only mixed in.
    pub(super) const SEEN: u8 = 0;
    pub(super) const STORED: u8 = 1;
    /// Vectors are stored without reading the target, which has to be aligned.
    pub(super) const PAST_CACHES: u8 = 2;

    pub(super) const ALIGNMENT_BYTES: usize = size_of::<__m256i>();
    const VECTORS: usize = STRIPE_BYTES / ALIGNMENT_BYTES;
    /// Distance in bytes at which memory is prefetched. It may be beyond the source: nothing is read then.
    const AHEAD_BYTES: usize = 4096;

    /// Mixes in blocks of `source`, and stores them to `target`, by `HOW`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn blocks<const HOW: u8>(sums: &mut Sums, source: *const u8, target: *mut u8, blocks: usize) {
        // SAFETY: vectors are loaded from sums and secret, which have as many bytes; from the source and to the target,
        // which the caller guarantees, and which for `PAST_CACHES` is aligned.
        unsafe {
            let lanes = sums.as_mut_ptr().cast::<__m256i>();
            let secret = |at: usize, vector: usize| _mm256_loadu_si256(SECRET.as_ptr().add(at).cast::<__m256i>().add(vector));
            let prime = _mm256_set1_epi64x(PRIME32_1 as i64);
            let mut mixed: [__m256i; VECTORS] = std::array::from_fn(|vector| _mm256_loadu_si256(lanes.add(vector)));
            for at in (0..blocks * BLOCK_BYTES).step_by(BLOCK_BYTES) {
                for stripe in 0..STRIPES {
                    let source = source.add(at + stripe * STRIPE_BYTES);
                    _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(AHEAD_BYTES).cast());
                    for (vector, sum) in mixed.iter_mut().enumerate() {
                        let data = _mm256_loadu_si256(source.cast::<__m256i>().add(vector));
                        if HOW != SEEN {
                            let target = target.add(at + stripe * STRIPE_BYTES).cast::<__m256i>().add(vector);
                            if HOW == PAST_CACHES {
                                _mm256_stream_si256(target, data);
                            } else {
                                _mm256_storeu_si256(target, data);
                            }
                        }
                        let key = _mm256_xor_si256(data, secret(8 * stripe, vector));
                        let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(data);
                        let product = _mm256_mul_epu32(key, _mm256_srli_epi64::<32>(key));
                        *sum = _mm256_add_epi64(_mm256_add_epi64(*sum, swapped), product);
                    }
                }
                for (vector, sum) in mixed.iter_mut().enumerate() {
                    let keyed = _mm256_xor_si256(_mm256_xor_si256(*sum, _mm256_srli_epi64::<47>(*sum)), secret(SCRAMBLE_AT, vector));
                    let low = _mm256_mul_epu32(keyed, prime);
                    let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(keyed), prime);
                    *sum = _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high));
                }
            }
            for (vector, sum) in mixed.into_iter().enumerate() {
                _mm256_storeu_si256(lanes.add(vector), sum);
            }
            if HOW == PAST_CACHES {
                // The stores must be visible before anybody is told of them.
                _mm_sfence();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_way_gives_the_same(blocks in 0_usize..5, noise in prop::collection::vec(any::<u8>(), 997), past in 0_usize..64) {
            let bytes: Vec<u8> = noise.iter().copied().cycle().skip(past).take(blocks * BLOCK_BYTES).collect();
            let [mut seen, mut copied, mut ported, mut past_caches] = [SUMS; 4];
            // One vector more, so that the copies may begin at any place.
            let mut targets = [(); 3].map(|()| vec![0; bytes.len() + 2 * STRIPE_BYTES]);
            let [one, other, aligned] = &mut targets;
            let begin = aligned.as_ptr().align_offset(STRIPE_BYTES);
            see(&mut seen, &bytes);
            // SAFETY: all have as many bytes.
            unsafe {
                copy(&mut copied, bytes.as_ptr(), one[past..].as_mut_ptr(), blocks, 0);
                portable(&mut ported, bytes.as_ptr(), other[past..].as_mut_ptr(), blocks);
                copy(&mut past_caches, bytes.as_ptr(), aligned[begin..].as_mut_ptr(), blocks, usize::MAX);
            }
            prop_assert_eq!(seen, ported);
            prop_assert_eq!(copied, ported);
            prop_assert_eq!(past_caches, ported);
            for (target, begin) in [(&*one, past), (&*other, past), (&*aligned, begin)] {
                prop_assert_eq!(&target[begin..begin + bytes.len()], &bytes);
                prop_assert!(target[..begin].iter().chain(&target[begin + bytes.len()..]).all(|byte| *byte == 0));
            }
        }
    }
}
