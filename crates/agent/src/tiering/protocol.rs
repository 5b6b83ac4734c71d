//! The control socket: one JSON value a line, request and reply in turn. The connection is the run's lease: when it closes,
//! however the command ended, the run has ended.

use std::{collections::BTreeMap, path::PathBuf};

use forebay_policy::pressure::Memory;
use serde::{Deserialize, Serialize};

use crate::tiering::{config::label, counts::Counts};

/// Freshness of a run, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunFreshness {
    /// Seconds.
    Ttl(u64),
    /// Never asked again.
    Immutable,
    /// Asked at each open.
    OnOpen,
}

/// A source of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSetting {
    /// Absolute path as a program may spell it, no final slash.
    pub path: PathBuf,
    /// Device number that the path leads to.
    pub dev: u64,
}

/// What the command asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// A run begins on this connection.
    Join {
        /// Contract version of the command.
        version: u32,
        /// Sources.
        sources: Vec<SourceSetting>,
        /// Freshness.
        freshness: RunFreshness,
        /// Stay after the last run.
        keep: bool,
        /// Copy ahead of its programs while the source is idle.
        #[serde(default)]
        prefetch: bool,
        /// Patterns of files that are the source's alone, each with a NUL behind it.
        #[serde(default)]
        excludes: Vec<u8>,
    },
    /// What has been done for this connection's run (or, without one, in all), with all that was handed over before.
    Status,
    /// What the agent and the doors of all its runs have done since it started.
    Totals,
    /// The run has ended; the reply is its last status.
    Leave,
    /// End now: no run may be left (`clean` asks it).
    Stop,
}

/// What the agent answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The run is joined.
    Joined {
        /// Number of the run.
        run: u64,
        /// `CLOCK_BOOTTIME` of the agent's start in nanoseconds.
        started_at: u64,
    },
    /// Status.
    Status(Status),
    /// Totals.
    Totals(Totals),
    /// The agent ends.
    Stopping,
    /// The request can't be carried out.
    Refused {
        /// Why, in words for a person.
        why: String,
    },
}

/// What the agent has done. It is part of a run's record, which a later version may read: what is not there is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Hand-overs received.
    pub handed_over: u64,
    /// Files copied and published.
    pub files_copied: u64,
    /// Bytes of those.
    pub bytes_copied: u64,
    /// Files published whose copy was there already (another spelling, an earlier run, a refreshed name).
    pub files_confirmed: u64,
    /// Bytes that the agent read from source descriptors, those of copies that came to nothing included. What of them the page cache
    /// held was not asked of the source again.
    pub source_bytes_read: u64,
    /// Files copied ahead of programs, while the source was idle: none of `files_copied`.
    pub prefetched_files: u64,
    /// Bytes of those.
    pub prefetched_bytes: u64,
    /// Bytes that the agent read ahead and that came to no copy, or that a program read in the same moment.
    pub prefetched_in_vain_bytes: u64,
    /// Copies being made ahead: none of `in_flight`.
    pub prefetching: u64,
    /// Directories that programs listed at the source: none of `handed_over`.
    pub listings_handed_over: u64,
    /// Listings made and published: none of `files_copied`.
    pub listings_kept: u64,
    /// Bytes of those.
    pub listings_bytes: u64,
    /// Listings that were there already, and found to be those of the source.
    pub listings_confirmed: u64,
    /// Of the directories, those of which no listing was made, by reason.
    pub listings_not_kept: BTreeMap<String, u64>,
    /// Hand-overs that came to nothing, by reason.
    pub not_copied: BTreeMap<String, u64>,
    /// Hand-overs of files and directories whose times were ahead of this node's clock: each waited two seconds before it was copied.
    pub ahead_of_clock: u64,
    /// The most that such a time was ahead, in seconds.
    pub clock_ahead_s: u64,
    /// Copies being made or waiting, listings with them.
    pub in_flight: u64,
    /// Of `in_flight`, listings.
    pub listings_in_flight: u64,
    /// Directory sweeps.
    pub sweeps: u64,
    /// Names found changed or gone by sweeps.
    pub invalidated: u64,
    /// Copies of earlier runs taken over.
    pub adopted: u64,
    /// Whether adoption is still going on.
    pub adopting: bool,
    /// Runs connected now.
    pub runs: u64,
    /// Tiers, top first.
    pub tiers: Vec<TierStatus>,
    /// The memory that copies count in, as it was seen last; `None` where no tier lies in memory.
    #[serde(default)]
    pub memory: Option<MemoryStatus>,
    /// CPU time of the agent so far, in milliseconds.
    pub cpu_ms: u64,
}

impl Status {
    /// Copies of files being made or waiting.
    pub const fn files_in_flight(&self) -> u64 {
        self.in_flight.saturating_sub(self.listings_in_flight)
    }
}

/// Counts of an agent and of the preload libraries of its runs since the agent's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Counts of the agent.
    pub status: Status,
    /// Counts of the preload libraries, in runs that have ended and in those that are connected.
    pub doors: Counts,
}

/// Memory as an agent sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// The least limit that holds, in bytes.
    pub limit_bytes: u64,
    /// Of it what is free, or as good as.
    pub free_bytes: u64,
    /// Copies are given back when less is free.
    pub floor_bytes: u64,
}

impl From<Memory> for MemoryStatus {
    fn from(memory: Memory) -> Self {
        Self {
            limit_bytes: memory.limit_bytes,
            free_bytes: memory.free_bytes,
            floor_bytes: memory.floor_bytes(),
        }
    }
}

/// A tier's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Its directory.
    pub dir: PathBuf,
    /// Whether it lies in memory with its agent.
    #[serde(default)]
    pub ram: bool,
    /// Quota in bytes.
    pub quota_bytes: u64,
    /// Bytes of copies.
    pub used_bytes: u64,
    /// Copies of files.
    pub files: u64,
    /// Listings of directories.
    #[serde(default)]
    pub listings: u64,
    /// Why it is switched off, if it is.
    pub off: Option<String>,
    /// How often it was set aside since it was slower than the source.
    #[serde(default)]
    pub set_aside: u64,
    /// Copies that were removed to make room for others (`--policy lru`).
    #[serde(default)]
    pub replaced_files: u64,
    /// Bytes of those.
    #[serde(default)]
    pub replaced_bytes: u64,
    /// Copies that were removed since memory grew short.
    #[serde(default)]
    pub given_back_files: u64,
    /// Bytes of those.
    #[serde(default)]
    pub given_back_bytes: u64,
}

impl TierStatus {
    /// Copies of files and listings of directories.
    pub const fn copies(&self) -> u64 {
        self.files + self.listings
    }

    /// What people call it.
    pub fn label(&self) -> String {
        label(&self.dir, self.ram)
    }
}
