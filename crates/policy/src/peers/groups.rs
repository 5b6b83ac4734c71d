//! Groups of a job's nodes, each of which keeps everything once. A node speaks with the nodes of its own group, and
//! with one or two of each other group, so the number of its connections does not grow with the job.

use crate::ids::Node;

/// Most nodes of a job that share what they keep.
pub const JOB_NODES_MAX: Node = 4096;

/// The nodes of a job in groups of consecutive nodes, whose sizes differ by at most one.
///
/// A node has a *place* in its group. What a node reads from the source is kept in each group by the node with the same
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeGroups {
    nodes: Node,
    count: Node,
}

impl NodeGroups {
    /// Creates as few groups as there can be with at most `most` nodes each; 0 for one group of all.
    ///
    /// # Panics
    /// If there is no node.
    pub fn of_at_most(nodes: Node, most: Node) -> Self {
        assert!(nodes > 0, "a job has nodes");
        let count = if most == 0 { 1 } else { nodes.div_ceil(most) };
        Self { nodes, count }
    }

    /// Number of nodes.
    pub const fn nodes(self) -> Node {
        self.nodes
    }

    /// Number of groups.
    pub const fn count(self) -> Node {
        self.count
    }

    /// Number of nodes of the largest group.
    pub const fn size_max(self) -> Node {
        self.nodes.div_ceil(self.count)
    }

    /// Returns the number of the group of a node.
    pub fn group_of(self, node: Node) -> Node {
        let (node, nodes, count) = (u32::from(node), u32::from(self.nodes), u32::from(self.count));
        (((node + 1) * count - 1) / nodes) as Node
    }

    /// Returns true if two nodes are of one group.
    pub fn are_together(self, one: Node, other: Node) -> bool {
        self.group_of(one) == self.group_of(other)
    }

    /// Returns the number of nodes of a group.
    pub fn size(self, group: Node) -> Node {
        self.first(group + 1) - self.first(group)
    }

    /// Returns the place of a node in its group.
    pub fn place_of(self, node: Node) -> Node {
        node - self.first(self.group_of(node))
    }

    /// Returns the node of a group at a place. Where a smaller group lacks the place, `hash` says which of its nodes
    /// stands there, another one for each file or sample.
    pub fn at(self, group: Node, place: Node, hash: u64) -> Node {
        let size = self.size(group);
        let place = if place < size { place } else { (hash % u64::from(size)) as Node };
        self.first(group) + place
    }

    fn first(self, group: Node) -> Node {
        (u32::from(group) * u32::from(self.nodes) / u32::from(self.count)) as Node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_one_place_and_groups_differ_by_one_node_at_most() {
        for nodes in 1..200 {
            for most in [0, 1, 2, 3, 7, 64, 500] {
                let groups = NodeGroups::of_at_most(nodes, most);
                let sizes: Vec<Node> = (0..groups.count()).map(|group| groups.size(group)).collect();
                assert_eq!(sizes.iter().sum::<Node>(), nodes);
                let (least, largest) = (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
                assert!(largest - least <= 1 && largest == groups.size_max(), "{sizes:?}");
                assert!(most == 0 || largest <= most);
                for node in 0..nodes {
                    let (group, place) = (groups.group_of(node), groups.place_of(node));
                    assert_eq!(groups.at(group, place, 0), node);
                    assert_eq!(groups.are_together(0, node), group == 0);
                    assert!(place < groups.size(group));
                }
            }
        }
    }

    #[test]
    fn a_place_that_a_group_lacks_is_one_that_it_has() {
        let groups = NodeGroups::of_at_most(5, 3);
        assert_eq!([0, 1].map(|group| groups.size(group)), [2, 3]);
        assert_eq!([0, 1, 2].map(|place| groups.at(0, place, 6)), [0, 1, 0]);
        assert_eq!([0, 1, 2].map(|place| groups.at(0, place, 7)), [0, 1, 1]);
    }
}
