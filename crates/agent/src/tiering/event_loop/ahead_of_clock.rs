//! Files whose times are ahead of this node's clock: those of a server whose clock is ahead, mostly (fault F46).
//!
//! Times ahead of our clock do not tell how long ago a file was changed. So the file waits two seconds by our clock. If its times are the
//! same afterwards, they will show its next change, which comes at least two seconds later by the server's clock too.

use std::{collections::VecDeque, time::Instant};

use forebay_contract::Identity;

use crate::{
    host::limits::{CLOCK_SKEW_MAX, SETTLED_AFTER},
    tiering::limits::{AHEAD_OF_CLOCK_MAX, AHEAD_OF_CLOCK_WAIT},
};

use crate::{host::clock::unix_s, tiering::handoff::Handoff};

use super::Clerk;

/// Why nothing was copied where too many wait.
pub(super) const FROM_THE_FUTURE: &str = "from_the_future";

/// How old a file is by this node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// Its times will tell its next change.
    Settled,
    /// It was changed within the last two seconds.
    Recent,
    /// Its times are ahead by so many seconds.
    Ahead(u64),
}

/// Returns how old a version is, at a time in seconds since 1970. Further ahead than clocks differ is what somebody has set.
pub(super) fn age_of(identity: &Identity, now_s: i64) -> Age {
    let newest_s = identity.mtime.max(identity.ctime).sec;
    match newest_s.saturating_sub(now_s) {
        ahead_s if ahead_s >= CLOCK_SKEW_MAX.as_secs() as i64 => Age::Settled,
        ahead_s @ 1.. => Age::Ahead(ahead_s as u64),
        behind_s if behind_s > -(SETTLED_AFTER.as_secs() as i64) => Age::Recent,
        _ => Age::Settled,
    }
}

/// Hand-overs that wait.
#[derive(Debug, Default)]
pub(super) struct AheadOfClock {
    waiting: VecDeque<(Instant, Handoff)>,
}

impl AheadOfClock {
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Handoff> {
        self.waiting.iter().map(|(_, handed)| handed)
    }
}

impl Clerk {
    /// Returns whether a hand-over may wait: it has not yet, and there is a place.
    pub(super) fn may_wait(&self, handed: &Handoff) -> bool {
        handed.waited.is_none() && self.ahead_of_clock.waiting.len() < AHEAD_OF_CLOCK_MAX
    }

    /// Keeps a hand-over until its file has had two seconds to change.
    pub(super) fn wait_for_clock(&mut self, mut handed: Handoff) {
        let identity = handed.stat.identity;
        if let Age::Ahead(ahead_s) = age_of(&identity, unix_s()) {
            self.tally(handed.run, |tally| {
                tally.ahead_of_clock += 1;
                tally.clock_ahead_s = tally.clock_ahead_s.max(ahead_s);
            });
        }
        handed.waited = Some(identity);
        self.ahead_of_clock
            .waiting
            .push_back((Instant::now() + AHEAD_OF_CLOCK_WAIT, handed));
    }

    /// Takes on the hand-overs that have waited.
    pub(super) fn take_waited(&mut self) {
        while self.ahead_of_clock.waiting.front().is_some_and(|(due, _)| *due <= Instant::now())
            && let Some((_, handed)) = self.ahead_of_clock.waiting.pop_front()
        {
            self.take_on(handed);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_contract::FileTime;

    use super::*;

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
        assert_eq!([age(0, 9_998), age(9_998, 9_998)], [Age::Settled; 2]);
        assert_eq!([age(9_999, 0), age(0, 10_000)], [Age::Recent; 2]);
        assert_eq!([age(10_001, 0), age(0, 13_599)], [Age::Ahead(1), Age::Ahead(3_599)]);
        assert_eq!(age(13_600, 0), Age::Settled);
    }
}
