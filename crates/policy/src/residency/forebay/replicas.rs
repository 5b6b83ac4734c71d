//! Copies beside the owner's. A node makes them in remaining room, to spare itself a read from a peer, and any of
//! them may go at any time. For another replica, a node first gives up replicas that it is not known to use again,
//! then those used latest.

use super::outlook::{EpochPart, Outlook, PARTS};
use crate::ids::{Node, Sample};
use crate::residency::Access;
use crate::residency::kept::KeptSamples;
use crate::residency::window::ResidencyWindow;

/// Samples looked at in search of one that is idle.
const PROBES: u32 = 256;

#[derive(Clone, Debug)]
struct NodeReplicas {
    /// Replicas by the part of the next epoch in which the node uses them. Replicas that are gone stay listed.
    by_part: Vec<Vec<Sample>>,
    /// Number of parts up to the last one that lists a replica.
    end: usize,
    /// Replicas that the node is known to use again, in this epoch or the next. A use that never came may still be
    /// counted.
    wanted: u32,
}

/// Replicas of all nodes.
#[derive(Clone, Debug)]
pub(super) struct Replicas {
    samples: u32,
    kept: KeptSamples,
    nodes: Vec<NodeReplicas>,
}

impl Replicas {
    /// Creates no replicas.
    pub(super) fn new(nodes: Node, samples: u32) -> Self {
        let node = NodeReplicas {
            by_part: vec![Vec::new(); usize::from(PARTS)],
            end: 0,
            wanted: 0,
        };
        Self {
            samples,
            kept: KeptSamples::new(nodes, samples),
            nodes: vec![node; usize::from(nodes)],
        }
    }

    /// Touches the entries of upcoming accesses, so that their cache misses overlap.
    pub(super) fn expect(&self, uses: &[Access]) {
        self.kept.expect(uses);
    }

    /// Returns true if the node has a replica.
    pub(super) fn contains(&self, node: Node, sample: Sample) -> bool {
        self.kept.contains(node, sample)
    }

    /// Returns a node that has a replica.
    pub(super) fn holder(&self, sample: Sample) -> Option<Node> {
        self.kept.holder(sample)
    }

    /// Bytes of the node's replicas.
    pub(super) fn bytes(&self, node: Node) -> u64 {
        self.kept.bytes(node)
    }

    /// Begins an epoch: foreseen uses of the next epoch become uses of this one.
    pub(super) fn begin(&mut self) {
        for node in &mut self.nodes {
            node.by_part.iter_mut().for_each(Vec::clear);
            node.end = 0;
        }
    }

    /// Records a foreseen use of the next epoch by this node, which makes an idle replica wanted. (A sample that the
    /// node uses in this epoch too is recorded after that use.)
    pub(super) fn foresee(&mut self, node: Node, sample: Sample, part: EpochPart, used_now: bool) {
        if !used_now && self.kept.contains(node, sample) {
            self.list(node, sample, part);
        }
    }

    /// Adds a replica of the node, with the part of the next epoch in which the node uses it, if it is known to.
    pub(super) fn insert(&mut self, node: Node, sample: Sample, bytes: u32, next: Option<EpochPart>) {
        self.kept.insert(node, sample, bytes);
        if let Some(part) = next {
            self.list(node, sample, part);
        }
    }

    /// Records that the node has used its replica, as `foreseen` or not.
    pub(super) fn used(&mut self, node: Node, sample: Sample, foreseen: bool, next: Option<EpochPart>) {
        if foreseen {
            self.unwant(node);
            if let Some(part) = next {
                self.list(node, sample, part);
            }
        }
    }

    /// Removes the node's replica.
    pub(super) fn remove(&mut self, node: Node, sample: Sample, bytes: u32, outlook: &Outlook) {
        self.kept.remove(node, sample, bytes);
        if !outlook.is_idle(node, sample) {
            self.unwant(node);
        }
    }

    /// Returns the node's least useful replica: one that is idle, else the one used last in the next epoch, if that
    /// is after `part`.
    pub(super) fn worst(&mut self, node: Node, part: Option<EpochPart>, window: &ResidencyWindow, outlook: &Outlook) -> Option<Sample> {
        let idle = self.kept.copies(node).saturating_sub(self.nodes[usize::from(node)].wanted);
        // If few are idle, the search costs more than they are worth.
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

    /// Returns any replica of the node that is not in use.
    pub(super) fn any(&mut self, node: Node, window: &ResidencyWindow) -> Option<Sample> {
        self.kept.next(node, self.samples, window, |_| true)
    }

    fn unwant(&mut self, node: Node) {
        let wanted = &mut self.nodes[usize::from(node)].wanted;
        *wanted = wanted.saturating_sub(1);
    }

    fn list(&mut self, node: Node, sample: Sample, part: EpochPart) {
        let of_node = &mut self.nodes[usize::from(node)];
        of_node.by_part[usize::from(part)].push(sample);
        of_node.end = of_node.end.max(usize::from(part) + 1);
        of_node.wanted += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proptest::test_runner::TestCaseError;

    use super::*;
    use crate::drawn;
    use crate::ids::Cluster;
    use crate::order::{Deal, Order, Permutation};
    use crate::residency::window::WindowShare;

    /// Few enough samples that the search for an idle replica is always made.
    const SAMPLES: u32 = 120;
    const CLUSTER: Cluster = Cluster {
        nodes: 3,
        gpus: 1,
        cache_bytes: 1,
        reserved_bytes: 0,
    };

    /// Returns the outlook at the beginning of the first epoch, and windows in which some samples are in use.
    fn begun(seed: u64, used: &[Sample]) -> (Outlook, ResidencyWindow) {
        let deal = Deal::new(SAMPLES, CLUSTER.world(), 4).expect("a deal");
        let permutation = Permutation::Counter;
        let next = Order { permutation, seed, deal }.epoch(1);
        let mut outlook = Outlook::default();
        outlook.begin(CLUSTER, SAMPLES, Some(&next), |_, _, _, _| {});
        let mut window = ResidencyWindow::new(CLUSTER, SAMPLES, 0, WindowShare::Whole);
        for &sample in used {
            window.open_copy(Access {
                node: 0,
                sample,
                iteration: 0,
                epoch: 0,
            });
        }
        (outlook, window)
    }

    proptest! {
        #![proptest_config(drawn::cases(200))]

        /// Replicas that the node does not use again go first, then those used latest; given a part of the epoch,
        /// only those used after it. And again with other replicas, when all have gone.
        #[test]
        fn the_worst_goes_first(
            seed: u64, rounds in proptest::collection::vec(proptest::collection::btree_set(0..SAMPLES, 0..100), 1..4),
            used in proptest::collection::vec(0..SAMPLES, 0..3), part in proptest::option::of(0..PARTS),
        ) {
            let (outlook, window) = begun(seed, &used);
            let mut replicas = Replicas::new(CLUSTER.nodes, SAMPLES);
            for had in rounds {
                check_round(&mut replicas, had, part, &window, &outlook)?;
            }
        }
    }

    fn check_round(
        replicas: &mut Replicas,
        mut left: BTreeSet<Sample>,
        part: Option<EpochPart>,
        window: &ResidencyWindow,
        outlook: &Outlook,
    ) -> Result<(), TestCaseError> {
        for &sample in &left {
            replicas.insert(1, sample, 10 + sample, outlook.next(1, sample));
        }
        let mut last = None;
        while let Some(sample) = replicas.worst(1, part, window, outlook) {
            prop_assert!(left.remove(&sample) && !window.in_use(sample));
            let next = outlook.next(1, sample);
            prop_assert!(next.is_none_or(|next| part.is_none_or(|part| next > part)));
            prop_assert!(
                last.is_none() || next.is_some_and(|next| Some(next) <= last),
                "{:?} after {:?}",
                next,
                last
            );
            last = next;
            replicas.remove(1, sample, 10 + sample, outlook);
            prop_assert!(!replicas.contains(1, sample));
            let bytes: u64 = left.iter().map(|sample| u64::from(10 + sample)).sum();
            prop_assert_eq!(replicas.bytes(1), bytes);
        }
        // Replicas that may not go stay, and possibly those used no later than a listed one that is in use.
        let in_use = |sample: &Sample| window.in_use(*sample);
        let blocked = (0..SAMPLES).filter(in_use).filter_map(|sample| outlook.next(1, sample)).max();
        for sample in left.iter().filter(|sample| !in_use(sample)) {
            let next = outlook.next(1, *sample);
            prop_assert!(next.is_some() && (next <= part || next <= blocked));
        }
        // Finally all replicas may go except those in use.
        while let Some(sample) = replicas.any(1, window) {
            prop_assert!(left.remove(&sample) && !in_use(&sample));
            replicas.remove(1, sample, 10 + sample, outlook);
        }
        prop_assert!(left.iter().all(in_use));
        for sample in left {
            replicas.remove(1, sample, 10 + sample, outlook);
        }
        Ok(())
    }

    #[test]
    fn what_is_foreseen_is_no_longer_idle() {
        let (outlook, window) = begun(5, &[]);
        let used_next: Vec<Sample> = (0..SAMPLES).filter(|&sample| outlook.next(1, sample).is_some()).collect();
        let (first, second) = (used_next[0], used_next[1]);
        let mut replicas = Replicas::new(CLUSTER.nodes, SAMPLES);
        for sample in [first, second] {
            replicas.insert(1, sample, 1, None);
        }
        // A use foreseen in the next epoch lists the replica; if it is used in this epoch too, the use lists it.
        replicas.foresee(1, first, 7, false);
        replicas.foresee(1, second, 9, true);
        replicas.foresee(1, SAMPLES - 1, 11, false);
        assert_eq!(replicas.worst(1, Some(6), &window, &outlook), Some(first));
        assert_eq!(replicas.worst(1, Some(6), &window, &outlook), None);
        replicas.used(1, second, true, Some(9));
        assert_eq!(replicas.worst(1, Some(9), &window, &outlook), None);
        assert_eq!(replicas.worst(1, Some(8), &window, &outlook), Some(second));
        // A new epoch begins a new list.
        replicas.used(1, second, true, Some(9));
        replicas.begin();
        assert_eq!(replicas.worst(1, None, &window, &outlook), None);
    }
}
