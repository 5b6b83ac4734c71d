//! The hosts of one clone: where they meet, and what they pull from each other.
//!
//! Hosts of a clone know each other by notes that each leaves at the first host of the job. The one with rank 0 of the
//! clone leads: it has the states taken, and the others take part in that fork. Each host pulls the shards of its own
//! ranks' counterparts from the job's hosts, and the other shards from the hosts of the clone that pull those.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use forebay_peers::{Blob, BlobId, BlobRequest, Found, Holder, Kind, Members, Reply, Server};
use forebay_state::StateStream;

use super::{
    ASKERS, Ticket,
    message::{HostNote, HostRequest},
    pulling::ObjectPart,
    received::ReceivedRank,
    source_host::{SourceHost, random},
    stage::FilledRanges,
};

use crate::forks::limits::HOST_SILENT_MAX;

/// Milliseconds for which the note of a host counts that has not met the others yet.
const FRESH_MS: u64 = 3000;

/// The hosts of a clone, as one of them sees them.
#[derive(Debug)]
pub(super) struct CloneHosts {
    /// Number of the fork at which they meet.
    meeting: u64,
    note: Mutex<HostNote>,
    /// Notes of other hosts; once the clone's hosts have met, of these only.
    others: Mutex<Vec<HostNote>>,
    /// Numbers of the other hosts of the clone, once they have met.
    met: OnceLock<Vec<u64>>,
    parts: Arc<GatheredParts>,
    _server: Server,
}

/// The parts of replicated entries that a host gives to the others of its clone.
#[derive(Debug, Default)]
struct GatheredParts {
    state: OnceLock<Arc<ReceivedRank>>,
    /// First byte in the stream, and number of bytes, by object.
    parts: Mutex<HashMap<BlobId, (u64, u64)>>,
    filled: Mutex<FilledRanges>,
}

/// A part that has come.
#[derive(Debug)]
struct GatheredPart {
    state: Arc<ReceivedRank>,
    at: u64,
    bytes: u64,
}

impl Blob for GatheredPart {
    fn length(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        self.state.get(StateStream::Replicated, self.at + offset, room)
    }
}

impl Holder for GatheredParts {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        reply.send(self.find(request.id).map_or(Found::Absent, |part| Found::Blob(Arc::new(part))));
    }
}

impl GatheredParts {
    fn find(&self, id: BlobId) -> Option<GatheredPart> {
        let (at, bytes) = self.parts.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied()?;
        let has = self.filled.lock().unwrap_or_else(PoisonError::into_inner).has(&(at..at + bytes));
        let state = Arc::clone(self.state.get().filter(|_| has)?);
        Some(GatheredPart { state, at, bytes })
    }
}

impl CloneHosts {
    /// Starts to serve other hosts of the clone, and prepares this host's note for them. `source` is the host of the
    /// job where they meet.
    ///
    /// # Errors
    /// There is no socket, thread or random number.
    pub(super) fn start(ticket: &Ticket, source: SocketAddr, meeting: u64) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| format!("this host can't serve the clone's other hosts: {error}");
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
        let parts = Arc::<GatheredParts>::default();
        let holder = Arc::clone(&parts);
        let server = Server::start(Kind::Forks, &ticket.secret(), &members, listener, holder).map_err(|error| fail(&error))?;
        let note = HostNote {
            host: random()?,
            address: address.to_string(),
            ..HostNote::default()
        };
        Ok(Self {
            meeting,
            note: Mutex::new(note),
            others: Mutex::default(),
            met: OnceLock::new(),
            parts,
            _server: server,
        })
    }

    /// Changes this host's note, leaves it at the host where all meet, and reads those of the others.
    ///
    /// # Errors
    /// The meeting host is silent, or another host of the clone is, or has failed.
    pub(super) fn post(&self, source: &SourceHost, change: impl FnOnce(&mut HostNote)) -> Result<(), String> {
        let note = {
            let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut note);
            note.clone()
        };
        let fork = self.meeting;
        let host = note.host;
        let others = source.ask(&HostRequest::Post { fork, note })?.board;
        let mut known = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_clone = |other: &HostNote| match self.met.get() {
            Some(met) => met.contains(&other.host),
            // Notes of an earlier clone with this name may still be there.
            None => other.host != host && !other.is_loaded && other.silent_ms < FRESH_MS,
        };
        *known = others.into_iter().filter(is_of_clone).collect();
        // Whoever has seen that all have loaded may go.
        if known.iter().all(|other| other.is_loaded) {
            return Ok(());
        }
        for other in known.iter() {
            if let Some(why) = &other.failed {
                return Err(format!("at {}, another host of the clone: {why}", other.address));
            }
            if Duration::from_millis(other.silent_ms) > HOST_SILENT_MAX {
                return Err(format!(
                    "{}, another host of the clone, has said nothing for {} s",
                    other.address,
                    HOST_SILENT_MAX.as_secs()
                ));
            }
        }
        Ok(())
    }

    /// Returns the notes of all hosts, ordered by their ranks, and this host's place among them; `None` until all ranks
    /// of the clone are at one of them. From then on only these hosts count.
    pub(super) fn all(&self) -> Option<(Vec<HostNote>, usize)> {
        let mine = self.note.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (host, of) = (mine.host, mine.of);
        let mut all: Vec<HostNote> = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.push(mine);
        all.retain(|note| !note.ranks.is_empty());
        all.sort_by_key(|note| note.ranks.iter().min().copied());
        let mut ranks: Vec<u32> = all.iter().flat_map(|note| note.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        let here = all.iter().position(|note| note.host == host)?;
        if of == 0 || ranks != (0..of).collect::<Vec<_>>() {
            return None;
        }
        let _ = self
            .met
            .set(all.iter().map(|note| note.host).filter(|other| *other != host).collect());
        Some((all, here))
    }

    /// Returns the number of the fork that the leading host has had taken, if it has.
    pub(super) fn taken(&self) -> Option<u64> {
        let mine = self.note.lock().unwrap_or_else(PoisonError::into_inner).taken;
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = others.iter().map(|other| other.taken).chain([mine]);
        all.find(|taken| *taken != 0)
    }

    /// Returns whether the ranks at all other hosts have loaded their states.
    pub(super) fn others_have_loaded(&self) -> bool {
        self.others
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .all(|other| other.is_loaded)
    }

    /// Begins to give parts of a fork's replicated entries to the others, from this state on as far as they come.
    pub(super) fn give<'a>(&self, fork: u64, state: &Arc<ReceivedRank>, parts: impl Iterator<Item = &'a ObjectPart>) {
        let _ = self.parts.state.set(Arc::clone(state));
        let mut known = self.parts.parts.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(parts.map(|part| (gathered_id(fork, part.at), (part.at, part.bytes))));
    }

    /// Notes that bytes of the replicated entries have come.
    pub(super) fn has(&self, part: &ObjectPart) {
        let mut filled = self.parts.filled.lock().unwrap_or_else(PoisonError::into_inner);
        filled.fill(part.at..part.at + part.bytes);
    }
}

/// Returns the identity of a part at the host of the clone that pulls it from the job.
pub(super) fn gathered_id(fork: u64, at: u64) -> BlobId {
    BlobId::of(Kind::Forks, format!("gathered/{at}").as_bytes(), &fork.to_le_bytes())
}
