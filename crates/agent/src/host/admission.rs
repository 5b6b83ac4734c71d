//! When the fork agent or the loader agent takes on new connections: not while it has as many as it may, and not right after it had no descriptor for one. The
//! listening socket stays readable meanwhile, so whoever waited on it would wait for nothing, over and over.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{SocketFlags, accept_with, sockopt},
    process::geteuid,
};

use crate::host::{limits::ACCEPT_PAUSE, log::Log};

/// Whether somebody new is taken on now.
#[derive(Debug)]
pub(crate) struct Admission {
    peers_max: usize,
    /// Nobody before this.
    paused_until: Option<Instant>,
    /// The pause, or row of pauses, has been told of.
    told: bool,
}

impl Admission {
    /// Of so many at once, at most.
    pub(crate) const fn new(peers_max: usize) -> Self {
        Self {
            peers_max,
            paused_until: None,
            told: false,
        }
    }

    /// Whether the listening socket is worth a look, with so many connected.
    pub(crate) fn is_open(&self, peers: usize, now: Instant) -> bool {
        peers < self.peers_max && self.paused_until.is_none_or(|until| until <= now)
    }

    /// How long to wait for anything: no longer than `longest`, nor than the pause lasts.
    pub(crate) fn wait(&self, now: Instant, longest: Duration) -> Duration {
        let left = self.paused_until.map(|until| until.saturating_duration_since(now));
        left.map_or(longest, |left| left.min(longest))
    }

    /// The connections of those of our own user who wait at the listening socket, as far as there is room beside so many who are connected.
    pub(crate) fn accept(&mut self, listener: &OwnedFd, peers: usize, log: &Log) -> Vec<OwnedFd> {
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
                    self.resume();
                    break;
                }
                // Whoever it was has gone.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    if self.pause(Instant::now()) {
                        log.line(&format!("nobody new is taken on until somebody leaves: {errno}"));
                    }
                }
            }
        }
        accepted
    }

    /// There was no descriptor for somebody, or no memory. Gives whether that is new.
    fn pause(&mut self, now: Instant) -> bool {
        self.paused_until = Some(now + ACCEPT_PAUSE);
        !std::mem::replace(&mut self.told, true)
    }

    /// Somebody was taken on, or has left, or nobody waits.
    pub(crate) fn resume(&mut self) {
        *self = Self::new(self.peers_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS_MAX: usize = 3;
    const LONGEST: Duration = Duration::from_secs(5);

    #[test]
    fn nobody_is_taken_on_beyond_the_maximum() {
        let (admission, now) = (Admission::new(PEERS_MAX), Instant::now());
        assert!(admission.is_open(PEERS_MAX - 1, now));
        assert!(!admission.is_open(PEERS_MAX, now));
        assert_eq!(admission.wait(now, LONGEST), LONGEST, "until somebody says something, or leaves");
    }

    #[test]
    fn after_a_failure_there_is_a_pause_that_ends_by_itself_or_when_somebody_leaves() {
        let (mut admission, now) = (Admission::new(PEERS_MAX), Instant::now());
        assert!(admission.pause(now), "new");
        let later = now + ACCEPT_PAUSE / 2;
        assert!(!admission.is_open(0, later));
        assert_eq!(admission.wait(later, LONGEST), ACCEPT_PAUSE / 2);
        let end = now + ACCEPT_PAUSE;
        assert!(admission.is_open(0, end));
        assert_eq!(admission.wait(end, LONGEST), Duration::ZERO);
        assert!(!admission.pause(end), "told once");
        admission.resume();
        assert!(admission.is_open(0, end));
        assert!(admission.pause(end));
    }
}
