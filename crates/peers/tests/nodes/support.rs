//! Nodes of a job in this process, and the objects that they have.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    ops::Range,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use forebay_peers::{Blob, BlobId, BlobRequest, Found, Holder, Kind, Member, Members, Peers, Reply, Room, Secret, Server, Wanted};
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

pub(crate) const SECRET: [u8; 32] = [7; 32];
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// An object in memory.
#[derive(Debug)]
pub(crate) struct Bytes {
    pub(crate) content: RwLock<Vec<u8>>,
    pub(crate) is_valid: AtomicBool,
    /// Digests that are known without reading.
    pub(crate) digests: Vec<(Range<u64>, u128)>,
    pub(crate) may_wait: bool,
    /// Time that a read takes.
    pub(crate) takes: Duration,
}

impl Bytes {
    pub(crate) fn new(content: Vec<u8>) -> Self {
        Self {
            content: RwLock::new(content),
            is_valid: true.into(),
            digests: Vec::new(),
            may_wait: false,
            takes: Duration::ZERO,
        }
    }
}

impl Blob for Bytes {
    fn length(&self) -> u64 {
        self.content.read().unwrap().len() as u64
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        if !self.takes.is_zero() {
            thread::sleep(self.takes);
        }
        let content = self.content.read().unwrap();
        room.copy_from_slice(content.get(offset..offset + room.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn digest(&self, range: &Range<u64>) -> Option<u128> {
        self.digests.iter().find(|(known, _)| known == range).map(|(_, digest)| *digest)
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
pub(crate) struct Store {
    pub(crate) blobs: Mutex<HashMap<BlobId, Arc<Bytes>>>,
    pub(crate) keeps: AtomicBool,
    kept: Mutex<Vec<Reply>>,
    /// Node whose requests are admitted apart.
    pub(crate) apart: Mutex<Option<u16>>,
}

impl Holder for Store {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        match self.blobs.lock().unwrap().get(&request.id) {
            Some(blob) => reply.send(Found::Blob(Arc::clone(blob) as Arc<dyn Blob>)),
            None if self.keeps.load(Relaxed) => self.kept.lock().unwrap().push(reply),
            None => reply.send(Found::Absent),
        }
    }

    fn is_apart(&self, node: u16) -> bool {
        *self.apart.lock().unwrap() == Some(node)
    }
}

impl Store {
    /// Number of requests that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept.lock().unwrap().len()
    }

    pub(crate) fn put(&self, name: &str, content: Vec<u8>, may_wait: bool) -> BlobId {
        let mut blob = Bytes::new(content);
        blob.may_wait = may_wait;
        self.put_blob(name, blob)
    }

    pub(crate) fn put_blob(&self, name: &str, blob: Bytes) -> BlobId {
        let id = id_of(name);
        self.blobs.lock().unwrap().insert(id, Arc::new(blob));
        id
    }

    pub(crate) fn get(&self, id: BlobId) -> Arc<Bytes> {
        Arc::clone(&self.blobs.lock().unwrap()[&id])
    }
}

pub(crate) fn id_of(name: &str) -> BlobId {
    BlobId::of(Kind::Samples, name.as_bytes(), b"1")
}

pub(crate) struct TestNode {
    pub(crate) store: Arc<Store>,
    pub(crate) server: Option<Server>,
    pub(crate) peers: Peers,
    pub(crate) members: Members,
}

pub(crate) fn listeners(nodes: usize) -> Vec<TcpListener> {
    (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect()
}

pub(crate) fn members(listeners: &[TcpListener], here: usize, epoch: u64) -> Members {
    let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    members_at(&addresses, here, epoch)
}

pub(crate) fn members_at(addresses: &[SocketAddr], here: usize, epoch: u64) -> Members {
    let member = |(number, address): (usize, &SocketAddr)| Member {
        name: format!("node{number}"),
        address: *address,
    };
    Members::new(epoch, addresses.iter().enumerate().map(member).collect(), here).unwrap()
}

pub(crate) fn asking(members: &Members) -> Peers {
    Peers::start(Kind::Samples, &Secret::new(SECRET), members).unwrap()
}

pub(crate) fn serving(members: &Members, listener: TcpListener, holder: Arc<dyn Holder>) -> Server {
    Server::start(Kind::Samples, &Secret::new(SECRET), members, listener, holder).unwrap()
}

pub(crate) fn nodes(number: usize) -> Vec<TestNode> {
    let listeners = listeners(number);
    let tables: Vec<Members> = (0..number).map(|here| members(&listeners, here, 1)).collect();
    let start = |(listener, members): (TcpListener, Members)| {
        let store = Arc::new(Store::default());
        let server = serving(&members, listener, Arc::clone(&store) as Arc<dyn Holder>);
        TestNode {
            store,
            server: Some(server),
            peers: asking(&members),
            members,
        }
    };
    listeners.into_iter().zip(tables).map(start).collect()
}

pub(crate) fn fetch_within(
    peers: &Peers,
    id: BlobId,
    range: Range<usize>,
    holders: &[u16],
    digest: Option<u128>,
    within: Duration,
) -> (Vec<u8>, Option<u16>) {
    let (sender, receiver) = channel();
    peers.fetch(Wanted {
        name: None,
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

pub(crate) fn fetch(peers: &Peers, id: BlobId, range: Range<usize>, holders: &[u16]) -> (Vec<u8>, Option<u16>) {
    fetch_within(peers, id, range, holders, None, LONG)
}

pub(crate) type Item = (BlobId, u64, Box<dyn Room>);

/// Asks node 1 for many ranges.
pub(crate) fn fetch_many(peers: &Peers, items: Vec<Item>, are_whole: bool) -> Vec<(Box<dyn Room>, bool)> {
    let (sender, receiver) = channel();
    peers.fetch_many(forebay_peers::ManyWanted {
        node: 1,
        items,
        deadline: Instant::now() + LONG,
        turn: 1,
        are_whole,
        done: Box::new(move |rooms| sender.send(rooms).unwrap()),
    });
    receiver.recv_timeout(LONG).unwrap()
}

pub(crate) fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

pub(crate) fn wait_until(is_so: impl Fn() -> bool, what: &str) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "not within 20 s: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Numbers that look random, and are the same in each run.
pub(crate) struct TestDraw(pub(crate) u64);

impl TestDraw {
    pub(crate) fn below(&mut self, below: usize) -> usize {
        self.0 = forebay_policy::splitmix::mix(self.0.wrapping_add(forebay_policy::splitmix::WEYL));
        (self.0 >> 16) as usize % below.max(1)
    }
}

/// Returns a figure of this process in bytes, such as `VmRSS`.
pub(crate) fn memory_bytes(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':')
        .trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .unwrap()
        << 10
}

/// Direction of bytes between an asker and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToServer,
    ToAsker,
}

/// Changes a chunk on its way. Returns false to end the connection.
pub(crate) type Tamper = Arc<dyn Fn(Way, &mut Vec<u8>) -> bool + Send + Sync>;

/// Node 1 of two behind a relay that alters what passes, and the table by which node 0 asks it.
pub(crate) struct Relayed {
    pub(crate) server: Server,
    pub(crate) store: Arc<Store>,
    pub(crate) asker: Members,
}

pub(crate) fn relayed(tamper: Tamper) -> Relayed {
    let listeners = listeners(2);
    let (table, asker) = (members(&listeners, 1, 1), members(&listeners, 0, 1));
    let store = Arc::new(Store::default());
    let behind = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = serving(&table, behind, Arc::clone(&store) as Arc<dyn Holder>);
    let address = server.address();
    let relay = listeners.into_iter().nth(1).unwrap();
    thread::spawn(move || {
        for asking in relay.incoming() {
            let (Ok(asking), Ok(serving)) = (asking, TcpStream::connect(address)) else {
                return;
            };
            let ends = [asking.try_clone().unwrap(), serving.try_clone().unwrap()];
            let [asking_too, serving_too] = ends;
            let (to_server, to_asker) = (Arc::clone(&tamper), Arc::clone(&tamper));
            thread::spawn(move || pass_on(asking, serving_too, Way::ToServer, &to_server));
            thread::spawn(move || pass_on(serving, asking_too, Way::ToAsker, &to_asker));
        }
    });
    Relayed { server, store, asker }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, way: Way, tamper: &Tamper) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let mut chunk = buffer[..length].to_vec();
        if !tamper(way, &mut chunk) || to.write_all(&chunk).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A connection to node 1 of two by hand, as node 0 that has the job's secret.
pub(crate) fn by_hand(address: SocketAddr) -> StreamOwned<ClientConnection, TcpStream> {
    let (_, client) = Secret::new(SECRET).bare_configs().unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut secured = StreamOwned::new(ClientConnection::new(client, ServerName::from(address.ip())).unwrap(), stream);
    while secured.conn.is_handshaking() {
        secured.conn.complete_io(&mut secured.sock).unwrap();
    }
    secured
}
