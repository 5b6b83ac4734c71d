//! Threads that read, and reads that hang: they no longer count as concurrent reads, so that a file system that hangs
//! in one place does not delay reads elsewhere.

use super::flights::SampleReads;

use crate::samples::limits::{LOADER_HANGS_AFTER_S, LOADER_LOOK_FOR_HUNG_S};

/// Counts of the threads that read.
#[derive(Debug)]
pub(super) struct ReadThreads {
    /// Reads under way, except hanging ones.
    reading: u32,
    /// Reads under way by rank, except hanging ones.
    busy: Vec<u32>,
    hung: u32,
    hung_max: u32,
    /// Time of the last search for hanging reads, in seconds.
    looked_s: f64,
}

impl ReadThreads {
    pub(super) fn new(ranks: usize, hung_max: u32) -> Self {
        Self {
            reading: 0,
            busy: vec![0; ranks],
            hung: 0,
            hung_max,
            looked_s: 0.0,
        }
    }

    /// Reads under way, except hanging ones.
    pub(super) const fn reading(&self) -> u32 {
        self.reading
    }

    /// Reads under way by rank, except hanging ones.
    pub(super) fn busy(&self) -> &[u32] {
        &self.busy
    }

    /// Hanging reads.
    pub(super) const fn hung(&self) -> u32 {
        self.hung
    }

    /// Counts a read that begins; returns the reads of its rank.
    pub(super) fn begin(&mut self, rank: usize) -> u32 {
        self.reading += 1;
        self.busy[rank] += 1;
        self.busy[rank]
    }

    /// Counts a read that has ended.
    pub(super) fn end(&mut self, rank: usize, was_hung: bool) {
        if was_hung {
            self.hung -= 1;
        } else {
            self.reading -= 1;
            self.busy[rank] -= 1;
        }
    }

    /// Searches from time to time for reads that began long ago. At most as many are set aside as may be read
    /// concurrently.
    pub(super) fn set_hung_aside(&mut self, reads: &mut SampleReads, now_s: f64) {
        if now_s - self.looked_s < LOADER_LOOK_FOR_HUNG_S {
            return;
        }
        self.looked_s = now_s;
        for rank in reads.set_aside(now_s - LOADER_HANGS_AFTER_S, self.hung_max - self.hung) {
            self.hung += 1;
            self.reading -= 1;
            self.busy[rank] -= 1;
        }
    }
}
