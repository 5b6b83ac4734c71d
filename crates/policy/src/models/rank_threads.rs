//! Cost of a rank's samples by the number of threads that decode beside each other, while both change.
//!
//! One figure shows both the cost of a sample and how much threads slow each other down. The time at which it changes
//! tells them apart. While the number of threads stays, a change is one of the samples: it counts at all numbers. Only
//! the batches before and after the number has changed tell how much threads slow each other down. If the first batch
//! after that costs more than they can, samples have changed at the same time.

use std::collections::BTreeMap;

/// Weight that a rank's cost of a sample loses with each later batch: threads follow a change within a few steps.
const RECENT_FADING: f64 = 1.0 / 3.0;
/// Weight that a measurement loses with each later one at the same number of threads.
const FADING: f64 = 1.0 - 1.0 / 8.0;
/// Batches of a rank after a change of the number of threads that may have been decoded before it.
pub(super) const STALE_BATCHES: u64 = 2;
/// Batches of a rank, after these, that make a measurement at a number of threads.
const KNOWN_BATCHES: u64 = 4;
/// Factor by which a last batch differs from the recent ones before it if samples are changing just then.
const CHANGED: f64 = 1.5;

/// Returns a recent cost after one more; 0 stands for none before.
pub(super) fn recent(before_s: f64, seconds: f64) -> f64 {
    if before_s == 0.0 {
        seconds
    } else {
        seconds.mul_add(1.0 - RECENT_FADING, RECENT_FADING * before_s)
    }
}

/// Cost at one number of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ThreadCost {
    weight: f64,
    /// Seconds of one thread, times the weight.
    seconds: f64,
    /// Enough batches were measured at this number of threads, now or before.
    is_known: bool,
    /// Count of all batches of the node when this was measured last.
    at: u64,
}

impl ThreadCost {
    fn mean_s(&self) -> f64 {
        self.seconds / self.weight
    }
}

/// Cost of the samples of one rank, of one size class, in seconds of one thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RankThreads {
    costs: BTreeMap<u32, ThreadCost>,
    /// Threads beside which the last batch was decoded; 0 before any.
    threads: u32,
    /// Batches at this number. The first number of all counts as if stale batches had come before.
    batches: u64,
    last_s: f64,
    /// Recent batches before the last one, at this number.
    before_s: f64,
}

impl RankThreads {
    /// Records a batch, whose samples took `seconds` each while `threads` decoded. `at` is the count of all batches.
    pub(super) fn observe(&mut self, threads: u32, seconds: f64, at: u64) {
        if threads != self.threads {
            self.settle();
            // What was measured at the very first number was decoded beside it.
            self.batches = if self.threads == 0 { STALE_BATCHES } else { 0 };
            (self.threads, self.before_s, self.last_s) = (threads, 0.0, 0.0);
        }
        self.batches += 1;
        if self.batches == 1 {
            self.take_first(seconds);
        }
        if self.last_s > 0.0 {
            self.before_s = recent(self.before_s, self.last_s);
        }
        self.last_s = seconds;
        if self.batches <= STALE_BATCHES {
            return;
        }
        let measured = self.batches - STALE_BATCHES;
        let cost = self.costs.entry(threads).or_default();
        cost.at = at;
        if measured == 1 && cost.weight > 1.0 {
            // A measurement begins; the one before counts as one batch.
            (cost.weight, cost.seconds) = (1.0, cost.mean_s());
        }
        let before_s = cost.mean_s();
        cost.weight = cost.weight.mul_add(FADING, 1.0);
        cost.seconds = cost.seconds.mul_add(FADING, seconds);
        let change = cost.mean_s() / before_s;
        cost.is_known |= measured >= KNOWN_BATCHES;
        if measured > KNOWN_BATCHES {
            self.change_others(change);
        }
    }

    /// Takes the last batches at a number of threads for the cost there, before the number changes: threads may move
    /// because samples have just become costlier.
    fn settle(&mut self) {
        if self.batches <= STALE_BATCHES + KNOWN_BATCHES {
            return;
        }
        let is_changing = (self.last_s / self.before_s).ln().abs() > CHANGED.ln();
        let seconds = if is_changing {
            self.last_s
        } else {
            recent(self.before_s, self.last_s)
        };
        let Some(cost) = self.costs.get_mut(&self.threads) else { return };
        let change = seconds / cost.mean_s();
        cost.seconds *= change;
        self.change_others(change);
    }

    /// Takes the first batch after the number of threads has changed. If it costs more, or less, than another number
    /// of threads can explain, samples were changing just then: however many threads there are, all together are not
    /// slower than fewer.
    fn take_first(&mut self, seconds: f64) {
        let Some((_, before)) = self.newest() else { return };
        let Some(before_s) = self.seconds(before) else { return };
        let growth = f64::from(self.threads) / f64::from(before);
        let change = seconds / before_s;
        let beyond = change / change.clamp(growth.min(1.0), growth.max(1.0));
        if beyond.ln().abs() > CHANGED.ln() {
            self.costs.values_mut().for_each(|cost| cost.seconds *= beyond);
        }
    }

    /// Multiplies the costs at other numbers of threads.
    fn change_others(&mut self, change: f64) {
        let others = self.costs.iter_mut().filter(|(number, _)| **number != self.threads);
        others.for_each(|(_, cost)| cost.seconds *= change);
    }

    /// Forgets what was measured last before the count of all batches was `at`, but for the newest.
    pub(super) fn forget_before(&mut self, at: u64) {
        let newest = self.newest();
        self.costs
            .retain(|&threads, cost| cost.at >= at || newest == Some((cost.at, threads)));
    }

    /// Numbers of threads at which it was measured.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.measured().map(|(threads, _)| threads)
    }

    /// Cost beside `threads`, if it was measured.
    pub(super) fn seconds(&self, threads: u32) -> Option<f64> {
        self.measured()
            .find(|(number, _)| *number == threads)
            .map(|(_, cost)| cost.mean_s())
    }

    /// Returns when it was measured last, and at which number of threads.
    pub(super) fn newest(&self) -> Option<(u64, u32)> {
        self.measured().map(|(threads, cost)| (cost.at, threads)).max()
    }

    /// Measurements of enough batches; those that there are, before any has enough.
    fn measured(&self) -> impl Iterator<Item = (u32, &ThreadCost)> {
        let is_any_known = self.costs.values().any(|cost| cost.is_known);
        let counts = move |cost: &ThreadCost| cost.is_known || !is_any_known;
        self.costs
            .iter()
            .map(|(&threads, cost)| (threads, cost))
            .filter(move |(_, cost)| counts(cost))
    }
}
