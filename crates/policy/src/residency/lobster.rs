//! Lobster's eviction by reuse count and reuse distance, coordinated with prefetch (Liu, Nicolae, Li: "Lobster", ICPP
//! '22, Section 4.4).
//!
//! [`Lobster::as_written`] follows the text, and [`Lobster::corrected`] its intention. The text leaves open or gets
//! wrong:
//!
//! - *I*, the iterations of an epoch, is |D| / (|B| * M) in Section 4.3, without the number of nodes N. Its own
//!   figures count all nodes (Section 5.3: 55,457 iterations on one node, 6,932 on eight), and so do both variants: a
//!   step is a batch of every rank.
//! - *Reuse distance policy*: "if the next reuse distance is larger than 2 * I - h, then the training sample will not
//!   be accessed by any GPUs on the node during the next epoch", and may go. On one node each sample is used in the
//!   next epoch, at most 2 * I - 1 - h away: the rule never applies. On N nodes it applies to (N - 1) / N of all
//!   samples, and gives up samples that later epochs would use while memory is free. `corrected` gives nothing up
//!   before room is needed; then the sample used furthest away, or not within the known epochs, goes first.
//! - *Reuse count policy*: a sample that its node does not use again until the end of training goes, "unless no other
//!   node in the group holds a copy". Such a sample also has no next use within 2 * I - h, so the second rule covers
//!   the first, and the exception would be void unless it holds for the second as well. In both variants it does. (So
//!   the end of training need not be known.)
//! - *Coordination with prefetching*: when memory is full, "we can evict the training samples with the largest reuse
//!   distance, while prioritizing the prefetches with the nearest". The text bounds prefetch by memory alone:
//!   `as_written` reads ahead as far as it can, which ends with reading everything in each epoch if the source is
//!   fast. It stops when the furthest copy is used before the sample to fetch. `corrected` has a window. And the text
//!   gives up last copies here, which others then read from the source: `corrected` first gives up copies that other
//!   nodes hold too, and of last copies the one that is used furthest away by *any* node.
//! - *Reuse distance* is that of the co-located GPUs (Section 3, Observation 4), in both variants; "across all GPUs"
//!   (Section 4.4) means these.
//!
//! A policy of [one node](Lobster::of_one_node) among others sees no other memory. Which copies are last is agreed
//! beforehand there: a sample's owner, which reads it from the source for all, holds the last copy, and every other
//! node a replica ([`Residency::passed`](super::Residency::passed)).

use super::cache::{Cache, Grade, GradedCopy, Preference};
use super::future::{EPOCHS_AHEAD, Future};
use crate::ids::{Cluster, EpochNumber, Iteration, Rank, Sample};
use crate::order::Epoch;

/// Lobster's eviction.
pub type Lobster = Cache<ReuseDistance>;

/// Grades a copy by its node's next use: the later the use, the less the copy is worth.
#[derive(Clone, Debug)]
pub struct ReuseDistance {
    text: TextRules,
    future: Future,
    /// True if other nodes get this node's copies, so that their uses count.
    serves_others: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextRules {
    AsWritten,
    Corrected,
}

impl Lobster {
    /// Creates the text's policy: prefetch is bounded by memory alone.
    pub fn as_written(cluster: Cluster, samples: u32) -> Self {
        Self::with(ReuseDistance::new(TextRules::AsWritten, cluster), cluster, samples, None)
    }

    /// Creates the text's policy with prefetch held to a window, to separate the cost of its rules from that of
    /// unbounded prefetch.
    pub fn as_written_within(cluster: Cluster, samples: u32, window: Iteration) -> Self {
        Self::with(ReuseDistance::new(TextRules::AsWritten, cluster), cluster, samples, Some(window))
    }

    /// Creates the corrected policy, with a window of `window` iterations.
    pub fn corrected(cluster: Cluster, samples: u32, window: Iteration) -> Self {
        Self::with(ReuseDistance::new(TextRules::Corrected, cluster), cluster, samples, Some(window))
    }

    /// Makes it the policy of one node among others, with `ranks_before` ranks of the job before its own. It counts the
    /// uses of this node only, until [`serve_others`](super::Residency::serve_others) is called.
    #[must_use]
    pub fn of_one_node(mut self, ranks_before: Rank) -> Self {
        let preference = self.preference_mut();
        preference.future.set_ranks_before(ranks_before);
        preference.serves_others = false;
        self
    }
}

impl ReuseDistance {
    const fn new(text: TextRules, cluster: Cluster) -> Self {
        Self {
            text,
            future: Future::new(cluster, EPOCHS_AHEAD),
            serves_others: true,
        }
    }

    /// Returns true if the next reuse distance, counted from the step that was just finished, is larger than 2 * I -
    /// h: the next use is in a step after the first of the epoch after the next one.
    fn beyond_next_epoch(&self, next: Option<u64>, from: u64) -> bool {
        let epoch = from.saturating_sub(1) / self.future.iterations().max(1);
        next.is_none_or(|next| next > (epoch + 2) * self.future.iterations())
    }
}

impl Preference for ReuseDistance {
    fn name(&self) -> &'static str {
        match self.text {
            TextRules::AsWritten => "lobster_as_written",
            TextRules::Corrected => "lobster",
        }
    }

    fn horizon(&self) -> u32 {
        self.future.horizon()
    }

    fn grades(&self) -> u32 {
        match self.text {
            TextRules::AsWritten => self.future.grades(),
            TextRules::Corrected => 2 * self.future.grades(),
        }
    }

    fn begin(&mut self, epoch: EpochNumber, orders: &[Epoch]) -> bool {
        self.future.begin(epoch, orders);
        true
    }

    fn looks_around(&self) -> bool {
        true
    }

    fn weighs_replicas(&self) -> bool {
        true
    }

    fn serve_others(&mut self) {
        self.serves_others = true;
    }

    fn glance(&self, sample: Sample) -> u32 {
        self.future.glance(sample)
    }

    fn grade(&self, copy: GradedCopy) -> Option<Grade> {
        let next_on_node = || self.future.next_use_on(copy.node, copy.sample, copy.from);
        match (self.text, copy.last) {
            (TextRules::AsWritten, last) => {
                let next = next_on_node();
                let goes = copy.just_used && !last && self.beyond_next_epoch(next, copy.from);
                (!goes).then(|| self.future.grade(next))
            }
            (TextRules::Corrected, true) if self.serves_others => {
                let next = self.future.next_use(copy.sample, copy.from);
                Some(self.future.grade(next.map(|next| next.step)))
            }
            (TextRules::Corrected, true) => Some(self.future.grade(next_on_node())),
            (TextRules::Corrected, false) => Some(self.future.grades() + self.future.grade(next_on_node())),
        }
    }

    fn gives_way(&self, grade: Grade, step: u64) -> bool {
        // A copy that another node holds too may always go: the window must not stand still for a replica.
        grade > self.future.grade(Some(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Deal, Order, Permutation};

    /// Four steps an epoch; the rule counts from the step that was just finished.
    #[test]
    fn beyond_the_next_epoch_is_after_the_first_step_of_the_one_after_it() {
        let cluster = Cluster {
            nodes: 1,
            gpus: 1,
            cache_bytes: 1,
            reserved_bytes: 0,
        };
        let deal = Deal::new(4, 1, 1).expect("a deal");
        let permutation = Permutation::Sequential;
        let order = Order {
            permutation,
            seed: 0,
            deal,
        };
        let mut future = Future::new(cluster, EPOCHS_AHEAD);
        future.begin(0, &[order.epoch(0), order.epoch(1), order.epoch(2)]);
        let reuse = ReuseDistance {
            future,
            ..ReuseDistance::new(TextRules::AsWritten, cluster)
        };
        for finished in 0..12 {
            let first_of_that = (finished / 4 + 2) * 4;
            assert!(!reuse.beyond_next_epoch(Some(first_of_that), finished + 1), "2 * I - h");
            assert!(reuse.beyond_next_epoch(Some(first_of_that + 1), finished + 1), "more than that");
            assert!(reuse.beyond_next_epoch(None, finished + 1));
        }
    }
}
