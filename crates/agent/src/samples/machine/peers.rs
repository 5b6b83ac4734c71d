//! Other nodes of the job: the samples that are asked of them, and those that they ask of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_policy::ids::{Node, Sample};
use forebay_policy::peers::SampleShares;

use super::copies::SampleCopies;
use crate::samples::limits::{LOADER_PEER_AGAIN, LOADER_PEER_WAIT};

/// Number of a request of another node. No number is used twice.
pub(crate) type Ticket = u64;

/// Other nodes of a loader's job, and the samples that they share with it.
#[derive(Debug)]
pub(super) struct SharedSamples {
    shares: SampleShares,
    /// Bytes that this node may keep.
    room_bytes: u64,
    /// Samples of other owners that this node read from the source, since the nodes that have them did not answer.
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

    /// Returns the node to ask for a sample that a node of this group has asked for, and the time in which it has to
    /// come; `None` if the source is to be read.
    pub(super) fn to_ask_for_others(&self, sample: Sample) -> Option<(Node, Duration)> {
        // As long as the node that asks waits for this one: a shorter time would only have nodes of this group read
        // what a slow source still brings to the owner.
        let within = if self.shares.is_keeper(sample) {
            LOADER_PEER_WAIT
        } else {
            LOADER_PEER_AGAIN
        };
        self.shares.to_ask_for_others(sample).map(|node| (node, within))
    }

    /// Returns true if node `from` may wait here for a sample that is not in memory, from another node or not.
    pub(super) fn may_wait(&self, from: Node, comes_from_node: bool) -> bool {
        self.shares.may_wait(from, comes_from_node)
    }

    /// Returns the node to ask for a sample that `full` has no room for; `None` if the source is to be read.
    pub(super) fn to_ask_instead_of(&self, full: Node, sample: Sample) -> Option<Node> {
        self.shares.to_ask_instead_of(full, sample)
    }

    /// Notes that this node reads a sample from the source, since a node that has it did not answer: it keeps the
    /// sample if it stands in for that node.
    pub(super) fn read_instead(&mut self, sample: Sample) {
        if self.shares.is_substitute(sample) {
            self.taken_over.insert(sample);
        }
    }

    /// Returns true if this node keeps a sample for all: as its owner, or in place of a node that did not answer.
    pub(super) fn is_owner(&self, sample: Sample) -> bool {
        self.shares.is_owner(sample) || self.taken_over.contains(&sample)
    }

    /// Returns true if a sample that was used here may be kept, under a policy that leaves copies of other nodes'
    /// samples to its driver.
    pub(super) fn keeps(&self, sample: Sample, copies: &SampleCopies) -> bool {
        self.taken_over.contains(&sample) || self.shares.keeps(sample, self.room_bytes, copies.expected_bytes_of_all())
    }
}
