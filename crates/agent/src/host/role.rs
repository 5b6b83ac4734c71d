//! The part of an agent that differs between roles, and the connections that a role answers on.

use std::{
    collections::BTreeMap,
    os::fd::{BorrowedFd, OwnedFd},
    time::Instant,
};

use rustix::net::sockopt;
use serde::{Serialize, de::DeserializeOwned};

use crate::host::{log, packet, refusal::Refusal};

/// Number of a connection; no other connection of the process ever has it.
pub(crate) type Peer = u64;

/// Packet that a peer sends.
pub(crate) trait RoleRequest: DeserializeOwned {
    /// Returns the version that the peer is of; `None` for a request that means the same in every version.
    fn version(&self) -> Option<u32>;
}

/// Packet that a peer receives.
pub(crate) trait RoleResponse: Serialize + From<Refusal> {
    /// Returns the refusal that this is, if it is one.
    fn refusal(&self) -> Option<&Refusal>;
}

/// Behaviour of one kind of agent. [`Host`](crate::host::driver::Host) owns the lifecycle: it accepts connections,
/// reads requests, checks their version and calls the role on its one thread. A role never blocks.
pub(crate) trait Role {
    type Request: RoleRequest;
    type Response: RoleResponse;
    /// Advice to a peer of another version.
    const OTHER_VERSION_MEND: &'static str = "use one version, or wait until its jobs have ended";

    /// Handles one request, with the descriptors that came beside it.
    fn hear(&mut self, peer: Peer, request: Self::Request, descriptors: Vec<OwnedFd>, peers: &mut Peers);

    /// Forgets a peer, whose connection has ended.
    fn gone(&mut self, peer: Peer, peers: &mut Peers);

    /// Does the work that no peer asks for. The host calls this after each wake-up, once it has heard all peers.
    fn turn(&mut self, _peers: &mut Peers) -> Turn {
        Turn::WaitForPeers
    }

    /// Prepares for sleep: from here on peers ring the doorbell. Returns true if there is work already, so that the
    /// host does not sleep.
    fn before_sleep(&mut self) -> bool {
        false
    }

    /// Ends what [`Role::before_sleep`] began.
    fn after_sleep(&mut self) {}
}

/// The host's next step after a role's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Sleep until a peer or the doorbell wakes the host.
    WaitForPeers,
    /// Sleep until then at the latest.
    WaitUntil(Instant),
}

/// Open connections of an agent.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    sockets: BTreeMap<Peer, OwnedFd>,
    last: Peer,
    /// Peers that did not take a packet. The host ends their connections when the role returns.
    lost: Vec<Peer>,
}

impl Peers {
    /// Sends a packet without blocking, and logs it if it is a refusal. A peer that does not take it is lost: the host
    /// closes its connection and calls [`Role::gone`].
    pub(crate) fn send(&mut self, to: Peer, response: &impl RoleResponse, descriptors: &[BorrowedFd<'_>]) {
        let Some(socket) = self.sockets.get(&to) else { return };
        if let Some(refusal) = response.refusal() {
            log::refused(pid(socket), refusal);
        }
        if let Err(error) = packet::send(socket, response, descriptors) {
            log::lost(pid(socket), &error.to_string());
            self.lost.push(to);
        }
    }

    /// Ends a connection for a reason of ours, once the role returns.
    pub(crate) fn close(&mut self, peer: Peer, why: &str) {
        if let Some(socket) = self.sockets.get(&peer) {
            log::lost(pid(socket), why);
            self.lost.push(peer);
        }
    }

    pub(crate) fn add(&mut self, socket: OwnedFd) {
        self.last += 1;
        self.sockets.insert(self.last, socket);
    }

    pub(crate) fn get(&self, peer: Peer) -> Option<&OwnedFd> {
        self.sockets.get(&peer)
    }

    /// Closes a connection. Returns false if it was closed before.
    pub(crate) fn remove(&mut self, peer: Peer) -> bool {
        self.sockets.remove(&peer).is_some()
    }

    pub(crate) fn take_lost(&mut self) -> Vec<Peer> {
        std::mem::take(&mut self.lost)
    }

    pub(crate) fn len(&self) -> usize {
        self.sockets.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Peer, &OwnedFd)> {
        self.sockets.iter().map(|(peer, socket)| (*peer, socket))
    }
}

/// Returns the process that opened a connection; `None` where it can't be known, as from within another namespace.
pub(crate) fn pid(socket: &OwnedFd) -> Option<i32> {
    let peer = sockopt::socket_peercred(socket).ok()?;
    Some(peer.pid.as_raw_nonzero().get())
}
