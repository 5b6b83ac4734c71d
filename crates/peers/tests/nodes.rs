//! Several nodes in one process, each with a server of its own on loopback.

#![expect(clippy::unwrap_used, reason = "a failed test ends")]

use std::{
    collections::HashMap,
    io,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use forebay_peers::{
    Blob, BlobId, BlobRequest, FetchEnd, Found, Holder, Kind, ManyWanted, Member, Members, Peers, Reply, Secret, Server, Wanted,
};

const SECRET: [u8; 32] = [7; 32];
/// Length of a piece of the hot object, each read of which takes a while, so that requests meet.
const PIECE: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Bytes {
    content: Vec<u8>,
    is_valid: AtomicBool,
    digest: Option<u128>,
    may_wait: bool,
}

impl Blob for Bytes {
    fn length(&self) -> u64 {
        self.content.len() as u64
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        if self.content.len() == PIECE {
            thread::sleep(Duration::from_millis(3));
        }
        let part = self.content.get(offset..offset + room.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        room.copy_from_slice(part);
        Ok(())
    }

    fn digest(&self, _: &Range<u64>) -> Option<u128> {
        self.digest
    }

    fn is_valid(&self, _: &Range<u64>) -> bool {
        self.is_valid.load(Relaxed)
    }

    fn may_wait(&self) -> bool {
        self.may_wait
    }
}

/// A holder whose objects are in memory. Requests for what it lacks are kept if `keeps`, and never answered.
#[derive(Debug, Default)]
struct Store {
    blobs: Mutex<HashMap<BlobId, Arc<Bytes>>>,
    keeps: AtomicBool,
    kept: Mutex<Vec<Reply>>,
}

impl Holder for Store {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        match self.blobs.lock().unwrap().get(&request.id) {
            Some(blob) => reply.send(Found::Blob(Arc::clone(blob) as Arc<dyn Blob>)),
            None if self.keeps.load(Relaxed) => self.kept.lock().unwrap().push(reply),
            None => reply.send(Found::Absent),
        }
    }
}

impl Store {
    fn put(&self, name: &str, bytes: Vec<u8>, may_wait: bool) -> BlobId {
        let id = BlobId::of(Kind::Samples, name.as_bytes(), b"1");
        let blob = Bytes {
            content: bytes,
            is_valid: true.into(),
            digest: None,
            may_wait,
        };
        self.blobs.lock().unwrap().insert(id, Arc::new(blob));
        id
    }
}

struct TestNode {
    store: Arc<Store>,
    server: Option<Server>,
    peers: Peers,
}

fn listeners(nodes: usize) -> Vec<TcpListener> {
    (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect()
}

fn members(listeners: &[TcpListener], here: usize, epoch: u64) -> Members {
    let member = |(number, listener): (usize, &TcpListener)| Member {
        name: format!("node{number}"),
        address: listener.local_addr().unwrap(),
    };
    Members::new(epoch, listeners.iter().enumerate().map(member).collect(), here).unwrap()
}

fn nodes(number: usize) -> Vec<TestNode> {
    let listeners = listeners(number);
    let tables: Vec<Members> = (0..number).map(|here| members(&listeners, here, 1)).collect();
    let start = |(listener, members): (TcpListener, Members)| {
        let store = Arc::new(Store::default());
        let secret = Secret::new(SECRET);
        let holder = Arc::clone(&store) as Arc<dyn Holder>;
        TestNode {
            store,
            server: Some(Server::start(Kind::Samples, &secret, &members, listener, holder).unwrap()),
            peers: Peers::start(Kind::Samples, &secret, &members).unwrap(),
        }
    };
    listeners.into_iter().zip(tables).map(start).collect()
}

fn fetch_within(
    peers: &Peers,
    id: BlobId,
    range: Range<usize>,
    holders: &[u16],
    digest: Option<u128>,
    within: Duration,
) -> (Vec<u8>, Option<u16>) {
    let (sender, receiver) = channel();
    peers.fetch(Wanted {
        id,
        offset: range.start as u64,
        holders: holders.to_vec(),
        deadline: Instant::now() + within,
        turn: 1,
        is_whole: false,
        digest,
        room: Box::new(vec![0; range.len()]),
        done: Box::new(move |mut fetched| sender.send((fetched.room.bytes().to_vec(), fetched.from())).unwrap()),
    });
    receiver.recv_timeout(LONG).expect("a fetch always ends")
}

fn fetch(peers: &Peers, id: BlobId, range: Range<usize>, holders: &[u16]) -> (Vec<u8>, Option<u16>) {
    fetch_within(peers, id, range, holders, None, LONG)
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

#[test]
fn ranges_come_from_who_has_them() {
    let nodes = nodes(3);
    let (small, large) = (bytes(100_000), bytes(10_000_000));
    for may_wait in [false, true] {
        let name = |name| format!("{name}{may_wait}");
        let small_id = nodes[1].store.put(&name("small"), small.clone(), may_wait);
        let large_id = nodes[2].store.put(&name("large"), large.clone(), may_wait);
        assert_eq!(fetch(&nodes[0].peers, small_id, 0..100_000, &[1]), (small.clone(), Some(1)));
        assert_eq!(fetch(&nodes[0].peers, small_id, 5..6, &[1]), (small[5..6].to_vec(), Some(1)));
        assert_eq!(
            fetch(&nodes[0].peers, large_id, 0..10_000_000, &[1, 2]),
            (large.clone(), Some(2)),
            "the first lacks it"
        );
    }
    let totals = nodes[0].peers.totals();
    assert_eq!((totals[1].ranges, totals[1].absent, totals[2].ranges), (4, 2, 2));
    assert_eq!(nodes[0].peers.left_to_source(), 0);
}

#[test]
fn what_nobody_has_is_left_to_the_source() {
    let nodes = nodes(2);
    let id = BlobId::of(Kind::Samples, b"nothing", b"1");
    assert_eq!(fetch(&nodes[0].peers, id, 0..10, &[1]).1, None);
    assert_eq!(fetch(&nodes[0].peers, id, 0..10, &[]).1, None);
    assert_eq!(fetch(&nodes[0].peers, id, 0..10, &[0]).1, None, "a node does not ask itself");
    let beyond = nodes[1].store.put("short", bytes(10), false);
    assert_eq!(fetch(&nodes[0].peers, beyond, 0..11, &[1]).1, None);
    assert_eq!(nodes[0].peers.left_to_source(), 4);
}

type Item = (BlobId, u64, Box<dyn forebay_peers::Room>);

/// Asks node 1 for many ranges.
fn fetch_many(peers: &Peers, items: Vec<Item>, are_whole: bool) -> Vec<(Box<dyn forebay_peers::Room>, bool)> {
    let (sender, receiver) = channel();
    peers.fetch_many(ManyWanted {
        node: 1,
        items,
        deadline: Instant::now() + LONG,
        turn: 1,
        are_whole,
        done: Box::new(move |rooms| sender.send(rooms).unwrap()),
    });
    receiver.recv_timeout(LONG).unwrap()
}

#[test]
fn of_many_objects_only_those_of_the_expected_length_come() {
    let nodes = nodes(2);
    let object = bytes(100);
    let id = nodes[1].store.put("object", object.clone(), false);
    let items = [99, 100, 101].map(|length| (id, 0, Box::new(vec![0u8; length]) as _));
    let came = fetch_many(&nodes[0].peers, items.into(), true);
    assert_eq!(came.iter().map(|(_, came)| *came).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn many_small_ranges_come_by_one_request() {
    let nodes = nodes(2);
    let wanted: Vec<(BlobId, u64, Vec<u8>)> = (0..1000)
        .map(|number| {
            let all = bytes(5000 + number);
            let id = nodes[1].store.put(&number.to_string(), all.clone(), number % 2 == 0);
            (id, 904, all[904..5000].to_vec())
        })
        .collect();
    let absent = BlobId::of(Kind::Samples, b"nothing", b"1");
    let mut items: Vec<Item> = wanted
        .iter()
        .map(|(id, offset, bytes)| (*id, *offset, Box::new(vec![0u8; bytes.len()]) as _))
        .collect();
    items.push((absent, 0, Box::new(vec![0u8; 4])));
    let mut rooms = fetch_many(&nodes[0].peers, items, false);
    let (_, came) = rooms.pop().unwrap();
    assert!(!came);
    for ((mut room, came), (_, _, bytes)) in rooms.into_iter().zip(wanted) {
        assert!(came && room.bytes() == bytes);
    }
}

#[test]
fn f40_strangers_are_refused_before_anything_is_parsed() {
    let listeners = listeners(2);
    let table = members(&listeners, 1, 1);
    let asker = members(&listeners, 0, 1);
    let store = Arc::new(Store::default());
    let id = store.put("secret", bytes(100), false);
    let listener = listeners.into_iter().nth(1).unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::start(Kind::Samples, &Secret::new(SECRET), &table, listener, store).unwrap();
    // Another job's secret, and the right secret for another kind of server.
    let wrong = Peers::start(Kind::Samples, &Secret::new([8; 32]), &asker).unwrap();
    assert_eq!(fetch(&wrong, id, 0..100, &[1]).1, None);
    let wrong = Peers::start(Kind::Files, &Secret::new(SECRET), &asker).unwrap();
    assert_eq!(fetch(&wrong, id, 0..100, &[1]).1, None);
    // Nobody who speaks plainly.
    let mut plain = TcpStream::connect(address).unwrap();
    plain
        .write_all(format!("GET /1/samples/{id} HTTP/1.1\r\nhost: x\r\nrange: bytes=0-9\r\n\r\n").as_bytes())
        .unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!String::from_utf8_lossy(&said).contains("HTTP"), "{said:?}");
    let right = Peers::start(Kind::Samples, &Secret::new(SECRET), &asker).unwrap();
    assert_eq!(
        fetch(&right, id, 0..100, &[1]),
        (bytes(100), Some(1)),
        "who belongs to the job is served all the same"
    );
    assert_eq!(server.served().strangers.load(Relaxed), 3);
}

#[test]
fn f41_a_port_that_another_node_has_taken_over_serves_nobody() {
    let listeners = listeners(3);
    let store = Arc::new(Store::default());
    let id = store.put("x", bytes(100), false);
    // TestNode 2 of the job sits at the address of node 1.
    let impostor = members(&listeners, 2, 1);
    let asker = members(&listeners, 0, 1);
    let listener = listeners.into_iter().nth(1).unwrap();
    let _server = Server::start(Kind::Samples, &Secret::new(SECRET), &impostor, listener, store).unwrap();
    let peers = Peers::start(Kind::Samples, &Secret::new(SECRET), &asker).unwrap();
    assert_eq!(fetch(&peers, id, 0..100, &[1]).1, None);
}

#[test]
fn f43_wrong_bytes_are_found_out() {
    let nodes = nodes(3);
    let id = BlobId::of(Kind::Samples, b"x", b"1");
    for (node, digest) in [(1, Some(1)), (2, None)] {
        let blob = Bytes {
            content: bytes(1000),
            is_valid: true.into(),
            digest,
            may_wait: false,
        };
        nodes[node].store.blobs.lock().unwrap().insert(id, Arc::new(blob));
    }
    assert_eq!(
        fetch(&nodes[0].peers, id, 0..1000, &[1, 2]),
        (bytes(1000), Some(2)),
        "the holder's own digest differs: another is asked"
    );
    assert_eq!(nodes[0].peers.totals()[1].corrupt, 1);
    let wrong = fetch_within(&nodes[0].peers, id, 0..1000, &[2], Some(1), LONG);
    assert_eq!(wrong.1, None, "the caller's digest counts");
}

#[test]
fn what_changes_while_it_is_sent_does_not_count() {
    let nodes = nodes(2);
    for length in [1000, 3_000_000] {
        let id = nodes[1].store.put(&length.to_string(), bytes(length), false);
        nodes[1].store.blobs.lock().unwrap()[&id].is_valid.store(false, Relaxed);
        assert_eq!(fetch(&nodes[0].peers, id, 0..length, &[1]).1, None);
    }
}

#[test]
fn nodes_with_other_tables_do_not_serve_each_other() {
    let listeners = listeners(2);
    let store = Arc::new(Store::default());
    let id = store.put("x", bytes(100), false);
    let (asker, table) = (members(&listeners, 0, 1), members(&listeners, 1, 2));
    let listener = listeners.into_iter().nth(1).unwrap();
    let server = Server::start(Kind::Samples, &Secret::new(SECRET), &table, listener, store).unwrap();
    let peers = Peers::start(Kind::Samples, &Secret::new(SECRET), &asker).unwrap();
    assert_eq!(fetch(&peers, id, 0..100, &[1]).1, None);
    assert_eq!(server.served().other_members.load(Relaxed), 1);
}

#[test]
fn p13_a_node_that_is_gone_or_silent_costs_no_more_than_the_deadline() {
    let mut nodes = nodes(3);
    let id = nodes[2].store.put("x", bytes(100), false);
    // Gone: the connection is refused at once, and the next request does not even try.
    nodes[1].server = None;
    assert_eq!(fetch(&nodes[0].peers, id, 0..100, &[1, 2]).1, Some(2));
    assert_eq!(nodes[0].peers.totals()[1].failed, 1);
    let began = Instant::now();
    assert_eq!(fetch(&nodes[0].peers, id, 0..100, &[1, 2]).1, Some(2));
    assert!(began.elapsed() < Duration::from_millis(500));
    assert_eq!(nodes[0].peers.totals()[1].failed, 1, "it was not asked again");
    // Silent: it never answers.
    nodes[2].store.keeps.store(true, Relaxed);
    let silent = BlobId::of(Kind::Samples, b"silent", b"1");
    let began = Instant::now();
    assert_eq!(
        fetch_within(&nodes[0].peers, silent, 0..100, &[2], None, Duration::from_millis(300)).1,
        None
    );
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
}

#[test]
fn p13_a_listener_that_takes_connections_and_says_nothing_is_given_up_in_time() {
    let listeners = listeners(2);
    let asker = members(&listeners, 0, 1);
    let peers = Peers::start(Kind::Samples, &Secret::new(SECRET), &asker).unwrap();
    let began = Instant::now();
    let id = BlobId::of(Kind::Samples, b"x", b"1");
    assert_eq!(fetch(&peers, id, 0..100, &[1]).1, None);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn eight_threads_fetch_at_once() {
    let nodes = nodes(2);
    let all = bytes(100_000);
    let ids: Vec<BlobId> = (0..20)
        .map(|number| nodes[1].store.put(&number.to_string(), all.clone(), false))
        .collect();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for id in &ids {
                    let (bytes, from) = fetch(&nodes[0].peers, *id, 0..100_000, &[1]);
                    // On a busy machine an answer may be late, and is the source's then.
                    assert!(from.is_none() || bytes == all);
                }
            });
        }
    });
    let came = nodes[0].peers.totals()[1].ranges;
    assert_eq!(came + nodes[0].peers.left_to_source(), 160);
    assert!(came >= 80, "{came}");
}

/// Asks node 0 for the whole of an object, into room of this length.
fn fetch_whole(peers: &Peers, id: BlobId, room: usize) -> (Vec<u8>, FetchEnd) {
    let (sender, receiver) = channel();
    peers.fetch(Wanted {
        id,
        offset: 0,
        holders: vec![0],
        deadline: Instant::now() + LONG,
        turn: 1,
        is_whole: true,
        digest: None,
        room: Box::new(vec![0; room]),
        done: Box::new(move |mut fetched| sender.send((fetched.room.bytes().to_vec(), fetched.end)).unwrap()),
    });
    receiver.recv_timeout(LONG).expect("a fetch always ends")
}

#[test]
fn an_object_of_unknown_length_comes_whole_or_its_length_does() {
    let nodes = nodes(2);
    for length in [1, 1000, 300 << 10, 600 << 10] {
        let object = bytes(length);
        let id = nodes[0].store.put(&length.to_string(), object.clone(), false);
        for room in [length, length + 1, 2 * length + 77] {
            let (came, end) = fetch_whole(&nodes[1].peers, id, room);
            assert_eq!(
                end,
                FetchEnd::Came {
                    from: 0,
                    bytes: length as u64
                }
            );
            assert_eq!(came[..length], object);
        }
        if length > 1 {
            assert_eq!(fetch_whole(&nodes[1].peers, id, length - 1).1, FetchEnd::OtherLength(length as u64));
        }
    }
    let empty = nodes[0].store.put("empty", Vec::new(), false);
    assert_eq!(fetch_whole(&nodes[1].peers, empty, 10).1, FetchEnd::OtherLength(0));
    assert_eq!(fetch_whole(&nodes[1].peers, BlobId([9; 16]), 10).1, FetchEnd::Absent);
}

#[test]
fn whoever_is_dropped_leaves_nothing_waiting() {
    let mut nodes = nodes(2);
    nodes[1].store.keeps.store(true, Relaxed);
    let (sender, receiver) = channel();
    let TestNode { peers, server, .. } = nodes.remove(0);
    peers.fetch(Wanted {
        id: BlobId::of(Kind::Samples, b"x", b"1"),
        offset: 0,
        holders: vec![0],
        deadline: Instant::now() + Duration::from_millis(200),
        turn: 1,
        is_whole: false,
        digest: None,
        room: Box::new(vec![0; 10]),
        done: Box::new(move |fetched| sender.send(fetched.from()).unwrap()),
    });
    drop(peers);
    assert_eq!(receiver.recv_timeout(LONG), Ok(None));
    drop(server);
}

/// A node that has a piece, once it was given one, serves it on.
#[test]
fn a_hot_object_leaves_its_owner_less_than_once_a_node() {
    const PIECES: usize = 24;
    let nodes = nodes(4);
    let all = bytes(PIECE * PIECES);
    let names: Vec<String> = (0..PIECES).map(|piece| format!("piece {piece}")).collect();
    let content = |piece: usize| all[piece * PIECE..(piece + 1) * PIECE].to_vec();
    for (piece, name) in names.iter().enumerate() {
        nodes[0].store.put(name, content(piece), true);
    }
    thread::scope(|scope| {
        for (number, node) in nodes.iter().enumerate().skip(1) {
            for worker in 0..4 {
                let (names, content) = (&names, &content);
                scope.spawn(move || {
                    for turn in (worker..PIECES).step_by(4) {
                        let piece = (turn * 7 + number * 5) % PIECES;
                        let id = BlobId::of(Kind::Samples, names[piece].as_bytes(), b"1");
                        let (bytes, from) = fetch(&node.peers, id, 0..PIECE, &[0]);
                        assert!(from.is_none() || bytes == content(piece));
                        node.store.put(&names[piece], content(piece), true);
                    }
                });
            }
        }
    });
    let served = |node: &TestNode| node.server.as_ref().unwrap().served().ranges.load(Relaxed);
    let by_owner = served(&nodes[0]);
    let by_others: u64 = nodes.iter().skip(1).map(served).sum();
    let by_source: u64 = nodes.iter().map(|node| node.peers.left_to_source()).sum();
    assert_eq!(by_owner + by_others + by_source, 3 * PIECES as u64);
    assert!(by_others > 0, "the owner sent all: {by_owner}");
}
