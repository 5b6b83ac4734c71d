//! Histogram buckets for durations: two for each doubling, so that the middle of a bucket is at most a quarter off.

/// Number of buckets. The last one holds all durations over eight seconds.
pub const BUCKETS: usize = 48;
/// Unit of the bounds of buckets, in nanoseconds.
const UNIT_NS: u64 = 500;

/// Layout that the preload library and the command share.
pub(crate) const LAYOUT: &[u64] = &[BUCKETS as u64, UNIT_NS];

/// Returns the bucket of a duration in nanoseconds: below one microsecond, below 1.5, below 2, 3, 4, 6 and so on.
#[inline]
pub const fn bucket_of(ns: u64) -> usize {
    let units = ns / UNIT_NS;
    if units < 2 {
        return 0;
    }
    let octave = units.ilog2();
    let half = (units >> (octave - 1)) & 1;
    let bucket = 2 * (octave as usize - 1) + half as usize + 1;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// Returns the upper bound of a bucket in nanoseconds; `None` for the last one.
pub const fn end_ns(bucket: usize) -> Option<u64> {
    match bucket {
        0 => Some(2 * UNIT_NS),
        1.. if bucket + 1 < BUCKETS => {
            let half = (bucket as u64 - 1) & 1;
            Some(((3 + half) * UNIT_NS) << ((bucket - 1) / 2))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(end_ns), [1000, 1500, 2000, 3000, 4000, 6000].map(Some));
        for bucket in 0..BUCKETS - 1 {
            let end = end_ns(bucket).unwrap();
            assert_eq!((bucket_of(end - 1), bucket_of(end)), (bucket, bucket + 1));
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX), end_ns(BUCKETS - 1)), (0, BUCKETS - 1, None));
        assert!((8_000_000_000..9_000_000_000).contains(&end_ns(BUCKETS - 2).unwrap()));
    }
}
