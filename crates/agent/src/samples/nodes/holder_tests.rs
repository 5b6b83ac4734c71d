//! Samples in the arena, as the server of this node hands them out: they keep the rules of every holder.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use forebay_peers::conformance::{TestedHolder, conforms};
use zeroize::Zeroizing;

use std::net::TcpListener;

use super::*;
use crate::{
    host::peer_table::{PeerAddress, PeerSecret},
    samples::protocol::tests::alike,
};

/// The sample that this node has.
const SAMPLE: u32 = 5;

/// Starts the only node of a job.
fn only_node() -> PeerNodes {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let table = PeerTable {
        nodes: vec![PeerAddress {
            name: "node".into(),
            address: listener.local_addr().unwrap(),
        }],
        here: 0,
        is_even: true,
        group_max: 0,
        secret: PeerSecret(Zeroizing::new("ab".repeat(32))),
    };
    PeerNodes::start(&table, listener.into(), &alike(), &Arc::new(Doorbell::create().unwrap())).unwrap()
}

#[test]
fn samples_keep_the_rules_of_every_holder() {
    let content: Vec<u8> = (0..600_000_u32).map(|index| (index * 7 + index / 251) as u8).collect();
    let arena = Arc::new(Arena::create(1 << 20, 0).unwrap());
    let mut room = Arena::take(&arena, content.len() as u32, None).unwrap();
    room.bytes_mut().copy_from_slice(&content);
    let place = room.keep();

    let mut nodes = only_node();
    let (inbox, dataset) = (Arc::clone(&nodes.inbox), nodes.dataset);
    let (lent, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        // The role's one thread.
        scope.spawn(|| {
            let mut events = Vec::new();
            while !is_over.load(Relaxed) {
                nodes.collect(&mut events);
                for event in events.drain(..) {
                    match event {
                        MachineEvent::PeerAsked {
                            ticket, sample: SAMPLE, ..
                        } => {
                            lent.fetch_add(1, Relaxed);
                            nodes.serve(&arena, ticket, place);
                        }
                        MachineEvent::PeerAsked { ticket, .. } => nodes.decline(ticket),
                        MachineEvent::PeerReleased { .. } => drop(lent.fetch_sub(1, Relaxed)),
                        other => panic!("{other:?}"),
                    }
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let tested = |absent| {
            conforms(&TestedHolder {
                holder: Arc::clone(&inbox) as Arc<dyn Holder>,
                kind: Kind::Samples,
                object: id_of(dataset, SAMPLE),
                content: &content,
                absent,
                outdated: None,
                names: &[],
                fails: false,
                lent: &|| lent.load(Relaxed),
            })
        };
        let kept = [tested(id_of(dataset, SAMPLE + 1)), tested(id_of(*b"12345678", SAMPLE))];
        is_over.store(true, Relaxed);
        assert_eq!(kept, [Ok(()), Ok(())]);
    });
}
