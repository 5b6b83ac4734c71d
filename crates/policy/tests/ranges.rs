//! Free ranges: a taken range is not given twice, and a range given back can be taken again.

use forebay_policy::ranges::Ranges;
use proptest::prelude::*;

const LENGTH: u64 = 200;

#[derive(Clone, Debug)]
enum RangeMove {
    Take(u64),
    TakeAt(u64, u64),
    TakeFrom(u64, u64),
    Give(usize),
}

fn moves() -> impl Strategy<Value = Vec<RangeMove>> {
    let one = prop_oneof![
        4 => (0..40_u64).prop_map(RangeMove::Take),
        1 => (0..LENGTH + 10, 0..40_u64).prop_map(|(start, bytes)| RangeMove::TakeAt(start, bytes)),
        2 => (0..LENGTH + 10, 0..40_u64).prop_map(|(from, bytes)| RangeMove::TakeFrom(from, bytes)),
        4 => any::<usize>().prop_map(RangeMove::Give),
    ];
    proptest::collection::vec(one, 0..300)
}

/// The longest run of free bytes.
fn longest(free: &[bool]) -> u64 {
    free.split(|is_free| !is_free).map(|run| run.len() as u64).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(crate::drawn::cases(200))]

    /// Compared with a byte map: each byte is free or taken.
    #[test]
    fn no_byte_is_taken_twice_or_lost(moves in moves()) {
        let mut ranges = Ranges::new(LENGTH);
        let mut free = vec![true; LENGTH as usize];
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for one in moves {
            let before = longest(&free);
            match one {
                RangeMove::Take(bytes) => match ranges.take(bytes) {
                    Some(start) => taken.push((start, bytes)),
                    None => prop_assert!(bytes > before, "{bytes} do not fit into {before}"),
                },
                RangeMove::TakeFrom(from, bytes) => match ranges.take_from(from, bytes) {
                    Some(start) => {
                        let behind = longest(free.get(from as usize..).unwrap_or_default());
                        prop_assert_eq!(bytes > 0 && start >= from, bytes > 0 && bytes <= behind);
                        taken.push((start, bytes));
                    }
                    None => prop_assert!(bytes > before, "{bytes} do not fit into {before}"),
                },
                RangeMove::TakeAt(start, bytes) => {
                    let wanted = free.get(start as usize..(start + bytes) as usize);
                    let is_free = bytes == 0 || wanted.is_some_and(|bytes| bytes.iter().all(|is_free| *is_free));
                    prop_assert_eq!(ranges.take_at(start, bytes), is_free);
                    if is_free {
                        taken.push((start, bytes));
                    }
                }
                RangeMove::Give(nth) if !taken.is_empty() => {
                    let (start, bytes) = taken.swap_remove(nth % taken.len());
                    ranges.give(start, bytes);
                }
                RangeMove::Give(_) => {}
            }
            free.fill(true);
            for &(start, bytes) in taken.iter().filter(|(_, bytes)| *bytes > 0) {
                for byte in &mut free[start as usize..(start + bytes) as usize] {
                    prop_assert!(*byte, "a byte is taken twice");
                    *byte = false;
                }
            }
            prop_assert_eq!(ranges.free_bytes(), free.iter().filter(|is_free| **is_free).count() as u64);
            prop_assert_eq!(ranges.largest(), longest(&free), "neighbours are joined");
        }
        for (start, bytes) in taken {
            ranges.give(start, bytes);
        }
        prop_assert_eq!(ranges, Ranges::new(LENGTH));
    }
}

#[test]
fn the_smallest_range_that_is_large_enough_is_taken() {
    let mut ranges = Ranges::new(100);
    let taken: Vec<u64> = [10, 30, 10, 20, 10].iter().filter_map(|bytes| ranges.take(*bytes)).collect();
    assert_eq!(taken, [0, 10, 40, 50, 70]);
    ranges.give(10, 30);
    ranges.give(50, 20);
    assert_eq!(
        ranges.take(15),
        Some(50),
        "not of the 30 that come first, and not of the 20 at the end"
    );
    assert_eq!(ranges.take(21), Some(10));
    assert_eq!(ranges.take(30), None);
}
