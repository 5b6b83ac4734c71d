//! Measures the cost of a range through the data plane, beside a bare rustls socket and a bare TCP socket that send
//! the same bytes.
//!
//! `compare WAY LENGTH REQUESTERS SECONDS` with WAY one of tcp, rustls, peers prints one line of JSON: ranges, bytes,
//! seconds, CPU seconds of both sides together, and the median time of a range in microseconds. Client and server are
//! threads of this process, on loopback.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement ends where anything fails")]

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use forebay_peers::{Blob, BlobId, BlobRequest, Found, Holder, Kind, Member, Members, Peers, Reply, Secret, Server, Wanted};
use rustls::{ClientConnection, ServerConnection, StreamOwned, pki_types::ServerName};

const SECRET: [u8; 32] = [7; 32];

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

fn by_sockets(length: usize, requesters: usize, until: Instant, sealed: bool) -> Vec<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let bytes = Arc::new(vec![1; length]);
    let (server, client) = Secret::new(SECRET).bare_configs().unwrap();
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
    let askers: Vec<_> = (0..requesters)
        .map(|_| {
            let client = Arc::clone(&client);
            thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_nodelay(true).unwrap();
                if sealed {
                    let client = ClientConnection::new(client, ServerName::from(address.ip())).unwrap();
                    ask(&mut StreamOwned::new(client, stream), length, until)
                } else {
                    ask(&mut stream, length, until)
                }
            })
        })
        .collect();
    askers.into_iter().flat_map(|asker| asker.join().unwrap()).collect()
}

fn by_peers(length: usize, requesters: usize, until: Instant) -> Vec<Duration> {
    let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let member = |(number, listener): (usize, &TcpListener)| Member {
        name: number.to_string(),
        address: listener.local_addr().unwrap(),
    };
    let table: Vec<_> = listeners.iter().enumerate().map(member).collect();
    let secret = Secret::new(SECRET);
    let holder = Arc::new(One(Arc::new(Memory(vec![1; length]))));
    let listener = listeners.into_iter().nth(1).unwrap();
    let there = Members::new(1, table.clone(), 1).unwrap();
    let _server = Server::start(Kind::Samples, &secret, &there, listener, holder).unwrap();
    let peers = Peers::start(Kind::Samples, &secret, &Members::new(1, table, 0).unwrap()).unwrap();
    let id = BlobId::of(Kind::Samples, b"x", b"1");
    thread::scope(|scope| {
        let askers: Vec<_> = (0..requesters)
            .map(|_| {
                scope.spawn(|| {
                    let mut took = Vec::new();
                    let mut room: Box<dyn forebay_peers::Room> = Box::new(vec![0u8; length]);
                    while Instant::now() < until {
                        let began = Instant::now();
                        let (sender, receiver) = channel();
                        peers.fetch(Wanted {
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
            })
            .collect();
        askers.into_iter().flat_map(|asker| asker.join().unwrap()).collect()
    })
}

/// CPU seconds of this process so far.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap()).as_secs_f64()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, way, length, requesters, seconds] = arguments.as_slice() else {
        panic!("compare tcp|rustls|peers LENGTH REQUESTERS SECONDS");
    };
    let (length, requesters): (usize, usize) = (length.parse().unwrap(), requesters.parse().unwrap());
    let (began, cpu) = (Instant::now(), cpu_s());
    let until = began + Duration::from_secs_f64(seconds.parse().unwrap());
    let mut took = match way.as_str() {
        "tcp" => by_sockets(length, requesters, until, false),
        "rustls" => by_sockets(length, requesters, until, true),
        "peers" => by_peers(length, requesters, until),
        _ => panic!("{way}: give tcp, rustls or peers"),
    };
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_s() - cpu);
    took.sort_unstable();
    let median_us = took.get(took.len() / 2).unwrap().as_secs_f64() * 1e6;
    let p99_us = took.get(took.len() * 99 / 100).unwrap().as_secs_f64() * 1e6;
    let bytes = took.len() * length;
    println!(
        r#"{{"way": "{way}", "ranges": {}, "bytes": {bytes}, "seconds": {seconds:.3}, "cpu_s": {cpu:.3}, "median_us": {median_us:.1}, "p99_us": {p99_us:.1}}}"#,
        took.len()
    );
}
