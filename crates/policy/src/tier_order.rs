//! Order of tiers by measured speed: the fastest first, as far as a difference shows.

/// Part of its time by which a tier may be slower than another and still count as equally fast: one in this many. Two
/// measurements of one disk differ as much.
const ALIKE_PART: u64 = 4;
/// Validity of a measurement in seconds: disks fill up and grow old.
const GOOD_FOR_S: i64 = 7 * 24 * 60 * 60;

/// Returns true if a measurement of `measured_unix_s` is to be repeated at `now_unix_s`. One in the future (the clock
/// was set back) is.
pub const fn is_due(measured_unix_s: i64, now_unix_s: i64) -> bool {
    let age_s = now_unix_s.saturating_sub(measured_unix_s);
    age_s < 0 || age_s >= GOOD_FOR_S
}

/// Returns the tiers in the order of use, each by its index in `read_us`: the microseconds that the same read takes
/// from each. Equally fast tiers keep the order in which they were given; those that could not be measured come last.
pub fn fastest_first(read_us: &[Option<u64>]) -> Vec<usize> {
    let mut left: Vec<(u64, usize)> = read_us.iter().enumerate().filter_map(|(at, us)| Some(((*us)?, at))).collect();
    left.sort_unstable();
    let mut order = Vec::with_capacity(read_us.len());
    while let Some((fastest_us, _)) = left.first() {
        let most_us = fastest_us.saturating_add(fastest_us / ALIKE_PART);
        let mut alike: Vec<usize> = left.iter().take_while(|(us, _)| *us <= most_us).map(|(_, at)| *at).collect();
        left.drain(..alike.len());
        alike.sort_unstable();
        order.extend(alike);
    }
    order.extend((0..read_us.len()).filter(|at| read_us.get(*at) == Some(&None)));
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_week_is_long_enough() {
        assert!(!is_due(1_000, 1_000) && !is_due(1_000, 999 + GOOD_FOR_S));
        assert!(is_due(1_000, 1_000 + GOOD_FOR_S));
        assert!(is_due(1_000, 999), "measured in the future");
        assert!(is_due(i64::MIN, i64::MAX) && is_due(i64::MAX, i64::MIN), "no overflow at the ends");
    }

    #[test]
    fn the_fastest_comes_first_and_noise_changes_nothing() {
        assert_eq!(fastest_first(&[Some(9000), Some(400), Some(1200)]), [1, 2, 0]);
        assert_eq!(
            fastest_first(&[Some(120), Some(100), Some(110)]),
            [0, 1, 2],
            "alike: as they were given"
        );
        assert_eq!(
            fastest_first(&[Some(150), Some(130), Some(110)]),
            [1, 2, 0],
            "alike are those that are near the fastest"
        );
        assert_eq!(
            fastest_first(&[None, Some(u64::MAX), Some(0)]),
            [2, 1, 0],
            "one that could not be measured is the last"
        );
        assert_eq!(fastest_first(&[None, None]), [0, 1]);
        assert_eq!(fastest_first(&[]), [0; 0]);
    }

    proptest! {
        #[test]
        fn each_tier_is_there_once_and_none_before_one_that_is_clearly_faster(read_us in prop::collection::vec(prop::option::of(0..1_000_u64), 0..8)) {
            let order = fastest_first(&read_us);
            let mut places = order.clone();
            places.sort_unstable();
            prop_assert_eq!(places, (0..read_us.len()).collect::<Vec<_>>());
            for pair in order.windows(2) {
                if let (Some(first), Some(second)) = (read_us[pair[0]], read_us[pair[1]]) {
                    prop_assert!(first <= second + second / ALIKE_PART, "{:?}: {:?}", read_us, order);
                }
            }
        }
    }
}
