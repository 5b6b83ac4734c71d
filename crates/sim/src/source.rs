//! The shared storage.

use forebay_policy::splitmix::mix;

use crate::draw::{Draw, Purpose};
use crate::pipe::Pipe;
use crate::scenario::{self, Scenario};

#[derive(Debug)]
pub(crate) struct SourceState {
    is: scenario::SharedStorage,
    pipe: Pipe,
    draw: Draw,
    admits_at_s: f64,
}

impl SourceState {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            is: scenario.source,
            pipe: Pipe::new(scenario.source.bytes_per_s),
            draw: Draw::new(scenario.job.seed ^ mix(scenario.source.seed), Purpose::Latency),
            admits_at_s: 0.0,
        }
    }

    /// Takes a request; returns the time of its first byte, without the queue for the bandwidth. `place` and `nth`
    /// identify the read, and so its latency.
    pub(crate) fn request(&mut self, now_s: f64, place: u64, nth: u64) -> f64 {
        let admitted_s = self.admits_at_s.max(now_s);
        self.admits_at_s = admitted_s + self.is.requests_per_s.recip();
        admitted_s + self.draw.lognormal(self.is.latency.median_s, self.is.latency.sigma, place, nth)
    }

    /// Sends a sample whose first byte is due; returns the time of its last byte.
    pub(crate) fn send(&mut self, now_s: f64, bytes: u32) -> f64 {
        let alone_s = now_s + f64::from(bytes) / self.is.stream_bytes_per_s;
        self.pipe.carry(now_s, bytes).max(alone_s)
    }
}
