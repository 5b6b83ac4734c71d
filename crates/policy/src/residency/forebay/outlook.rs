//! Next uses: the node that uses each sample later in this epoch, and in the next one.

use crate::ids::{Cluster, Node, Sample};
use crate::order;
use crate::residency::Access;
use crate::residency::window::NOBODY;

/// A part of an epoch: iterations are counted in this many parts, which is fine enough to compare next uses.
pub(super) type EpochPart = u16;
pub(super) const PARTS: EpochPart = 512;

#[derive(Clone, Copy, Debug)]
struct NextUser {
    node: Node,
    part: EpochPart,
}

const NEVER: NextUser = NextUser { node: NOBODY, part: 0 };

/// Eight bytes a sample, since each consumed sample is looked up here.
#[derive(Clone, Copy, Debug)]
struct SampleUses {
    /// Node of its use in this epoch, while that is to come.
    now: Node,
    next: NextUser,
}

/// Next uses of all samples. Empty until the first [`Self::begin`].
#[derive(Clone, Debug, Default)]
pub(super) struct Outlook {
    uses: Vec<SampleUses>,
}

impl Outlook {
    /// Returns true if uses were looked up.
    pub(super) const fn is_known(&self) -> bool {
        !self.uses.is_empty()
    }

    /// Begins an epoch of `samples`, followed by `next` if that is known. `seen` is called with each use in the next
    /// epoch: sample, node, part, and true if the same node uses the sample in this epoch too. A sample that pads an
    /// epoch counts by its first use.
    pub(super) fn begin(
        &mut self,
        cluster: Cluster,
        samples: u32,
        next: Option<&order::Epoch>,
        mut seen: impl FnMut(Sample, Node, EpochPart, bool),
    ) {
        self.uses.resize(samples as usize, SampleUses { now: NOBODY, next: NEVER });
        for uses in &mut self.uses {
            *uses = SampleUses {
                now: uses.next.node,
                next: NEVER,
            };
        }
        let Some(next) = next else { return };
        let deal = next.deal();
        let nodes: Vec<Node> = (0..cluster.world()).map(|rank| cluster.node_of(rank)).collect();
        let iterations = u64::from(deal.iterations());
        for iteration in 0..deal.iterations() {
            let part = (u64::from(iteration) * u64::from(PARTS) / iterations) as EpochPart;
            let positions = deal.step_positions(iteration);
            let ranks = nodes.iter().cycle();
            for ((_, sample), &node) in next.samples(positions.start..positions.end.min(u64::from(samples))).zip(ranks) {
                let uses = &mut self.uses[sample as usize];
                uses.next = NextUser { node, part };
                seen(sample, node, part, uses.now == node);
            }
        }
    }

    /// Touches the entries of upcoming accesses, so that their cache misses overlap.
    pub(super) fn expect(&self, uses: &[Access]) {
        if self.is_known() {
            std::hint::black_box(uses.iter().fold(0, |bits, access| bits ^ self.uses[access.sample as usize].now));
        }
    }

    /// Records that the node has used the sample. Returns true if that use was foreseen.
    pub(super) fn used(&mut self, node: Node, sample: Sample) -> bool {
        match self.uses.get_mut(sample as usize) {
            Some(uses) if uses.now == node => {
                uses.now = NOBODY;
                true
            }
            _ => false,
        }
    }

    /// Returns the part of the next epoch in which the node uses the sample; `None` if it does not, or nothing is
    /// known.
    pub(super) fn next(&self, node: Node, sample: Sample) -> Option<EpochPart> {
        self.uses
            .get(sample as usize)
            .and_then(|uses| (uses.next.node == node).then_some(uses.next.part))
    }

    /// Returns true if the node is not known to use the sample again.
    pub(super) fn is_idle(&self, node: Node, sample: Sample) -> bool {
        self.uses
            .get(sample as usize)
            .is_none_or(|uses| uses.now != node && uses.next.node != node)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::drawn;
    use crate::order::{Deal, Epoch, Order, Permutation};

    /// The node and the iteration of each sample's first use in an epoch.
    fn first_uses(cluster: Cluster, epoch: &Epoch) -> BTreeMap<Sample, (Node, u32)> {
        let mut uses = BTreeMap::new();
        for iteration in 0..epoch.iterations() {
            for (rank, sample) in epoch.step(iteration) {
                uses.entry(sample).or_insert((cluster.node_of(rank), iteration));
            }
        }
        uses
    }

    proptest! {
        #![proptest_config(drawn::cases(200))]

        /// Over several epochs, of which the last has no successor: each node's next use, and each foreseen use.
        #[test]
        fn next_uses_are_those_of_the_orders(
            samples in 1..60_u32, shape in (1..4_u16, 1..3_u32, 1..5_u32), drop: bool, seed: u64, used in proptest::collection::vec(any::<bool>(), 60),
        ) {
            let (nodes, gpus, batch) = shape;
            let cluster = Cluster {
                nodes,
                gpus,
                cache_bytes: 1,
                reserved_bytes: 0,
            };
            let deal = Deal::new(samples, cluster.world(), batch).expect("a deal");
            let deal = deal.sampler_drop_last(drop).unwrap_or(deal);
            let order = Order { permutation: Permutation::Counter, seed, deal };
            let mut outlook = Outlook::default();
            prop_assert!(!outlook.is_known() && !outlook.used(0, 0) && outlook.is_idle(0, 0) && outlook.next(0, 0).is_none());
            let mut now = BTreeMap::new();
            for number in 0..3 {
                let epoch = (number < 2).then(|| order.epoch(number + 1));
                let next = epoch.as_ref().map_or_else(BTreeMap::new, |epoch| first_uses(cluster, epoch));
                let mut seen = BTreeMap::new();
                outlook.begin(cluster, samples, epoch.as_ref(), |sample, node, part, now| {
                    seen.insert(sample, (node, part, now));
                });
                prop_assert!(outlook.is_known());
                prop_assert_eq!(seen.len(), next.len());
                for (sample, (node, iteration)) in &next {
                    let part = (u64::from(*iteration) * u64::from(PARTS) / u64::from(deal.iterations())) as EpochPart;
                    let is_used_now = now.get(sample).is_some_and(|(user, _)| user == node);
                    prop_assert_eq!(seen.get(sample).copied(), Some((*node, part, is_used_now)));
                    prop_assert_eq!(outlook.next(*node, *sample), Some(part));
                }
                for sample in 0..samples {
                    for node in 0..nodes {
                        let is_next = next.get(&sample).is_some_and(|(user, _)| *user == node);
                        let is_now = || now.get(&sample).is_some_and(|(user, _)| *user == node);
                        prop_assert_eq!(outlook.next(node, sample).is_some(), is_next);
                        prop_assert_eq!(outlook.is_idle(node, sample), !is_next && !is_now());
                        // Ends some uses before the epoch ends, each once.
                        if used[sample as usize] {
                            let was_now = is_now();
                            prop_assert_eq!(outlook.used(node, sample), was_now);
                            prop_assert!(!outlook.used(node, sample));
                            prop_assert_eq!(outlook.is_idle(node, sample), !is_next);
                        }
                    }
                }
                now = next;
            }
        }
    }
}
