//! The host of a role: one thread that accepts connections, reads requests, and sleeps until there is work.

use std::{
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_contract::CONTRACT_VERSION;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::unlink,
    io::Errno,
};

use crate::host::{
    admission::Admission,
    clock::timespec,
    connection::listening,
    doorbell::Doorbell,
    error::{AgentError, io_error},
    log, packet,
    refusal::Refusal,
    role::{Peer, Peers, Role, RoleRequest, Turn, pid},
};

/// A role's socket and bounds.
#[derive(Debug)]
pub(crate) struct HostSettings {
    /// Path of the socket.
    pub(crate) socket: PathBuf,
    /// Most connections at the same time.
    pub(crate) peers_max: usize,
    /// Time without any connection after which the agent ends.
    pub(crate) idle_max: Duration,
    /// Longest sleep between two turns of the role.
    pub(crate) sleep_max: Duration,
}

/// A role's socket, its connections, and the doorbell that wakes its thread.
#[derive(Debug)]
pub(crate) struct Host {
    settings: HostSettings,
    listener: OwnedFd,
    admission: Admission,
    doorbell: Arc<Doorbell>,
    peers: Peers,
}

impl Drop for Host {
    fn drop(&mut self) {
        // No client may wait for a socket that nobody serves.
        let _ = unlink(&self.settings.socket);
    }
}

impl Host {
    /// Binds the socket. Clients can connect from here on, and are heard once [`Self::run`] is called.
    pub(crate) fn open(settings: HostSettings) -> Result<Self, AgentError> {
        let listener = listening(&settings.socket)?;
        let doorbell = Doorbell::create().map_err(io_error("make a doorbell beside", &settings.socket))?;
        Ok(Self {
            listener,
            admission: Admission::new(settings.peers_max),
            doorbell: Arc::new(doorbell),
            peers: Peers::default(),
            settings,
        })
    }

    /// Returns the doorbell that wakes the host's thread.
    pub(crate) fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(&self.doorbell)
    }

    /// Serves a role until no peer has been connected for `idle_max`.
    pub(crate) fn run<R: Role>(mut self, role: &mut R) -> Result<(), AgentError> {
        let mut idle_since = Instant::now();
        let mut turn = Turn::WaitForPeers;
        loop {
            let ready = self.wait(role, turn)?;
            self.doorbell.hush();
            // Peers that have gone come first: a new connection may be a successor under the same name.
            for peer in ready {
                self.hear(role, peer);
            }
            for socket in self.admission.accept(&self.listener, self.peers.len()) {
                self.peers.add(socket);
            }
            turn = role.turn(&mut self.peers);
            self.end_lost(role);
            if self.peers.len() > 0 {
                idle_since = Instant::now();
            } else if idle_since.elapsed() >= self.settings.idle_max {
                return Ok(());
            }
        }
    }

    /// Sleeps until a peer, the doorbell or the role's deadline. Returns the peers that have sent something, or have
    /// gone.
    fn wait<R: Role>(&self, role: &mut R, turn: Turn) -> Result<Vec<Peer>, AgentError> {
        let has_work = role.before_sleep();
        let now = Instant::now();
        let longest = match turn {
            _ if has_work => Duration::ZERO,
            Turn::WaitForPeers => self.settings.sleep_max,
            Turn::WaitUntil(deadline) => deadline.saturating_duration_since(now).min(self.settings.sleep_max),
        };
        let mut polled: Vec<_> = self.peers.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)).collect();
        polled.push(PollFd::new(&*self.doorbell, PollFlags::IN));
        if self.admission.is_open(self.peers.len(), now) {
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let slept = poll(&mut polled, Some(&timespec(self.admission.wait(now, longest))));
        role.after_sleep();
        match slept {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(io_error("wait on", &self.settings.socket)(errno.into())),
        }
        let ready = self.peers.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(ready.map(|((peer, _), _)| peer).collect())
    }

    /// Reads one packet of a peer.
    fn hear<R: Role>(&mut self, role: &mut R, peer: Peer) {
        let Some(socket) = self.peers.get(peer) else { return };
        match packet::receive::<R::Request>(socket) {
            Ok(Some((request, _))) if request.version().is_some_and(|version| version != CONTRACT_VERSION) => {
                self.peers
                    .send(peer, &R::Response::from(Refusal::other_version(R::OTHER_VERSION_MEND)), &[]);
            }
            Ok(Some((request, descriptors))) => role.hear(peer, request, descriptors, &mut self.peers),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.peers
                    .send(peer, &R::Response::from(Refusal::other_version(R::OTHER_VERSION_MEND)), &[]);
                self.end(role, peer);
            }
            Ok(None) => self.end(role, peer),
            Err(error) => {
                log::lost(pid(socket), &error.to_string());
                self.end(role, peer);
            }
        }
        self.end_lost(role);
    }

    /// Ends the connections of peers that did not take a packet, those among them that only hear of it now.
    fn end_lost<R: Role>(&mut self, role: &mut R) {
        loop {
            let lost = self.peers.take_lost();
            if lost.is_empty() {
                return;
            }
            for peer in lost {
                self.end(role, peer);
            }
        }
    }

    fn end<R: Role>(&mut self, role: &mut R, peer: Peer) {
        if self.peers.remove(peer) {
            self.admission.resume();
            role.gone(peer, &mut self.peers);
        }
    }
}
