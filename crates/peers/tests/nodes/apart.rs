//! Requests that are admitted apart: they never wait behind requests that wait for other nodes.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use forebay_peers::Wanted;

use crate::support::{bytes, fetch_within, id_of, nodes, wait_until};

/// Answers of a server at a time, and connections of a node to it.
const ANSWERS: usize = 16;
const CONNECTIONS: usize = 4;
/// Time for which the holder is waited for.
const HELD: Duration = Duration::from_secs(6);

#[test]
fn a_node_that_is_admitted_apart_does_not_wait_behind_those_that_are_not() {
    let nodes = nodes(2 + ANSWERS / CONNECTIONS);
    let (asker, server) = (&nodes[0], &nodes[1]);
    let content = bytes(1000);
    let id = server.store.put("here", content.clone(), false);
    server.store.keeps.store(true, Relaxed);
    for node in &nodes[2..] {
        for number in 0..CONNECTIONS {
            node.peers.fetch(Wanted {
                name: None,
                id: id_of(&format!("lacking {number}")),
                offset: 0,
                holders: vec![1],
                deadline: Instant::now() + HELD,
                turn: 0,
                is_whole: false,
                digest: None,
                room: Box::new(vec![0; 10]),
                done: Box::new(|_| ()),
            });
        }
    }
    wait_until(|| server.store.kept() == ANSWERS, "all places are taken");
    // A probe asks for what nobody has, and is to be answered.
    server.store.keeps.store(false, Relaxed);
    let taken = Instant::now();
    let ask = || fetch_within(&asker.peers, id, 0..1000, &[1], None, HELD / 10);
    assert_eq!(ask().1, None, "it waits for a place");
    *server.store.apart.lock().unwrap() = Some(0);
    // A node that was late may be suspected for a moment.
    wait_until(|| ask() == (content.clone(), Some(1)), "it is answered");
    assert!(taken.elapsed() < HELD, "the places were still taken");
}
