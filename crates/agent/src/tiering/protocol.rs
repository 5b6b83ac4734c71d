//! Messages of the control socket: one JSON value a packet, request and response in turn. The connection is the run's
//! lease: the run ends when it closes, however the command ended.

use std::{collections::BTreeMap, path::PathBuf};

use forebay_contract::Freshness;
use forebay_policy::{pressure::JobMemory, read_ahead::AheadMode};
use serde::{Deserialize, Serialize};

use crate::{
    host::{
        refusal::Refusal,
        role::{RoleRequest, RoleResponse},
    },
    tiering::{ahead::file::AheadUse, config::label, counts::Counts},
};

/// A source of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSetting {
    /// Absolute path in a spelling that programs use, without a final slash.
    pub path: PathBuf,
    /// Device number of the directory at the path.
    pub dev: u64,
}

/// Request of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum ControlRequest {
    /// Begins a run on this connection. Answer: [`ControlResponse::Joined`].
    Join {
        /// Version of the protocol.
        version: u32,
        /// Sources with all their spellings.
        sources: Vec<SourceSetting>,
        /// Freshness of the run.
        freshness: Freshness,
        /// True if the agent is to stay after its last run.
        keep: bool,
        /// True if files are to be copied ahead of the programs while the source is idle.
        #[serde(default)]
        prefetch: bool,
        /// Choice how far files are read ahead of the programs that read them first.
        #[serde(default)]
        ahead: AheadMode,
        /// Key of the command, by which its list of what it has read is kept; `None` if there is to be no list.
        #[serde(default)]
        command: Option<String>,
        /// Patterns of files that are never copied, each followed by a NUL.
        #[serde(default)]
        excludes: Vec<u8>,
        /// Name of the job, if it has several nodes.
        #[serde(default)]
        job: Option<String>,
    },
    /// Names the nodes of a job, which share their files from now on. Beside it come a socket that listens on this
    /// node's address, and the table of nodes. Answer: [`ControlResponse::Sharing`].
    Share {
        /// Name of the job.
        job: String,
    },
    /// Asks whether the agent shares the files of a job with other nodes. Answer: [`ControlResponse::IsShared`].
    IsShared {
        /// Name of the job.
        job: String,
    },
    /// Asks for the counts of this connection's run, or of the agent if it has joined none. They include all earlier
    /// descriptor handoffs.
    Status,
    /// Asks for the counts of the agent, and of the preload libraries of all its runs, since its start.
    Totals,
    /// Ends the run. Answer: its last status.
    Leave,
    /// Ends the agent, if no run is left; `forebay clean` asks it.
    Stop,
}

impl RoleRequest for ControlRequest {
    fn version(&self) -> Option<u32> {
        match self {
            Self::Join { version, .. } => Some(*version),
            Self::Share { .. } | Self::IsShared { .. } | Self::Status | Self::Totals | Self::Leave | Self::Stop => None,
        }
    }
}

/// Answer to a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum ControlResponse {
    /// The run is joined.
    Joined {
        /// Number of the run.
        run: u64,
        /// `CLOCK_BOOTTIME` of the agent's start in nanoseconds.
        started_at: u64,
    },
    /// The files of a job will be shared.
    Sharing,
    /// Answer to [`ControlRequest::IsShared`].
    IsShared {
        /// True once the files of the job are shared.
        is_shared: bool,
    },
    /// Counts of a run or of the agent.
    Status(Status),
    /// Counts of the agent and of the preload libraries.
    Totals(Totals),
    /// The agent ends.
    Stopping,
    /// The request is refused.
    Refused(Refusal),
}

impl From<Refusal> for ControlResponse {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl RoleResponse for ControlResponse {
    fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

/// Counts of files that programs opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CopyCounts {
    /// Descriptor handoffs received.
    pub handed_over: u64,
    /// Files copied and published.
    pub files_copied: u64,
    /// Bytes of the files copied and published.
    pub bytes_copied: u64,
    /// Files published with an existing copy (another spelling, an earlier run, a refreshed name).
    pub files_confirmed: u64,
    /// Bytes that the agent read from source descriptors, also for copies that failed. The page cache answered some
    /// of these reads.
    pub source_bytes_read: u64,
}

/// Counts of files copied ahead of programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefetchCounts {
    /// Files copied before any program of the run had opened them: while the source was idle, or since earlier runs of
    /// the command have read them. `files_copied` does not include them.
    pub prefetched_files: u64,
    /// Bytes of the files copied ahead.
    pub prefetched_bytes: u64,
    /// Bytes that the agent read ahead without success: no copy was made, or a program read them at the same moment.
    pub prefetched_in_vain_bytes: u64,
    /// Files that were read ahead of their first reader. `files_copied` includes them.
    pub read_ahead_files: u64,
    /// Bytes of these files.
    pub read_ahead_bytes: u64,
    /// Files whose header is damaged, so that they were not read ahead of their reader.
    pub damaged_headers: u64,
    /// Copies being made ahead. `in_flight` does not include them.
    pub prefetching: u64,
}

impl PrefetchCounts {
    /// Counts the end of reading ahead in a file.
    pub(crate) const fn count_ahead(&mut self, ahead: AheadUse, read_bytes: u64) {
        match ahead {
            AheadUse::Followed => {}
            AheadUse::Ahead => {
                self.read_ahead_files += 1;
                self.read_ahead_bytes += read_bytes;
            }
            AheadUse::DamagedHeader => self.damaged_headers += 1,
        }
    }
}

/// Counts of files that the nodes of a job read for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerCounts {
    /// Files that came from other nodes. `files_copied` includes them.
    pub from_peers_files: u64,
    /// Bytes of the files that came from other nodes.
    pub from_peers_bytes: u64,
    /// Files of other nodes that these did not give in time, and that were left to the source.
    pub left_to_source: u64,
    /// Files that were read from the source for other nodes. `files_copied` includes them.
    pub for_peers_files: u64,
    /// Bytes of the files that were read for other nodes.
    pub for_peers_bytes: u64,
    /// Files that were asked for and not read, such as for lack of room.
    pub refused_to_peers: u64,
    /// Ranges of files that other nodes were sent, for all runs.
    pub to_peers_ranges: u64,
    /// Bytes of these ranges.
    pub to_peers_bytes: u64,
}

/// Counts of directories that programs listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListingCounts {
    /// Directories that programs listed at the source. `handed_over` does not include them.
    pub listings_handed_over: u64,
    /// Cached directories made and published. `files_copied` does not include them.
    pub listings_kept: u64,
    /// Bytes of the cached directories made and published.
    pub listings_bytes: u64,
    /// Existing cached directories that still matched the source.
    pub listings_confirmed: u64,
    /// Directories that were not cached, by reason.
    pub listings_not_kept: BTreeMap<String, u64>,
}

/// Counts of files that were not copied, or not immediately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SkipCounts {
    /// Descriptor handoffs without a copy, by reason.
    pub not_copied: BTreeMap<String, u64>,
    /// Descriptor handoffs with times ahead of this node's clock. Each waited two seconds before it was copied.
    pub ahead_of_clock: u64,
    /// Largest difference between a file's time and this node's clock, in seconds.
    pub clock_ahead_s: u64,
}

/// Counts of an agent or of one run. They are part of a run's record, which a later version may read: a missing count
/// is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Files that programs opened.
    #[serde(flatten)]
    pub files: CopyCounts,
    /// Files copied ahead of programs.
    #[serde(flatten)]
    pub prefetch: PrefetchCounts,
    /// Files that other nodes of the job read, or had read.
    #[serde(flatten)]
    pub peers: PeerCounts,
    /// Directories that programs listed.
    #[serde(flatten)]
    pub listings: ListingCounts,
    /// Files that were not copied, or not immediately.
    #[serde(flatten)]
    pub skipped: SkipCounts,
    /// Copies that are being made or wait, cached directories included.
    pub in_flight: u64,
    /// Cached directories that are being made or wait. `in_flight` includes them.
    pub listings_in_flight: u64,
    /// Revalidation sweeps.
    pub sweeps: u64,
    /// Names that sweeps found changed or removed.
    pub invalidated: u64,
    /// Copies of earlier runs that were recovered.
    pub adopted: u64,
    /// True while copies of earlier runs are recovered.
    pub adopting: bool,
    /// Runs connected now.
    pub runs: u64,
    /// Tiers, top first.
    pub tiers: Vec<TierStatus>,
    /// Memory for copies at the last look; `None` if no tier is in memory.
    #[serde(default)]
    pub memory: Option<MemoryStatus>,
    /// CPU time of the agent in milliseconds.
    pub cpu_ms: u64,
}

impl Status {
    /// Returns the number of copies of files that are being made or wait.
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
    /// Lowest limit that applies, in bytes.
    pub limit_bytes: u64,
    /// Bytes of it that are free or can be reclaimed.
    pub free_bytes: u64,
    /// Free bytes below which copies are removed.
    pub floor_bytes: u64,
}

impl From<JobMemory> for MemoryStatus {
    fn from(memory: JobMemory) -> Self {
        Self {
            limit_bytes: memory.limit_bytes,
            free_bytes: memory.free_bytes,
            floor_bytes: memory.floor_bytes(),
        }
    }
}

/// State of a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Directory of the tier.
    pub dir: PathBuf,
    /// True if the tier is in memory, and ends with its agent.
    #[serde(default)]
    pub ram: bool,
    /// Quota in bytes.
    pub quota_bytes: u64,
    /// Bytes of copies.
    pub used_bytes: u64,
    /// Number of copies of files.
    pub files: u64,
    /// Number of cached directories.
    #[serde(default)]
    pub listings: u64,
    /// Reason why the tier is switched off; `None` if it is not.
    pub off: Option<String>,
    /// Number of times that the tier was set aside for being slower than the source.
    #[serde(default)]
    pub set_aside: u64,
    /// Copies that were removed to make room for others (`--policy lru`).
    #[serde(default)]
    pub replaced_files: u64,
    /// Bytes of the copies that were removed to make room.
    #[serde(default)]
    pub replaced_bytes: u64,
    /// Copies that were removed because memory grew short.
    #[serde(default)]
    pub given_back_files: u64,
    /// Bytes of the copies that were removed because memory grew short.
    #[serde(default)]
    pub given_back_bytes: u64,
}

impl TierStatus {
    /// Returns the number of copies of files and of cached directories.
    pub const fn copies(&self) -> u64 {
        self.files + self.listings
    }

    /// Returns the tier's name for people.
    pub fn label(&self) -> String {
        label(&self.dir, self.ram)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::to_string;

    use super::*;

    /// Returns one of each message, with all fields: `messages.rs` digests them.
    pub(crate) fn messages(refusal: Refusal) -> Vec<String> {
        let requests = [
            ControlRequest::Join {
                version: 0,
                sources: vec![SourceSetting {
                    path: PathBuf::from("/source"),
                    dev: 1,
                }],
                freshness: Freshness::of_seconds(2),
                keep: true,
                prefetch: true,
                ahead: AheadMode::Auto,
                command: Some("key".into()),
                excludes: vec![1, 0],
                job: Some("job".into()),
            },
            ControlRequest::Share { job: "job".into() },
            ControlRequest::IsShared { job: "job".into() },
            ControlRequest::Status,
            ControlRequest::Totals,
            ControlRequest::Leave,
            ControlRequest::Stop,
        ];
        let status = Status {
            tiers: vec![TierStatus::default()],
            ..Status::default()
        };
        let replies = [
            ControlResponse::Joined { run: 1, started_at: 2 },
            ControlResponse::Sharing,
            ControlResponse::IsShared { is_shared: true },
            ControlResponse::Status(status),
            ControlResponse::Totals(Totals::default()),
            ControlResponse::Stopping,
            ControlResponse::Refused(refusal),
        ];
        let requests = requests.iter().map(|request| to_string(request).unwrap());
        requests.chain(replies.iter().map(|reply| to_string(reply).unwrap())).collect()
    }
}
