//! Threads for each rank, if the schedule assigns them.

use forebay_policy::schedule::StepLoad;

use super::{MEMORY, Machine, RankRequests};

impl Machine {
    /// Assigns threads again if a rank has begun a step since the last time, for the batches that have just come within
    /// the window.
    pub(super) fn assign(&mut self) {
        let steps = self.ranks.iter().map(RankRequests::steps).max().unwrap_or(0);
        // Before any step was measured, no rank is late: all ranks have the same number of threads.
        if !self.scheduler.assigns() || steps == self.assigned_at || self.ranks.iter().all(|rank| rank.step_s() <= 0.0) {
            return;
        }
        self.assigned_at = steps;
        // Each rank decodes by itself: for one batch of each, the assignment takes the time of one after the other.
        let decoding_s = self.ranks.iter().map(RankRequests::decoding_s).fold(0.0, f64::max) / self.ranks.len() as f64;
        let (load, preprocessing) = self.speeds.models(decoding_s);
        self.scheduler.measured(load, preprocessing);
        let load = self.load();
        self.scheduler.assign(&load);
    }

    /// Returns the load of the last batch within the window, by rank; samples in memory need no read.
    fn load(&self) -> StepLoad {
        let reach = self.reach();
        let mut load = StepLoad {
            // Ranks train together: the one that is slowest by itself delays the others.
            train_s: self.ranks.iter().map(RankRequests::step_s).fold(0.0, f64::max),
            ..StepLoad::default()
        };
        for rank in &self.ranks {
            let (mut bytes, mut samples) = ([0; 3], 0);
            for sample in rank.of_step(rank.oldest_step() + reach - 1) {
                let copy = self.copies.get(sample);
                let size = u64::from(self.copies.expected_bytes(sample));
                match copy.and_then(|copy| copy.resident) {
                    _ if copy.is_some_and(|copy| copy.memory.is_some()) => {}
                    Some((tier, ..)) if tier != MEMORY => bytes[0] += size,
                    _ => bytes[2] += size,
                }
                samples += 1;
            }
            load.bytes.push(bytes);
            load.samples.push(samples);
        }
        load
    }
}
