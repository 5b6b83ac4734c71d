//! Requests to the host of a job, and its answers. A request is the name of an object whose bytes are the answer.

use forebay_peers::{BlobId, Kind};
use serde::{Deserialize, Serialize};

use crate::host::{
    error::AgentError,
    refusal::{Refusal, RefusalKind},
};

/// Request to a host of a job. The asker chooses the number of its fork at random, so that a repeated request has no
/// further effect. Each is answered by the fork's [`HostView`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum HostRequest {
    /// Begins a fork of the job's ranks on this host. If others are elsewhere, a fork needs a step; without one only
    /// the progress of the job is told.
    Begin {
        /// Version of the contract.
        version: u32,
        /// Number of the fork.
        fork: u64,
        /// Name of the job.
        job: String,
        /// First step at which the job may be forked.
        at: Option<u64>,
        /// True if no state is taken: the progress of the job is told, and hosts of a clone meet.
        is_meeting: bool,
        /// Random number of the asker. Several askers may share a fork: it ends once the last of them has ended it.
        asker: u64,
    },
    /// Leaves the note of a host of the clone for the others. The answer has those of all.
    Post {
        /// Number of the fork.
        fork: u64,
        /// Note.
        note: HostNote,
    },
    /// Has the job capture its states: all ranks of the clone are waiting.
    Capture {
        /// Number of the fork.
        fork: u64,
    },
    /// Claims further parts of the states for an asker that pulls them from this host, and gives them to the fork's
    /// other askers. The answer has the claims of all.
    Claim {
        /// Number of the fork.
        fork: u64,
        /// Random number of the asker.
        asker: u64,
        /// Address at which the asker gives its parts to others.
        address: String,
    },
    /// Asks for the progress.
    Look {
        /// Number of the fork.
        fork: u64,
    },
    /// Ends the fork for an asker. Its states are freed once no asker is left.
    End {
        /// Number of the fork.
        fork: u64,
        /// Random number of the asker.
        asker: u64,
    },
}

impl HostRequest {
    /// Returns the number of the fork.
    pub(super) const fn fork(&self) -> u64 {
        let (Self::Begin { fork, .. }
        | Self::Post { fork, .. }
        | Self::Capture { fork }
        | Self::Claim { fork, .. }
        | Self::Look { fork }
        | Self::End { fork, .. }) = self;
        *fork
    }
}

/// Reason why a host of a job has no state to give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostFailure {
    /// Reason and mend, for a person.
    pub(super) why: String,
    /// True if ranks passed the step of the fork before they heard of it: a later step may do.
    pub(super) is_passed: bool,
}

impl From<String> for HostFailure {
    fn from(why: String) -> Self {
        Self { why, is_passed: false }
    }
}

impl From<&str> for HostFailure {
    fn from(why: &str) -> Self {
        Self::from(why.to_owned())
    }
}

impl From<AgentError> for HostFailure {
    /// Leaves out the name of the agent that refused.
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::Refused(Refusal { kind, why }) => Self {
                why,
                is_passed: kind == RefusalKind::Passed,
            },
            other => Self::from(other.to_string()),
        }
    }
}

impl From<HostFailure> for String {
    fn from(failure: HostFailure) -> Self {
        failure.why
    }
}

/// Consecutive parts of the states on a host that one asker pulls from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClaimedParts {
    /// Random number of the asker.
    pub(super) asker: u64,
    /// Address at which it gives them to others.
    pub(super) address: String,
    /// Number of the first part.
    pub(super) first: u64,
    /// Number of parts.
    pub(super) parts: u64,
}

/// Progress of a fork at the host of its job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostView {
    /// Reason why there is no such fork.
    pub(super) refused: Option<HostFailure>,
    /// Number of the job's ranks on all hosts.
    pub(super) ranks: u32,
    /// Bytes of the states on this host, as the job last measured them.
    pub(super) bytes: u64,
    /// Step of the job when the host last looked.
    pub(super) step: Option<u64>,
    /// States of the ranks on this host; empty until the fork has begun.
    pub(super) states: Vec<RankView>,
    /// Notes of the clone's hosts, in the answer to one of them.
    pub(super) board: Vec<HostNote>,
    /// Claims of all askers, in the answer to one of them.
    pub(super) claims: Vec<ClaimedParts>,
}

/// Note that a host of a clone leaves for the clone's other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNote {
    /// Number that the host has taken at random.
    pub(super) host: u64,
    /// Address at which it gives parts to the others.
    pub(super) address: String,
    /// Number of the clone's ranks; 0 until the first has come.
    pub(super) of: u32,
    /// Ranks of the clone that have come to it.
    pub(super) ranks: Vec<u32>,
    /// True once it has met all other hosts of the clone.
    pub(super) has_met: bool,
    /// Number of the fork that it has had taken; 0 before, and at hosts without rank 0.
    pub(super) taken: u64,
    /// True once its ranks have loaded their states.
    pub(super) is_loaded: bool,
    /// Reason why there is no clone, for a person.
    pub(super) failed: Option<String>,
    /// Milliseconds since it was heard, which the meeting host fills in.
    pub(super) silent_ms: u64,
}

/// Progress of one rank's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankView {
    /// Number of the rank.
    pub(super) rank: u32,
    /// Length of the manifest of the taken state in bytes; 0 until it is taken.
    pub(super) taken: u64,
    /// Length of the rank's shard of the replicated entries in bytes.
    pub(super) shard: u64,
    /// Length of the rank's own entries in bytes.
    pub(super) own: u64,
    /// Length of the manifest with all digests in bytes; 0 until the job has confirmed the state.
    pub(super) verified: u64,
}

/// Object of a fork that is pulled by ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForkObject {
    Taken,
    Shard,
    Own,
    Verified,
}

impl ForkObject {
    /// Returns the identity of a rank's object.
    pub(super) fn id(self, fork: u64, rank: u32) -> BlobId {
        BlobId::of(Kind::Forks, format!("{rank}/{self:?}").as_bytes(), &fork.to_le_bytes())
    }
}

#[cfg(test)]
pub(in crate::forks) mod tests {
    use super::*;

    /// Returns one of each message, with all fields: `messages.rs` digests them.
    pub(in crate::forks) fn messages() -> Vec<String> {
        let fork = 1;
        let note = HostNote {
            host: 1,
            address: "address".into(),
            of: 2,
            ranks: vec![3],
            has_met: true,
            taken: 4,
            is_loaded: true,
            failed: Some("why".into()),
            silent_ms: 5,
        };
        let requests = [
            HostRequest::Begin {
                version: 0,
                fork,
                job: "job".into(),
                at: Some(2),
                is_meeting: true,
                asker: 3,
            },
            HostRequest::Post { fork, note: note.clone() },
            HostRequest::Capture { fork },
            HostRequest::Claim {
                fork,
                asker: 2,
                address: "address".into(),
            },
            HostRequest::Look { fork },
            HostRequest::End { fork, asker: 2 },
        ];
        let state = RankView {
            rank: 1,
            taken: 2,
            shard: 3,
            own: 4,
            verified: 5,
        };
        let view = HostView {
            refused: Some(HostFailure {
                why: "why".into(),
                is_passed: true,
            }),
            ranks: 1,
            bytes: 3,
            step: Some(2),
            states: vec![state],
            board: vec![note],
            claims: vec![ClaimedParts {
                asker: 1,
                address: "address".into(),
                first: 2,
                parts: 3,
            }],
        };
        let mut messages: Vec<_> = requests.iter().map(|request| serde_json::to_string(request).unwrap()).collect();
        messages.push(serde_json::to_string(&view).unwrap());
        messages
    }
}
