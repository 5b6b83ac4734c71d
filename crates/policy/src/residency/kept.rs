//! Copies that nodes keep beyond their use: a set for each node, and the bytes of each node's memory.

use super::Access;
use super::window::ResidencyWindow;
use crate::ids::{Node, Sample};

/// A set of samples for each node: a bit for each sample and node, in memory that is not touched where nothing was
/// ever kept.
#[derive(Clone, Debug)]
pub(super) struct KeptSamples {
    samples: u32,
    /// Words of 64 nodes that a sample takes.
    words: usize,
    bits: Vec<u64>,
    nodes: Vec<NodeKept>,
    /// Number of copies on all nodes.
    copies: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeKept {
    copies: u32,
    bytes: u64,
    /// Position of the search for a copy to give up.
    hand: Sample,
}

impl KeptSamples {
    /// Creates empty sets.
    pub(super) fn new(nodes: Node, samples: u32) -> Self {
        let words = usize::from(nodes).div_ceil(64);
        Self {
            samples,
            words,
            bits: vec![0; words * samples as usize],
            nodes: vec![NodeKept::default(); usize::from(nodes)],
            copies: 0,
        }
    }

    const fn place(&self, node: Node, sample: Sample) -> (usize, u64) {
        (sample as usize * self.words + node as usize / 64, 1 << (node % 64))
    }

    /// Returns true if the node keeps the sample.
    pub(super) fn contains(&self, node: Node, sample: Sample) -> bool {
        let (word, bit) = self.place(node, sample);
        self.nodes[usize::from(node)].copies > 0 && self.bits[word] & bit != 0
    }

    /// Touches the entries of upcoming accesses, so that their cache misses overlap.
    pub(super) fn expect(&self, uses: &[Access]) {
        if self.copies > 0 {
            std::hint::black_box(
                uses.iter()
                    .fold(0, |bits, access| bits ^ self.bits[self.place(access.node, access.sample).0]),
            );
        }
    }

    /// Adds a sample that the node did not keep before.
    pub(super) fn insert(&mut self, node: Node, sample: Sample, bytes: u32) {
        let (word, bit) = self.place(node, sample);
        debug_assert_eq!(self.bits[word] & bit, 0);
        self.bits[word] |= bit;
        self.copies += 1;
        let of_node = &mut self.nodes[usize::from(node)];
        of_node.copies += 1;
        of_node.bytes += u64::from(bytes);
    }

    /// Removes a sample that the node kept.
    pub(super) fn remove(&mut self, node: Node, sample: Sample, bytes: u32) {
        let (word, bit) = self.place(node, sample);
        debug_assert_ne!(self.bits[word] & bit, 0);
        self.bits[word] &= !bit;
        self.copies -= 1;
        let of_node = &mut self.nodes[usize::from(node)];
        of_node.copies -= 1;
        of_node.bytes -= u64::from(bytes);
    }

    /// Returns a node that keeps the sample.
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

    /// Returns the next sample, in cyclic order, that the node keeps, that is not in use, and that `may_go`; looks at
    /// `most` samples at most.
    pub(super) fn next(&mut self, node: Node, most: u32, window: &ResidencyWindow, may_go: impl Fn(Sample) -> bool) -> Option<Sample> {
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::drawn;
    use crate::ids::Cluster;
    use crate::residency::window::WindowShare;

    const SAMPLES: u32 = 20;

    /// Returns a window in which these samples are in use.
    fn using(samples: &BTreeSet<Sample>) -> ResidencyWindow {
        let cluster = Cluster {
            nodes: 1,
            gpus: 1,
            cache_bytes: 1,
            reserved_bytes: 0,
        };
        let mut window = ResidencyWindow::new(cluster, SAMPLES, 0, WindowShare::Whole);
        for &sample in samples {
            window.open_copy(Access {
                node: 0,
                sample,
                iteration: 0,
                epoch: 0,
            });
        }
        window
    }

    proptest! {
        #![proptest_config(drawn::cases(200))]

        /// Also where a sample's nodes take several words.
        #[test]
        fn a_set_a_node(
            moves in proptest::collection::vec((0..200_u16, 0..SAMPLES), 0..200), nodes in 1..200_u16,
            used in proptest::collection::btree_set(0..SAMPLES, 0..10), odd: bool,
        ) {
            let mut kept = KeptSamples::new(nodes, SAMPLES);
            let mut plain: BTreeMap<Node, BTreeSet<Sample>> = BTreeMap::new();
            let bytes = |sample: Sample| 100 + sample;
            for (node, sample) in moves {
                let node = node % nodes;
                if plain.entry(node).or_default().insert(sample) {
                    kept.insert(node, sample, bytes(sample));
                } else {
                    plain.entry(node).or_default().remove(&sample);
                    kept.remove(node, sample, bytes(sample));
                }
                let of_node = &plain[&node];
                prop_assert_eq!(kept.copies(node) as usize, of_node.len());
                prop_assert_eq!(kept.bytes(node), of_node.iter().map(|&sample| u64::from(bytes(sample))).sum::<u64>());
                prop_assert_eq!(kept.contains(node, sample), of_node.contains(&sample));
                let holders: Vec<Node> = plain.iter().filter(|(_, of)| of.contains(&sample)).map(|(&node, _)| node).collect();
                prop_assert_eq!(kept.holder(sample), holders.first().copied());
            }
            let window = using(&used);
            let may_go = |sample: Sample| !odd || sample % 2 == 1;
            for node in 0..nodes {
                let of_node = plain.remove(&node).unwrap_or_default();
                prop_assert!((0..SAMPLES).all(|sample| kept.contains(node, sample) == of_node.contains(&sample)));
                let may: BTreeSet<Sample> = of_node.into_iter().filter(|sample| !used.contains(sample) && may_go(*sample)).collect();
                // Each comes up once before one comes up again, and nothing else does.
                let found: BTreeSet<Sample> = (0..may.len()).filter_map(|_| kept.next(node, SAMPLES, &window, may_go)).collect();
                prop_assert_eq!(&found, &may);
                let again = kept.next(node, SAMPLES, &window, may_go);
                prop_assert_eq!(again.is_some(), !may.is_empty());
            }
        }
    }

    #[test]
    fn a_search_goes_on_where_it_ended_and_no_further_than_it_may() {
        let mut kept = KeptSamples::new(2, SAMPLES);
        for sample in [3, 5, 19] {
            kept.insert(1, sample, 1);
        }
        let window = using(&BTreeSet::new());
        let mut next = |most| kept.next(1, most, &window, |_| true);
        assert_eq!([next(3), next(1), next(1)], [None, Some(3), None]);
        assert_eq!([next(1), next(13), next(1)], [Some(5), None, Some(19)]);
        assert_eq!(next(1000), Some(3), "from the start again");
    }
}
