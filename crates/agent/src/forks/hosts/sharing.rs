//! Parts of the states on a host that several clones of one point pull: each from one asker's claim, then from it.
//!
//! Clones that name the same step (`--at STEP`) share one fork at each host of the job. All number its parts alike. An
//! asker claims some parts at a time, pulls those from the host, and all others from the askers that have claimed
//! them. So each part leaves the host once.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Instant,
};

use forebay_peers::{Blob, BlobId, BlobRequest, Found, Holder, Kind, Members, Reply, Server};

use super::{ASKERS, Ticket, message::ClaimedParts, object_part::ObjectPart, received::ReceivedStates};

use crate::forks::limits::{HOST_LINGER_MAX, HOST_LOOK_MAX};

/// Least number of parts in a claim.
const CLAIM_PARTS_MIN: u64 = 4;
/// Number of claims, about, into which the parts of a host are divided: all of them fit into an answer.
const CLAIMS: u64 = 256;

/// Claims of the parts of the states on a host.
#[derive(Debug, Default)]
pub(super) struct PartClaims {
    claims: Vec<ClaimedParts>,
    /// Number of the first part that nobody has claimed.
    next: u64,
}

impl PartClaims {
    /// Claims the next of this many parts for an asker. Returns the claims of all.
    pub(super) fn claim(&mut self, asker: u64, address: &str, all: u64) -> Vec<ClaimedParts> {
        let parts = CLAIM_PARTS_MIN.max(all.div_ceil(CLAIMS)).min(all.saturating_sub(self.next));
        if parts > 0 {
            match self.claims.last_mut().filter(|last| last.asker == asker) {
                Some(last) => last.parts += parts,
                None => self.claims.push(ClaimedParts {
                    asker,
                    address: address.to_owned(),
                    first: self.next,
                    parts,
                }),
            }
            self.next += parts;
        }
        self.claims.clone()
    }
}

/// Server of a clone's host that gives parts which have come to other hosts.
#[derive(Debug)]
pub(super) struct PartServer {
    /// Address at which others reach it.
    pub(super) address: SocketAddr,
    parts: Arc<ReceivedParts>,
    server: Mutex<Option<Server>>,
}

/// Parts that a host gives to others.
#[derive(Debug, Default)]
struct ReceivedParts {
    states: Mutex<Option<Arc<ReceivedStates>>>,
    parts: Mutex<HashMap<BlobId, ObjectPart>>,
}

/// A part that has come.
#[derive(Debug)]
struct ReceivedPart {
    states: Arc<ReceivedStates>,
    part: ObjectPart,
}

impl Blob for ReceivedPart {
    fn length(&self) -> u64 {
        self.part.bytes
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        self.states.get(&self.part, offset, room)
    }
}

impl Holder for ReceivedParts {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        reply.send(self.find(request.id).map_or(Found::Absent, |part| Found::Blob(Arc::new(part))));
    }
}

impl ReceivedParts {
    fn find(&self, id: BlobId) -> Option<ReceivedPart> {
        let part = self.parts.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()?;
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        states.has(&part).then_some(ReceivedPart { states, part })
    }
}

impl PartServer {
    /// Starts to serve other hosts of clones. `source` is a host of the job.
    ///
    /// # Errors
    /// There is no socket or thread.
    pub(super) fn start(ticket: &Ticket, source: SocketAddr) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| format!("this host can't serve other hosts of clones: {error}");
        let any: IpAddr = if source.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        // The address by which this host reaches the job's is one by which the others reach this host.
        let route = UdpSocket::bind((any, 0)).map_err(|error| fail(&error))?;
        route.connect(source).map_err(|error| fail(&error))?;
        let here = route.local_addr().map_err(|error| fail(&error))?.ip();
        let listener = TcpListener::bind((here, 0)).map_err(|error| fail(&error))?;
        let address = listener.local_addr().map_err(|error| fail(&error))?;
        let members = Members::of_server(address, ASKERS, 0).map_err(|error| fail(&error))?;
        let parts = Arc::<ReceivedParts>::default();
        let holder = Arc::clone(&parts);
        let server = Server::start(Kind::Forks, &ticket.secret(), &members, listener, holder).map_err(|error| fail(&error))?;
        Ok(Self {
            address,
            parts,
            server: Mutex::new(Some(server)),
        })
    }

    /// Begins to give parts of these states, each under its identity here, as far as they come.
    pub(super) fn give(&self, states: &Arc<ReceivedStates>, parts: impl Iterator<Item = (BlobId, ObjectPart)>) {
        *self.parts.states.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(states));
        self.parts.parts.lock().unwrap_or_else(PoisonError::into_inner).extend(parts);
    }

    /// Waits as long as others may need parts, and ends the server. The memory of the states is released then.
    pub(super) fn linger(&self, is_needed: impl Fn() -> bool) {
        let since = Instant::now();
        while since.elapsed() < HOST_LINGER_MAX && is_needed() {
            thread::sleep(HOST_LOOK_MAX);
        }
        drop(self.server.lock().unwrap_or_else(PoisonError::into_inner).take());
        *self.parts.states.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_claimed_once_and_all_are() {
        for all in [0u64, 1, 4, 5, 1000, 100_000] {
            let mut claims = PartClaims::default();
            let mut last = Vec::new();
            for turn in 0..2 * CLAIMS {
                last = claims.claim(turn % 3, &format!("host {}", turn % 3), all);
            }
            let mut next = 0;
            for claim in &last {
                assert_eq!(claim.first, next);
                assert_eq!(claim.address, format!("host {}", claim.asker));
                next += claim.parts;
            }
            assert_eq!(next, all);
            assert!(last.len() <= CLAIMS as usize);
        }
    }

    #[test]
    fn claims_of_one_asker_alone_are_one() {
        let mut claims = PartClaims::default();
        (0..9).for_each(|_| drop(claims.claim(7, "a", 20)));
        let all = claims.claim(8, "b", 20);
        assert_eq!(all.iter().map(|claim| (claim.asker, claim.parts)).collect::<Vec<_>>(), [(7, 20)]);
    }
}
