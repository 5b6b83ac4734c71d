//! The copies that nodes hold: their samples, nodes and sizes, and their uses under way.
//!
//! Memory: twelve bytes a sample and 24 a copy; nothing for each pair of sample and node, of which there are
//! billions.

use super::Access;
use super::given_up::GivenUp;
use super::queue::{CopySlot, NONE, QueueLink, QueueLinks};
use crate::ids::{Cluster, Node, Sample};

#[derive(Clone, Copy, Debug)]
struct SampleEntry {
    /// Size in bytes; while that is unknown, the reserved bytes.
    bytes: u32,
    /// First of its copies.
    first: CopySlot,
    /// True if the size is known.
    sure: bool,
}

#[derive(Clone, Copy, Debug)]
struct CopyEntry {
    sample: Sample,
    /// The sample's next copy, on another node; or the next free slot.
    next: CopySlot,
    node: Node,
    /// Uses that were begun and are not over. Above 1 only if an epoch is padded or two epochs overlap.
    uses: u8,
    flags: u8,
    link: QueueLink,
}

/// Flag: the bytes of the copy have arrived.
const ARRIVED: u8 = 1;
/// Flag: the copy stays between uses.
const KEPT: u8 = 2;
/// Flag: another node keeps the sample for all.
const REPLICA: u8 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct NodeMemory {
    bytes: u64,
    kept_bytes: u64,
}

impl QueueLinks for ClusterCopies {
    fn link(&mut self, slot: CopySlot) -> &mut QueueLink {
        &mut self.slab[slot as usize].link
    }
}

/// All copies of all nodes.
#[derive(Clone, Debug)]
pub(super) struct ClusterCopies {
    cluster: Cluster,
    samples: Vec<SampleEntry>,
    slab: Vec<CopyEntry>,
    free: CopySlot,
    held: Vec<NodeMemory>,
    known: u64,
    known_bytes: u64,
    given_up: GivenUp,
}

impl ClusterCopies {
    /// Creates no copies, for samples of unknown sizes.
    pub(super) fn new(cluster: Cluster, samples: u32) -> Self {
        Self {
            cluster,
            samples: vec![
                SampleEntry {
                    bytes: 0,
                    first: NONE,
                    sure: false
                };
                samples as usize
            ],
            slab: Vec::new(),
            free: NONE,
            held: vec![NodeMemory::default(); usize::from(cluster.nodes)],
            known: 0,
            known_bytes: 0,
            given_up: GivenUp::default(),
        }
    }

    /// Returns true if any size is known.
    pub(super) const fn knows_sizes(&self) -> bool {
        self.known > 0
    }

    /// Bytes of all copies of a node.
    pub(super) fn held_bytes(&self, node: Node) -> u64 {
        self.held[usize::from(node)].bytes
    }

    /// Bytes of a node's copies that stay between uses.
    pub(super) fn kept_bytes(&self, node: Node) -> u64 {
        self.held[usize::from(node)].kept_bytes
    }

    /// The node's copy of a sample.
    pub(super) fn find(&self, node: Node, sample: Sample) -> Option<CopySlot> {
        self.of_sample(sample).find(|&slot| self.slab[slot as usize].node == node)
    }

    /// The latest copy of a sample.
    pub(super) fn first(&self, sample: Sample) -> Option<CopySlot> {
        existing(self.samples[sample as usize].first)
    }

    /// Returns another copy of the same sample; following it visits each copy once.
    pub(super) fn next(&self, slot: CopySlot) -> Option<CopySlot> {
        existing(self.slab[slot as usize].next)
    }

    fn of_sample(&self, sample: Sample) -> impl Iterator<Item = CopySlot> + '_ {
        std::iter::successors(self.first(sample), |&slot| self.next(slot))
    }

    /// Returns true if the sample has just one copy in the cluster, and no other node is known to keep it.
    pub(super) fn is_last(&self, slot: CopySlot) -> bool {
        let CopyEntry { sample, next, flags, .. } = self.slab[slot as usize];
        next == NONE && flags & REPLICA == 0 && self.samples[sample as usize].first == slot
    }

    /// Records whether a node outside of the cluster keeps the sample of a copy.
    pub(super) fn set_replica(&mut self, slot: CopySlot, is_replica: bool) {
        let flags = &mut self.slab[slot as usize].flags;
        *flags = (*flags & !REPLICA) | if is_replica { REPLICA } else { 0 };
    }

    /// Returns a node other than this one that can send the sample.
    pub(super) fn peer(&self, node: Node, sample: Sample) -> Option<Node> {
        let mut copies = self.of_sample(sample).map(|slot| self.slab[slot as usize]);
        copies
            .find(|copy| copy.node != node && copy.flags & ARRIVED != 0)
            .map(|copy| copy.node)
    }

    /// Touches the entries needed to give up the copies queued behind this one: the sample of the next copy, and the
    /// copy after that. Their cache misses overlap, and are over when the entries matter.
    pub(super) fn glance_behind(&self, slot: CopySlot, newest_first: bool) -> u32 {
        let behind = |slot: CopySlot| existing(self.slab[slot as usize].link.behind(newest_first));
        let Some(next) = behind(slot) else { return 0 };
        let sample = self.slab[next as usize].sample;
        self.samples[sample as usize].bytes ^ behind(next).map_or(0, |after| self.slab[after as usize].sample)
    }

    /// Returns a copy's node and sample.
    pub(super) fn what(&self, slot: CopySlot) -> (Node, Sample) {
        let copy = self.slab[slot as usize];
        (copy.node, copy.sample)
    }

    /// Returns true if a copy stays between uses.
    pub(super) fn is_kept(&self, slot: CopySlot) -> bool {
        self.slab[slot as usize].flags & KEPT != 0
    }

    /// Returns true if a use of a copy is under way.
    pub(super) fn in_use(&self, slot: CopySlot) -> bool {
        self.slab[slot as usize].uses > 0
    }

    /// Takes all copies out of queues. Returns all slots, used and free.
    pub(super) fn unlink_all(&mut self) -> std::ops::Range<CopySlot> {
        self.slab.iter_mut().for_each(|copy| copy.link = QueueLink::NOWHERE);
        0..self.slab.len() as CopySlot
    }

    /// Returns the grade under which a copy is queued.
    pub(super) fn grade(&self, slot: CopySlot) -> Option<u32> {
        self.slab[slot as usize].link.grade()
    }

    pub(super) fn begin_use(&mut self, slot: CopySlot) {
        self.slab[slot as usize].uses += 1;
    }

    /// Returns the bytes by which the node's memory would be exceeded if the sample were brought in; a sample of
    /// unknown size counts the mean of the known ones.
    pub(super) fn missing_bytes(&self, node: Node, sample: Sample) -> u64 {
        let bytes = u64::from(self.expected_bytes(sample));
        (self.held_bytes(node) + bytes).saturating_sub(self.cluster.cache_bytes)
    }

    /// Bytes by which the node's memory is exceeded, or the part of it for copies between uses.
    pub(super) fn excess_bytes(&self, node: Node) -> u64 {
        let held = self.held_bytes(node).saturating_sub(self.cluster.cache_bytes);
        held.max(self.kept_bytes(node).saturating_sub(self.cluster.room_bytes()))
    }

    fn expected_bytes(&self, sample: Sample) -> u32 {
        let SampleEntry { bytes, first, sure } = self.samples[sample as usize];
        if sure || first != NONE {
            bytes
        } else {
            self.known_bytes.checked_div(self.known).unwrap_or(0) as u32
        }
    }

    /// Brings a sample into a node that has no copy of it, for a use that begins.
    pub(super) fn bring(&mut self, node: Node, sample: Sample) -> CopySlot {
        let bytes = self.expected_bytes(sample);
        let known = &mut self.samples[sample as usize];
        known.bytes = bytes;
        let copy = CopyEntry {
            sample,
            next: known.first,
            node,
            uses: 1,
            flags: 0,
            link: QueueLink::NOWHERE,
        };
        let slot = self.free;
        if slot == NONE {
            known.first = self.slab.len() as CopySlot;
            self.slab.push(copy);
        } else {
            known.first = slot;
            self.free = std::mem::replace(&mut self.slab[slot as usize], copy).next;
        }
        self.held[usize::from(node)].bytes += u64::from(bytes);
        self.samples[sample as usize].first
    }

    /// Records that the bytes of a use's sample have arrived; its size is known from now on.
    pub(super) fn arrived(&mut self, access: Access, bytes: u32) {
        if let Some(slot) = self.find(access.node, access.sample) {
            self.slab[slot as usize].flags |= ARRIVED;
        }
        let SampleEntry {
            bytes: reserved,
            first,
            sure,
        } = self.samples[access.sample as usize];
        if sure {
            debug_assert_eq!(reserved, bytes, "a sample has one size");
            return;
        }
        let mut slot = first;
        while slot != NONE {
            let copy = self.slab[slot as usize];
            let held = &mut self.held[usize::from(copy.node)];
            held.bytes = held.bytes - u64::from(reserved) + u64::from(bytes);
            if copy.flags & KEPT != 0 {
                held.kept_bytes = held.kept_bytes - u64::from(reserved) + u64::from(bytes);
            }
            slot = copy.next;
        }
        self.samples[access.sample as usize] = SampleEntry { bytes, first, sure: true };
        self.known += 1;
        self.known_bytes += u64::from(bytes);
    }

    /// Ends a use. Returns the copy if no other use of it is under way.
    pub(super) fn end_use(&mut self, access: Access) -> Option<CopySlot> {
        let slot = self.find(access.node, access.sample)?;
        let copy = &mut self.slab[slot as usize];
        copy.uses -= 1;
        (copy.uses == 0).then_some(slot)
    }

    /// Makes a copy stay between uses.
    pub(super) fn keep(&mut self, slot: CopySlot) {
        let copy = &mut self.slab[slot as usize];
        if copy.flags & KEPT == 0 {
            copy.flags |= KEPT;
            self.held[usize::from(copy.node)].kept_bytes += u64::from(self.samples[copy.sample as usize].bytes);
        }
    }

    /// Returns a copy that was given up: see [`super::Residency::given_up`].
    pub(super) fn given_up(&mut self) -> Option<(Node, Sample)> {
        self.given_up.take()
    }

    pub(super) fn give_up(&mut self, slot: CopySlot) {
        let CopyEntry {
            sample, next, node, flags, ..
        } = self.slab[slot as usize];
        self.given_up.note(node, sample);
        let known = &mut self.samples[sample as usize];
        if known.first == slot {
            known.first = next;
        } else {
            let mut before = known.first;
            while self.slab[before as usize].next != slot {
                before = self.slab[before as usize].next;
            }
            self.slab[before as usize].next = next;
        }
        let bytes = u64::from(self.samples[sample as usize].bytes);
        let held = &mut self.held[usize::from(node)];
        held.bytes -= bytes;
        if flags & KEPT != 0 {
            held.kept_bytes -= bytes;
        }
        self.slab[slot as usize] = CopyEntry {
            sample,
            next: self.free,
            node,
            uses: 0,
            flags: 0,
            link: QueueLink::NOWHERE,
        };
        self.free = slot;
    }
}

fn existing(slot: CopySlot) -> Option<CopySlot> {
    (slot != NONE).then_some(slot)
}

#[cfg(test)]
mod tests;
