//! Which node uses each sample, in this epoch still and in the next one.

use crate::ids::{Cluster, Node, Sample};
use crate::order;
use crate::residency::Access;
use crate::residency::window::NOBODY;

/// A part of an epoch: iterations are counted in this many parts, which is fine enough to compare next uses.
pub(super) type Part = u16;
/// Parts of an epoch.
pub(super) const PARTS: Part = 512;

#[derive(Clone, Copy, Debug)]
struct Use {
    node: Node,
    part: Part,
}

const NEVER: Use = Use { node: NOBODY, part: 0 };

/// Eight bytes a sample, since each consumed sample is looked up here.
#[derive(Clone, Copy, Debug)]
struct Uses {
    /// In this epoch, while it is to come.
    now: Node,
    next: Use,
}

/// Next uses. Knows nothing until the first [`Self::begin`].
#[derive(Clone, Debug, Default)]
pub(super) struct Outlook {
    uses: Vec<Uses>,
}

impl Outlook {
    /// Whether uses were looked up.
    pub(super) const fn is_known(&self) -> bool {
        !self.uses.is_empty()
    }

    /// An epoch of so many samples begins, after which comes `next`, or none that is known. `seen` is told each use in that: sample, node,
    /// part, and whether the same node uses the sample in this epoch too. A sample with which an epoch is padded counts by its first use.
    pub(super) fn begin(
        &mut self,
        cluster: Cluster,
        samples: u32,
        next: Option<&order::Epoch>,
        mut seen: impl FnMut(Sample, Node, Part, bool),
    ) {
        self.uses.resize(samples as usize, Uses { now: NOBODY, next: NEVER });
        for uses in &mut self.uses {
            *uses = Uses {
                now: uses.next.node,
                next: NEVER,
            };
        }
        let Some(next) = next else { return };
        let deal = next.deal();
        let nodes: Vec<Node> = (0..cluster.world()).map(|rank| cluster.node_of(rank)).collect();
        let iterations = u64::from(deal.iterations());
        for iteration in 0..deal.iterations() {
            let part = (u64::from(iteration) * u64::from(PARTS) / iterations) as Part;
            let positions = deal.step_positions(iteration);
            let ranks = nodes.iter().cycle();
            for ((_, sample), &node) in next.samples(positions.start..positions.end.min(u64::from(samples))).zip(ranks) {
                let uses = &mut self.uses[sample as usize];
                uses.next = Use { node, part };
                seen(sample, node, part, uses.now == node);
            }
        }
    }

    /// What will be asked for soon is read.
    pub(super) fn expect(&self, uses: &[Access]) {
        if self.is_known() {
            std::hint::black_box(uses.iter().fold(0, |bits, access| bits ^ self.uses[access.sample as usize].now));
        }
    }

    /// The node has used the sample. Whether that was known to come.
    pub(super) fn used(&mut self, node: Node, sample: Sample) -> bool {
        match self.uses.get_mut(sample as usize) {
            Some(uses) if uses.now == node => {
                uses.now = NOBODY;
                true
            }
            _ => false,
        }
    }

    /// When the node uses the sample in the next epoch; `None` where it does not, or nothing is known.
    pub(super) fn next(&self, node: Node, sample: Sample) -> Option<Part> {
        self.uses
            .get(sample as usize)
            .and_then(|uses| (uses.next.node == node).then_some(uses.next.part))
    }

    /// Whether the node is not known to use the sample again.
    pub(super) fn is_idle(&self, node: Node, sample: Sample) -> bool {
        self.uses
            .get(sample as usize)
            .is_none_or(|uses| uses.now != node && uses.next.node != node)
    }
}
