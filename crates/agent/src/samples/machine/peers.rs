//! Other nodes of the job: the samples that are asked of them, and those that they ask of this node.

use std::collections::{BTreeMap, BTreeSet};

use forebay_policy::ids::{Node, Sample};
use forebay_policy::peers::SampleShares;

use super::copies::SampleCopies;

/// Number of a request of another node. No number is used twice.
pub(crate) type Ticket = u64;

/// Other nodes of a loader's job, and the samples that they share with it.
#[derive(Debug)]
pub(super) struct SharedSamples {
    shares: SampleShares,
    /// Bytes that this node may keep.
    room_bytes: u64,
    /// Samples of other owners that this node read from the source, since their owners did not answer.
    taken_over: BTreeSet<Sample>,
    /// Samples whose bytes other nodes are being sent.
    pub(super) lent: BTreeMap<Ticket, Sample>,
}

impl SharedSamples {
    pub(super) fn new(shares: SampleShares, room_bytes: u64) -> Self {
        Self {
            shares,
            room_bytes,
            taken_over: BTreeSet::new(),
            lent: BTreeMap::new(),
        }
    }

    /// Returns the node to ask for a sample after `last` did not answer; the first one for `None`. `None` if the
    /// source is to be read.
    pub(super) fn to_ask(&self, sample: Sample, last: Option<Node>) -> Option<Node> {
        let mut nodes = self.shares.to_ask(sample);
        match last {
            Some(last) => nodes.find(|node| *node == last).and_then(|_| nodes.next()),
            None => nodes.next(),
        }
    }

    /// Notes that this node reads a sample from the source, since its owner did not answer: it keeps the sample if it
    /// stands in for the owner.
    pub(super) fn read_instead(&mut self, sample: Sample) {
        if self.shares.is_substitute(sample) {
            self.taken_over.insert(sample);
        }
    }

    /// Returns true if this node keeps a sample for all: as its owner, or in place of an owner that did not answer.
    pub(super) fn is_owner(&self, sample: Sample) -> bool {
        self.shares.is_owner(sample) || self.taken_over.contains(&sample)
    }

    /// Returns true if a sample that was used here may be kept, under a policy that leaves copies of other nodes'
    /// samples to its driver.
    pub(super) fn keeps(&self, sample: Sample, copies: &SampleCopies) -> bool {
        self.taken_over.contains(&sample) || self.shares.keeps(sample, self.room_bytes, copies.expected_bytes_of_all())
    }
}
