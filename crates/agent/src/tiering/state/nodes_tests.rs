//! Requests of other nodes for files that have no copy yet.

use std::sync::mpsc::{Receiver, channel};

use forebay_contract::{FileTime, Freshness, Tier};
use forebay_peers::conformance;
use forebay_policy::{eviction::TierPolicy, read_ahead::AheadMode};

use super::*;
use crate::{
    host::clock::boot_ns,
    tiering::{
        handoff::handoff_of,
        pages::Pages,
        protocol::{SourceSetting, Status},
        state::{copy_index::CopyIndex, flights::CopyFlights, runs::RunState, source_files::SourceFiles, tier_set::tests::tier_set_of},
    },
};

const BYTES: u64 = FETCH_PIECE_BYTES + 1;
const JOB: &str = "job";

/// A node and the parts that begin a copy. No worker makes the copies for other nodes.
struct TestedNode {
    dir: tempfile::TempDir,
    nodes: Nodes,
    events: Receiver<NodeEvent>,
    runs: ServedRuns,
    sources: SourceFiles,
    copies: PublishedCopies,
    flights: CopyFlights,
    copier: Copier,
}

impl TestedNode {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pages_dir = dir.path().join("pages");
        std::fs::create_dir(&pages_dir).unwrap();
        let pages = Pages::create(&pages_dir, vec![Tier::new(1, b"/tier/objects").unwrap()], 0, 1024).unwrap();
        let control = pages.control();
        let tiers = tier_set_of(4 * BYTES, TierPolicy::FillFirst, dir.path());
        let mut copies = PublishedCopies::new(CopyIndex::new(pages), tiers, channel().0, boot_ns());
        copies.tiers.observe_disks();
        let (sender, events) = channel();
        let delivery = NodeDelivery {
            events: Arc::new(move |event| drop(sender.send(event))),
            copied: Arc::new(|_| ()),
        };
        Self {
            nodes: Nodes::new(delivery, WaitPages::new(dir.path()), DescriptorBudget::new(8)),
            events,
            runs: ServedRuns::new(dir.path().into(), 1, boot_ns()),
            sources: SourceFiles::new(control),
            copies,
            flights: CopyFlights::default(),
            copier: Copier::start(&|_| ()).unwrap(),
            dir,
        }
    }

    /// Makes a file of the source, and returns it as opened for other nodes.
    fn opened(&mut self) -> Handoff {
        let path = self.dir.path().join("file");
        std::fs::File::create(&path).unwrap().set_len(BYTES).unwrap();
        let mut file = handoff_of(&path);
        let identity = &mut file.stat.identity;
        (identity.mtime, identity.ctime) = (FileTime { sec: 1000, nsec: 0 }, FileTime { sec: 1000, nsec: 0 });
        file.run = self.runs.join(RunState {
            freshness: Freshness::Immutable,
            sources: vec![SourceSetting {
                path: self.dir.path().into(),
                dev: identity.dev,
            }],
            prefetch: false,
            ahead: AheadMode::Auto,
            excludes: Vec::new(),
            job: Some(JOB.into()),
            tally: Status::default(),
        });
        file
    }

    fn take(&mut self, event: NodeEvent) {
        let mut making = CopyMaking {
            runs: &mut self.runs,
            sources: &mut self.sources,
            copies: &mut self.copies,
            flights: &mut self.flights,
            copier: &self.copier,
        };
        self.nodes.take(event, &mut making);
    }
}

#[test]
fn the_node_that_asked_first_is_answered_once_its_piece_is_there() {
    let mut node = TestedNode::new();
    let file = node.opened();
    let (path, identity) = (file.path.clone(), file.stat.identity);
    let (reply, mut answer) = conformance::reply();
    let asked = AskedFile {
        version: SharedVersion::of(&identity),
        part: CopyPart::Bytes,
        range: 0..FETCH_PIECE_BYTES,
        since: Instant::now(),
        reply,
    };
    node.nodes.asked.insert(path.clone(), vec![asked]);
    node.take(NodeEvent::Opened {
        path,
        file: Some(Box::new(file)),
    });
    let number = node.flights.number_of((identity.dev, identity.ino)).unwrap();
    let flight = node.flights.get_mut(number).unwrap();
    let (copy, partial) = (flight.place.unwrap().copy, flight.nodes.partial.clone().unwrap());
    let _writer = node.copies.tiers.get(0).unwrap().tier.begin(copy, &identity).unwrap();
    assert!(answer().is_none() && node.events.try_recv().is_err());
    partial.add(0, 7);
    let told = node.events.try_recv().unwrap();
    assert!(matches!(told, NodeEvent::Advanced { number: told } if told == number));
    node.take(told);
    let Some(Found::Blob(blob)) = answer() else {
        panic!("the piece is there")
    };
    assert_eq!(blob.digest(&(0..FETCH_PIECE_BYTES)), Some(7));
    assert!(node.nodes.asked.is_empty(), "nobody waits any more");
}
