//! Measures the cost of a range through the data plane, beside a bare rustls socket and a bare TCP socket that send
//! the same bytes.
//!
//! `compare WAY LENGTH REQUESTERS SECONDS`, where WAY is tcp, rustls, peers or many, prints one line of JSON: ranges,
//! bytes, seconds, CPU seconds of both sides together, and the median time of a range in microseconds. Both sides are
//! threads of this process, on loopback. `many` asks for 64 ranges by each request.
//!
//! `compare serve WAY LENGTH ADDRESS` and `compare ask WAY LENGTH REQUESTERS SECONDS ADDRESS` are the two sides as
//! processes of two hosts. The server says `ready`, ends with its standard input, and prints its CPU seconds.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement ends where anything fails")]

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use forebay_peers::{
    Blob, BlobId, BlobRequest, Found, Holder, Kind, ManyWanted, Member, Members, Peers, Reply, Room, Secret, Server, Wanted,
};
use rustls::{ClientConnection, ServerConnection, StreamOwned, pki_types::ServerName};

const SECRET: [u8; 32] = [7; 32];
/// Ranges of a request for many.
const MANY: usize = 64;

#[derive(Debug)]
struct Memory(Vec<u8>);

impl Blob for Memory {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        room.copy_from_slice(self.0.get(offset..offset + room.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[derive(Debug)]
struct One(Arc<Memory>);

impl Holder for One {
    fn asked(&self, _: BlobRequest, reply: Reply) {
        reply.send(Found::Blob(Arc::clone(&self.0) as Arc<dyn Blob>));
    }
}

/// Answers each byte that comes with the whole object.
fn answer(stream: &mut (impl Read + Write), bytes: &[u8]) {
    let mut asked = [0];
    while stream.read_exact(&mut asked).is_ok() && stream.write_all(bytes).and_then(|()| stream.flush()).is_ok() {}
}

/// Asks for the object again and again. Returns the times that it took.
fn ask(stream: &mut (impl Read + Write), length: usize, until: Instant) -> Vec<Duration> {
    let mut room = vec![0; length];
    let mut took = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        stream.write_all(&[1]).unwrap();
        stream.flush().unwrap();
        stream.read_exact(&mut room).unwrap();
        took.push(began.elapsed());
    }
    took
}

/// Answers on each connection to a listener.
fn serve_sockets(listener: TcpListener, length: usize, sealed: bool) {
    let bytes = Arc::new(vec![1; length]);
    let (server, _) = Secret::new(SECRET).bare_configs().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, bytes, server) = (stream.unwrap(), Arc::clone(&bytes), Arc::clone(&server));
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || {
                if sealed {
                    answer(&mut StreamOwned::new(ServerConnection::new(server).unwrap(), stream), &bytes);
                } else {
                    answer(&mut stream, &bytes);
                }
            });
        }
    });
}

fn by_sockets(load: &Load, address: SocketAddr, sealed: bool) -> Vec<Duration> {
    let (_, client) = Secret::new(SECRET).bare_configs().unwrap();
    by_requesters(load.requesters, || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        if sealed {
            let client = ClientConnection::new(Arc::clone(&client), ServerName::from(address.ip())).unwrap();
            ask(&mut StreamOwned::new(client, stream), load.length, load.until)
        } else {
            ask(&mut stream, load.length, load.until)
        }
    })
}

/// Returns the table of two nodes, the second of which listens at an address and serves an object.
fn members(address: SocketAddr, here: usize) -> Members {
    let nobody = SocketAddr::new(address.ip(), 1);
    let member = |(number, address): (usize, SocketAddr)| Member {
        name: number.to_string(),
        address,
    };
    let table: Vec<_> = [nobody, address].into_iter().enumerate().map(member).collect();
    Members::new(1, table, here).unwrap()
}

fn serve_peers(listener: TcpListener, length: usize) -> Server {
    let there = members(listener.local_addr().unwrap(), 1);
    let holder = Arc::new(One(Arc::new(Memory(vec![1; length]))));
    Server::start(Kind::Samples, &Secret::new(SECRET), &there, listener, holder).unwrap()
}

fn peers(address: SocketAddr) -> (Peers, BlobId) {
    let peers = Peers::start(Kind::Samples, &Secret::new(SECRET), &members(address, 0)).unwrap();
    (peers, BlobId::of(Kind::Samples, b"x", b"1"))
}

fn by_requesters(requesters: usize, request: impl Fn() -> Vec<Duration> + Sync) -> Vec<Duration> {
    thread::scope(|scope| {
        let askers: Vec<_> = (0..requesters).map(|_| scope.spawn(&request)).collect();
        askers.into_iter().flat_map(|asker| asker.join().unwrap()).collect()
    })
}

fn by_peers(load: &Load, address: SocketAddr) -> Vec<Duration> {
    let (peers, id) = peers(address);
    by_requesters(load.requesters, || {
        let mut took = Vec::new();
        let mut room: Box<dyn Room> = Box::new(vec![0u8; load.length]);
        while Instant::now() < load.until {
            let began = Instant::now();
            let (sender, receiver) = channel();
            peers.fetch(Wanted {
                name: None,
                id,
                offset: 0,
                holders: vec![1],
                deadline: began + Duration::from_secs(60),
                turn: 1,
                is_whole: false,
                digest: None,
                room,
                done: Box::new(move |fetched| sender.send(fetched).unwrap()),
            });
            let fetched = receiver.recv().unwrap();
            assert_eq!(fetched.from(), Some(1));
            room = fetched.room;
            took.push(began.elapsed());
        }
        took
    })
}

/// Returns the times of requests for many ranges, each as often as it had ranges.
fn by_many(load: &Load, address: SocketAddr) -> Vec<Duration> {
    let (peers, id) = peers(address);
    by_requesters(load.requesters, || {
        let mut took = Vec::new();
        let mut rooms: Vec<Box<dyn Room>> = (0..MANY).map(|_| Box::new(vec![0u8; load.length]) as _).collect();
        while Instant::now() < load.until {
            let began = Instant::now();
            let (sender, receiver) = channel();
            peers.fetch_many(ManyWanted {
                node: 1,
                items: rooms.into_iter().map(|room| (id, 0, room)).collect(),
                deadline: began + Duration::from_secs(60),
                turn: 1,
                are_whole: false,
                done: Box::new(move |came| sender.send(came).unwrap()),
            });
            let came = receiver.recv().unwrap();
            assert!(came.iter().all(|(_, has_come)| *has_come));
            rooms = came.into_iter().map(|(room, _)| room).collect();
            took.extend([began.elapsed(); MANY]);
        }
        took
    })
}

/// CPU seconds of this process so far.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap()).as_secs_f64()
}

/// A load of requests.
struct Load {
    length: usize,
    requesters: usize,
    until: Instant,
}

/// Serves ranges in a way until the returned value is dropped, or the process ends.
fn serve(way: &str, length: usize, listener: TcpListener) -> Option<Server> {
    if matches!(way, "peers" | "many") {
        return Some(serve_peers(listener, length));
    }
    serve_sockets(listener, length, way == "rustls");
    None
}

/// Asks for ranges in a way, and prints the line.
fn measure(way: &str, numbers: [&str; 3], address: SocketAddr) {
    let [length, requesters, seconds] = numbers;
    let (began, cpu) = (Instant::now(), cpu_s());
    let load = Load {
        length: length.parse().unwrap(),
        requesters: requesters.parse().unwrap(),
        until: began + Duration::from_secs_f64(seconds.parse().unwrap()),
    };
    let mut took = match way {
        "tcp" => by_sockets(&load, address, false),
        "rustls" => by_sockets(&load, address, true),
        "peers" => by_peers(&load, address),
        "many" => by_many(&load, address),
        _ => panic!("{way}: give tcp, rustls, peers or many"),
    };
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_s() - cpu);
    took.sort_unstable();
    let median_us = took.get(took.len() / 2).unwrap().as_secs_f64() * 1e6;
    let p99_us = took.get(took.len() * 99 / 100).unwrap().as_secs_f64() * 1e6;
    let bytes = took.len() * load.length;
    println!(
        r#"{{"way": "{way}", "ranges": {}, "bytes": {bytes}, "seconds": {seconds:.3}, "cpu_s": {cpu:.3}, "median_us": {median_us:.1}, "p99_us": {p99_us:.1}}}"#,
        took.len()
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    match *words.as_slice() {
        ["serve", way, length, address] => {
            let cpu = cpu_s();
            let _server = serve(way, length.parse().unwrap(), TcpListener::bind(address).unwrap());
            println!("ready");
            io::stdin().read_to_end(&mut Vec::new()).unwrap();
            println!(r#"{{"cpu_s": {:.3}}}"#, cpu_s() - cpu);
        }
        ["ask", way, length, requesters, seconds, address] => measure(way, [length, requesters, seconds], address.parse().unwrap()),
        [way, length, requesters, seconds] => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let _server = serve(way, length.parse().unwrap(), listener);
            measure(way, [length, requesters, seconds], address);
        }
        _ => panic!("compare [ask] tcp|rustls|peers|many LENGTH REQUESTERS SECONDS [ADDRESS], or compare serve WAY LENGTH ADDRESS"),
    }
}
