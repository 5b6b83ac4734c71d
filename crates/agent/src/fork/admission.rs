//! When the fork agent takes on new connections: not while it has as many as it may, and not right after it had no descriptor for one. The listening
//! socket stays readable meanwhile, so whoever waited on it would wait for nothing, over and over.

use std::time::{Duration, Instant};

use crate::limits::{FORK_ACCEPT_PAUSE, FORK_IDLE_MAX, FORK_PEERS_MAX};

/// Whether somebody new is taken on now.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Nobody before this.
    paused_until: Option<Instant>,
    /// The pause, or row of pauses, has been told of.
    told: bool,
}

impl Admission {
    /// Whether the listening socket is worth a look, with so many connected.
    pub(crate) fn is_open(&self, peers: usize, now: Instant) -> bool {
        peers < FORK_PEERS_MAX && self.paused_until.is_none_or(|until| until <= now)
    }

    /// How long to wait for anything at most.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        let left = self.paused_until.map(|until| until.saturating_duration_since(now));
        left.map_or(FORK_IDLE_MAX, |left| left.min(FORK_IDLE_MAX))
    }

    /// There was no descriptor for somebody, or no memory. Gives whether that is new.
    pub(crate) fn pause(&mut self, now: Instant) -> bool {
        self.paused_until = Some(now + FORK_ACCEPT_PAUSE);
        !std::mem::replace(&mut self.told, true)
    }

    /// Somebody was taken on, or has left, or nobody waits.
    pub(crate) fn resume(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_taken_on_beyond_the_maximum() {
        let (admission, now) = (Admission::default(), Instant::now());
        assert!(admission.is_open(FORK_PEERS_MAX - 1, now));
        assert!(!admission.is_open(FORK_PEERS_MAX, now));
        assert_eq!(admission.wait(now), FORK_IDLE_MAX, "until somebody says something, or leaves");
    }

    #[test]
    fn after_a_failure_there_is_a_pause_that_ends_by_itself_or_when_somebody_leaves() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        assert!(admission.pause(now), "new");
        let later = now + FORK_ACCEPT_PAUSE / 2;
        assert!(!admission.is_open(0, later));
        assert_eq!(admission.wait(later), FORK_ACCEPT_PAUSE / 2);
        let end = now + FORK_ACCEPT_PAUSE;
        assert!(admission.is_open(0, end));
        assert_eq!(admission.wait(end), Duration::ZERO);
        assert!(!admission.pause(end), "told once");
        admission.resume();
        assert!(admission.is_open(0, end));
        assert!(admission.pause(end));
    }
}
