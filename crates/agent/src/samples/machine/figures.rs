//! Figures for reports: counts from a loader's beginning on.

use serde::{Deserialize, Serialize};

/// Figures of a loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests that found their sample in memory.
    pub from_memory: u64,
    /// Samples read from disks, and their bytes.
    pub from_disk: u64,
    /// Bytes of these.
    pub disk_bytes: u64,
    /// Samples among these that an earlier job had left there.
    pub left_by_others: u64,
    /// Samples read from the source.
    pub from_source: u64,
    /// Bytes of these, wasted reads included.
    pub source_bytes: u64,
    /// Nodes that share their samples, this one included; 0 for a node alone.
    pub nodes: u64,
    /// Samples that came from other nodes.
    pub from_peers: u64,
    /// Bytes of these.
    pub peer_bytes: u64,
    /// Samples that other nodes were given.
    pub to_peers: u64,
    /// Reads that were made again, since they were slow.
    pub hedged: u64,
    /// Requests that ranks had to read themselves, for lack of room.
    pub refused_no_room: u64,
    /// Requests that ranks had to read themselves, since the read failed.
    pub refused_failed: u64,
    /// Requests that ranks had to read themselves, since there is no such sample.
    pub refused_unknown: u64,
    /// Samples that the policy keeps and for which there was no room.
    pub lost: u64,
    /// Limit of concurrent reads at present.
    pub reads_at_once: u64,
    /// Reads that seem to hang, beside these.
    pub hung: u64,
}

impl Figures {
    /// Adds the counts of another loader. Gauges stay as they are.
    pub(crate) const fn add(&mut self, other: &Self) {
        self.from_memory += other.from_memory;
        self.from_disk += other.from_disk;
        self.disk_bytes += other.disk_bytes;
        self.left_by_others += other.left_by_others;
        self.from_source += other.from_source;
        self.source_bytes += other.source_bytes;
        self.from_peers += other.from_peers;
        self.peer_bytes += other.peer_bytes;
        self.to_peers += other.to_peers;
        self.hedged += other.hedged;
        self.refused_no_room += other.refused_no_room;
        self.refused_failed += other.refused_failed;
        self.refused_unknown += other.refused_unknown;
        self.lost += other.lost;
    }

    /// All figures, with their names.
    pub const fn named(&self) -> [(&'static str, u64); 17] {
        [
            ("from_memory", self.from_memory),
            ("from_disk", self.from_disk),
            ("disk_bytes", self.disk_bytes),
            ("left_by_others", self.left_by_others),
            ("from_source", self.from_source),
            ("source_bytes", self.source_bytes),
            ("nodes", self.nodes),
            ("from_peers", self.from_peers),
            ("peer_bytes", self.peer_bytes),
            ("to_peers", self.to_peers),
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

/// Figures of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFigures {
    /// Reads for this rank. A read that other ranks wait for, too, counts for the first that has asked.
    pub reads: u64,
    /// Time that these reads waited for a thread, in microseconds, all together.
    pub queued_us: u64,
    /// Time that threads were at work for it, in microseconds, all together.
    pub reading_us: u64,
    /// Most threads that were at work for it concurrently.
    pub threads_most: u64,
    /// Threads with which it is to decode at present; 0 if it has its own.
    pub decoders: u64,
    /// Most threads with which it was to decode.
    pub decoders_most: u64,
    /// Number of changes of this number.
    pub decoders_changed: u64,
}

impl RankFigures {
    /// All figures, with their names.
    pub const fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("rank_reads", self.reads),
            ("rank_queued_us", self.queued_us),
            ("rank_reading_us", self.reading_us),
            ("rank_threads_most", self.threads_most),
            ("rank_decoders", self.decoders),
            ("rank_decoders_most", self.decoders_most),
            ("rank_decoders_changed", self.decoders_changed),
        ]
    }

    /// Counts a new number of decoding threads.
    pub(super) fn decodes(&mut self, threads: u32) {
        self.decoders_changed += u64::from(self.decoders > 0);
        self.decoders = threads.into();
        self.decoders_most = self.decoders_most.max(self.decoders);
    }

    /// Counts a read that begins, as one of `threads` at work for this rank.
    pub(super) fn begun(&mut self, threads: u32) {
        self.threads_most = self.threads_most.max(u64::from(threads));
    }

    /// Counts the first wait of a read for a thread.
    pub(super) fn waited(&mut self, seconds: f64) {
        self.reads += 1;
        self.queued_us += microseconds(seconds);
    }

    /// Counts a read that has ended.
    pub(super) fn ended(&mut self, seconds: f64) {
        self.reading_us += microseconds(seconds);
    }
}

fn microseconds(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e6) as u64
}
