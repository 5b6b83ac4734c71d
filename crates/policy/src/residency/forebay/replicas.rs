//! Copies beside the one that is kept for all. A node makes them in room that is left over, to spare itself a read from a peer, and any of
//! them may go at any time. A node that wants another replica gives up first what it is not known to use again, then what it uses latest.

use super::outlook::{Outlook, PARTS, Part};
use crate::ids::{Node, Sample};
use crate::residency::Access;
use crate::residency::kept::Kept;
use crate::residency::window::Window;

/// Samples looked at in search of one that is idle.
const PROBES: u32 = 256;

#[derive(Clone, Debug)]
struct OfNode {
    /// Replicas by the part of the next epoch in which the node uses them. What went since is still listed.
    by_part: Vec<Vec<Sample>>,
    /// No part from here on lists any.
    end: usize,
    /// Replicas that the node is known to use again, in this epoch or the next. A use that never came may still be counted.
    wanted: u32,
}

/// By node.
#[derive(Clone, Debug)]
pub(super) struct Replicas {
    samples: u32,
    kept: Kept,
    nodes: Vec<OfNode>,
}

impl Replicas {
    /// None.
    pub(super) fn new(nodes: Node, samples: u32) -> Self {
        let node = OfNode {
            by_part: vec![Vec::new(); usize::from(PARTS)],
            end: 0,
            wanted: 0,
        };
        Self {
            samples,
            kept: Kept::new(nodes, samples),
            nodes: vec![node; usize::from(nodes)],
        }
    }

    /// What will be asked for soon is read.
    pub(super) fn expect(&self, uses: &[Access]) {
        self.kept.expect(uses);
    }

    /// Whether the node has a replica.
    pub(super) fn contains(&self, node: Node, sample: Sample) -> bool {
        self.kept.contains(node, sample)
    }

    /// A node that has a replica.
    pub(super) fn holder(&self, sample: Sample) -> Option<Node> {
        self.kept.holder(sample)
    }

    /// Bytes of the node's replicas.
    pub(super) fn bytes(&self, node: Node) -> u64 {
        self.kept.bytes(node)
    }

    /// An epoch begins: what was the next use is this epoch's.
    pub(super) fn begin(&mut self) {
        for node in &mut self.nodes {
            node.by_part.iter_mut().for_each(Vec::clear);
            node.end = 0;
        }
    }

    /// The next epoch's order has a use by this node: what was idle is wanted then. (What the node uses in this epoch is told when it did.)
    pub(super) fn foresee(&mut self, node: Node, sample: Sample, part: Part, used_now: bool) {
        if !used_now && self.kept.contains(node, sample) {
            self.list(node, sample, part);
        }
    }

    /// The node makes a replica, which it uses next in that part of the next epoch, if it is known to at all.
    pub(super) fn insert(&mut self, node: Node, sample: Sample, bytes: u32, next: Option<Part>) {
        self.kept.insert(node, sample, bytes);
        if let Some(part) = next {
            self.list(node, sample, part);
        }
    }

    /// The node has used its replica, as `foreseen` or not.
    pub(super) fn used(&mut self, node: Node, sample: Sample, foreseen: bool, next: Option<Part>) {
        if foreseen {
            self.unwant(node);
            if let Some(part) = next {
                self.list(node, sample, part);
            }
        }
    }

    /// The node's replica goes.
    pub(super) fn remove(&mut self, node: Node, sample: Sample, bytes: u32, outlook: &Outlook) {
        self.kept.remove(node, sample, bytes);
        if !outlook.is_idle(node, sample) {
            self.unwant(node);
        }
    }

    /// The replica that the node can best do without: one that is idle, else the one used last in the next epoch, if that is after `part`.
    pub(super) fn worst(&mut self, node: Node, part: Option<Part>, window: &Window, outlook: &Outlook) -> Option<Sample> {
        let idle = self.kept.copies(node).saturating_sub(self.nodes[usize::from(node)].wanted);
        // Where few are idle, looking for them costs more than they are worth.
        if u64::from(idle) * u64::from(PROBES) >= u64::from(self.samples) {
            let found = self.kept.next(node, PROBES, window, |sample| outlook.is_idle(node, sample));
            if found.is_some() {
                return found;
            }
        }
        let of_node = &mut self.nodes[usize::from(node)];
        let first = part.map_or(0, |part| usize::from(part) + 1);
        while of_node.end > first {
            let Some(&sample) = of_node.by_part[of_node.end - 1].last() else {
                of_node.end -= 1;
                continue;
            };
            if window.in_use(sample) {
                return None;
            }
            of_node.by_part[of_node.end - 1].pop();
            if self.kept.contains(node, sample) {
                return Some(sample);
            }
        }
        None
    }

    /// Any replica of the node that is not in use.
    pub(super) fn any(&mut self, node: Node, window: &Window) -> Option<Sample> {
        self.kept.next(node, self.samples, window, |_| true)
    }

    fn unwant(&mut self, node: Node) {
        let wanted = &mut self.nodes[usize::from(node)].wanted;
        *wanted = wanted.saturating_sub(1);
    }

    fn list(&mut self, node: Node, sample: Sample, part: Part) {
        let of_node = &mut self.nodes[usize::from(node)];
        of_node.by_part[usize::from(part)].push(sample);
        of_node.end = of_node.end.max(usize::from(part) + 1);
        of_node.wanted += 1;
    }
}
