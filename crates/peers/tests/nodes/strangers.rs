//! Strangers: processes without the job's secret, or with that of another job or time (F42, S8).

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use forebay_peers::{BlobId, Kind, Members, Peers, Secret, Server};

use crate::support::{LONG, Relayed, SECRET, Store, Way, asking, bytes, fetch, listeners, members, relayed, serving, wait_until};

const ANOTHER_SECRET: [u8; 32] = [8; 32];

struct Lone {
    server: Server,
    id: BlobId,
    asker: Members,
}

/// Node 1 of two, with an object of 100 bytes.
fn node_alone() -> Lone {
    let listeners = listeners(2);
    let (table, asker) = (members(&listeners, 1, 1), members(&listeners, 0, 1));
    let store = Arc::new(Store::default());
    let id = store.put("secret", bytes(100), false);
    let server = serving(&table, listeners.into_iter().nth(1).unwrap(), store);
    Lone { server, id, asker }
}

/// Says something to a server, and returns its answer up to the end of the connection.
fn say(address: SocketAddr, words: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(words).unwrap();
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    said
}

#[test]
fn f42_strangers_are_refused_before_anything_is_parsed() {
    let Lone { server, id, asker } = node_alone();
    // Another job's secret, and the right secret for another kind of server.
    let wrong = Peers::start(Kind::Samples, &Secret::new(ANOTHER_SECRET), &asker).unwrap();
    assert_eq!(fetch(&wrong, id, 0..100, &[1]).1, None);
    let wrong = Peers::start(Kind::Files, &Secret::new(SECRET), &asker).unwrap();
    assert_eq!(fetch(&wrong, id, 0..100, &[1]).1, None);
    // Nobody who speaks plainly: a TLS alert of seven bytes at most comes back.
    let plain = format!("GET /1/samples/{id} HTTP/1.1\r\nhost: x\r\nrange: bytes=0-9\r\n\r\n");
    let said = say(server.address(), plain.as_bytes());
    assert!(said.len() <= 7, "{said:?}");
    let right = asking(&asker);
    assert_eq!(
        fetch(&right, id, 0..100, &[1]),
        (bytes(100), Some(1)),
        "who belongs to the job is served all the same"
    );
    // Each stranger tried again with a probe.
    assert!(server.served().strangers.load(Relaxed) >= 3);
    assert_eq!(server.served().bad.load(Relaxed), 0, "no head of theirs was read");
    assert_eq!(server.served().ranges.load(Relaxed), 1);
}

#[test]
fn s8_a_server_says_nothing_first() {
    let Lone { server, .. } = node_alone();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(stream.read(&mut [0; 100]).is_err(), "it said something, or hung up");
    assert!(server.address().port() >= 1024, "a port of the kernel's choice");
}

#[test]
fn f42_a_secret_of_an_earlier_time_is_one_of_another_job() {
    let listeners = listeners(2);
    let (table, asker) = (members(&listeners, 1, 1), members(&listeners, 0, 1));
    let store = Arc::new(Store::default());
    let id = store.put("x", bytes(100), false);
    let listener = listeners.into_iter().nth(1).unwrap();
    let start = |secret: [u8; 32]| {
        let (listener, store) = (listener.try_clone().unwrap(), Arc::clone(&store));
        Server::start(Kind::Samples, &Secret::new(secret), &table, listener, store).unwrap()
    };
    let old = Peers::start(Kind::Samples, &Secret::new(ANOTHER_SECRET), &asker).unwrap();
    let server = start(ANOTHER_SECRET);
    assert_eq!(fetch(&old, id, 0..100, &[1]).1, Some(1));
    // The job starts again: the same nodes, addresses and ports, and a new secret. The old connection has ended.
    drop(server);
    let server = start(SECRET);
    assert_eq!(fetch(&old, id, 0..100, &[1]).1, None);
    assert_eq!(fetch(&asking(&asker), id, 0..100, &[1]).1, Some(1));
    assert_eq!(server.served().ranges.load(Relaxed), 1);
}

#[test]
fn f42_a_port_that_somebody_else_has_taken_over_serves_nobody() {
    for (secret, place) in [(SECRET, 2), (ANOTHER_SECRET, 1)] {
        let listeners = listeners(3);
        let store = Arc::new(Store::default());
        let id = store.put("x", bytes(100), false);
        // Another node of the job sits at the address of node 1, or that node of another job does.
        let impostor = members(&listeners, place, 1);
        let asker = members(&listeners, 0, 1);
        let listener = listeners.into_iter().nth(1).unwrap();
        let server = Server::start(Kind::Samples, &Secret::new(secret), &impostor, listener, store).unwrap();
        assert_eq!(fetch(&asking(&asker), id, 0..100, &[1]).1, None);
        assert_eq!(server.served().ranges.load(Relaxed), 0, "nor does it learn what was wanted");
    }
}

#[test]
fn f42_a_recorded_conversation_says_nothing_when_it_is_played_again() {
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&recorded);
    let Relayed { server, store, asker } = relayed(Arc::new(move |way, chunk| {
        if way == Way::ToServer {
            recorder.lock().unwrap().extend_from_slice(chunk);
        }
        true
    }));
    let id = store.put("x", bytes(100), false);
    assert_eq!(fetch(&asking(&asker), id, 0..100, &[1]).1, Some(1));
    let said = say(server.address(), &recorded.lock().unwrap());
    assert!(!said.is_empty(), "the handshake began");
    wait_until(|| server.served().strangers.load(Relaxed) == 1, "the stranger was counted");
    assert_eq!(server.served().ranges.load(Relaxed), 1, "the request was not read again");
}
