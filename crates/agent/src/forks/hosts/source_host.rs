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

use forebay_peers::{BlobId, BlobName, FetchEnd, Fetched, Kind, Members, Peers, Room, Wanted};
use rustix::rand::{GetRandomFlags, getrandom};
use twox_hash::XxHash3_64;

use super::{
    ASKERS, Ticket,
    message::{HostFailure, HostRequest, HostView},
};

use crate::forks::limits::{HOST_ACCEPT_MAX, HOST_LOOK_EVERY, HOST_LOOK_MAX, HOST_SILENT_MAX};

/// Longest answer to a request in bytes.
const VIEW_BYTES_MAX: usize = 256 << 10;
/// Longest wait for one answer to a request.
pub(super) const VIEW_WAIT: Duration = Duration::from_secs(2);
/// Longest time of one range: a slow link takes it as long as bytes come.
const RANGE_WAIT: Duration = Duration::from_secs(60);
/// Number of asker's numbers that are tried. Another asker may have the same one, and then has all connections.
const NUMBERS_TRIED: u32 = 2;

/// Bytes of an answer.
#[derive(Debug)]
pub(super) struct HostAnswer(Vec<u8>);

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
            match ask_each(&[&host], begin, HOST_ACCEPT_MAX).remove(0)? {
                Some(view) => return view.refused.map_or(Ok(host), |failure| Err(failure.why)),
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

    /// Sends a request, again and again until it is answered.
    ///
    /// # Errors
    /// The host refuses, or is silent.
    pub(super) fn ask(&self, request: &HostRequest) -> Result<HostView, HostFailure> {
        self.accepted(ask_each(&[self], request, HOST_SILENT_MAX).remove(0)?)
    }

    /// Returns an answer unless it refuses, or there is none.
    ///
    /// # Errors
    /// Why the host refuses, or that it is silent.
    pub(super) fn accepted(&self, view: Option<HostView>) -> Result<HostView, HostFailure> {
        match view {
            Some(view) => view.refused.clone().map_or(Ok(view), Err),
            None => Err(self.silent().into()),
        }
    }

    /// Sends a request once, and calls `done` with the answer; with `None` if none came in time. `done` must not block.
    pub(super) fn send(&self, request: &HostRequest, within: Duration, done: impl FnOnce(Option<HostAnswer>) + Send + 'static) {
        let version = self.requests.fetch_add(1, Relaxed).to_le_bytes().to_vec();
        let name = BlobName {
            name: serde_json::to_vec(request).unwrap_or_default(),
            version,
        };
        self.peers.fetch(Wanted {
            id: name.id(Kind::Forks),
            name: Some(Arc::new(name)),
            offset: 0,
            holders: vec![0],
            deadline: Instant::now() + within,
            turn: 0,
            is_whole: true,
            digest: None,
            room: Box::new(vec![0; VIEW_BYTES_MAX]),
            done: Box::new(move |mut fetched| {
                done(match fetched.end {
                    FetchEnd::Came { bytes, .. } => Some(HostAnswer(fetched.room.bytes()[..bytes as usize].to_vec())),
                    _ => None,
                });
            }),
        });
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// It is of another version.
    pub(super) fn view(&self, answer: &HostAnswer) -> Result<HostView, String> {
        let name = &self.name;
        serde_json::from_slice(&answer.0)
            .map_err(|_| format!("{name} gives an answer of another version: install the same Forebay on both"))
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

/// Sends a request to hosts at the same time, again and again until each has answered or this time is over. Returns the
/// answer of each host; `None` for one that gave none.
///
/// # Errors
/// An answer is of another version.
pub(super) fn ask_each(hosts: &[&SourceHost], request: &HostRequest, most: Duration) -> Vec<Result<Option<HostView>, String>> {
    let end = Instant::now() + most;
    let mut views: Vec<Result<Option<HostView>, String>> = hosts.iter().map(|_| Ok(None)).collect();
    let (sender, receiver) = mpsc::channel();
    let send = |number: usize| {
        let sender = sender.clone();
        let within = VIEW_WAIT.min(end.saturating_duration_since(Instant::now()));
        hosts[number].send(request, within, move |answer| drop(sender.send((number, answer))));
    };
    (0..hosts.len()).for_each(send);
    let mut left = hosts.len();
    while left > 0
        && let Ok((number, answer)) = receiver.recv()
    {
        match answer {
            Some(answer) => views[number] = hosts[number].view(&answer).map(Some),
            None if Instant::now() < end => {
                thread::sleep(HOST_LOOK_EVERY);
                send(number);
                continue;
            }
            None => {}
        }
        left -= 1;
    }
    views
}

/// Pauses between two looks, for a fiftieth of the time since the first: what is looked for may be hours away, and must
/// not be noticed much later than it comes.
pub(super) fn rest(since: Instant) {
    thread::sleep((since.elapsed() / 50).clamp(HOST_LOOK_EVERY, HOST_LOOK_MAX));
}

/// Returns the shared number of all forks of a job at a step that was named.
pub(super) fn number_at(job: &str, step: u64) -> u64 {
    XxHash3_64::oneshot(format!("{job} at step {step}").as_bytes()) | 1
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
