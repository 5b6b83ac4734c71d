//! Admission of new connections: none beyond the maximum, and none right after there was no descriptor for one. The
//! listening socket stays readable meanwhile, so whoever waited on it would be woken again and again for nothing.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{SocketFlags, accept_with, sockopt},
    process::geteuid,
};

use crate::host::{limits::ACCEPT_PAUSE, log};

/// Gate for new connections.
#[derive(Debug)]
pub(crate) struct Admission {
    peers_max: usize,
    /// End of the pause after a failure.
    paused_until: Option<Instant>,
    /// True once the log tells that connections wait, until none does.
    is_logged: bool,
}

impl Admission {
    /// Admits `peers_max` connections at the same time.
    pub(crate) const fn new(peers_max: usize) -> Self {
        Self {
            peers_max,
            paused_until: None,
            is_logged: false,
        }
    }

    /// Returns true if a new connection may be accepted beside `peers` others.
    pub(crate) fn is_open(&self, peers: usize, now: Instant) -> bool {
        peers < self.peers_max && self.paused_until.is_none_or(|until| until <= now)
    }

    /// Shortens a wait to the end of the pause.
    pub(crate) fn wait(&self, now: Instant, longest: Duration) -> Duration {
        let left = self.paused_until.map(|until| until.saturating_duration_since(now));
        left.map_or(longest, |left| left.min(longest))
    }

    /// Accepts the waiting connections of our own user, as far as there is room beside `peers` others.
    pub(crate) fn accept(&mut self, listener: &OwnedFd, peers: usize) -> Vec<OwnedFd> {
        let mut accepted = Vec::new();
        while self.is_open(peers + accepted.len(), Instant::now()) {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    self.resume();
                    if sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.uid == geteuid()) {
                        accepted.push(socket);
                    }
                }
                Err(Errno::AGAIN) => {
                    self.none_waits();
                    break;
                }
                // The peer has gone.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    if self.pause(Instant::now()) {
                        log::fallback(&format!("no new connection is accepted until another one closes: {errno}"));
                    }
                }
            }
        }
        accepted
    }

    /// Begins a pause, since there was no descriptor or memory for a connection. Returns true if the log does not tell
    /// of it yet. It is told once while connections wait: each that closes lets in one more, and the next one fails.
    fn pause(&mut self, now: Instant) -> bool {
        self.paused_until = Some(now + ACCEPT_PAUSE);
        !std::mem::replace(&mut self.is_logged, true)
    }

    /// Ends the pause: a connection was accepted or has closed.
    pub(crate) fn resume(&mut self) {
        self.paused_until = None;
    }

    /// Notes that no connection waits.
    fn none_waits(&mut self) {
        *self = Self::new(self.peers_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS_MAX: usize = 3;
    const LONGEST: Duration = Duration::from_secs(5);

    #[test]
    fn no_connection_is_accepted_beyond_the_maximum() {
        let (admission, now) = (Admission::new(PEERS_MAX), Instant::now());
        assert!(admission.is_open(PEERS_MAX - 1, now));
        assert!(!admission.is_open(PEERS_MAX, now));
        assert_eq!(admission.wait(now, LONGEST), LONGEST, "until a peer sends something, or leaves");
    }

    #[test]
    fn a_pause_after_a_failure_ends_by_itself_or_when_a_peer_leaves() {
        let (mut admission, now) = (Admission::new(PEERS_MAX), Instant::now());
        assert!(admission.pause(now), "new");
        let later = now + ACCEPT_PAUSE / 2;
        assert!(!admission.is_open(0, later));
        assert_eq!(admission.wait(later, LONGEST), ACCEPT_PAUSE / 2);
        let end = now + ACCEPT_PAUSE;
        assert!(admission.is_open(0, end));
        assert_eq!(admission.wait(end, LONGEST), Duration::ZERO);
        assert!(!admission.pause(end), "logged once");
        admission.resume();
        assert!(admission.is_open(0, end));
        assert!(!admission.pause(end), "others still wait");
        admission.none_waits();
        assert!(admission.is_open(0, end));
        assert!(admission.pause(end));
    }
}
