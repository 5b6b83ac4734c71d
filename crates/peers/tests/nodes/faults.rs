//! Nodes that are gone, stand still, are cut off, or disagree (F40, F43 to F45, P13).

use std::{
    io::{Read, Write},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use forebay_peers::{Blob, BlobId, BlobRequest, Found, Holder, Peers, Reply};
use twox_hash::XxHash3_128;

use crate::support::{
    Bytes, LONG, Relayed, Store, Way, asking, by_hand, bytes, fetch, fetch_within, id_of, listeners, members, nodes, relayed, serving,
    wait_until,
};

/// Time that a fetch may take beyond its deadline, on a busy machine.
const MARGIN: Duration = Duration::from_millis(700);
const SHORT: Duration = Duration::from_millis(400);

/// Returns how long a request to node 1 takes until it is decided: the median of many.
fn decided_in(peers: &Peers, id: BlobId) -> Duration {
    let mut took: Vec<Duration> = (0..31)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(fetch(peers, id, 0..100, &[1]).1, None);
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[took.len() / 2]
}

#[test]
fn f40_a_node_cut_off_one_way_is_waited_for_once() {
    for cut in [Way::ToServer, Way::ToAsker] {
        let is_cut = Arc::new(AtomicU8::new(0));
        let switch = Arc::clone(&is_cut);
        let Relayed { server, store, asker } = relayed(Arc::new(move |way, chunk| {
            if switch.load(Relaxed) == 1 && way == cut {
                chunk.clear();
            }
            true
        }));
        let id = store.put("x", bytes(100), false);
        let peers = asking(&asker);
        assert_eq!(fetch(&peers, id, 0..100, &[1]).1, Some(1));
        is_cut.store(1, Relaxed);
        let began = Instant::now();
        assert_eq!(fetch_within(&peers, id, 0..100, &[1], None, SHORT).1, None);
        assert!(began.elapsed() < SHORT + MARGIN, "{:?}", began.elapsed());
        let decided = decided_in(&peers, id);
        assert!(decided < Duration::from_millis(1), "{decided:?}");
        // The link heals: a probe finds that out, and no request waits for it.
        is_cut.store(0, Relaxed);
        wait_until(|| fetch(&peers, id, 0..100, &[1]).1 == Some(1), "the node was asked again");
        drop(server);
    }
}

#[test]
fn f40_a_node_that_falls_silent_is_not_waited_for_until_the_deadline() {
    let is_cut = Arc::new(AtomicU8::new(0));
    let switch = Arc::clone(&is_cut);
    let Relayed { server, store, asker } = relayed(Arc::new(move |_, chunk| {
        if switch.load(Relaxed) == 1 {
            chunk.clear();
        }
        true
    }));
    let id = store.put("x", bytes(100), false);
    let peers = asking(&asker);
    assert_eq!(fetch(&peers, id, 0..100, &[1]).1, Some(1));
    is_cut.store(1, Relaxed);
    let began = Instant::now();
    assert_eq!(fetch(&peers, id, 0..100, &[1]).1, None);
    // Its usual time at most, and a second in which it takes no connection.
    assert!(began.elapsed() < Duration::from_secs(2) + MARGIN, "{:?}", began.elapsed());
    drop(server);
}

/// A holder that reads a slow source before it answers.
#[derive(Debug)]
struct SlowReader;

impl Holder for SlowReader {
    fn asked(&self, _: BlobRequest, reply: Reply) {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(3500));
            reply.send(Found::Blob(Arc::new(Bytes::new(bytes(100))) as Arc<dyn Blob>));
        });
    }
}

#[test]
fn f40_a_node_that_reads_a_slow_source_is_waited_for() {
    let listeners = listeners(2);
    let (asker, table) = (members(&listeners, 0, 1), members(&listeners, 1, 1));
    let _server = serving(&table, listeners.into_iter().nth(1).unwrap(), Arc::new(SlowReader));
    let peers = asking(&asker);
    // More requests than it takes connections of one node.
    let came = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| fetch(&peers, id_of("x"), 0..100, &[1]).1)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(came, [Some(1); 4]);
}

#[test]
fn f40_a_node_that_nobody_answers_asks_nobody_until_one_does() {
    let listeners = listeners(6);
    let (asker, table) = (members(&listeners, 0, 1), members(&listeners, 1, 1));
    let store = Arc::new(Store::default());
    let id = store.put("x", bytes(100), false);
    let peers = asking(&asker);
    thread::scope(|scope| {
        for node in 1..5 {
            let peers = &peers;
            scope.spawn(move || assert_eq!(fetch(peers, id, 0..100, &[node]).1, None));
        }
    });
    let began = Instant::now();
    assert_eq!(fetch(&peers, id, 0..100, &[5]).1, None);
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
    assert_eq!(peers.totals()[5].failed, 0, "it was not asked");
    let _server = serving(&table, listeners.into_iter().nth(1).unwrap(), store);
    wait_until(|| fetch(&peers, id, 0..100, &[1]).1 == Some(1), "a probe was answered");
}

#[test]
fn f40_a_node_that_is_gone_is_found_out_once() {
    let mut nodes = nodes(3);
    let id = nodes[2].store.put("x", bytes(100), false);
    nodes[1].server = None;
    assert_eq!(fetch(&nodes[0].peers, id, 0..100, &[1, 2]).1, Some(2));
    assert_eq!(nodes[0].peers.totals()[1].failed, 1);
    let decided = decided_in(&nodes[0].peers, id);
    assert!(decided < Duration::from_millis(1), "{decided:?}");
    assert_eq!(fetch(&nodes[0].peers, id, 0..100, &[1, 2]).1, Some(2));
    assert_eq!(nodes[0].peers.totals()[1].failed, 1, "it was not asked again");
}

#[test]
fn f40_a_node_that_stands_still_is_asked_again_when_it_goes_on() {
    let listeners = listeners(2);
    let (asker, table) = (members(&listeners, 0, 1), members(&listeners, 1, 1));
    let store = Arc::new(Store::default());
    let id = store.put("x", bytes(100), false);
    let peers = asking(&asker);
    // The kernel takes connections, and nobody reads them: a process that was stopped is like that.
    let began = Instant::now();
    assert_eq!(fetch(&peers, id, 0..100, &[1]).1, None);
    assert!(began.elapsed() < Duration::from_secs(1) + MARGIN, "{:?}", began.elapsed());
    let decided = decided_in(&peers, id);
    assert!(decided < Duration::from_millis(1), "{decided:?}");
    let _server = serving(&table, listeners.into_iter().nth(1).unwrap(), store);
    wait_until(|| fetch(&peers, id, 0..100, &[1]).1 == Some(1), "the node was asked again");
}

#[test]
fn f40_a_node_that_was_slow_and_answers_a_probe_is_asked_again() {
    let nodes = nodes(2);
    let id = nodes[1].store.put("x", bytes(100), false);
    nodes[1].store.keeps.store(true, Relaxed);
    let silent = id_of("silent");
    let began = Instant::now();
    assert_eq!(fetch_within(&nodes[0].peers, silent, 0..100, &[1], None, SHORT).1, None);
    assert!(began.elapsed() < SHORT + MARGIN, "{:?}", began.elapsed());
    nodes[1].store.keeps.store(false, Relaxed);
    let began = Instant::now();
    wait_until(|| fetch(&nodes[0].peers, id, 0..100, &[1]).1 == Some(1), "the node was asked again");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn f40_a_node_that_stops_reading_holds_no_sample() {
    let nodes = nodes(2);
    let length = 64 << 20;
    let id = nodes[1].store.put("large", bytes(length), false);
    let blob = Arc::downgrade(&nodes[1].store.get(id));
    let mut asker = by_hand(nodes[1].server.as_ref().unwrap().address());
    let members = format!("{:016x}", nodes[1].members.digest());
    let head = format!(
        "GET /1/samples/{id} HTTP/1.1\r\nhost: x\r\nrange: bytes=0-{}\r\nfb-within: 50000\r\nfb-turn: 0\r\nfb-members: {members}\r\n\r\n",
        length - 1
    );
    asker.write_all(head.as_bytes()).unwrap();
    // It reads a piece now and then, for longer than the pause that ends a connection.
    let mut buffer = vec![0; 2 << 20];
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(300));
        asker.read_exact(&mut buffer).unwrap();
    }
    let mut came = 6 * buffer.len();
    assert!(blob.strong_count() >= 2, "it is being sent");
    nodes[1].store.blobs.lock().unwrap().clear();
    assert!(blob.upgrade().is_some(), "the connection alone keeps it");
    // Now it stands still.
    let began = Instant::now();
    wait_until(|| blob.strong_count() == 0, "the object was released");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    while let Ok(length @ 1..) = asker.read(&mut buffer) {
        came += length;
    }
    assert!(came < length, "the connection has ended");
}

#[test]
fn f43_wrong_bytes_are_found_out() {
    let nodes = nodes(3);
    let digest = XxHash3_128::oneshot(&bytes(1000));
    for node in [1, 2] {
        let mut blob = Bytes::new(bytes(1000));
        blob.digests = vec![(0..1000, digest)];
        nodes[node].store.put_blob("x", blob);
    }
    let id = id_of("x");
    // A byte flips in the memory of a holder that knows the digest.
    nodes[1].store.get(id).content.write().unwrap()[500] ^= 4;
    assert_eq!(
        fetch(&nodes[0].peers, id, 0..1000, &[1, 2]),
        (bytes(1000), Some(2)),
        "the holder's own digest differs: another is asked"
    );
    assert_eq!(nodes[0].peers.totals()[1].corrupt, 1);
    // A holder that knows none sends that of the bytes it has: the asker's own digest counts.
    let plain = id_of("plain");
    let mut altered = bytes(1000);
    altered[7] ^= 1;
    nodes[1].store.put("plain", altered, false);
    assert_eq!(fetch_within(&nodes[0].peers, plain, 0..1000, &[1], Some(digest), LONG).1, None);
    assert_eq!(nodes[0].peers.totals()[1].corrupt, 2);
}

#[test]
fn f43_a_flipped_byte_of_a_large_piece_is_found_out() {
    const PIECE: usize = 4 << 20;
    let nodes = nodes(3);
    let all = bytes(2 * PIECE);
    let digests: Vec<_> = [0..PIECE, PIECE..2 * PIECE]
        .into_iter()
        .map(|range| (range.start as u64..range.end as u64, XxHash3_128::oneshot(&all[range])))
        .collect();
    for node in [1, 2] {
        let mut blob = Bytes::new(all.clone());
        blob.digests.clone_from(&digests);
        nodes[node].store.put_blob("x", blob);
    }
    let id = id_of("x");
    nodes[1].store.get(id).content.write().unwrap()[PIECE + 77] ^= 128;
    let peers = &nodes[0].peers;
    assert_eq!(
        fetch(peers, id, 0..PIECE, &[1, 2]),
        (all[..PIECE].to_vec(), Some(1)),
        "this piece is sound"
    );
    assert_eq!(fetch(peers, id, PIECE..2 * PIECE, &[1, 2]), (all[PIECE..].to_vec(), Some(2)));
    assert_eq!((peers.totals()[1].corrupt, peers.totals()[2].corrupt), (1, 0));
}

/// A holder that counts how many reads of its source are under way.
#[derive(Debug, Default)]
struct Counting {
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Holder for Counting {
    fn asked(&self, _: BlobRequest, reply: Reply) {
        let (under_way, most) = (Arc::clone(&self.under_way), Arc::clone(&self.most));
        most.fetch_max(under_way.fetch_add(1, Relaxed) + 1, Relaxed);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            under_way.fetch_sub(1, Relaxed);
            reply.send(Found::Blob(Arc::new(Bytes::new(bytes(1000))) as Arc<dyn Blob>));
        });
    }
}

#[test]
fn f44_all_ask_one_owner_and_it_does_a_bounded_number_of_reads() {
    let listeners = listeners(9);
    let tables: Vec<_> = (0..9).map(|here| members(&listeners, here, 1)).collect();
    let holder = Arc::new(Counting::default());
    let most = Arc::clone(&holder.most);
    let server = serving(&tables[8], listeners.into_iter().nth(8).unwrap(), holder);
    let from_owner: usize = thread::scope(|scope| {
        let askers: Vec<_> = tables[..8]
            .iter()
            .map(|table| {
                scope.spawn(move || {
                    let peers = asking(table);
                    let came = thread::scope(|scope| {
                        let threads: Vec<_> = (0..8)
                            .map(|_| scope.spawn(|| (0..10).filter(|_| fetch(&peers, id_of("hot"), 0..1000, &[8]).1.is_some()).count()))
                            .collect();
                        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
                    });
                    assert_eq!(peers.totals()[8].failed, 0, "busy is not dead");
                    came
                })
            })
            .collect();
        askers.into_iter().map(|asker| asker.join().unwrap()).sum()
    });
    assert_eq!(from_owner, 8 * 8 * 10);
    assert!(most.load(Relaxed) <= 16, "{most:?}");
    assert_eq!(server.served().ranges.load(Relaxed), 640);
}

#[test]
fn f45_nodes_with_other_tables_do_not_serve_each_other() {
    let listeners = listeners(2);
    let store = Arc::new(Store::default());
    let id = store.put("x", bytes(100), false);
    let (asker, table) = (members(&listeners, 0, 1), members(&listeners, 1, 2));
    let listener = listeners.into_iter().nth(1).unwrap();
    let server = serving(&table, listener, store);
    let peers = asking(&asker);
    assert_eq!(fetch(&peers, id, 0..100, &[1]).1, None);
    let decided = decided_in(&peers, id);
    assert!(decided < Duration::from_millis(1), "{decided:?}");
    let refused = server.served().other_members.load(Relaxed);
    assert!((1..4).contains(&refused), "a request and a probe or two: {refused}");
}
