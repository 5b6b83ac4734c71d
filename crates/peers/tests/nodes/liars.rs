//! Nodes of the job that say nonsense, as a faulty one might, and links that alter what they carry (F41).

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use forebay_peers::{Peers, Secret};
use rustls::{ServerConnection, StreamOwned};

use crate::support::{
    Relayed, SECRET, Store, TestDraw, asking, by_hand, bytes, fetch_many, fetch_within, id_of, listeners, members, memory_bytes, nodes,
    relayed,
};

const WITHIN: Duration = Duration::from_secs(2);
/// An answer without an end is given up by then.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// Answers one request of each connection, as node 1 of two, and returns node 0.
fn liar(answer: impl Fn(&mut dyn Write) + Send + Sync + 'static) -> Peers {
    let listeners = listeners(2);
    let asker = members(&listeners, 0, 1);
    let listener: TcpListener = listeners.into_iter().nth(1).unwrap();
    let (server, _) = Secret::new(SECRET).bare_configs().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, server, answer): (TcpStream, _, _) = (stream.unwrap(), Arc::clone(&server), Arc::clone(&answer));
            thread::spawn(move || {
                let mut secured = StreamOwned::new(ServerConnection::new(server).unwrap(), stream);
                let mut head = Vec::new();
                let mut byte = [0; 1];
                while !head.ends_with(b"\r\n\r\n") && secured.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                answer(&mut secured);
                secured.conn.send_close_notify();
                let _ = secured.flush();
            });
        }
    });
    asking(&asker)
}

const GOOD: &str = "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-99/100\r\n";

#[test]
fn f41_answers_that_are_too_long_short_or_nonsense_are_not_taken() {
    let digest = "fb-digest: 00000000000000000000000000000001\r\n";
    let answers = [
        ("truncated", format!("{GOOD}content-length: 100\r\n\r\n"), 50),
        ("longer than its range", format!("{GOOD}content-length: 200\r\n\r\n"), 200),
        ("shorter than its range", format!("{GOOD}content-length: 60\r\n\r\n"), 60),
        (
            "a length beyond all bounds",
            format!("{GOOD}content-length: 18446744073709551615\r\n\r\n"),
            500,
        ),
        (
            "two lengths",
            format!("{GOOD}content-length: 100\r\ncontent-length: 50\r\n\r\n"),
            100,
        ),
        (
            "another range",
            "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 1-100/200\r\ncontent-length: 100\r\n\r\n".into(),
            100,
        ),
        (
            "a range beyond all bounds",
            "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-18446744073709551615/9\r\ncontent-length: 100\r\n\r\n".into(),
            100,
        ),
        (
            "no range",
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 100\r\n\r\n".into(),
            100,
        ),
        ("all of it", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n".into(), 100),
        ("another digest", format!("{GOOD}{digest}content-length: 100\r\n\r\n"), 100),
        ("another version", "HTTP/9.9 206 Partial Content\r\n\r\n".into(), 100),
        ("no head at all", String::new(), 1000),
        ("nothing", String::new(), 0),
    ];
    for (what, head, length) in answers {
        let peers = liar(move |to| {
            let _ = to.write_all(head.as_bytes()).and_then(|()| to.write_all(&bytes(length)));
        });
        let began = Instant::now();
        let (_, from) = fetch_within(&peers, id_of("x"), 0..100, &[1], None, WITHIN);
        assert_eq!(from, None, "{what}");
        assert!(began.elapsed() < GIVEN_UP, "{what}: {:?}", began.elapsed());
        let came = fetch_many(&peers, vec![(id_of("x"), 0, Box::new(vec![0; 100]))], true);
        assert!(came.iter().all(|(_, came)| !came), "{what}, for many");
    }
}

#[test]
fn f41_answers_without_an_end_are_given_up() {
    for head in [
        format!("{GOOD}transfer-encoding: chunked\r\n\r\n"),
        // A head that goes on and on.
        GOOD.to_owned(),
    ] {
        let written = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&written);
        let peers = liar(move |to| {
            let line = if head.contains("chunked") {
                format!("1000\r\n{}\r\n", "x".repeat(0x1000))
            } else {
                format!("x-{}: {}\r\n", counter.load(Relaxed), "x".repeat(0x1000))
            };
            let _ = to.write_all(head.as_bytes());
            while to.write_all(line.as_bytes()).is_ok() && counter.load(Relaxed) < 1 << 30 {
                counter.fetch_add(line.len() as u64, Relaxed);
            }
        });
        let began = Instant::now();
        assert_eq!(fetch_within(&peers, id_of("x"), 0..100, &[1], None, WITHIN).1, None);
        assert!(began.elapsed() < GIVEN_UP, "{:?}", began.elapsed());
        assert!(written.load(Relaxed) < 64 << 20, "the connection was closed: {written:?} bytes");
    }
}

/// TLS finds out whatever a link does to a record: no byte of it is taken.
#[test]
fn f41_what_a_link_alters_loses_drops_or_doubles_is_not_taken() {
    let place = Arc::new(AtomicU64::new(0));
    let way = Arc::new(AtomicU64::new(0));
    let (counted, kind) = (Arc::clone(&place), Arc::clone(&way));
    let Relayed { server, store, asker } = relayed(Arc::new(move |_, chunk| {
        // The chunk that holds the place is altered.
        let at = counted.load(Relaxed);
        if at >= chunk.len() as u64 {
            counted.store(at - chunk.len() as u64, Relaxed);
            return true;
        }
        counted.store(u64::MAX, Relaxed);
        let at = at as usize;
        match kind.load(Relaxed) {
            0 => chunk[at] ^= 0x10,
            1 => drop(chunk.remove(at)),
            2 => chunk.truncate(at),
            3 => chunk.extend_from_within(at..),
            4 => chunk[at..].reverse(),
            _ => return false,
        }
        true
    }));
    let id = store.put("x", bytes(20_000), false);
    let mut draw = TestDraw(1);
    let mut came = 0;
    for round in 0..60 {
        way.store(round % 6, Relaxed);
        place.store(draw.below(24_000) as u64, Relaxed);
        let (bytes_of, from) = fetch_within(&asking(&asker), id, 0..20_000, &[1], None, Duration::from_millis(800));
        came += u32::from(from.is_some());
        assert!(from.is_none() || bytes_of == bytes(20_000), "round {round}");
    }
    assert!(came < 20, "most rounds altered something: {came}");
    place.store(u64::MAX, Relaxed);
    assert_eq!(
        fetch_within(&asking(&asker), id, 0..20_000, &[1], None, WITHIN).1,
        Some(1),
        "the server lives on"
    );
    drop(server);
}

#[test]
fn f42_a_node_that_sends_fuzzed_heads_is_refused_and_harms_nobody() {
    let nodes = nodes(2);
    let store: &Store = &nodes[1].store;
    let id = store.put("x", bytes(100), false);
    let address = nodes[1].server.as_ref().unwrap().address();
    let members = format!("{:016x}", nodes[1].members.digest());
    let good = format!(
        "GET /1/samples/{id} HTTP/1.1\r\nhost: x\r\nrange: bytes=0-99\r\nfb-within: 1000\r\nfb-turn: 1\r\nfb-members: {members}\r\n\r\n"
    );
    let mut draw = TestDraw(3);
    let before = memory_bytes("VmRSS");
    for _ in 0..40 {
        let mut asker = by_hand(address);
        asker.sock.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut words = Vec::new();
        for _ in 0..50 {
            let mut head = good.clone().into_bytes();
            for _ in 0..=draw.below(3) {
                let at = draw.below(head.len());
                match draw.below(4) {
                    0 => head[at] = draw.below(256) as u8,
                    1 => drop(head.remove(at)),
                    2 => head.extend_from_within(at..),
                    _ => drop(head.splice(at..at, (0..draw.below(300)).map(|byte| byte as u8))),
                }
            }
            words.extend_from_slice(&head);
        }
        let _ = asker.write_all(&words);
        let _ = asker.read(&mut [0; 4096]);
    }
    let grown = memory_bytes("VmRSS").saturating_sub(before);
    assert!(grown < 64 << 20, "grown by {grown} bytes");
    assert_eq!(
        fetch_within(&nodes[0].peers, id, 0..100, &[1], None, WITHIN).1,
        Some(1),
        "others are served"
    );
}
