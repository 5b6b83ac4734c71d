//! Handoffs of files whose times are ahead of this node's clock, mostly because the server's clock is (fault F46).
//!
//! A time ahead of the clock does not tell how long ago a file was changed. So the handoff waits two seconds by this
//! node's clock. If the times are the same afterwards, they will show the next change of the file, which comes at
//! least two seconds later by the server's clock too.

use std::{collections::VecDeque, time::Instant};

use forebay_contract::Identity;

use crate::{
    host::{
        clock::unix_s,
        limits::{CLOCK_SKEW_MAX, SETTLED_AFTER},
    },
    tiering::{
        handoff::Handoff,
        limits::{AHEAD_OF_CLOCK_MAX, AHEAD_OF_CLOCK_WAIT},
        state::runs::ServedRuns,
    },
};

/// Age of a file by this node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileAge {
    /// The next change of the file will change its times.
    Settled,
    /// Changed within the last two seconds.
    Recent,
    /// Times ahead of the clock, in seconds.
    Ahead(u64),
}

/// Returns the age of a version at `now_s` in seconds since 1970. A time further ahead than clocks differ was set by a
/// program, so it counts as settled.
pub(crate) fn age_of(identity: &Identity, now_s: i64) -> FileAge {
    let newest_s = identity.mtime.max(identity.ctime).sec;
    match newest_s.saturating_sub(now_s) {
        ahead_s if ahead_s >= CLOCK_SKEW_MAX.as_secs() as i64 => FileAge::Settled,
        ahead_s @ 1.. => FileAge::Ahead(ahead_s as u64),
        behind_s if behind_s > -(SETTLED_AFTER.as_secs() as i64) => FileAge::Recent,
        _ => FileAge::Settled,
    }
}

/// Handoffs that wait until their file has had two seconds to change.
#[derive(Debug, Default)]
pub(crate) struct SkewedHandoffs {
    waiting: VecDeque<(Instant, Handoff)>,
}

impl SkewedHandoffs {
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Handoff> {
        self.waiting.iter().map(|(_, handoff)| handoff)
    }

    /// Returns true if a handoff has not waited yet and the queue has room.
    pub(crate) fn has_room_for(&self, handoff: &Handoff) -> bool {
        handoff.waited.is_none() && self.waiting.len() < AHEAD_OF_CLOCK_MAX
    }

    /// Queues a handoff, and counts it in its run.
    pub(crate) fn add(&mut self, mut handoff: Handoff, runs: &mut ServedRuns) {
        let identity = handoff.stat.identity;
        if let FileAge::Ahead(ahead_s) = age_of(&identity, unix_s()) {
            runs.tally(handoff.run, |tally| {
                tally.skipped.ahead_of_clock += 1;
                tally.skipped.clock_ahead_s = tally.skipped.clock_ahead_s.max(ahead_s);
            });
        }
        handoff.waited = Some(identity);
        self.waiting.push_back((Instant::now() + AHEAD_OF_CLOCK_WAIT, handoff));
    }

    /// Takes the next handoff that has waited long enough at `now`.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<Handoff> {
        let is_due = self.waiting.front().is_some_and(|(due, _)| *due <= now);
        is_due.then(|| self.waiting.pop_front())?.map(|(_, handoff)| handoff)
    }
}

#[cfg(test)]
mod tests {
    use forebay_contract::FileTime;

    use super::*;
    use crate::tiering::handoff::handoff_of;

    #[test]
    fn times_are_of_the_past_of_this_moment_or_ahead() {
        let time = |sec| FileTime { sec, nsec: 0 };
        let age = |mtime, ctime| {
            let identity = Identity {
                mtime: time(mtime),
                ctime: time(ctime),
                ..Identity::default()
            };
            age_of(&identity, 10_000)
        };
        assert_eq!([age(0, 9_998), age(9_998, 9_998)], [FileAge::Settled; 2]);
        assert_eq!([age(9_999, 0), age(0, 10_000)], [FileAge::Recent; 2]);
        assert_eq!([age(10_001, 0), age(0, 13_599)], [FileAge::Ahead(1), FileAge::Ahead(3_599)]);
        assert_eq!(age(13_600, 0), FileAge::Settled);
    }

    #[test]
    fn a_handoff_waits_once_and_for_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut runs = ServedRuns::new(dir.path().into(), 1, 1);
        let mut skewed = SkewedHandoffs::default();
        let mut handoff = handoff_of(dir.path());
        handoff.stat.identity.mtime.sec = unix_s() + 100;
        assert!(skewed.has_room_for(&handoff));
        skewed.add(handoff, &mut runs);
        assert_eq!(runs.tally_of(None).skipped.ahead_of_clock, 1);
        assert!((90..=100).contains(&runs.tally_of(None).skipped.clock_ahead_s));
        assert!(skewed.next_due(Instant::now()).is_none());
        let waited = skewed.next_due(Instant::now() + AHEAD_OF_CLOCK_WAIT).unwrap();
        assert!(!skewed.has_room_for(&waited));
        assert_eq!(skewed.waiting().count(), 0);
    }
}
