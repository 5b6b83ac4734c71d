//! Log lines for files and directories that were not copied: a count by reason, from time to time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Pause between two log lines of one reason.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Counts of skipped copies that the log has told of.
#[derive(Debug, Default)]
pub(crate) struct SkippedCopies {
    logged: BTreeMap<String, u64>,
    last: Option<Instant>,
}

impl SkippedCopies {
    /// Logs the counts that have grown, unless that was done a short time ago.
    pub(crate) fn log(&mut self, counts: &BTreeMap<String, u64>, now: Instant) {
        if self.last.is_none_or(|last| now - last >= LOG_EVERY) {
            self.log_all(counts);
            self.last = Some(now);
        }
    }

    /// Logs the counts that have grown. Names of files stay out of the log.
    pub(crate) fn log_all(&mut self, counts: &BTreeMap<String, u64>) {
        for (reason, files) in self.grown(counts) {
            tracing::warn!(why = reason, files, "fallback: not copied, served from the source");
        }
    }

    /// Returns the growth of each count since the last call.
    fn grown<'a>(&mut self, counts: &'a BTreeMap<String, u64>) -> Vec<(&'a str, u64)> {
        let mut grown = Vec::new();
        for (reason, count) in counts {
            let logged = self.logged.insert(reason.clone(), *count).unwrap_or(0);
            if *count > logged {
                grown.push((reason.as_str(), count - logged));
            }
        }
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_skipped_copy_is_counted_in_one_line() {
        let mut skipped = SkippedCopies::default();
        let counts = |live, full| BTreeMap::from([("live".to_owned(), live), ("tier_full".to_owned(), full)]);
        assert_eq!(skipped.grown(&counts(1, 0)), [("live", 1)]);
        assert_eq!(skipped.grown(&counts(1, 0)), []);
        assert_eq!(skipped.grown(&counts(4, 2)), [("live", 3), ("tier_full", 2)]);
    }
}
