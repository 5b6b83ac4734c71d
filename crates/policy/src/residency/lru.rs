//! Least recently used first: what an operating system's page cache and most caches do, roughly.
//!
//! For uses in random order it is the worst of the usual policies: of one node that holds a share f of the dataset, a
//! use finds its sample with probability f + (1 - f) ln(1 - f), which is 4.9 % at f = 29.6 %.

use super::cache::{Cache, Grade, GradedCopy, Preference};
use crate::ids::{Cluster, EpochNumber, Iteration};
use crate::order::Epoch;

/// Least recently used first.
pub type Lru = Cache<Recency>;

/// Gives all copies one grade: the order of their uses decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recency;

impl Lru {
    /// Creates empty memories, with a window of `window` iterations.
    pub fn new(cluster: Cluster, samples: u32, window: Iteration) -> Self {
        Self::with(Recency, cluster, samples, Some(window))
    }
}

impl Preference for Recency {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn horizon(&self) -> u32 {
        1
    }

    fn grades(&self) -> u32 {
        1
    }

    fn begin(&mut self, _: EpochNumber, _: &[Epoch]) -> bool {
        false
    }

    fn grade(&self, _: GradedCopy) -> Option<Grade> {
        Some(0)
    }
}
