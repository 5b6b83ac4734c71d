//! Owners of samples, each the node that reads a sample from the source for all nodes of a job; the nodes that keep it,
//! one in each [group](NodeGroups); and the copies that the other nodes keep where there is room.
//!
//! Each node computes the same owners from the job's settings, so there is no directory to ask. A sample's owner is the
//! node that uses it in the job's first epoch, if the order is known: the first epoch then moves nothing between nodes.
//! Otherwise a hash says who owns it. The node with the owner's place in another group keeps the sample for that group.

use std::sync::Arc;

use super::groups::NodeGroups;
use crate::ids::{Cluster, Node, Sample};
use crate::order::Epoch;
use crate::splitmix::{WEYL, mix};

/// Share of the room beside its own samples that a node fills with copies of others': sizes differ.
const COPIES_SHARE: f64 = 0.95;

/// The owner of each sample, and the nodes that keep it.
#[derive(Clone, Debug)]
pub struct SampleShares {
    groups: NodeGroups,
    here: Node,
    /// Owners by sample; empty if a hash says who owns a sample.
    owners: Arc<[Node]>,
}

impl SampleShares {
    /// Owners by hash, as node `here` sees them.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn by_hash(groups: NodeGroups, here: Node) -> Self {
        assert!(here < groups.nodes(), "node {here} of {}", groups.nodes());
        Self {
            groups,
            here,
            owners: Arc::default(),
        }
    }

    /// Owners by the first epoch: the node that uses a sample there owns it. Samples that it leaves out have owners by
    /// hash. Two bytes a sample.
    ///
    /// # Panics
    /// If there is no node `here`, or the groups have other nodes than the cluster.
    pub fn by_first_use(first: &Epoch, cluster: Cluster, groups: NodeGroups, here: Node) -> Self {
        assert_eq!(groups.nodes(), cluster.nodes, "groups are those of the cluster");
        let shares = Self::by_hash(groups, here);
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
        assert!(here < self.groups.nodes(), "node {here} of {}", self.groups.nodes());
        Self {
            here,
            owners: Arc::clone(&self.owners),
            ..*self
        }
    }

    /// Number of other nodes.
    pub const fn others(&self) -> Node {
        self.groups.nodes() - 1
    }

    /// Returns the node that reads a sample from the source for all, and keeps it for its group.
    pub fn of(&self, sample: Sample) -> Node {
        let by_hash = || (hash(sample, 0) % u64::from(self.groups.nodes())) as Node;
        self.owners.get(sample as usize).copied().unwrap_or_else(by_hash)
    }

    /// Returns true if this node reads a sample from the source for all, and keeps it for its group.
    pub fn is_owner(&self, sample: Sample) -> bool {
        self.of(sample) == self.here
    }

    /// Returns the node of this node's group that keeps a sample for the group: the owner in its own group.
    pub fn keeper(&self, sample: Sample) -> Node {
        self.keeper_in(self.groups.group_of(self.here), sample)
    }

    /// Returns true if this node keeps a sample for its group.
    pub fn is_keeper(&self, sample: Sample) -> bool {
        self.keeper(sample) == self.here
    }

    /// Returns the node of this node's group that takes a sample over while the one that keeps it does not answer:
    /// another one for each sample of a keeper, so that its share is spread over all. `None` if the group has one node.
    pub fn substitute(&self, sample: Sample) -> Option<Node> {
        self.substitute_in(self.groups.group_of(self.here), sample)
    }

    /// Returns true if this node takes a sample over while the one that keeps it does not answer.
    pub fn is_substitute(&self, sample: Sample) -> bool {
        self.substitute(sample) == Some(self.here)
    }

    /// Returns the nodes that this one asks for a sample before it reads the source itself, at most two.
    ///
    /// A node of the owner's group asks the owner and its substitute; the substitute asks the owner. In another group a
    /// node asks the one that keeps the sample there and the substitute; the keeper asks those of the owner's group,
    /// and the substitute asks the keeper and the owner. So no node waits for one that waits for it.
    pub fn to_ask(&self, sample: Sample) -> impl Iterator<Item = Node> + use<> {
        let of_owner = [Some(self.of(sample)), self.substitute_in(self.home(sample), sample)];
        let here = Some(self.here);
        let nodes = if self.is_of_home(sample) {
            let is_substitute = of_owner[1] == here;
            [of_owner[0], of_owner[1].filter(|_| !is_substitute)].map(|node| node.filter(|_| of_owner[0] != here))
        } else if self.is_keeper(sample) {
            of_owner
        } else if self.is_substitute(sample) {
            [Some(self.keeper(sample)), of_owner[0]]
        } else {
            [Some(self.keeper(sample)), self.substitute(sample)]
        };
        nodes.into_iter().flatten()
    }

    /// Returns the node that this one asks for a sample that another node has asked it for: the owner, if that is of
    /// another group. `None` if it reads the source.
    pub fn to_ask_for_others(&self, sample: Sample) -> Option<Node> {
        Some(self.of(sample)).filter(|_| !self.is_of_home(sample))
    }

    /// Returns true if node `from`, which has asked this one for a sample, may wait until that comes: from another
    /// node, if `comes_from_node`, else from this node's disks or the source. A node of another group never waits for a
    /// sample that comes from another node itself: they would wait for each other.
    pub fn may_wait(&self, from: Node, comes_from_node: bool) -> bool {
        self.groups.are_together(from, self.here) || !comes_from_node
    }

    /// Returns the node to ask for a sample after one that has no room for it: the owner, if only nodes of another
    /// group were asked. `None` if the source is to be read, which is as near to this node as to any other.
    pub fn to_ask_instead_of(&self, full: Node, sample: Sample) -> Option<Node> {
        let owner = self.of(sample);
        let is_of_home = |node: Node| self.groups.are_together(node, owner);
        Some(owner).filter(|_| !is_of_home(full) && !is_of_home(self.here))
    }

    /// Returns the group of a sample's owner.
    fn home(&self, sample: Sample) -> Node {
        self.groups.group_of(self.of(sample))
    }

    /// Returns true if this node is of the group of a sample's owner.
    pub fn is_of_home(&self, sample: Sample) -> bool {
        self.groups.are_together(self.of(sample), self.here)
    }

    fn keeper_in(&self, group: Node, sample: Sample) -> Node {
        self.groups.at(group, self.groups.place_of(self.of(sample)), hash(sample, 2))
    }

    fn substitute_in(&self, group: Node, sample: Sample) -> Option<Node> {
        let others = u64::from(self.groups.size(group) - 1);
        let nth = hash(sample, 1).checked_rem(others)? as Node;
        let keeper = self.groups.place_of(self.keeper_in(group, sample));
        Some(self.groups.at(group, if nth < keeper { nth } else { nth + 1 }, 0))
    }

    /// Returns true if this node keeps a sample that it has used or read for others: as its owner; else for its group,
    /// in room that its own samples leave; else as a copy, in room that both leave. `room_bytes` is what the node may
    /// keep, and `all_bytes` the expected size of all samples.
    ///
    /// Which samples are copied does not change from one epoch to the next, so a copy that is kept displaces no other.
    pub fn keeps(&self, sample: Sample, room_bytes: u64, all_bytes: f64) -> bool {
        if self.is_owner(sample) {
            return true;
        }
        let own_bytes = all_bytes / f64::from(self.groups.nodes());
        let group_bytes = all_bytes / f64::from(self.groups.size(self.groups.group_of(self.here)));
        let (before, after) = if self.is_keeper(sample) {
            (own_bytes, group_bytes)
        } else {
            (group_bytes, all_bytes)
        };
        let share = COPIES_SHARE * (room_bytes as f64 - before) / (after - before);
        // 2^53 is exact in a double.
        let place = (hash(sample, 3 + u64::from(self.here)) >> 11) as f64 / (1_u64 << 53) as f64;
        room_bytes as f64 >= after || place < share
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
            reserved_bytes: 0,
        }
    }

    /// One group of all nodes.
    fn one(nodes: Node) -> NodeGroups {
        NodeGroups::of_at_most(nodes, 0)
    }

    #[test]
    fn the_first_epoch_moves_nothing_between_nodes() {
        let first = order(6).epoch(0);
        let shares = SampleShares::by_first_use(&first, cluster(3), one(3), 1);
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
                    SampleShares::by_hash(one(4), here)
                } else {
                    SampleShares::by_first_use(&first, cluster(4), one(4), here)
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
        let shares = SampleShares::by_first_use(&order(6).epoch(0), cluster(3), one(3), 0);
        for here in 0..3 {
            let seen = shares.seen_by(here);
            assert!((0..SAMPLES).all(|sample| seen.of(sample) == shares.of(sample)));
            assert!((0..SAMPLES).all(|sample| seen.is_owner(sample) == (shares.of(sample) == here)));
        }
    }

    #[test]
    fn a_node_alone_asks_nobody() {
        let alone = SampleShares::by_hash(one(1), 0);
        assert_eq!((alone.of(5), alone.substitute(5), alone.to_ask(5).count()), (0, None, 0));
        assert!(alone.keeps(5, 0, 1e9));
    }

    /// Follows the first node to ask, or the second one of the first time, until one reads the source.
    fn way(nodes: &[SampleShares], from: Node, sample: Sample, first: usize) -> Vec<Node> {
        let mut way = vec![from];
        let mut next = nodes[usize::from(from)].to_ask(sample).nth(first);
        while let Some(node) = next {
            way.push(node);
            assert!(way.len() <= 3, "{way:?}");
            next = nodes[usize::from(node)].to_ask_for_others(sample);
        }
        way
    }

    #[test]
    fn each_group_keeps_all_samples_and_one_node_reads_each() {
        for (count, most) in [(6, 2), (6, 3), (7, 3), (7, 2), (12, 4)] {
            let groups = NodeGroups::of_at_most(count, most);
            let first = order(u32::from(count) * 2).epoch(0);
            let nodes: Vec<SampleShares> = (0..count)
                .map(|here| SampleShares::by_first_use(&first, cluster(count), groups, here))
                .collect();
            for sample in 0..500 {
                let keepers: Vec<Node> = (0..count).filter(|node| nodes[usize::from(*node)].is_keeper(sample)).collect();
                let of_groups: Vec<Node> = keepers.iter().map(|node| groups.group_of(*node)).collect();
                assert_eq!(of_groups, (0..groups.count()).collect::<Vec<_>>(), "one in each group");
                let owner = nodes[0].of(sample);
                assert!(keepers.contains(&owner));
                for node in 0..count {
                    assert_eq!(way(&nodes, node, sample, 0).last(), Some(&owner), "the owner reads it");
                    let again = way(&nodes, node, sample, 1);
                    let last = &nodes[usize::from(*again.last().unwrap())];
                    let is_of_home = groups.are_together(last.here, owner);
                    assert!(
                        is_of_home || again.len() == 1,
                        "a node of the owner's group stands in for it: {again:?}"
                    );
                    let asked: Vec<Node> = nodes[usize::from(node)].to_ask(sample).collect();
                    assert!(!asked.contains(&node), "{asked:?}");
                    for full in asked {
                        let is_of_home = groups.are_together(full, owner);
                        let next = nodes[usize::from(node)].to_ask_instead_of(full, sample);
                        assert_eq!(next, (!is_of_home).then_some(owner), "the owner has room if all nodes together do");
                    }
                }
            }
        }
    }

    #[test]
    fn a_node_of_another_group_waits_for_no_sample_that_comes_from_a_node() {
        let shares = SampleShares::by_hash(NodeGroups::of_at_most(4, 2), 0);
        let waits = |from: Node| [true, false].map(|comes_from_node| shares.may_wait(from, comes_from_node));
        assert_eq!([1, 2, 3].map(waits), [[true, true], [false, true], [false, true]]);
    }

    #[test]
    fn a_group_keeps_copies_in_what_its_own_share_leaves() {
        let shares = SampleShares::by_hash(NodeGroups::of_at_most(8, 4), 2);
        let kept = |room_bytes: u64| {
            let all_bytes = f64::from(SAMPLES);
            (0..SAMPLES).filter(|&sample| shares.keeps(sample, room_bytes, all_bytes)).count()
        };
        let count = |is_it: &dyn Fn(Sample) -> bool| (0..SAMPLES).filter(|&sample| is_it(sample)).count();
        let (own, of_group) = (count(&|sample| shares.is_owner(sample)), count(&|sample| shares.is_keeper(sample)));
        assert!((1_100..1_400).contains(&own), "an eighth: {own}");
        assert!((2_200..2_800).contains(&of_group), "a quarter: {of_group}");
        assert_eq!(kept(0), own, "what it reads for all comes before all else");
        assert_eq!(kept(u64::from(SAMPLES) / 8), own);
        let between = kept(u64::from(SAMPLES) * 3 / 16);
        assert!(own + 400 < between && between < of_group - 400, "{between}");
        assert_eq!(kept(u64::from(SAMPLES) / 4 + 1), of_group);
        assert_eq!(kept(u64::from(SAMPLES)), SAMPLES as usize);
    }

    #[test]
    fn copies_fill_the_room_that_is_left_and_no_more() {
        let shares = SampleShares::by_hash(one(4), 2);
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
