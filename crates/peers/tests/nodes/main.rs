//! Several nodes in one process, each with a server of its own on loopback.

#![expect(clippy::unwrap_used, reason = "a failed test ends")]

mod apart;
mod faults;
mod growing;
mod hot;
mod liars;
mod named;
mod strangers;
mod support;

use std::{
    sync::{atomic::Ordering::Relaxed, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use forebay_peers::{BlobId, FetchEnd, Peers, Wanted};
use support::{Item, LONG, TestNode, bytes, fetch, fetch_many, id_of, nodes};

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
    let id = id_of("nothing");
    assert_eq!(fetch(&nodes[0].peers, id, 0..10, &[1]).1, None);
    assert_eq!(fetch(&nodes[0].peers, id, 0..10, &[]).1, None);
    assert_eq!(fetch(&nodes[0].peers, id, 0..10, &[0]).1, None, "a node does not ask itself");
    let beyond = nodes[1].store.put("short", bytes(10), false);
    assert_eq!(fetch(&nodes[0].peers, beyond, 0..11, &[1]).1, None);
    assert_eq!(nodes[0].peers.left_to_source(), 4);
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
    let absent = id_of("nothing");
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
fn what_changes_while_it_is_sent_does_not_count() {
    let nodes = nodes(2);
    for length in [1000, 3_000_000] {
        let id = nodes[1].store.put(&length.to_string(), bytes(length), false);
        nodes[1].store.get(id).is_valid.store(false, Relaxed);
        assert_eq!(fetch(&nodes[0].peers, id, 0..length, &[1]).1, None);
    }
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
        name: None,
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
        name: None,
        id: id_of("x"),
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
