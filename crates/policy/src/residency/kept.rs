//! Copies that nodes keep beyond their use: which node has which, and how many bytes of each node's memory they take.

use super::Access;
use super::window::Window;
use crate::ids::{Node, Sample};

/// A set of samples for each node: a bit for each sample and node, in memory that is not touched where nothing was ever kept.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    samples: u32,
    /// Words of 64 nodes that a sample takes.
    words: usize,
    bits: Vec<u64>,
    nodes: Vec<OfNode>,
    /// Of all nodes.
    copies: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct OfNode {
    copies: u32,
    bytes: u64,
    /// Where the search for a copy to give up goes on.
    hand: Sample,
}

impl Kept {
    /// Empty sets.
    pub(super) fn new(nodes: Node, samples: u32) -> Self {
        let words = usize::from(nodes).div_ceil(64);
        Self {
            samples,
            words,
            bits: vec![0; words * samples as usize],
            nodes: vec![OfNode::default(); usize::from(nodes)],
            copies: 0,
        }
    }

    const fn place(&self, node: Node, sample: Sample) -> (usize, u64) {
        (sample as usize * self.words + node as usize / 64, 1 << (node % 64))
    }

    /// Whether the node keeps the sample.
    pub(super) fn contains(&self, node: Node, sample: Sample) -> bool {
        let (word, bit) = self.place(node, sample);
        self.nodes[usize::from(node)].copies > 0 && self.bits[word] & bit != 0
    }

    /// What will be asked for soon is read.
    pub(super) fn expect(&self, uses: &[Access]) {
        if self.copies > 0 {
            std::hint::black_box(
                uses.iter()
                    .fold(0, |bits, access| bits ^ self.bits[self.place(access.node, access.sample).0]),
            );
        }
    }

    /// The node keeps the sample from now on, which it did not.
    pub(super) fn insert(&mut self, node: Node, sample: Sample, bytes: u32) {
        let (word, bit) = self.place(node, sample);
        debug_assert_eq!(self.bits[word] & bit, 0);
        self.bits[word] |= bit;
        self.copies += 1;
        let of_node = &mut self.nodes[usize::from(node)];
        of_node.copies += 1;
        of_node.bytes += u64::from(bytes);
    }

    /// The node keeps the sample no longer.
    pub(super) fn remove(&mut self, node: Node, sample: Sample, bytes: u32) {
        let (word, bit) = self.place(node, sample);
        debug_assert_ne!(self.bits[word] & bit, 0);
        self.bits[word] &= !bit;
        self.copies -= 1;
        let of_node = &mut self.nodes[usize::from(node)];
        of_node.copies -= 1;
        of_node.bytes -= u64::from(bytes);
    }

    /// A node that keeps the sample.
    pub(super) fn holder(&self, sample: Sample) -> Option<Node> {
        if self.copies == 0 {
            return None;
        }
        let first = sample as usize * self.words;
        let words = &self.bits[first..first + self.words];
        words
            .iter()
            .position(|&word| word != 0)
            .map(|at| (at as u32 * 64 + words[at].trailing_zeros()) as Node)
    }

    /// Samples that the node keeps.
    pub(super) fn copies(&self, node: Node) -> u32 {
        self.nodes[usize::from(node)].copies
    }

    /// Bytes that the node keeps.
    pub(super) fn bytes(&self, node: Node) -> u64 {
        self.nodes[usize::from(node)].bytes
    }

    /// The next sample, in turn, that the node keeps, that is not being used, and that `may_go`; of at most `most` samples looked at.
    pub(super) fn next(&mut self, node: Node, most: u32, window: &Window, may_go: impl Fn(Sample) -> bool) -> Option<Sample> {
        if self.copies(node) == 0 {
            return None;
        }
        for _ in 0..most.min(self.samples) {
            let sample = self.nodes[usize::from(node)].hand;
            self.nodes[usize::from(node)].hand = if sample + 1 < self.samples { sample + 1 } else { 0 };
            if self.contains(node, sample) && !window.in_use(sample) && may_go(sample) {
                return Some(sample);
            }
        }
        None
    }
}
