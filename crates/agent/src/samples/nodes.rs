//! The other nodes of a job, as a running loader reaches them: asks them for samples, and answers their requests.
//!
//! A sample is named by a digest of its dataset and by the number of its extent, so nodes whose datasets differ share
//! nothing. Threads of the data plane leave what has come in an inbox and ring the doorbell; the role's one thread
//! takes it from there.

use std::{
    any::Any,
    cmp::Reverse,
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use forebay_peers::{
    Blob, BlobId, BlobRequest, FetchEnd, Fetched, Found, Holder, Kind, ManyWanted, Reply, Room, Server, Totals, Wanted, interface,
    limits::{MANY_BYTES_MAX, MANY_MAX},
};
use forebay_policy::{
    ids::Node,
    peers::{JOB_NODES_MAX, NodeGroups},
};
use forebay_store::FileVersion;

use super::{
    arena::{Arena, TakenRange},
    machine::{ArenaRange, MachineEvent, ReadFrom, ReadOutcome, Ticket},
    protocol::Alike,
    status::{NodeStatus, PeerTotals, add_all, by_reason},
};

use crate::host::{
    doorbell::Doorbell,
    durations::Durations,
    peer_table::{PeerLinks, PeerTable},
};
use crate::samples::limits::{LOADER_PEER_AGAIN, LOADER_PEER_WAIT, NODES_SHOWN_MAX};

/// Samples up to this size are asked for together, in bytes: the head of a request would cost more than they do.
const TOGETHER_BYTES_MAX: u32 = 16 << 10;

/// The other nodes of a loader's job. Requests end, and are left to the source, when this is dropped.
#[derive(Debug)]
pub(crate) struct PeerNodes {
    server: Server,
    peers: PeerLinks,
    dataset: [u8; 8],
    /// Names of the hosts of all nodes, and place of this one.
    names: Vec<String>,
    inbox: Arc<Inbox>,
    replies: BTreeMap<Ticket, Reply>,
    next_ticket: Ticket,
    /// Small samples of known size that are to be asked for, by node.
    together: BTreeMap<Node, Vec<AskedSample>>,
}

/// A sample that another node is asked for.
#[derive(Debug)]
struct AskedSample {
    flight: u32,
    sample: u32,
    room: TakenRange,
}

/// Deliveries of the threads of the data plane.
#[derive(Debug)]
struct Inbox {
    dataset: [u8; 8],
    groups: NodeGroups,
    here: Node,
    doorbell: Arc<Doorbell>,
    arrived: Mutex<Vec<Arrived>>,
    /// Times from a request to the arrival of its sample, by the node that gave it.
    took: Mutex<BTreeMap<Node, Durations>>,
}

#[derive(Debug)]
enum Arrived {
    /// Another node asks for a sample.
    Asked {
        sample: u32,
        from: Node,
        reply: Reply,
    },
    /// A sample did not come together with others.
    Alone {
        node: Node,
        asked: AskedSample,
    },
    Event(MachineEvent),
}

/// The range of the arena into which a sample is fetched.
#[derive(Debug)]
struct ArenaRoom(TakenRange);

impl Room for ArenaRoom {
    fn bytes(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// A sample in the arena that another node is being sent.
#[derive(Debug)]
struct SampleBlob {
    arena: Arc<Arena>,
    place: ArenaRange,
    ticket: Ticket,
    inbox: Arc<Inbox>,
}

impl Blob for SampleBlob {
    fn length(&self) -> u64 {
        u64::from(self.place.bytes)
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let bytes = self.arena.bytes(self.place);
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let part: Option<&[u8]> = from.checked_add(room.len()).and_then(|end| bytes.get(from..end));
        room.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Drop for SampleBlob {
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.inbox.put(Arrived::Event(MachineEvent::PeerReleased { ticket }));
    }
}

impl Holder for Inbox {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        match sample_of(self.dataset, request.id) {
            Some(sample) => self.put(Arrived::Asked {
                sample,
                from: request.from,
                reply,
            }),
            None => reply.send(Found::Absent),
        }
    }

    fn is_apart(&self, node: Node) -> bool {
        !self.groups.are_together(node, self.here)
    }
}

impl Inbox {
    fn arrived(&self) -> MutexGuard<'_, Vec<Arrived>> {
        // A panic can't leave it half changed.
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, arrived: Arrived) {
        self.arrived().push(arrived);
        self.doorbell.ring();
    }

    fn took(&self, node: Node, samples: usize, took: Duration) {
        let mut all = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        let of_node = all.entry(node).or_default();
        (0..samples).for_each(|_| of_node.note(took));
    }

    fn read_ended(&self, flight: u32, outcome: ReadOutcome) {
        self.put(Arrived::Event(MachineEvent::Read { flight, outcome }));
    }
}

impl PeerNodes {
    /// Starts to serve other nodes on a listening socket, and to ask them.
    ///
    /// # Errors
    /// Message for a person.
    pub(crate) fn start(table: &PeerTable, listener: OwnedFd, alike: &Alike, doorbell: &Arc<Doorbell>) -> Result<Self, String> {
        if table.nodes.len() > usize::from(JOB_NODES_MAX) {
            let nodes = table.nodes.len();
            return Err(format!("{nodes} nodes: at most {JOB_NODES_MAX} share their samples"));
        }
        let dataset = digest(alike);
        let groups = table.groups();
        let inbox = Arc::new(Inbox {
            dataset,
            groups,
            here: table.here,
            doorbell: Arc::clone(doorbell),
            arrived: Mutex::default(),
            took: Mutex::default(),
        });
        let (server, peers) = table.start(Kind::Samples, listener, Arc::clone(&inbox) as Arc<dyn Holder>)?;
        Ok(Self {
            server,
            peers,
            dataset,
            names: table.nodes.iter().map(|node| node.name.clone()).collect(),
            inbox,
            replies: BTreeMap::new(),
            next_ticket: 0,
            together: BTreeMap::new(),
        })
    }

    /// Adds what has come since the last call to `events`.
    pub(crate) fn collect(&mut self, events: &mut Vec<MachineEvent>) {
        let arrived = std::mem::take(&mut *self.inbox.arrived());
        for arrived in arrived {
            match arrived {
                Arrived::Asked { reply, .. } if reply.is_unwanted() => {}
                Arrived::Asked { sample, from, reply } => {
                    let ticket = self.next_ticket;
                    self.next_ticket += 1;
                    self.replies.insert(ticket, reply);
                    events.push(MachineEvent::PeerAsked { ticket, sample, from });
                }
                Arrived::Alone { node, asked } => self.fetch(node, asked, LOADER_PEER_AGAIN),
                Arrived::Event(event) => events.push(event),
            }
        }
    }

    /// Asks for a sample of another node; nothing happens if it is not to be read there.
    pub(crate) fn ask(&mut self, arena: &Arc<Arena>, (flight, sample): (u32, u32), from: ReadFrom) {
        let ReadFrom::Peer {
            node,
            bytes,
            guess_bytes,
            within,
        } = from
        else {
            return;
        };
        let wanted_bytes = bytes.unwrap_or(guess_bytes);
        let Some(room) = Arena::take(arena, wanted_bytes, None) else {
            return self.inbox.read_ended(flight, ReadOutcome::NoRoom { bytes: wanted_bytes });
        };
        let asked = AskedSample { flight, sample, room };
        match bytes {
            Some(1..=TOGETHER_BYTES_MAX) if within == LOADER_PEER_WAIT => self.together.entry(node).or_default().push(asked),
            _ => self.fetch(node, asked, within),
        }
    }

    /// Sends the requests for small samples that were made since the last call.
    pub(crate) fn send(&mut self) {
        for (node, mut all) in std::mem::take(&mut self.together) {
            if let [_] = *all {
                all.drain(..).for_each(|asked| self.fetch(node, asked, LOADER_PEER_WAIT));
            }
            let at_once = MANY_MAX.min((MANY_BYTES_MAX / u64::from(TOGETHER_BYTES_MAX)) as usize);
            while !all.is_empty() {
                let rest = all.split_off(at_once.min(all.len()));
                self.fetch_together(node, std::mem::replace(&mut all, rest));
            }
        }
    }

    fn fetch(&self, node: Node, asked: AskedSample, within: Duration) {
        let AskedSample { flight, sample, room } = asked;
        let (inbox, began) = (Arc::clone(&self.inbox), Instant::now());
        self.peers.to(node).fetch(Wanted {
            name: None,
            id: id_of(self.dataset, sample),
            offset: 0,
            holders: vec![node],
            deadline: Instant::now() + within,
            turn: 0,
            // A known size may be wrong: a sample that could not be read counts as large as others.
            is_whole: true,
            digest: None,
            room: Box::new(ArenaRoom(room)),
            done: Box::new(move |fetched| {
                if let Some(from) = fetched.from() {
                    inbox.took(from, 1, began.elapsed());
                }
                inbox.read_ended(flight, outcome(fetched));
            }),
        });
    }

    fn fetch_together(&self, node: Node, all: Vec<AskedSample>) {
        let (inbox, began) = (Arc::clone(&self.inbox), Instant::now());
        let (flights, items): (Vec<_>, Vec<_>) = all
            .into_iter()
            .map(|AskedSample { flight, sample, room }| {
                let room: Box<dyn Room> = Box::new(ArenaRoom(room));
                ((flight, sample), (id_of(self.dataset, sample), 0, room))
            })
            .unzip();
        self.peers.to(node).fetch_many(ManyWanted {
            node,
            items,
            deadline: Instant::now() + LOADER_PEER_WAIT,
            turn: 0,
            are_whole: true,
            done: Box::new(move |came| {
                let samples = came.iter().filter(|(_, has_come)| *has_come).count();
                inbox.took(node, samples, began.elapsed());
                for ((flight, sample), (room, has_come)) in flights.into_iter().zip(came) {
                    let Some(room) = arena_room(room) else { continue };
                    if has_come {
                        inbox.read_ended(flight, whole(room));
                    } else {
                        // A request of its own tells why.
                        let asked = AskedSample { flight, sample, room };
                        inbox.put(Arrived::Alone { node, asked });
                    }
                }
            }),
        });
    }

    /// Sends another node a sample.
    pub(crate) fn serve(&mut self, arena: &Arc<Arena>, ticket: Ticket, place: ArenaRange) {
        // Dropped at the end, which releases the sample.
        let blob = SampleBlob {
            arena: Arc::clone(arena),
            place,
            ticket,
            inbox: Arc::clone(&self.inbox),
        };
        if let Some(reply) = self.replies.remove(&ticket) {
            reply.send(Found::Blob(Arc::new(blob)));
        }
    }

    /// Tells another node that a sample is not here.
    pub(crate) fn decline(&mut self, ticket: Ticket) {
        if let Some(reply) = self.replies.remove(&ticket) {
            reply.send(Found::Absent);
        }
    }

    /// Returns the traffic with all other nodes.
    pub(crate) fn totals(&self) -> PeerTotals {
        let served = self.server.served();
        let not_sent = [
            ("absent", &served.absent),
            ("busy", &served.busy),
            ("other_members", &served.other_members),
            ("invalid", &served.bad),
            ("strangers", &served.strangers),
        ];
        let mut totals = PeerTotals {
            sent_bytes: served.bytes.load(Relaxed),
            not_sent: by_reason(not_sent.map(|(why, count)| (why, count.load(Relaxed)))),
            ..PeerTotals::default()
        };
        for asked in self.peers.totals() {
            totals.hedged_bytes += asked.hedged_bytes;
            add_all(&mut totals.not_received, &not_received(&asked));
        }
        let took = self.inbox.took.lock().unwrap_or_else(PoisonError::into_inner);
        took.values().for_each(|of_node| totals.took.add(of_node));
        totals
    }

    /// Returns the other nodes that were asked, those that gave most first; of many only some.
    pub(crate) fn nodes(&self) -> Vec<NodeStatus> {
        let mut asked: Vec<_> = (0..)
            .zip(self.peers.totals())
            .filter(|(_, asked)| *asked != Totals::default())
            .collect();
        asked.sort_by_key(|(_, asked)| Reverse(asked.bytes));
        asked.truncate(NODES_SHOWN_MAX);
        let took = self.inbox.took.lock().unwrap_or_else(PoisonError::into_inner);
        let status = |(node, asked): (Node, Totals)| NodeStatus {
            name: self.names.get(usize::from(node)).cloned().unwrap_or_default(),
            samples: asked.ranges,
            bytes: asked.bytes,
            not_received: not_received(&asked),
            took: took.get(&node).cloned().unwrap_or_default(),
        };
        asked.into_iter().map(status).collect()
    }

    /// Returns the address of this node, with its interface, for a log.
    pub(crate) fn here(&self) -> String {
        let address = self.server.address();
        let interface = interface::name_of(address.ip()).unwrap_or_else(|| "no interface".into());
        format!("as node {} of {}, at {address} on {interface}", self.peers.here(), self.names.len())
    }

    /// Ends the data plane, in a thread of its own: requests that are under way may take until their deadline.
    pub(crate) fn end(self) {
        let Self { server, peers, .. } = self;
        let end = move || drop((server, peers));
        // Without a thread the process ends them.
        let _ = thread::Builder::new().name("loader-peers".into()).spawn(end);
    }
}

/// Returns the outcome of a fetch.
fn outcome(fetched: Fetched) -> ReadOutcome {
    let size = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    match fetched.end {
        FetchEnd::Came { bytes, .. } => arena_room(fetched.room).map_or(ReadOutcome::Late, |mut room| {
            room.shorten(size(bytes));
            whole(room)
        }),
        FetchEnd::OtherLength(0) => arena_room(fetched.room).map_or(ReadOutcome::Late, |mut room| {
            room.shorten(0);
            whole(room)
        }),
        FetchEnd::OtherLength(bytes) => ReadOutcome::OtherSize { bytes: size(bytes) },
        FetchEnd::Absent => ReadOutcome::Gone,
        FetchEnd::Late => ReadOutcome::Late,
    }
}

/// Returns the requests to a node that brought nothing, by reason.
fn not_received(asked: &Totals) -> BTreeMap<String, u64> {
    by_reason([
        ("absent", asked.absent),
        ("busy", asked.busy),
        ("failed", asked.failed),
        ("corrupt", asked.corrupt),
    ])
}

fn arena_room(room: Box<dyn Room>) -> Option<TakenRange> {
    let room: Box<dyn Any> = room;
    room.downcast::<ArenaRoom>().ok().map(|room| room.0)
}

fn whole(room: TakenRange) -> ReadOutcome {
    ReadOutcome::Whole {
        place: room.keep(),
        // A version of its own: on a disk it serves this loader only, and no later job takes it for its file's.
        version: FileVersion::of_nothing(),
        left_on: None,
    }
}

/// Returns a digest of the dataset, which is part of the names of its samples.
fn digest(alike: &Alike) -> [u8; 8] {
    let name = format!("{} {} {}", alike.dataset, alike.deal.samples, alike.extents);
    BlobId::of(Kind::Samples, name.as_bytes(), b"").hash().to_le_bytes()
}

fn id_of(dataset: [u8; 8], sample: u32) -> BlobId {
    let mut id = [0; 16];
    let (head, tail) = id.split_at_mut(dataset.len());
    head.copy_from_slice(&dataset);
    tail.copy_from_slice(&u64::from(sample).to_be_bytes());
    BlobId(id)
}

fn sample_of(dataset: [u8; 8], id: BlobId) -> Option<u32> {
    let (head, tail) = id.0.split_at(dataset.len());
    let number = u64::from_be_bytes(tail.try_into().ok()?);
    u32::try_from(number).ok().filter(|_| head == dataset)
}

#[cfg(test)]
mod holder_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_another_node_is_never_taken_for_one_on_a_disk() {
        let arena = Arc::new(Arena::create(10_000, 0).unwrap());
        let version = || match whole(Arena::take(&arena, 10, None).unwrap()) {
            ReadOutcome::Whole { version, .. } => version,
            other => panic!("{other:?}"),
        };
        assert_ne!(version(), version());
    }

    #[test]
    fn a_sample_has_a_name_in_its_dataset_only() {
        let dataset = *b"12345678";
        for sample in [0, 1, 77, u32::MAX] {
            assert_eq!(sample_of(dataset, id_of(dataset, sample)), Some(sample));
            assert_eq!(sample_of(*b"12345679", id_of(dataset, sample)), None);
        }
        let mut beyond = id_of(dataset, u32::MAX);
        beyond.0[11] = 1;
        assert_eq!(sample_of(dataset, beyond), None);
    }
}
