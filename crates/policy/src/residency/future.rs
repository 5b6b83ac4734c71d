//! The next use of a sample, by any node or by a given one.
//!
//! Lobster keeps "a list of future accesses for each training sample" up to the end of training (Section 4.4). Fifty
//! epochs of that do not fit any memory; but a sample is used once an epoch, so its place in each known epoch's
//! permutation says it all: four bytes a sample and epoch.

use crate::ids::{Cluster, EpochNumber, Node, Rank, Sample};
use crate::order::{Deal, Epoch};

/// Epochs after the current one that policies look ahead by default.
pub const EPOCHS_AHEAD: u32 = 2;

/// Most grades for steps. If the known epochs have more steps, neighbours share one.
const GRADES_MAX: u64 = 1 << 20;

/// A use that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Step of the use, counted over all epochs.
    pub step: u64,
    /// Node of the use.
    pub node: Node,
}

/// Uses of the current epoch and of some after it.
#[derive(Clone, Debug)]
pub struct Future {
    cluster: Cluster,
    /// Ranks of the job before the cluster's first: above zero where the cluster is a part of the job.
    ranks_before: Rank,
    epochs_ahead: u32,
    /// The current epoch.
    epoch: EpochNumber,
    /// Deal of all epochs; `None` before the first.
    deal: Option<Deal>,
    /// Epochs known from the current one on.
    known: u32,
    /// Index of each sample in the permutations of the known epochs: for each sample one entry an epoch, that of
    /// epoch `e` at `e % horizon`. The entries of a sample are adjacent since they are read together.
    indices: Vec<u32>,
}

impl Future {
    /// Creates a future without known epochs. From [`begin`](Self::begin) on it knows the current epoch and
    /// `epochs_ahead` after it.
    pub const fn new(cluster: Cluster, epochs_ahead: u32) -> Self {
        Self {
            cluster,
            ranks_before: 0,
            epochs_ahead,
            epoch: 0,
            deal: None,
            known: 0,
            indices: Vec::new(),
        }
    }

    /// Makes the cluster a part of the job, with `ranks_before` ranks of the job before its own. The orders are those
    /// of the whole job.
    pub const fn set_ranks_before(&mut self, ranks_before: Rank) {
        self.ranks_before = ranks_before;
    }

    /// Epochs of order that [`begin`](Self::begin) looks at.
    pub const fn horizon(&self) -> u32 {
        self.epochs_ahead + 1
    }

    /// Begins an epoch: `orders` are of this epoch and of those after it, as in [`super::Residency::begin`]. Epochs
    /// known before are not computed again, so consecutive epochs take time linear in the dataset.
    pub fn begin(&mut self, epoch: EpochNumber, orders: &[Epoch]) {
        let passed = epoch.checked_sub(self.epoch).unwrap_or(self.known);
        self.known = self.known.saturating_sub(passed);
        self.epoch = epoch;
        self.deal = orders.first().map(Epoch::deal);
        let horizon = self.horizon() as usize;
        for order in orders.iter().take(horizon).skip(self.known as usize) {
            let samples = order.deal().samples();
            self.indices.resize(samples as usize * horizon, 0);
            let column = self.column(self.epoch + self.known);
            for (index, sample) in (0..).zip(order.samples(0..u64::from(samples))) {
                self.indices[sample.1 as usize * horizon + column] = index;
            }
            self.known += 1;
        }
    }

    const fn column(&self, epoch: EpochNumber) -> usize {
        (epoch % self.horizon()) as usize
    }

    /// The step with which the current epoch begins.
    pub fn first_step(&self) -> u64 {
        u64::from(self.epoch) * self.iterations()
    }

    /// Steps of an epoch.
    pub fn iterations(&self) -> u64 {
        self.deal.map_or(0, |deal| u64::from(deal.iterations()))
    }

    /// Touches the entries of a sample: see [`super::Residency::expect`].
    pub fn glance(&self, sample: Sample) -> u32 {
        self.indices[sample as usize * self.horizon() as usize]
    }

    /// Returns the next use in step `from` or later, by any node.
    pub fn next_use(&self, sample: Sample, from: u64) -> Option<Use> {
        self.search(sample, from, |_| true)
    }

    /// Returns the step of the next use in step `from` or later, by this node.
    pub fn next_use_on(&self, node: Node, sample: Sample, from: u64) -> Option<u64> {
        let first = u64::from(self.ranks_before) + u64::from(node) * u64::from(self.cluster.gpus);
        let ranks = first..first + u64::from(self.cluster.gpus);
        self.search(sample, from, |rank| ranks.contains(&rank)).map(|next| next.step)
    }

    /// Searches the known uses, the nearest first, for a rank that is `wanted`.
    fn search(&self, sample: Sample, from: u64, wanted: impl Fn(u64) -> bool) -> Option<Use> {
        let deal = self.deal?;
        let (iterations, world, positions) = (self.iterations(), u64::from(deal.world()), deal.positions());
        let indices = &self.indices[sample as usize * self.horizon() as usize..];
        for epoch in self.first_epoch(from)..self.epoch + self.known {
            let mut position = u64::from(indices[self.column(epoch)]);
            while position < positions {
                let rank = position % world;
                if wanted(rank) {
                    let step = u64::from(epoch) * iterations + position / (world * u64::from(deal.batch()));
                    if step >= from {
                        return Some(Use {
                            step,
                            node: self.cluster.node_of(rank as Rank),
                        });
                    }
                }
                position += u64::from(deal.samples());
            }
        }
        None
    }

    /// The first known epoch that has steps from `from` on.
    fn first_epoch(&self, from: u64) -> EpochNumber {
        (from / self.iterations().max(1)).max(u64::from(self.epoch)) as EpochNumber
    }

    /// Grades that steps of the known epochs have, one for what comes after them included.
    pub fn grades(&self) -> u32 {
        self.never() + 1
    }

    /// The grade of a step, higher for a later one; the highest for none.
    pub fn grade(&self, step: Option<u64>) -> u32 {
        let after = |step: u64| (step.saturating_sub(self.first_step()) / self.steps_a_grade()) as u32;
        step.map_or(self.never(), |step| after(step).min(self.never()))
    }

    fn never(&self) -> u32 {
        self.known_steps().div_ceil(self.steps_a_grade()) as u32
    }

    fn steps_a_grade(&self) -> u64 {
        self.known_steps().div_ceil(GRADES_MAX).max(1)
    }

    fn known_steps(&self) -> u64 {
        u64::from(self.known) * self.iterations()
    }
}
