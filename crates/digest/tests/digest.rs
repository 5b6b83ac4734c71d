//! The digests equal those of the library, in whatever stretches the bytes come.

use forebay_digest::{Digest, END_BYTES, STRETCH_BYTES, of};
use proptest::prelude::*;
use twox_hash::XxHash3_128;

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((*state >> 24) as u8)
    };
    std::iter::repeat_n((), length)
        .scan(u32::from(seed), |state, ()| next(state))
        .collect()
}

/// Returns the digest and the copy of bytes copied in stretches, whose lengths are these multiples of the smallest,
/// repeated.
fn copied(source: &[u8], stretches: &[usize], begin: usize) -> (u128, Vec<u8>) {
    let mut target = vec![0; begin + source.len()];
    let mut digest = Digest::new(source.len());
    let mut at = 0;
    for stretch in stretches.iter().cycle() {
        let length = (stretch * STRETCH_BYTES).min(source.len() - at);
        // SAFETY: both have as many bytes from there on.
        unsafe { digest.copy(source[at..].as_ptr(), target[begin + at..].as_mut_ptr(), length) };
        at += length;
        if at == source.len() {
            break;
        }
    }
    let target = target.split_off(begin);
    let found = digest.finish(&target);
    assert_eq!(
        found,
        digest.finish(&target[target.len().saturating_sub(END_BYTES)..]),
        "of the end alone"
    );
    (found, target)
}

#[test]
fn every_small_length_has_the_librarys_digest() {
    let all = bytes(4 * STRETCH_BYTES + 2, 7);
    for length in 0..=all.len() {
        let source = &all[..length];
        let expected = XxHash3_128::oneshot(source);
        assert_eq!(of(source), expected, "{length} bytes");
        assert_eq!(copied(source, &[1], 0), (expected, source.to_vec()), "{length} bytes, copied");
    }
}

proptest! {
    #[test]
    fn however_it_is_cut_the_digest_is_the_librarys(
        length in prop_oneof![0_usize..100_000, (1_usize << 20) - 70..(1 << 20) + 5000],
        seed: u8,
        stretches in prop::collection::vec(1_usize..40, 1..5),
        (skipped, begin) in (0_usize..70, 0_usize..70),
    ) {
        let all = bytes(skipped + length, seed);
        let source = &all[skipped..];
        let (digest, target) = copied(source, &stretches, begin);
        prop_assert_eq!(digest, XxHash3_128::oneshot(source));
        prop_assert_eq!(target, source);
        prop_assert_eq!(of(source), digest);
    }

    #[test]
    fn what_is_read_again_counts_once(blocks in 1_usize..6, rest in 0_usize..STRETCH_BYTES, seed: u8) {
        let source = bytes(blocks * STRETCH_BYTES + rest, seed);
        let mut digest = Digest::new(source.len());
        for stretch in source.chunks(STRETCH_BYTES) {
            let before = digest;
            digest.see(&vec![seed; stretch.len()]);
            digest = before;
            digest.see(stretch);
        }
        prop_assert_eq!(digest.finish(&source), XxHash3_128::oneshot(&source));
    }
}

#[test]
#[should_panic(expected = "stretches but the last are whole")]
fn a_stretch_that_is_cut_anywhere_is_refused() {
    Digest::new(3000).see(&[0; 1000]);
}

#[test]
#[should_panic(expected = "as many bytes as were announced")]
fn more_than_was_announced_is_refused() {
    Digest::new(3).see(&[0; 4]);
}

#[test]
#[should_panic(expected = "all bytes have come")]
fn less_than_was_announced_is_refused() {
    let _ = Digest::new(3).finish(&[0; 3]);
}
