//! The nodes that read a file for each other: one for all, and one in each group of nodes that keeps it for its group.

use super::groups::NodeGroups;
use super::owners::Owners;
use crate::ids::Node;
use crate::splitmix::mix;

/// Nodes of a group that have a part in a file: the one that keeps it, and the one that takes over.
const HOLDERS: usize = 2;

/// Part of a node in a file. Nodes are named in the order in which it asks them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilePart {
    /// It reads the file from the source, for all nodes.
    Reads,
    /// It keeps the file for its group, and asks nodes of another group for it.
    Keeps(Vec<Node>),
    /// It asks other nodes for it.
    Asks(Vec<Node>),
}

/// Parts of all nodes in all files, as one of them sees them.
#[derive(Clone, Debug)]
pub struct FileHolders {
    owners: Owners,
    groups: NodeGroups,
    here: Node,
}

impl FileHolders {
    /// Computes the parts of node `here`. Takes a while: all places of a table are ranked.
    pub fn new(groups: NodeGroups, here: Node) -> Self {
        let places: Vec<(u64, f64)> = (0..u64::from(groups.size_max())).map(|place| (place, 1.0)).collect();
        Self {
            owners: Owners::new(&places, HOLDERS),
            groups,
            here,
        }
    }

    /// The groups of nodes.
    pub const fn groups(&self) -> NodeGroups {
        self.groups
    }

    /// Returns the part of this node in a file, by the hash of its path.
    pub fn part(&self, hash: u64) -> FilePart {
        let (own, home) = (self.groups.group_of(self.here), self.home(hash));
        let others = |nodes: Vec<Node>| nodes.into_iter().filter(|node| *node != self.here).collect();
        let of_home = self.holders(home, hash);
        if own == home {
            return if of_home.first() == Some(&self.here) {
                FilePart::Reads
            } else {
                FilePart::Asks(others(of_home))
            };
        }
        let of_own = self.holders(own, hash);
        match of_own.iter().position(|node| *node == self.here) {
            Some(0) => FilePart::Keeps(of_home),
            // It takes over, and asks the node of the other group once the one of its own does not answer.
            Some(_) => FilePart::Asks(of_own.into_iter().take(1).chain(of_home.into_iter().take(1)).collect()),
            // Its own group may lack the room.
            None => FilePart::Asks(of_own.into_iter().chain(of_home.into_iter().take(1)).collect()),
        }
    }

    /// Returns true if this node keeps a file for its group.
    pub fn keeps(&self, hash: u64) -> bool {
        self.holders(self.groups.group_of(self.here), hash).first() == Some(&self.here)
    }

    /// Returns true if this node gets a file that it lacks when others ask for it: it keeps it for its group, or takes
    /// over from the node that does.
    pub fn gets_for_others(&self, hash: u64) -> bool {
        self.holders(self.groups.group_of(self.here), hash).contains(&self.here)
    }

    /// Returns true if a node is of this node's group.
    pub fn is_near(&self, node: Node) -> bool {
        self.groups.are_together(node, self.here)
    }

    /// Returns the nodes that this one asks for a file that its group wants; none if it reads the source.
    pub fn to_ask_for_others(&self, hash: u64) -> Vec<Node> {
        let home = self.home(hash);
        if home == self.groups.group_of(self.here) {
            return Vec::new();
        }
        self.holders(home, hash)
    }

    /// Returns the group whose nodes read a file from the source.
    fn home(&self, hash: u64) -> Node {
        (mix(hash) % u64::from(self.groups.count())) as Node
    }

    /// Returns the nodes of a group that have a part in a file, each once.
    fn holders(&self, group: Node, hash: u64) -> Vec<Node> {
        let at = |place: &u16| self.groups.at(group, *place, mix(hash.wrapping_add(u64::from(*place))));
        let mut nodes: Vec<Node> = self.owners.of(hash).iter().map(at).collect();
        nodes.dedup();
        nodes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn hashes() -> impl Iterator<Item = u64> {
        (0..2000).map(mix)
    }

    /// All nodes as they see their parts.
    fn all(nodes: Node, most: Node) -> Vec<FileHolders> {
        let groups = NodeGroups::of_at_most(nodes, most);
        let first = FileHolders::new(groups, 0);
        (0..nodes).map(|here| FileHolders { here, ..first.clone() }).collect()
    }

    /// Follows the first node to ask until one reads the source; returns the nodes on the way.
    fn way(all: &[FileHolders], from: Node, hash: u64) -> Vec<Node> {
        let mut way = vec![from];
        loop {
            let last = &all[usize::from(*way.last().unwrap())];
            let next = if way.len() == 1 {
                match last.part(hash) {
                    FilePart::Reads => None,
                    FilePart::Keeps(nodes) | FilePart::Asks(nodes) => nodes.first().copied(),
                }
            } else {
                last.to_ask_for_others(hash).first().copied()
            };
            let Some(next) = next else { return way };
            assert!(all[usize::from(next)].gets_for_others(hash), "who is asked gets it");
            way.push(next);
        }
    }

    #[test]
    fn one_node_reads_a_file_for_all_and_one_of_each_group_keeps_it() {
        for (nodes, most) in [(1, 0), (4, 0), (4, 2), (9, 3), (11, 4)] {
            let all = all(nodes, most);
            let groups = all[0].groups;
            for hash in hashes().take(300) {
                let readers: Vec<Node> = (0..nodes)
                    .filter(|node| all[usize::from(*node)].part(hash) == FilePart::Reads)
                    .collect();
                assert_eq!(readers.len(), 1);
                let keepers: Vec<Node> = (0..nodes).filter(|node| all[usize::from(*node)].keeps(hash)).collect();
                assert!(keepers.contains(&readers[0]));
                let of_groups: Vec<Node> = keepers.iter().map(|node| groups.group_of(*node)).collect();
                assert_eq!(of_groups, (0..groups.count()).collect::<Vec<_>>());
                for node in 0..nodes {
                    let way = way(&all, node, hash);
                    assert_eq!(way.last(), readers.first(), "{way:?}");
                    assert!(way.len() <= 3, "{way:?}");
                }
            }
        }
    }

    #[test]
    fn in_one_group_the_owner_reads_and_the_next_takes_over() {
        let all = all(5, 0);
        for hash in hashes().take(100) {
            let [owner, next] = *all[0].owners.of(hash) else {
                panic!("two holders")
            };
            for node in &all {
                let expected = match node.here {
                    here if here == owner => FilePart::Reads,
                    here if here == next => FilePart::Asks(vec![owner]),
                    _ => FilePart::Asks(vec![owner, next]),
                };
                assert_eq!(node.part(hash), expected);
                assert_eq!(node.gets_for_others(hash), node.here == owner || node.here == next);
                assert!(node.to_ask_for_others(hash).is_empty());
            }
        }
    }

    #[test]
    fn a_node_speaks_with_its_group_and_few_others() {
        for node in all(24, 6) {
            let mut spoken = BTreeSet::new();
            for hash in hashes() {
                match node.part(hash) {
                    FilePart::Reads => {}
                    FilePart::Keeps(asked) | FilePart::Asks(asked) => spoken.extend(asked.first().copied()),
                }
                if node.keeps(hash) {
                    spoken.extend(node.to_ask_for_others(hash).first().copied());
                }
            }
            let (own, others): (Vec<Node>, Vec<Node>) = spoken.into_iter().partition(|other| node.is_near(*other));
            assert_eq!((own.len(), others.len()), (5, 3), "one node of each other group: {others:?}");
        }
    }

    #[test]
    fn readers_are_spread_over_all_nodes() {
        for (nodes, most) in [(12, 4), (11, 4)] {
            let all = all(nodes, most);
            let (mut reads, mut keeps) = (vec![0; nodes.into()], vec![0; nodes.into()]);
            for hash in hashes() {
                for node in &all {
                    reads[usize::from(node.here)] += usize::from(node.part(hash) == FilePart::Reads);
                    keeps[usize::from(node.here)] += usize::from(node.keeps(hash));
                }
            }
            assert!(reads.iter().all(|count| (110..300).contains(count)), "{reads:?}");
            assert!(keeps.iter().all(|count| (400..800).contains(count)), "{keeps:?}");
        }
    }
}
