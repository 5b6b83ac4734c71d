//! Objects that a holder makes when it is asked for them by name.

use std::{
    io,
    sync::{Arc, mpsc::channel},
    time::Instant,
};

use forebay_peers::{Blob, BlobName, BlobRequest, Found, Holder, Kind, Peers, Reply, Secret, Server, Wanted};

use crate::support::{LONG, SECRET, listeners, members};

/// Makes each object that is asked for by name: its name, repeated.
#[derive(Debug)]
struct Maker;

impl Holder for Maker {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        reply.send(match request.name {
            Some(name) => Found::Blob(Arc::new(Made(name.name.repeat(100)))),
            None => Found::Absent,
        });
    }
}

#[derive(Debug)]
struct Made(Vec<u8>);

impl Blob for Made {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        room.copy_from_slice(&self.0[offset as usize..][..room.len()]);
        Ok(())
    }
}

#[test]
fn a_name_goes_along_so_that_a_holder_can_make_the_object() {
    let listeners = listeners(2);
    let tables = [members(&listeners, 0, 1), members(&listeners, 1, 1)];
    let secret = Secret::new(SECRET);
    let peers = Peers::start(Kind::Files, &secret, &tables[0]).unwrap();
    let listener = listeners.into_iter().nth(1).unwrap();
    let _server = Server::start(Kind::Files, &secret, &tables[1], listener, Arc::new(Maker)).unwrap();
    let fetch = |name: Option<&BlobName>, id| {
        let (sender, receiver) = channel();
        peers.fetch(Wanted {
            name: name.cloned().map(Arc::new),
            id,
            offset: 0,
            holders: vec![1],
            deadline: Instant::now() + LONG,
            turn: 0,
            is_whole: true,
            digest: None,
            room: Box::new(vec![0; 1 << 20]),
            done: Box::new(move |mut fetched| {
                let came = fetched.from().is_some();
                sender.send(came.then(|| fetched.room.bytes()[..1000].to_vec())).unwrap();
            }),
        });
        receiver.recv_timeout(LONG).expect("a fetch always ends")
    };
    // Any bytes can be in a path, and in a version.
    let every: Vec<u8> = (0..=255).chain(*b"/data set/100% \xC3\xA9.bin").collect();
    let name = BlobName {
        version: every.iter().rev().copied().collect(),
        name: every.clone(),
    };
    let id = name.id(Kind::Files);
    assert_eq!(fetch(Some(&name), id).unwrap(), every.repeat(100)[..1000]);
    assert_eq!(fetch(None, id), None);
    let other = BlobName {
        version: b"2".to_vec(),
        ..name
    };
    assert_eq!(fetch(Some(&other), id), None, "the name is of another object");
}
