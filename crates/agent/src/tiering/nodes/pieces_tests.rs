//! Whatever nodes give each other in whatever order, and whatever fails meanwhile: no copy is published whose bytes are
//! not those of its version.

use std::{
    ops::Range,
    sync::{Arc, mpsc::channel},
};

use forebay_contract::Identity;
use forebay_peers::Blob;
use forebay_policy::Space;
use forebay_store::{
    BootId, CopySource, CopyWriter, Finished, Secret, StatFrom, StoreError, Tier,
    disk::{Disk, MemoryDisk, Name, write_all_at},
    testing::MemorySource,
};
use proptest::prelude::*;

use super::{
    blob::CopyBlob,
    partial::{PartialCopy, PieceDigests, PieceGrid, digest_of},
    pulled::PulledCopy,
};

const PIECE: u64 = 90_000;
const BYTES: u64 = 4 * PIECE + 12_345;
const GRID: PieceGrid = PieceGrid {
    size: BYTES,
    piece_bytes: PIECE,
};
const ASKERS: usize = 3;
/// Longest buffer of a copy: pieces are not multiples of it.
const BUFFER: usize = 7000;

fn content(seed: u64) -> Vec<u8> {
    (0..BYTES).map(|at| (at * at + seed * 7919 + at / 251) as u8).collect()
}

/// A node and its copy, made or being made.
struct Node {
    disk: Arc<MemoryDisk>,
    tier: Arc<Tier>,
    copy: u64,
    partial: Arc<PartialCopy>,
    /// The digest, once the copy is published.
    published: Option<u128>,
    is_gone: bool,
    /// True if its disk has changed bytes behind its back.
    is_damaged: bool,
}

impl Node {
    fn new() -> Self {
        let disk = Arc::new(MemoryDisk::new(64 << 20, 1000));
        let quota = Space {
            bytes: 1 << 30,
            inodes: 1 << 20,
        };
        let secret = Secret::from_bytes([7; 32]);
        let tier = Tier::open_on(disk.clone(), "/tier".into(), quota, &secret, BootId([1; 16])).unwrap();
        Self {
            copy: tier.next_id(),
            tier: Arc::new(tier),
            disk,
            partial: Arc::new(PartialCopy::new(GRID, Box::new(|| ()))),
            published: None,
            is_gone: false,
            is_damaged: false,
        }
    }

    /// Returns the bytes of a piece as another node gets them: with their digest, from a copy that is not void.
    fn serve(&self, range: &Range<u64>) -> Option<(Vec<u8>, u64)> {
        if self.is_gone || (self.published.is_none() && !self.partial.has(range)) {
            return None;
        }
        let blob = CopyBlob {
            file: self.tier.open_copy(self.copy).ok()?,
            bytes: BYTES,
            digest: self.published,
            pieces: Some(Arc::clone(&self.partial)),
        };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        blob.read(range.start, &mut bytes).ok()?;
        let is_right = blob.digest(range) == Some(digest_of(&bytes));
        (is_right && blob.is_valid(range)).then(|| (bytes, blob.available()))
    }

    /// Takes the end of a copy, as the event loop does.
    fn end(&mut self, finished: &Result<Option<Finished>, StoreError>) {
        match finished {
            Ok(Some(finished)) => self.published = Some(finished.checksum),
            Ok(None) | Err(_) => self.partial.make_void(),
        }
    }

    /// Has the tier lose a bit of the copy.
    fn damage(&mut self, at: u64) {
        let Ok(file) = self.disk.open_write(Name::Object(self.copy)) else {
            return;
        };
        let mut byte = [0];
        if file.read_at(&mut byte, at).is_ok_and(|read| read == 1) && write_all_at(&*file, &[byte[0] ^ 4], at).is_ok() {
            self.is_damaged = true;
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let file = self.tier.open_copy(self.copy).unwrap();
        let mut bytes = vec![0; BYTES as usize];
        assert_eq!(forebay_store::disk::read_full_at(&*file, &mut bytes, 0), Ok(bytes.len()));
        bytes
    }
}

/// A copy that a node makes from its source.
struct Reading {
    writer: CopyWriter,
    digests: PieceDigests,
}

impl Reading {
    fn begin(node: &Node, identity: &Identity) -> Self {
        Self {
            writer: node.tier.begin(node.copy, identity).unwrap(),
            digests: PieceDigests::new(Arc::clone(&node.partial)),
        }
    }
}

/// Nodes that want one file: the first owns the file, and the second takes over from it.
struct FileSwarm {
    version: Identity,
    /// The file as the owner and its substitute see it.
    source: MemorySource,
    /// The file as the others see it, whose attributes may be old: they never see it change.
    seen: MemorySource,
    nodes: Vec<Node>,
    reading: [Option<Reading>; 2],
    pulls: Vec<Option<PulledCopy>>,
}

impl FileSwarm {
    fn new() -> Self {
        let (source, seen) = (MemorySource::new(9, &content(0)), MemorySource::new(9, &content(0)));
        let version = seen.identity();
        let nodes: Vec<Node> = (0..=ASKERS).map(|_| Node::new()).collect();
        let pulls = nodes
            .iter()
            .enumerate()
            .map(|(number, node)| (number > 0).then(|| pull(number, node, version)));
        Self {
            reading: [Some(Reading::begin(&nodes[0], &version)), None],
            pulls: pulls.collect(),
            version,
            source,
            seen,
            nodes,
        }
    }

    /// Has a node that reads the source go on by some bytes, or end.
    fn read(&mut self, number: usize, bytes: u64) {
        let node = &mut self.nodes[number];
        let Some(mut reading) = self.reading[number].take().filter(|_| !node.is_gone) else {
            return;
        };
        if reading.writer.is_complete() {
            return node.end(&reading.writer.finish(&self.source, StatFrom::Server).map(Some));
        }
        let upto = reading.writer.copied() + bytes;
        match reading.digests.advance(&mut reading.writer, &self.source, upto, &mut [0; BUFFER]) {
            Ok(_) => self.reading[number] = Some(reading),
            Err(error) => node.end(&Err(error)),
        }
    }

    /// Has a node that pulls the file ask another one for a piece, or end.
    fn pull(&mut self, number: usize, from: usize) {
        let Some(mut pulled) = self.pulls[number].take().filter(|_| !self.nodes[number].is_gone) else {
            return;
        };
        if pulled.is_complete() {
            // The owner, and if that is silent its substitute.
            let confirms = |digest| self.nodes[..2].iter().any(|node| !node.is_gone && node.published == Some(digest));
            let is_pending = self.nodes[0].published.is_none() && self.reading[0].is_some() && !self.nodes[0].is_gone;
            if is_pending {
                self.pulls[number] = Some(pulled);
                return;
            }
            let finished = pulled.finish(&self.seen, StatFrom::Server, confirms);
            return self.nodes[number].end(&finished);
        }
        let Some((piece, range)) = pulled.ask() else { return };
        match self.nodes[from].serve(&range) {
            Some((bytes, has)) if from != number => {
                let has = if from < 2 { has } else { 0 };
                pulled.take(piece, &bytes, has, &mut [0; BUFFER]).unwrap();
            }
            _ => pulled.lost(piece),
        }
        self.pulls[number] = Some(pulled);
    }

    /// Has the owner end, and its substitute read the source in its place.
    fn lose_owner(&mut self) {
        self.nodes[0].is_gone = true;
        let node = &mut self.nodes[1];
        if self.pulls[1].take().is_none() || self.source.identity() != self.version {
            return;
        }
        node.partial.make_void();
        node.partial = Arc::new(PartialCopy::new(GRID, Box::new(|| ())));
        node.copy = node.tier.next_id();
        self.reading[1] = Some(Reading::begin(node, &self.version));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Read(number, bytes) => self.read(usize::from(number % 2), bytes),
            Action::Pull(number, from) => self.pull(1 + usize::from(number) % ASKERS, usize::from(from) % self.nodes.len()),
            Action::Change(seed) => self.source.change(&content(u64::from(seed) + 1), BYTES),
            Action::Damage(number, at) => self.nodes[1 + usize::from(number) % ASKERS].damage(at % BYTES),
            Action::LoseOwner => self.lose_owner(),
        }
    }

    /// Has all nodes that are left come to an end.
    fn end(&mut self) {
        for round in 0..200 {
            for number in 0..2 {
                self.read(number, PIECE);
            }
            for number in 1..=ASKERS {
                self.pull(number, round % (ASKERS + 1));
            }
        }
    }

    fn published(&self) -> usize {
        self.nodes.iter().filter(|node| node.published.is_some()).count()
    }
}

fn pull(number: usize, node: &Node, version: Identity) -> PulledCopy {
    let order = (GRID, (number as u16, ASKERS as u16 + 1));
    PulledCopy::new(
        (Arc::clone(&node.tier), node.copy),
        version,
        false,
        Some(Arc::clone(&node.partial)),
        order,
    )
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A node with a source of its own reads so many bytes.
    Read(u8, u64),
    /// A node asks another for a piece.
    Pull(u8, u8),
    /// A program writes the file.
    Change(u8),
    /// A bit of a node's copy is lost.
    Damage(u8, u64),
    /// The owner ends.
    LoseOwner,
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        20 => (any::<u8>(), 1..2 * PIECE).prop_map(|(number, bytes)| Action::Read(number, bytes)),
        60 => (any::<u8>(), any::<u8>()).prop_map(|(number, from)| Action::Pull(number, from)),
        1 => any::<u8>().prop_map(Action::Change),
        2 => (any::<u8>(), any::<u64>()).prop_map(|(number, at)| Action::Damage(number, at)),
        1 => Just(Action::LoseOwner),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn p13_no_byte_of_another_version_is_published(actions in prop::collection::vec(actions(), 0..120)) {
        let mut swarm = FileSwarm::new();
        for action in actions {
            swarm.act(action);
        }
        swarm.end();
        for node in swarm.nodes.iter().filter(|node| node.published.is_some() && !node.is_damaged) {
            prop_assert!(node.bytes() == content(0));
            prop_assert_eq!(node.published, Some(digest_of(&content(0))));
        }
    }
}

#[test]
fn all_nodes_publish_a_file_that_does_not_change() {
    let mut swarm = FileSwarm::new();
    swarm.end();
    assert_eq!(swarm.published(), ASKERS + 1);
}

#[test]
fn p13_of_a_file_that_changes_while_its_owner_reads_it_nothing_is_published() {
    let mut swarm = FileSwarm::new();
    swarm.read(0, 2 * PIECE);
    swarm.pull(1, 0);
    swarm.source.change(&content(1), BYTES);
    swarm.end();
    assert_eq!(swarm.published(), 0, "the others still see the old times, and have all pieces");
}

#[test]
fn f40_the_substitute_reads_a_file_once_for_all_whose_owner_has_ended_half_way() {
    let mut swarm = FileSwarm::new();
    for _ in 0..2 {
        swarm.read(0, PIECE);
        (1..=ASKERS).for_each(|number| swarm.pull(number, 0));
    }
    swarm.lose_owner();
    swarm.end();
    assert_eq!(swarm.published(), ASKERS);
    assert!((1..=ASKERS).all(|number| swarm.nodes[number].bytes() == content(0)));
}

#[test]
fn f45_a_piece_that_was_damaged_at_a_second_holder_is_not_taken_from_it() {
    let mut swarm = FileSwarm::new();
    swarm.read(0, PIECE);
    swarm.pull(1, 0);
    let piece = GRID.range(0);
    assert!(swarm.nodes[1].serve(&piece).is_some());
    swarm.nodes[1].damage(1000);
    assert!(swarm.nodes[1].serve(&piece).is_none() && swarm.nodes[0].serve(&piece).is_some());
}

#[test]
fn a_piece_counts_once_it_is_in_the_tier_and_whoever_waits_for_it_is_told_once() {
    let (sender, told) = channel();
    let mut node = Node::new();
    let tell = move || sender.send(()).unwrap();
    node.partial = Arc::new(PartialCopy::new(GRID, Box::new(tell)));
    let source = MemorySource::new(9, &content(0));
    let mut reading = Reading::begin(&node, &source.identity());
    let mut read = |upto| {
        reading
            .digests
            .advance(&mut reading.writer, &source as &dyn CopySource, upto, &mut [0; BUFFER])
            .unwrap()
    };
    node.partial.await_piece();
    read(PIECE - 1);
    assert!(told.try_recv().is_err() && !node.partial.has(&(0..PIECE)));
    read(3 * PIECE);
    assert_eq!(told.try_recv(), Ok(()));
    assert!(told.try_recv().is_err(), "nobody waits any more");
    assert!(node.partial.has(&(0..PIECE)) && node.partial.has(&(10..3 * PIECE)) && !node.partial.has(&(0..3 * PIECE + 1)));
    assert_eq!(node.partial.available(), 3 * PIECE);
    read(BYTES);
    assert_eq!(node.partial.available(), BYTES);
    let last = GRID.range(GRID.count() - 1);
    let expected = digest_of(&content(0)[last.start as usize..]);
    assert_eq!(node.partial.digest(&last), Some(expected));
    assert_eq!(node.partial.digest(&(0..PIECE - 1)), None, "a digest is of a whole piece");
}
