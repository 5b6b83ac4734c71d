//! Owners of samples, each the node that reads a sample from the source and keeps it for all nodes of a job, and the
//! copies that the other nodes keep where there is room.
//!
//! Each node computes the same owners from the job's settings, so there is no directory to ask. A sample's owner is the
//! node that uses it in the job's first epoch, if the order is known: the first epoch then moves nothing between nodes.
//! Otherwise a hash says who owns it.

use std::sync::Arc;

use crate::ids::{Cluster, Node, Sample};
use crate::order::Epoch;
use crate::splitmix::{WEYL, mix};

/// Share of the room beside its own samples that a node fills with copies of others': sizes differ.
const COPIES_SHARE: f64 = 0.95;

/// The owner of each sample.
#[derive(Clone, Debug)]
pub struct SampleShares {
    nodes: Node,
    here: Node,
    /// Owners by sample; empty if a hash says who owns a sample.
    owners: Arc<[Node]>,
}

impl SampleShares {
    /// Owners by hash, as node `here` of `nodes` sees them.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn by_hash(nodes: Node, here: Node) -> Self {
        assert!(here < nodes, "node {here} of {nodes}");
        Self {
            nodes,
            here,
            owners: Arc::default(),
        }
    }

    /// Owners by the first epoch: the node that uses a sample there owns it. Samples that it leaves out have owners by
    /// hash. Two bytes a sample.
    ///
    /// # Panics
    /// If there is no node `here`.
    pub fn by_first_use(first: &Epoch, cluster: Cluster, here: Node) -> Self {
        let shares = Self::by_hash(cluster.nodes, here);
        let mut owners: Vec<Node> = (0..first.deal().samples()).map(|sample| shares.of(sample)).collect();
        for (node, sample) in users(first, cluster) {
            owners[sample as usize] = node;
        }
        Self {
            owners: owners.into(),
            ..shares
        }
    }

    /// Returns the same owners, as another node sees them.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn seen_by(&self, here: Node) -> Self {
        assert!(here < self.nodes, "node {here} of {}", self.nodes);
        Self {
            here,
            owners: Arc::clone(&self.owners),
            ..*self
        }
    }

    /// Number of other nodes.
    pub const fn others(&self) -> Node {
        self.nodes - 1
    }

    /// Returns the node that reads a sample from the source, and keeps it, for all.
    pub fn of(&self, sample: Sample) -> Node {
        let by_hash = || (hash(sample, 0) % u64::from(self.nodes)) as Node;
        self.owners.get(sample as usize).copied().unwrap_or_else(by_hash)
    }

    /// Returns true if this node reads a sample from the source, and keeps it, for all.
    pub fn is_owner(&self, sample: Sample) -> bool {
        self.of(sample) == self.here
    }

    /// Returns the node that takes a sample over while its owner does not answer: another one for each sample of an
    /// owner, so that its share is spread over all. `None` if there is no other node.
    pub fn substitute(&self, sample: Sample) -> Option<Node> {
        let others = u64::from(self.nodes - 1);
        let nth = hash(sample, 1).checked_rem(others)? as Node;
        Some(if nth < self.of(sample) { nth } else { nth + 1 })
    }

    /// Returns true if this node takes a sample over while its owner does not answer.
    pub fn is_substitute(&self, sample: Sample) -> bool {
        self.substitute(sample) == Some(self.here)
    }

    /// Returns the nodes that this one asks for a sample before it reads the source itself.
    pub fn to_ask(&self, sample: Sample) -> impl Iterator<Item = Node> + '_ {
        let nodes = [Some(self.of(sample)), self.substitute(sample)];
        nodes.into_iter().flatten().take_while(|node| *node != self.here)
    }

    /// Returns true if this node keeps a sample that it has used: as its owner, or as a copy in room that its own
    /// share leaves. `room_bytes` is what the node may keep, and `all_bytes` the expected size of all samples.
    ///
    /// Which samples are copied does not change from one epoch to the next, so a copy that is kept displaces no other.
    pub fn keeps(&self, sample: Sample, room_bytes: u64, all_bytes: f64) -> bool {
        if self.is_owner(sample) {
            return true;
        }
        let own_bytes = all_bytes / f64::from(self.nodes);
        let share = COPIES_SHARE * (room_bytes as f64 - own_bytes) / (all_bytes - own_bytes);
        // 2^53 is exact in a double.
        let place = (hash(sample, 2 + u64::from(self.here)) >> 11) as f64 / (1_u64 << 53) as f64;
        room_bytes as f64 >= all_bytes || place < share
    }
}

/// Returns the samples that an epoch uses, each with the node that uses it. Positions beyond the dataset's length
/// repeat its beginning, and are left out.
fn users(epoch: &Epoch, cluster: Cluster) -> impl Iterator<Item = (Node, Sample)> + '_ {
    let deal = epoch.deal();
    let positions = epoch.samples(0..deal.positions().min(u64::from(deal.samples())));
    positions.map(move |(position, sample)| (cluster.node_of((position % u64::from(deal.world())) as u32), sample))
}

fn hash(sample: Sample, salt: u64) -> u64 {
    mix(u64::from(sample) ^ mix(salt.wrapping_add(WEYL)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Deal, Order, Permutation};

    const SAMPLES: u32 = 10_007;

    fn order(world: u32) -> Order {
        Order {
            permutation: Permutation::Torch,
            seed: 3,
            deal: Deal::new(SAMPLES, world, 8).expect("a deal"),
        }
    }

    fn cluster(nodes: Node) -> Cluster {
        Cluster {
            nodes,
            gpus: 2,
            cache_bytes: 1,
        }
    }

    #[test]
    fn the_first_epoch_moves_nothing_between_nodes() {
        let first = order(6).epoch(0);
        let shares = SampleShares::by_first_use(&first, cluster(3), 1);
        for (position, sample) in first.samples(0..u64::from(SAMPLES)) {
            assert_eq!(shares.of(sample), cluster(3).node_of((position % 6) as u32));
        }
    }

    #[test]
    fn all_nodes_agree_and_shares_are_equal() {
        let first = order(8).epoch(0);
        for by_hash in [false, true] {
            let of_node = |here| {
                if by_hash {
                    SampleShares::by_hash(4, here)
                } else {
                    SampleShares::by_first_use(&first, cluster(4), here)
                }
            };
            let nodes: Vec<SampleShares> = (0..4).map(of_node).collect();
            let mut counts = [[0; 4]; 2];
            for sample in 0..SAMPLES {
                let owner = nodes[0].of(sample);
                let substitute = nodes[0].substitute(sample).expect("there are others");
                assert_ne!(owner, substitute);
                assert!(
                    nodes
                        .iter()
                        .all(|node| node.of(sample) == owner && node.substitute(sample) == Some(substitute))
                );
                counts[0][usize::from(owner)] += 1;
                counts[1][usize::from(substitute)] += 1;
                for (here, node) in (0..).zip(&nodes) {
                    let asked: Vec<Node> = node.to_ask(sample).collect();
                    let expected: &[Node] = match here {
                        _ if here == owner => &[],
                        _ if here == substitute => &[owner],
                        _ => &[owner, substitute],
                    };
                    assert_eq!(asked, expected, "sample {sample} on node {here}");
                }
            }
            for count in counts.into_iter().flatten() {
                assert!((2_200..2_800).contains(&count), "{counts:?}");
            }
        }
    }

    #[test]
    fn all_nodes_see_the_same_owners() {
        let shares = SampleShares::by_first_use(&order(6).epoch(0), cluster(3), 0);
        for here in 0..3 {
            let seen = shares.seen_by(here);
            assert!((0..SAMPLES).all(|sample| seen.of(sample) == shares.of(sample)));
            assert!((0..SAMPLES).all(|sample| seen.is_owner(sample) == (shares.of(sample) == here)));
        }
    }

    #[test]
    fn a_node_alone_asks_nobody() {
        let alone = SampleShares::by_hash(1, 0);
        assert_eq!((alone.of(5), alone.substitute(5), alone.to_ask(5).count()), (0, None, 0));
        assert!(alone.keeps(5, 0, 1e9));
    }

    #[test]
    fn copies_fill_the_room_that_is_left_and_no_more() {
        let shares = SampleShares::by_hash(4, 2);
        let kept = |room_bytes: u64| {
            (0..SAMPLES)
                .filter(|&sample| shares.keeps(sample, room_bytes, f64::from(SAMPLES)))
                .count()
        };
        let owned = (0..SAMPLES).filter(|&sample| shares.of(sample) == 2).count();
        assert_eq!(kept(0), owned, "its own share is kept as far as it goes");
        assert_eq!(kept(u64::from(SAMPLES) / 4), owned);
        assert_eq!(kept(u64::from(SAMPLES)), SAMPLES as usize);
        let half = kept(u64::from(SAMPLES) / 2);
        assert!(half <= SAMPLES as usize / 2 && half > SAMPLES as usize * 45 / 100, "{half}");
    }
}
