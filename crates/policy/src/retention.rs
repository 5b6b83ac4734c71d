//! Retention of unused copies.

/// Days without use after which a copy is given up (promise P9).
pub const RETENTION_DAYS: i64 = 7;

const DAY_S: i64 = 24 * 60 * 60;

/// Returns true if a copy last used at `last_used_unix_s` is to be removed at `now_unix_s`. A time in the future (the
/// clock was set back) is not due: it becomes due when the clock has passed it by the whole period.
pub fn is_due(last_used_unix_s: i64, now_unix_s: i64) -> bool {
    now_unix_s.saturating_sub(last_used_unix_s) >= RETENTION_DAYS * DAY_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p9_seven_days_to_the_second() {
        let week = 7 * DAY_S;
        assert!(!is_due(1_000, 1_000));
        assert!(!is_due(1_000, 1_000 + week - 1));
        assert!(is_due(1_000, 1_000 + week));
        assert!(!is_due(2_000_000, 1_000), "a use in the future is a clock that was set back");
        assert!(is_due(i64::MIN, i64::MAX) && !is_due(i64::MAX, i64::MIN), "no overflow at the ends");
    }
}
