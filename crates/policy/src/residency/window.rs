//! The just-in-time window: the part of a node's memory that samples pass through between their fetch and their use.
//!
//! It also learns the sizes of samples as they are first read, and records the uses under way of each sample: a
//! sample in use may not be given up.
//!
//! W, the most bytes that a window may take, is 2 % of the node's memory, four iterations' bytes, or the bytes that
//! are reserved for it, whichever is most. Within it, a window takes the expected bytes of the iterations that may be
//! fetched ahead, and leaves some: whole samples do not fill the rest of a node's memory to the brim, and the samples
//! that pad an epoch are read beside.

use super::Access;
use crate::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use crate::order::Deal;

/// Stands for no node.
pub(super) const NOBODY: Node = Node::MAX;

/// W is at least this part of a node's memory.
const MEMORY_PART: u64 = 50;
/// W is at least the bytes of this many iterations.
const ITERATIONS: f64 = 4.0;
/// Standard deviations beyond the mean bytes of the iterations: only one in a thousand needs more.
const DEVIATIONS: f64 = 3.0;

/// Part of W that stays free at least: one in this many.
const BRIM_PART: u64 = 16;

/// Share of a node's memory that the window may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowShare {
    /// At most W.
    Bounded,
    /// All of it: the policy keeps nothing.
    Whole,
}

/// Memory that a use held while it was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldMemory {
    /// Bytes of the window, which are free again.
    Window,
    /// A copy that the node keeps.
    Copy,
}

/// Flag: the sample's size was learned.
const KNOWN: u8 = 1;
/// Flag: the use in the record is of a copy that the node keeps.
const OF_COPY: u8 = 2;
/// Flag: there are uses under way beside the one in the record.
const MORE: u8 = 4;

/// Record of a sample, aligned such that none spans two cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
struct SampleUse {
    /// Size in bytes; while that is unknown, the reserved bytes.
    bytes: u32,
    /// The node of a use that is under way, or [`NOBODY`].
    user: Node,
    /// See [`ResidencyWindow::owner`].
    owner: Node,
    flags: u8,
}

/// Another use under way of a sample that has one in its record. Rare: epochs overlap, or one is padded.
#[derive(Clone, Copy, Debug)]
struct OtherUse {
    sample: Sample,
    node: Node,
    of_copy: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeWindow {
    bytes: u64,
    /// Last step that is in progress or next: its samples are let in whatever they need, or nothing would ever move
    /// again.
    due: u64,
}

/// The windows of all nodes.
#[derive(Clone, Debug)]
pub(super) struct ResidencyWindow {
    cluster: Cluster,
    share: WindowShare,
    ahead: Iteration,
    records: Vec<SampleUse>,
    more: Vec<OtherUse>,
    nodes: Vec<NodeWindow>,
    epoch: EpochNumber,
    /// Steps of the epochs before this one.
    steps_before: u64,
    iterations: Iteration,
    batch: u32,
    known: u32,
    known_bytes: u64,
    known_squares: f64,
    largest: u32,
    limit_bytes: u64,
}

impl ResidencyWindow {
    /// Creates empty windows, over `samples` of unknown size, that reach `ahead` iterations beyond the current one.
    pub(super) fn new(cluster: Cluster, samples: u32, ahead: Iteration, share: WindowShare) -> Self {
        let mut window = Self {
            cluster,
            share,
            ahead,
            records: vec![
                SampleUse {
                    bytes: 0,
                    user: NOBODY,
                    owner: NOBODY,
                    flags: 0
                };
                samples as usize
            ],
            more: Vec::new(),
            nodes: vec![NodeWindow::default(); usize::from(cluster.nodes)],
            epoch: 0,
            steps_before: 0,
            iterations: 0,
            batch: 0,
            known: 0,
            known_bytes: 0,
            known_squares: 0.0,
            largest: 0,
            limit_bytes: 0,
        };
        window.measure();
        window
    }

    pub(super) fn begin(&mut self, epoch: EpochNumber, deal: Deal) {
        self.steps_before += u64::from(self.iterations);
        self.epoch = epoch;
        self.iterations = deal.iterations();
        self.batch = deal.batch();
        self.measure();
    }

    /// Iterations beyond the current one.
    pub(super) const fn ahead(&self) -> Iteration {
        self.ahead
    }

    /// All samples.
    pub(super) fn samples(&self) -> u32 {
        self.records.len() as u32
    }

    /// Number of samples of known size.
    pub(super) const fn known(&self) -> u32 {
        self.known
    }

    /// Mean size in bytes of the samples read so far.
    pub(super) fn mean_bytes(&self) -> f64 {
        if self.known == 0 {
            0.0
        } else {
            self.known_bytes as f64 / f64::from(self.known)
        }
    }

    /// Most bytes that the window of a node takes, except for due samples.
    pub(super) const fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes left for copies that a node keeps.
    pub(super) fn kept_limit_bytes(&self) -> u64 {
        self.cluster.room_bytes().min(self.cluster.cache_bytes - self.limit_bytes)
    }

    /// Bytes in the window of a node, including those under way.
    pub(super) fn bytes(&self, node: Node) -> u64 {
        self.nodes[usize::from(node)].bytes
    }

    /// Returns true if a node may keep `kept_bytes`: beside the window's share of its memory, and beside its window's
    /// present bytes.
    pub(super) fn leaves(&self, node: Node, kept_bytes: u64) -> bool {
        kept_bytes <= self.kept_limit_bytes() && !self.is_over(node, kept_bytes)
    }

    /// Returns true if a node which keeps `kept_bytes` holds more than its memory.
    pub(super) fn is_over(&self, node: Node, kept_bytes: u64) -> bool {
        kept_bytes + self.bytes(node) > self.cluster.cache_bytes
    }

    /// Returns the node that keeps the sample for all, or [`NOBODY`]: for policies with owners. It is stored here
    /// because it is needed with the rest, and each cache miss counts.
    pub(super) fn owner(&self, sample: Sample) -> Node {
        self.records[sample as usize].owner
    }

    /// Changes the owner of a sample, and returns the previous one.
    pub(super) fn set_owner(&mut self, sample: Sample, owner: Node) -> Node {
        std::mem::replace(&mut self.records[sample as usize].owner, owner)
    }

    /// Touches the entries of upcoming accesses, so that their cache misses overlap.
    pub(super) fn expect(&self, uses: &[Access]) {
        std::hint::black_box(
            uses.iter()
                .fold(0, |bits, access| bits ^ self.records[access.sample as usize].bytes),
        );
    }

    /// Size of a sample in bytes; the reserved bytes if it is unknown and under way.
    pub(super) fn size(&self, sample: Sample) -> u32 {
        self.records[sample as usize].bytes
    }

    /// Returns true if a use of the sample is under way on any node.
    pub(super) fn in_use(&self, sample: Sample) -> bool {
        self.records[sample as usize].user != NOBODY
    }

    /// Begins a use of a copy that the node keeps.
    pub(super) fn open_copy(&mut self, access: Access) {
        self.open(access, true);
    }

    /// Begins a use that brings the sample into the window of a node that keeps `kept_bytes`; returns false if it
    /// must wait for room. Only due samples are let in beyond the limits: the node then gives up the excess.
    pub(super) fn open_window(&mut self, access: Access, kept_bytes: u64) -> bool {
        let record = self.records[access.sample as usize];
        let bytes = if record.flags & KNOWN != 0 || record.user != NOBODY {
            record.bytes
        } else {
            self.mean_bytes() as u32
        };
        let NodeWindow { bytes: used, due } = self.nodes[usize::from(access.node)];
        let after = used + u64::from(bytes);
        let fits = after <= self.limit_bytes && kept_bytes + after <= self.cluster.cache_bytes;
        if !fits && self.step(access) > due {
            return false;
        }
        self.records[access.sample as usize].bytes = bytes;
        self.nodes[usize::from(access.node)].bytes = after;
        self.open(access, false);
        true
    }

    /// Records that the bytes of a use have arrived.
    pub(super) fn arrived(&mut self, access: Access, bytes: u32) {
        let record = self.records[access.sample as usize];
        if record.flags & KNOWN != 0 {
            debug_assert_eq!(record.bytes, bytes, "a sample's size is learned once");
            return;
        }
        let of_record = (record.user != NOBODY && record.flags & OF_COPY == 0).then_some(record.user);
        let of_more = self
            .more
            .iter()
            .filter(|other| other.sample == access.sample && !other.of_copy)
            .map(|other| other.node);
        for node in of_record.into_iter().chain(of_more) {
            let used = &mut self.nodes[usize::from(node)].bytes;
            *used = *used - u64::from(record.bytes) + u64::from(bytes);
        }
        let record = &mut self.records[access.sample as usize];
        record.bytes = bytes;
        record.flags |= KNOWN;
        self.known += 1;
        self.known_bytes += u64::from(bytes);
        self.known_squares += f64::from(bytes) * f64::from(bytes);
        self.largest = self.largest.max(bytes);
        // Measures often while few sizes are known, and rarely later.
        if self.known < 64 || self.known.is_multiple_of(64) || self.known as usize == self.records.len() {
            self.measure();
        }
    }

    /// Ends a use, and returns the memory that it held.
    pub(super) fn close(&mut self, access: Access) -> HeldMemory {
        let step = self.step(access);
        let node = &mut self.nodes[usize::from(access.node)];
        node.due = node.due.max(step + 1);
        let held = self.take(access);
        if held == HeldMemory::Window {
            self.nodes[usize::from(access.node)].bytes -= u64::from(self.size(access.sample));
        }
        held
    }

    fn open(&mut self, access: Access, of_copy: bool) {
        let record = &mut self.records[access.sample as usize];
        if record.user == NOBODY {
            record.user = access.node;
            record.flags = (record.flags & !OF_COPY) | if of_copy { OF_COPY } else { 0 };
        } else {
            record.flags |= MORE;
            self.more.push(OtherUse {
                sample: access.sample,
                node: access.node,
                of_copy,
            });
        }
    }

    fn take(&mut self, access: Access) -> HeldMemory {
        let record = &mut self.records[access.sample as usize];
        if record.flags & MORE == 0 {
            debug_assert_eq!(record.user, access.node, "a use that is over was begun");
            record.user = NOBODY;
            return if record.flags & OF_COPY == 0 {
                HeldMemory::Window
            } else {
                HeldMemory::Copy
            };
        }
        if record.user == access.node {
            // Another use takes the record's place, so this one is among the others.
            let held = if record.flags & OF_COPY == 0 {
                HeldMemory::Window
            } else {
                HeldMemory::Copy
            };
            if let Some(at) = self.more.iter().position(|other| other.sample == access.sample) {
                let other = self.more.swap_remove(at);
                record.user = other.node;
                record.flags = (record.flags & !OF_COPY) | if other.of_copy { OF_COPY } else { 0 };
            }
            self.note_more(access.sample);
            return held;
        }
        let at = self
            .more
            .iter()
            .position(|other| other.sample == access.sample && other.node == access.node);
        let held = at.map_or(HeldMemory::Copy, |at| {
            if self.more.swap_remove(at).of_copy {
                HeldMemory::Copy
            } else {
                HeldMemory::Window
            }
        });
        self.note_more(access.sample);
        held
    }

    fn note_more(&mut self, sample: Sample) {
        if !self.more.iter().any(|other| other.sample == sample) {
            self.records[sample as usize].flags &= !MORE;
        }
    }

    /// Returns the step of a use over all epochs. A use may end in a later epoch than its own.
    fn step(&self, access: Access) -> u64 {
        let steps_of = |epochs: EpochNumber| u64::from(epochs) * u64::from(self.iterations);
        let ahead = steps_of(access.epoch.saturating_sub(self.epoch));
        let behind = steps_of(self.epoch.saturating_sub(access.epoch));
        (self.steps_before + ahead).saturating_sub(behind) + u64::from(access.iteration)
    }

    /// Chooses the limit from the sizes known so far.
    fn measure(&mut self) {
        let memory = self.cluster.cache_bytes;
        if self.share == WindowShare::Whole {
            self.limit_bytes = memory;
            return;
        }
        let mean = self.mean_bytes();
        let variance = if self.known == 0 {
            0.0
        } else {
            (self.known_squares / f64::from(self.known) - mean * mean).max(0.0)
        };
        let samples = f64::from(self.cluster.gpus) * f64::from(self.batch);
        let most = ((ITERATIONS * samples * mean) as u64)
            .max(memory / MEMORY_PART)
            .max(self.cluster.reserved_bytes);
        let reach = samples * (f64::from(self.ahead) + 1.0);
        let needed = (reach * mean + DEVIATIONS * (reach * variance).sqrt()).ceil() as u64;
        let brim = most - u64::from(self.largest).clamp(most / BRIM_PART, most / 2);
        self.limit_bytes = needed.min(brim).min(memory);
    }
}

#[cfg(test)]
mod tests;
