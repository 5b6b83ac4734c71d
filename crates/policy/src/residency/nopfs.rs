//! NoPFS: the samples that a node uses most often stay, and prefetch goes in the order of use (Dryden, Böhringer,
//! Ben-Nun, Hoefler: "Clairvoyant prefetching for distributed machine learning I/O", SC '21; its share in the Lobster
//! paper is a baseline).
//!
//! Over a whole training of E epochs, a node of N uses a sample E / N times on average, some samples more often and
//! others less. A node keeps those that it uses most often, filling its memory in the order of first use. Others stay
//! for a window only (NoPFS's staging buffer) and are read from another node that has them, or from the source. The
//! choice is made for the whole training: it does not depend on the time of a use.

use super::cache::{Cache, Grade, GradedCopy, Preference};
use crate::ids::{Cluster, EpochNumber, Iteration, Node, Rank, Sample};
use crate::order::Epoch;

/// NoPFS's placement by frequency.
pub type Nopfs = Cache<Frequency>;

/// Number of uses of each sample by each node in a whole training: a byte for each pair, so the highest count is 255.
#[derive(Clone, Debug)]
pub struct Uses {
    nodes: usize,
    counts: Vec<u8>,
}

impl Uses {
    /// Counts the uses of some epochs, one after another: only one of them is in memory at a time if `epochs` makes
    /// them lazily.
    pub fn count(cluster: Cluster, samples: u32, epochs: impl IntoIterator<Item = Epoch>) -> Self {
        Self::count_after(cluster, 0, samples, epochs)
    }

    /// Counts the uses of a cluster that is a part of the job, with `ranks_before` ranks of the job before its own.
    pub fn count_after(cluster: Cluster, ranks_before: Rank, samples: u32, epochs: impl IntoIterator<Item = Epoch>) -> Self {
        let nodes = usize::from(cluster.nodes);
        let mut counts = vec![0_u8; nodes * samples as usize];
        for epoch in epochs {
            for iteration in 0..epoch.iterations() {
                for (rank, sample) in epoch.step(iteration) {
                    let Some(rank) = rank.checked_sub(ranks_before).filter(|rank| *rank < cluster.world()) else {
                        continue;
                    };
                    let count = &mut counts[sample as usize * nodes + usize::from(cluster.node_of(rank))];
                    *count = count.saturating_add(1);
                }
            }
        }
        Self { nodes, counts }
    }

    /// Number of uses of a sample by a node.
    pub fn of(&self, node: Node, sample: Sample) -> u8 {
        self.counts[sample as usize * self.nodes + usize::from(node)]
    }
}

/// Grades a copy by the number of uses by its node in the whole training: the more uses, the more it is worth.
#[derive(Clone, Debug)]
pub struct Frequency {
    uses: Uses,
}

impl Nopfs {
    /// Creates empty memories, with a window of `window` iterations; `uses` of the whole training.
    pub fn new(cluster: Cluster, samples: u32, window: Iteration, uses: Uses) -> Self {
        Self::with(Frequency { uses }, cluster, samples, Some(window))
    }
}

impl Preference for Frequency {
    fn name(&self) -> &'static str {
        "nopfs"
    }

    fn horizon(&self) -> u32 {
        1
    }

    fn grades(&self) -> u32 {
        u32::from(u8::MAX) + 1
    }

    fn weighs_replicas(&self) -> bool {
        true
    }

    fn begin(&mut self, _: EpochNumber, _: &[Epoch]) -> bool {
        false
    }

    fn glance(&self, sample: Sample) -> u32 {
        u32::from(self.uses.of(0, sample))
    }

    fn grade(&self, copy: GradedCopy) -> Option<Grade> {
        Some(u32::from(u8::MAX - self.uses.of(copy.node, copy.sample)))
    }

    /// Evicts the newest first: memory is filled in the order of first use.
    fn newest_first(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_used_more_often_is_worth_more() {
        let counts: Vec<u8> = (0..=u8::MAX).collect();
        let frequency = Frequency {
            uses: Uses { nodes: 1, counts },
        };
        let grade = |sample| {
            frequency.grade(GradedCopy {
                node: 0,
                sample,
                last: false,
                just_used: true,
                from: 0,
            })
        };
        assert!(grade(0).is_some_and(|grade| grade < frequency.grades()));
        for sample in 1..=255 {
            assert!(grade(sample).is_some() && grade(sample) < grade(sample - 1), "{sample} uses");
        }
    }
}
