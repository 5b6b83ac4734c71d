//! Speed of this node's sources, measured by copies that are read at full speed for other nodes.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Bytes after which earlier ones count half: a source becomes slower or faster.
const REMEMBERED_BYTES: u64 = 64 << 20;
/// Bytes from which on a speed is known.
const MEASURED_BYTES_MIN: u64 = 4 << 20;

/// Speeds of sources, by device.
#[derive(Debug, Default)]
pub(crate) struct SourceSpeeds(Mutex<HashMap<u64, SourceReads>>);

/// Reads of one source, all together: they share its speed.
#[derive(Debug, Default)]
struct SourceReads {
    under_way: u32,
    /// Beginning of the busy time that is not counted yet.
    since: Option<Instant>,
    /// Time in which reads were under way.
    busy: Duration,
    bytes: u64,
}

impl SourceSpeeds {
    fn sources(&self) -> MutexGuard<'_, HashMap<u64, SourceReads>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a read of a source begins.
    pub(crate) fn begin(&self, dev: u64, now: Instant) {
        self.sources().entry(dev).or_default().begin(now);
    }

    /// Notes that a read of a source has ended, which has given `bytes`.
    pub(crate) fn end(&self, dev: u64, bytes: u64, now: Instant) {
        self.sources().entry(dev).or_default().end(bytes, now);
    }

    /// Returns the bytes that a source gives in a second; `None` while too little was read at full speed.
    pub(crate) fn bytes_per_s(&self, dev: u64) -> Option<u64> {
        self.sources().get(&dev)?.bytes_per_s()
    }
}

impl SourceReads {
    fn begin(&mut self, now: Instant) {
        if self.under_way == 0 {
            self.since = Some(now);
        }
        self.under_way += 1;
    }

    fn end(&mut self, bytes: u64, now: Instant) {
        self.under_way = self.under_way.saturating_sub(1);
        // A read that the page cache has answered says nothing of the source.
        if bytes == 0 {
            return;
        }
        if let Some(since) = self.since.replace(now) {
            self.busy += now.saturating_duration_since(since);
        }
        self.bytes += bytes;
        if self.bytes >= REMEMBERED_BYTES {
            self.bytes /= 2;
            self.busy /= 2;
        }
    }

    fn bytes_per_s(&self) -> Option<u64> {
        let busy_ms = u64::try_from(self.busy.as_millis()).unwrap_or(u64::MAX).max(1);
        (self.bytes >= MEASURED_BYTES_MIN).then(|| self.bytes.saturating_mul(1000) / busy_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_share_a_source_are_measured_together() {
        let (speeds, began) = (SourceSpeeds::default(), Instant::now());
        let at = |ms| began + Duration::from_millis(ms);
        speeds.begin(1, at(0));
        speeds.begin(1, at(500));
        speeds.end(1, 2 << 20, at(1000));
        assert_eq!(speeds.bytes_per_s(1), None, "too little");
        speeds.end(1, 2 << 20, at(2000));
        assert_eq!([speeds.bytes_per_s(1), speeds.bytes_per_s(2)], [Some(2 << 20), None]);
        // Pauses between reads do not count.
        speeds.begin(1, at(60_000));
        speeds.end(1, 4 << 20, at(62_000));
        assert_eq!(speeds.bytes_per_s(1), Some(2 << 20));
    }

    #[test]
    fn reads_from_the_page_cache_do_not_make_the_source_slow() {
        let (speeds, began) = (SourceSpeeds::default(), Instant::now());
        let at = |s| began + Duration::from_secs(s);
        speeds.begin(1, at(0));
        speeds.end(1, 8 << 20, at(1));
        for second in 1..20 {
            speeds.begin(1, at(second));
            speeds.end(1, 0, at(second + 1));
        }
        assert_eq!(speeds.bytes_per_s(1), Some(8 << 20));
    }

    #[test]
    fn a_source_that_becomes_slower_is_soon_known_as_slow() {
        let (speeds, began) = (SourceSpeeds::default(), Instant::now());
        for second in 0..100 {
            let at = began + Duration::from_secs(second);
            speeds.begin(1, at);
            let bytes = if second < 90 { 100 << 20 } else { 10 << 20 };
            speeds.end(1, bytes, at + Duration::from_secs(1));
        }
        assert!(speeds.bytes_per_s(1).unwrap() < 20 << 20);
    }
}
