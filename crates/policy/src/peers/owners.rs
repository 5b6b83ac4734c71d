//! Owners of files, each the node that reads a file from the source for all: weighted rendezvous hashing over a
//! table.

use crate::splitmix::{WEYL, mix};

/// Places of the table: a file's hash names one of them.
pub const PLACES: usize = 1 << 16;

/// The owners of all places, for one table of members.
///
/// A place belongs to the node with the largest score, so a node that joins takes its share from all others and one
/// that leaves gives its share to all others: 1/N of the files move, and a lost node's share is spread over the rest.
/// The scores are those of weighted rendezvous hashing (Thaler and Ravishankar 1998; weights by Schindelhauer and
/// Schomaker 2005): `-weight / ln(h)` for a hash `h` in (0, 1) of node and place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    /// For each place the nodes in the order of their scores, as far as [`Self::depth`].
    ranked: Vec<u16>,
    depth: usize,
}

impl Owners {
    /// Ranks the nodes for each place.
    ///
    /// `nodes` has each node's key (a number that stays with the node when the table changes) and its weight, such as
    /// the bytes that it may keep. `depth` is how many nodes of each place are remembered: the owner, and those that
    /// take over in turn.
    ///
    /// # Panics
    /// If there is no node, there are more than 65,536, or a weight is not a positive number.
    pub fn new(nodes: &[(u64, f64)], depth: usize) -> Self {
        assert!(!nodes.is_empty() && nodes.len() <= usize::from(u16::MAX) + 1, "1 to 65,536 nodes");
        assert!(
            nodes.iter().all(|(_, weight)| weight.is_finite() && *weight > 0.0),
            "weights are positive"
        );
        let depth = depth.clamp(1, nodes.len());
        let mut ranked = Vec::with_capacity(PLACES * depth);
        let mut scores: Vec<(f64, u16)> = Vec::with_capacity(nodes.len());
        for place in 0..PLACES as u64 {
            scores.clear();
            scores.extend(
                nodes
                    .iter()
                    .zip(0u16..=u16::MAX)
                    .map(|((key, weight), node)| (score(*key, place, *weight), node)),
            );
            let order = |a: &(f64, u16), b: &(f64, u16)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
            if depth < scores.len() {
                scores.select_nth_unstable_by(depth - 1, order);
                scores.truncate(depth);
            }
            scores.sort_unstable_by(order);
            ranked.extend(scores.iter().map(|(_, node)| *node));
        }
        Self { ranked, depth }
    }

    /// Number of nodes that are known for each place.
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the nodes of a file by its hash: first its owner, then those that take over, in their order.
    pub fn of(&self, hash: u64) -> &[u16] {
        let first = (hash >> 48) as usize * self.depth;
        self.ranked.get(first..first + self.depth).unwrap_or_default()
    }
}

fn score(key: u64, place: u64, weight: f64) -> f64 {
    let mixed = mix(key ^ mix(place.wrapping_add(WEYL)));
    // 53 bits, and never 0 or 1.
    #[expect(clippy::cast_precision_loss, reason = "the number has 53 bits")]
    let uniform = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -weight / uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(nodes: u64) -> Vec<(u64, f64)> {
        (0..nodes).map(|key| (key, 1.0)).collect()
    }

    fn shares(owners: &Owners, nodes: usize) -> Vec<usize> {
        let mut shares = vec![0; nodes];
        for place in 0..PLACES as u64 {
            shares[usize::from(owners.of(place << 48)[0])] += 1;
        }
        shares
    }

    #[test]
    fn equal_nodes_have_equal_shares() {
        let shares = shares(&Owners::new(&equal(8), 1), 8);
        for share in shares {
            assert!((7_800..8_600).contains(&share), "{share} of {PLACES} places for one of eight nodes");
        }
    }

    #[test]
    fn shares_follow_the_weights() {
        let shares = shares(&Owners::new(&[(1, 1.0), (2, 3.0)], 1), 2);
        assert!((15_700..17_100).contains(&shares[0]), "a quarter: {shares:?}");
    }

    #[test]
    fn a_node_that_leaves_moves_its_own_places_only_and_to_those_that_were_next() {
        let before = Owners::new(&equal(9), 3);
        let after = Owners::new(&equal(8), 3);
        let mut heirs = vec![0; 8];
        for place in (0..PLACES as u64).map(|place| place << 48) {
            let (old, new) = (before.of(place), after.of(place));
            if old[0] == 8 {
                assert_eq!(new[0], old[1], "the next in the order takes over");
                heirs[usize::from(new[0])] += 1;
            } else {
                assert_eq!(new[0], old[0]);
            }
        }
        let lost: usize = heirs.iter().sum();
        assert!(
            heirs.iter().all(|share| *share > lost / 12),
            "spread over all that are left: {heirs:?}"
        );
    }

    #[test]
    fn nobody_is_named_twice_and_all_are_named_where_there_are_few() {
        let owners = Owners::new(&equal(3), 8);
        assert_eq!(owners.depth(), 3);
        let mut of = owners.of(0xabcd << 48).to_vec();
        of.sort_unstable();
        assert_eq!(of, [0, 1, 2]);
    }
}
