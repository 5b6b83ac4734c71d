//! Furthest next use first (Belady, 1966), each node by its own uses.
//!
//! For equal sizes no policy of a single node reads less. It is a yardstick, not a plan: its reads come in bursts (at
//! the end of an epoch its memory holds the samples used last, at the start those used first), and nodes do not look
//! at each other's memories, so they give up last copies.

use super::cache::{Cache, Grade, GradedCopy, Preference};
use super::future::{EPOCHS_AHEAD, Future};
use crate::ids::{Cluster, EpochNumber, Iteration, Rank, Sample};
use crate::order::Epoch;

/// Furthest next use first.
pub type Belady = Cache<FurthestUse>;

/// Grades a copy by its node's next use: the later the use, the less the copy is worth.
#[derive(Clone, Debug)]
pub struct FurthestUse {
    future: Future,
}

impl Belady {
    /// Creates empty memories with a window of `window` iterations, looking [`EPOCHS_AHEAD`].
    pub fn new(cluster: Cluster, samples: u32, window: Iteration) -> Self {
        Self::looking(cluster, samples, window, EPOCHS_AHEAD)
    }

    /// Creates empty memories that look `epochs_ahead` epochs beyond the current one. With many nodes, a node uses a
    /// given sample only every few epochs; samples without a use within the known epochs go first, in no particular
    /// order.
    pub fn looking(cluster: Cluster, samples: u32, window: Iteration, epochs_ahead: u32) -> Self {
        Self::with(
            FurthestUse {
                future: Future::new(cluster, epochs_ahead),
            },
            cluster,
            samples,
            Some(window),
        )
    }

    /// Makes the cluster a part of the job, with `ranks_before` ranks of the job before its own.
    #[must_use]
    pub fn after(mut self, ranks_before: Rank) -> Self {
        self.preference_mut().future.set_ranks_before(ranks_before);
        self
    }
}

impl Preference for FurthestUse {
    fn name(&self) -> &'static str {
        "belady"
    }

    fn horizon(&self) -> u32 {
        self.future.horizon()
    }

    fn grades(&self) -> u32 {
        self.future.grades()
    }

    fn weighs_replicas(&self) -> bool {
        true
    }

    fn begin(&mut self, epoch: EpochNumber, orders: &[Epoch]) -> bool {
        self.future.begin(epoch, orders);
        true
    }

    fn glance(&self, sample: Sample) -> u32 {
        self.future.glance(sample)
    }

    fn grade(&self, copy: GradedCopy) -> Option<Grade> {
        Some(self.future.grade(self.future.next_use_on(copy.node, copy.sample, copy.from)))
    }

    fn gives_way(&self, grade: Grade, step: u64) -> bool {
        grade > self.future.grade(Some(step))
    }
}
