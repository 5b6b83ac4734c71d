//! An object that its holder is still making: a request for a part that is not there yet waits.

use std::{
    io,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use forebay_peers::{Blob, BlobName, BlobRequest, FetchEnd, Found, Holder, Kind, Peers, Reply, Secret, Server, Wanted};

use crate::support::{LONG, SECRET, bytes, listeners, members};

const PIECE: usize = 4 << 20;
/// Attempts at what a busy machine may delay.
const TRIES: usize = 3;

/// The first piece of an object of two.
#[derive(Debug)]
struct Growing(Vec<u8>);

impl Blob for Growing {
    fn length(&self) -> u64 {
        2 * PIECE as u64
    }

    fn available(&self) -> u64 {
        PIECE as u64
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        // 32 MB/s: long enough that requests meet.
        thread::sleep(Duration::from_millis(4));
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        room.copy_from_slice(&self.0[offset..][..room.len()]);
        Ok(())
    }

    fn may_wait(&self) -> bool {
        true
    }
}

/// A node that keeps requests until it has the piece, or says that it is busy until then.
#[derive(Debug)]
struct Maker {
    keeps: bool,
    kept: Mutex<Vec<Reply>>,
    piece: Mutex<Option<Arc<Growing>>>,
}

impl Holder for Maker {
    fn asked(&self, _: BlobRequest, reply: Reply) {
        match (&*self.piece.lock().unwrap(), self.keeps) {
            (Some(piece), _) => reply.send(Found::Blob(Arc::clone(piece) as Arc<dyn Blob>)),
            (None, true) => self.kept.lock().unwrap().push(reply),
            (None, false) => reply.send(Found::Busy),
        }
    }
}

fn fetch(peers: &Peers, maker: &Maker) -> (FetchEnd, u64) {
    let (sender, receiver) = channel();
    let name = BlobName {
        name: b"/data/weights".to_vec(),
        version: b"1".to_vec(),
    };
    peers.fetch(Wanted {
        id: name.id(Kind::Files),
        name: Some(Arc::new(name)),
        offset: 0,
        holders: vec![0],
        deadline: Instant::now() + LONG,
        turn: 0,
        is_whole: false,
        digest: None,
        room: Box::new(vec![0; PIECE]),
        done: Box::new(move |fetched| sender.send(fetched).unwrap()),
    });
    let mut fetched = receiver.recv().unwrap();
    *maker.piece.lock().unwrap() = Some(Arc::new(Growing(fetched.room.bytes().to_vec())));
    (fetched.end, fetched.has)
}

/// Has two nodes wait for a piece of a third. Returns how often that one has sent the piece.
fn times_sent_by_owner() -> u64 {
    let listeners = listeners(3);
    let secret = Secret::new(SECRET);
    let makers: Vec<Arc<Maker>> = (0..3)
        .map(|number| {
            Arc::new(Maker {
                keeps: number == 0,
                kept: Mutex::default(),
                piece: Mutex::default(),
            })
        })
        .collect();
    let tables: Vec<_> = (0..3).map(|here| members(&listeners, here, 1)).collect();
    let start = |(number, listener): (usize, _)| {
        let holder = Arc::clone(&makers[number]) as Arc<dyn Holder>;
        let server = Server::start(Kind::Files, &secret, &tables[number], listener, holder).unwrap();
        (server, Peers::start(Kind::Files, &secret, &tables[number]).unwrap())
    };
    let nodes: Vec<(Server, Peers)> = listeners.into_iter().enumerate().map(start).collect();
    let content = bytes(PIECE);
    thread::scope(|scope| {
        let waiting = [1, 2].map(|number: usize| {
            let (peers, maker) = (&nodes[number].1, &makers[number]);
            scope.spawn(move || fetch(peers, maker))
        });
        while makers[0].kept.lock().unwrap().len() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        let piece = Arc::new(Growing(content.clone()));
        *makers[0].piece.lock().unwrap() = Some(Arc::clone(&piece));
        for reply in makers[0].kept.lock().unwrap().drain(..) {
            reply.send(Found::Blob(Arc::clone(&piece) as Arc<dyn Blob>));
        }
        for waits in waiting {
            let (end, has) = waits.join().unwrap();
            assert!(matches!(end, FetchEnd::Came { .. }), "{end:?}");
            assert_eq!(has, PIECE as u64, "the holder says how much of the object it has");
        }
    });
    let has_content = |maker: &Arc<Maker>| maker.piece.lock().unwrap().as_ref().is_some_and(|piece| piece.0 == content);
    assert!(makers.iter().all(has_content));
    nodes[0].0.served().ranges.load(Relaxed)
}

#[test]
fn f44_of_nodes_that_wait_for_a_piece_the_owner_serves_one_and_that_one_the_others() {
    let times: Vec<u64> = (0..TRIES).map(|_| times_sent_by_owner()).collect();
    assert!(times.contains(&1), "the owner has sent the piece so many times: {times:?}");
}
