//! A host of a job, as the host of its clone asks it.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use forebay_contract::CONTRACT_VERSION;
use forebay_peers::{BlobId, BlobName, FetchEnd, Fetched, Kind, Members, Peers, Room, Wanted};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{
    ASKERS, Ticket,
    message::{HostRequest, HostView},
};

use crate::forks::limits::{HOST_ACCEPT_MAX, HOST_LOOK_EVERY, HOST_SILENT_MAX};

/// Longest answer to a request in bytes.
const VIEW_BYTES_MAX: usize = 256 << 10;
/// Longest wait for one answer to a request.
const VIEW_WAIT: Duration = Duration::from_secs(2);
/// Longest time of one range: a slow link takes it as long as bytes come.
const RANGE_WAIT: Duration = Duration::from_secs(60);
/// Number of asker's numbers that are tried. Another asker may have the same one, and then has all connections.
const NUMBERS_TRIED: u32 = 2;

/// A host of a job.
pub(super) struct SourceHost {
    peers: Peers,
    /// Its name, as the user knows it.
    pub(super) name: String,
    requests: AtomicU64,
}

impl fmt::Debug for SourceHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SourceHost({})", self.name)
    }
}

impl SourceHost {
    /// Connects with the server of a host, by a request that begins a fork.
    ///
    /// # Errors
    /// The server does not accept the ticket, does not answer, or refuses the fork.
    pub(super) fn connect(ticket: &Ticket, (name, address): &(String, SocketAddr), begin: &HostRequest) -> Result<Self, String> {
        let mut tried = 1;
        loop {
            let host = Self::start(ticket, name, *address)?;
            match host.asked(begin, HOST_ACCEPT_MAX)? {
                Some(view) => return view.refused.map_or(Ok(host), Err),
                None if tried < NUMBERS_TRIED => tried += 1,
                None => {
                    return Err(format!(
                        "{name} does not accept the ticket: it is of an earlier `forebay clone serve`, or of another job; use the one that \
                         was written last"
                    ));
                }
            }
        }
    }

    /// Makes ready to ask a host, by a number taken at random.
    ///
    /// # Errors
    /// There is no thread or random number.
    pub(super) fn start(ticket: &Ticket, name: &str, address: SocketAddr) -> Result<Self, String> {
        // Node 0 is the server.
        let here = 1 + (random()? % u64::from(ASKERS - 1)) as u16;
        let members = Members::of_server(address, ASKERS, here).map_err(|error| error.to_string())?;
        Ok(Self {
            peers: Peers::start(Kind::Forks, &ticket.secret(), &members).map_err(|error| error.to_string())?,
            name: name.to_owned(),
            requests: AtomicU64::new(0),
        })
    }

    /// Returns the request that begins a fork, or a meeting.
    pub(super) fn begin_of(job: &str, fork: u64, at: Option<u64>, is_meeting: bool) -> HostRequest {
        let (version, job) = (CONTRACT_VERSION, job.to_owned());
        HostRequest::Begin {
            version,
            fork,
            job,
            at,
            is_meeting,
        }
    }

    /// Sends a request, again and again until it is answered.
    ///
    /// # Errors
    /// The host refuses, or is silent.
    pub(super) fn ask(&self, request: &HostRequest) -> Result<HostView, String> {
        match self.asked(request, HOST_SILENT_MAX)? {
            Some(view) => view.refused.clone().map_or(Ok(view), Err),
            None => Err(self.silent()),
        }
    }

    /// Sends a request, again and again until it is answered or this time is over.
    fn asked(&self, request: &HostRequest, most: Duration) -> Result<Option<HostView>, String> {
        let since = Instant::now();
        while since.elapsed() < most {
            let version = self.requests.fetch_add(1, Relaxed).to_le_bytes().to_vec();
            let name = BlobName {
                name: serde_json::to_vec(request).unwrap_or_default(),
                version,
            };
            let (sender, receiver) = mpsc::channel();
            self.peers.fetch(Wanted {
                id: name.id(Kind::Forks),
                name: Some(Arc::new(name)),
                offset: 0,
                holders: vec![0],
                deadline: Instant::now() + VIEW_WAIT,
                turn: 0,
                is_whole: true,
                digest: None,
                room: Box::new(vec![0; VIEW_BYTES_MAX]),
                done: Box::new(move |fetched| drop(sender.send(fetched))),
            });
            if let Ok(Fetched {
                mut room,
                end: FetchEnd::Came { bytes, .. },
                ..
            }) = receiver.recv()
            {
                let view = serde_json::from_slice(&room.bytes()[..bytes as usize]);
                return view
                    .map(Some)
                    .map_err(|_| format!("{} gives an answer of another version: install the same Forebay on both", self.name));
            }
            thread::sleep(HOST_LOOK_EVERY);
        }
        Ok(None)
    }

    /// Returns the reason for a host that is silent.
    pub(super) fn silent(&self) -> String {
        format!(
            "{} has not answered for {} s: look whether it and `forebay clone serve` run, and ask again",
            self.name,
            HOST_SILENT_MAX.as_secs()
        )
    }

    /// Fetches a range of an object into a room of its length. `done` must not block.
    pub(super) fn fetch(&self, id: BlobId, offset: u64, room: Box<dyn Room>, done: impl FnOnce(Fetched) + Send + 'static) {
        self.peers.fetch(Wanted {
            id,
            name: None,
            offset,
            holders: vec![0],
            deadline: Instant::now() + RANGE_WAIT,
            turn: 0,
            is_whole: false,
            digest: None,
            room,
            done: Box::new(done),
        });
    }
}

/// Returns a random number.
///
/// # Errors
/// The kernel gives no random bytes.
pub(super) fn random() -> Result<u64, String> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(|error| format!("the kernel gives no random bytes: {error}"))?;
    Ok(u64::from_ne_bytes(random))
}
