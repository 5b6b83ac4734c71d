//! What was done, to be told: counts from a loader's beginning on.

use serde::{Deserialize, Serialize};

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Uses that found their sample in memory.
    pub from_memory: u64,
    /// Samples read from disks, and their bytes.
    pub from_disk: u64,
    /// Bytes of these.
    pub disk_bytes: u64,
    /// Of these, samples that an earlier job had left there.
    pub left_by_others: u64,
    /// Samples read from the source.
    pub from_source: u64,
    /// Bytes of these, those that were read in vain included.
    pub source_bytes: u64,
    /// Reads that were made again, since they took long.
    pub hedged: u64,
    /// Uses that ranks were told to read themselves: there was no room for them,
    pub refused_no_room: u64,
    /// or they could not be read,
    pub refused_failed: u64,
    /// or there is no such sample.
    pub refused_unknown: u64,
    /// Samples that the policy keeps and for which there was no room.
    pub lost: u64,
    /// Reads that are made at once now.
    pub reads_at_once: u64,
    /// Others that take so long that they hang, by all appearances.
    pub hung: u64,
}

impl Figures {
    /// All of them, with their names.
    pub const fn named(&self) -> [(&'static str, u64); 13] {
        [
            ("from_memory", self.from_memory),
            ("from_disk", self.from_disk),
            ("disk_bytes", self.disk_bytes),
            ("left_by_others", self.left_by_others),
            ("from_source", self.from_source),
            ("source_bytes", self.source_bytes),
            ("hedged", self.hedged),
            ("refused_no_room", self.refused_no_room),
            ("refused_failed", self.refused_failed),
            ("refused_unknown", self.refused_unknown),
            ("lost", self.lost),
            ("reads_at_once", self.reads_at_once),
            ("hung", self.hung),
        ]
    }
}

/// What was done for one rank so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFigures {
    /// Reads that were made for it. One that other ranks wait for, too, counts for the first that has asked.
    pub reads: u64,
    /// For how long these waited for a thread, in microseconds, all together.
    pub queued_us: u64,
    /// For how long threads were at work for it, likewise.
    pub reading_us: u64,
    /// Most threads that were at work for it at once.
    pub threads_most: u64,
}

impl RankFigures {
    /// All of them, with their names.
    pub const fn named(&self) -> [(&'static str, u64); 4] {
        [
            ("rank_reads", self.reads),
            ("rank_queued_us", self.queued_us),
            ("rank_reading_us", self.reading_us),
            ("rank_threads_most", self.threads_most),
        ]
    }

    /// A thread begins to read for it, and is one of so many.
    pub(super) fn begun(&mut self, threads: u32) {
        self.threads_most = self.threads_most.max(u64::from(threads));
    }

    /// That was the first time for what had waited so long.
    pub(super) fn waited(&mut self, seconds: f64) {
        self.reads += 1;
        self.queued_us += microseconds(seconds);
    }

    /// A thread has ended after so long.
    pub(super) fn ended(&mut self, seconds: f64) {
        self.reading_us += microseconds(seconds);
    }
}

fn microseconds(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e6) as u64
}
