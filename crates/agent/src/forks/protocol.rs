//! Messages of the fork agent's socket: one JSON value a packet, descriptors beside it.

use std::os::fd::OwnedFd;

use forebay_state::TEXT_BYTES_MAX;
use rustix::fs::{self, SealFlags};
use serde::{Deserialize, Serialize};

use crate::host::{
    refusal::Refusal,
    role::{RoleRequest, RoleResponse},
};

/// Request to the fork agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum ForkRequest {
    /// Makes this connection a rank of a job that can be forked. Answer: [`ForkResponse::Registered`].
    Register {
        /// Version of the protocol.
        version: u32,
        /// Name of the job.
        job: String,
        /// Number of the rank.
        rank: u32,
        /// Number of ranks of the job.
        ranks: u32,
        /// True for a rank that trains already, by the page of an earlier fork agent. It looks at this agent's page
        /// from [`ForkRequest::Measured`] on.
        #[serde(default)]
        rejoins: bool,
        /// Steps of shadow verification of its clones, unless their commands say otherwise.
        #[serde(default)]
        shadow: u32,
    },
    /// Tells the size of a rank's state, and that the rank looks at the page at its step boundaries. If a descriptor of
    /// the state's manifest comes beside it, all ranks are compared. No answer.
    Measured {
        /// Bytes.
        bytes: u64,
    },
    /// Replaces a rank's layout: sealed descriptors of the upcoming state's manifest, and of the memory in which its
    /// large tensors are located. No answer.
    Layout,
    /// Publishes a rank's state for forks. Beside it come sealed descriptors of its manifest and of the copied part;
    /// for a state that is partly read in place also those of the read lease, of the copy-on-write buffer, and of the
    /// memory that is read. The reader's number in the read lease is the fork's place in `forks`. No answer.
    Publish {
        /// Numbers of the forks.
        forks: Vec<u64>,
        /// Epoch, as the job counts.
        epoch: u64,
        /// Step, as the job counts.
        step: u64,
    },
    /// Tells that a rank could not capture its state for forks. No answer.
    Abort {
        /// Numbers of the forks.
        forks: Vec<u64>,
        /// Reason, for a person.
        why: String,
    },
    /// Forks a job for a command, whose connection is the fork's lease. Answer: [`ForkResponse::Forking`].
    Fork {
        /// Version of the protocol.
        version: u32,
        /// Name of the job.
        job: String,
        /// First step at which the job may be forked. Without it: the first step boundary at which all ranks of the
        /// clone are waiting.
        at: Option<u64>,
        /// Steps of shadow verification. Without it: the number that the job gave.
        #[serde(default)]
        shadow: Option<u32>,
        /// Ranks of the fork that are on this host.
        #[serde(default)]
        scope: ForkScope,
    },
    /// Tells which ranks of the clone are on this host, for a fork of [`ForkScope::Arriving`]. No answer.
    Gathered {
        /// Numbers of the ranks.
        ranks: Vec<u32>,
    },
    /// Tells that the ranks of the clone on other hosts have loaded their states, for a fork of
    /// [`ForkScope::Arriving`]. No answer.
    Confirm,
    /// Asks which ranks of a job are on this host. Answer: [`ForkResponse::Job`].
    Job {
        /// Name of the job.
        job: String,
    },
    /// Asks for a fork's progress. Answer: [`ForkResponse::Progress`].
    Progress,
    /// Asks for the state of a rank of a clone. Answers: [`ForkResponse::Waiting`] immediately, and
    /// [`ForkResponse::State`] once all ranks of the job have published theirs.
    Fetch {
        /// Version of the protocol.
        version: u32,
        /// Number of the fork.
        fork: u64,
        /// Number of the clone's rank.
        rank: u32,
        /// Number of ranks of the clone.
        ranks: u32,
    },
    /// Tells that a rank of a clone has loaded and checked its state; beside it comes a descriptor of the manifest with
    /// all digests. Answer, once all ranks have: [`ForkResponse::Exists`], or [`ForkResponse::Shadow`].
    Loaded,
    /// Tells that a rank of a job has taken its steps since these forks, or, with no fork named, that a rank of a clone
    /// has taken those of its shadow verification; beside it comes a descriptor of the manifest after them. The clone's
    /// rank is answered, once all have: [`ForkResponse::Exists`].
    Repeated {
        /// Numbers of the forks.
        forks: Vec<u64>,
    },
    /// Tells that a rank of a clone could not load its state: there will be no clone. No answer.
    Failed {
        /// Reason, for a person.
        why: String,
    },
    /// Asks for the jobs that can be forked. Answer: [`ForkResponse::Jobs`].
    Jobs,
}

impl RoleRequest for ForkRequest {
    fn version(&self) -> Option<u32> {
        match self {
            Self::Register { version, .. } | Self::Fork { version, .. } | Self::Fetch { version, .. } => Some(*version),
            _ => None,
        }
    }
}

/// Answer of the fork agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum ForkResponse {
    /// The rank is registered; beside it comes a descriptor of the job's page.
    Registered {
        /// Number of the job's secret.
        secret: u64,
    },
    /// The fork is under way.
    Forking {
        /// Number of the fork.
        fork: u64,
        /// Name of the clone.
        name: String,
        /// Number of ranks of the job.
        ranks: u32,
        /// Steps of shadow verification.
        shadow: u32,
        /// Number of the job's secret.
        secret: u64,
        /// Ranks of the fork that are on this host; empty until they are known.
        here: Vec<u32>,
    },
    /// Ranks of a job on this host.
    Job(JobRanks),
    /// Progress of a fork.
    Progress(ForkProgress),
    /// The state will come. If the clone has as many ranks as the job, the descriptors of the rank's last
    /// [`ForkRequest::Layout`] come beside it: the clone prepares by them, and reads there. Others may have taken their
    /// place by the time of the state.
    Waiting,
    /// A state; beside it come the descriptors of [`ForkRequest::Publish`] of the same rank of the job. If the job has
    /// another number of ranks, they are those of all its ranks, in their order, without read leases.
    State {
        /// Name of the clone.
        name: String,
        /// The clone's number as a reader of the read lease.
        reader: u32,
        /// Number of ranks of the job.
        ranks: u32,
    },
    /// All ranks of the clone have loaded their states. They now take the steps of shadow verification, and send
    /// [`ForkRequest::Repeated`].
    Shadow,
    /// The clone exists: all of its ranks have their states, and have passed all checks.
    Exists,
    /// Jobs that can be forked.
    Jobs {
        /// Jobs by name.
        jobs: Vec<ForkableJob>,
    },
    /// The request is refused, or a fork that was under way has failed.
    Refused(Refusal),
}

impl From<Refusal> for ForkResponse {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl RoleResponse for ForkResponse {
    fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

/// Ranks of a fork with which a host has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkScope {
    /// All ranks of the job and of the clone are on this host.
    #[default]
    All,
    /// Ranks of the job on this host: its other ranks are forked on theirs, at the same step, which has to be named.
    Registered,
    /// Ranks of the clone on this host, which [`ForkRequest::Gathered`] names. The clone exists once
    /// [`ForkRequest::Confirm`] has come as well.
    Arriving,
}

/// Ranks of a job on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRanks {
    /// Number of the job's ranks.
    pub ranks: u32,
    /// Numbers of the ranks on this host.
    pub here: Vec<u32>,
    /// Step of the last step boundary; `None` before the first.
    pub step: Option<u64>,
    /// Bytes of the states on this host.
    pub bytes: u64,
}

/// Progress of a fork.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkProgress {
    /// True once a rank of the clone has asked for its state.
    pub asked: bool,
    /// Number of ranks of the clone; 0 until the first has come.
    pub ranks: u32,
    /// Number of ranks that have come.
    pub here: u32,
    /// True once all ranks of the job have published their states.
    pub taken: bool,
    /// Number of ranks of the clone that have loaded and checked their states.
    pub loaded: u32,
    /// True once the clone exists or has failed.
    pub is_over: bool,
    /// Ranks of the clone that have come to this host.
    pub arrived: Vec<u32>,
}

/// A job that can be forked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkableJob {
    /// Name of the job.
    pub job: String,
    /// Number of its ranks.
    pub ranks: u32,
    /// Number of its ranks that train on this node.
    pub ranks_here: u32,
    /// Step of rank 0's last step boundary; `None` before the first.
    pub step: Option<u64>,
    /// Bytes of the state, over all ranks that are here and have come to a step boundary.
    pub bytes: u64,
    /// Number of its clones that came to exist.
    pub clones: u64,
}

/// Checks that nobody can change the memory behind a descriptor any more.
///
/// # Errors
/// Reason, for a person.
pub(super) fn is_sealed(descriptor: &OwnedFd) -> Result<(), String> {
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    if fs::fcntl_get_seals(descriptor).is_ok_and(|found| found.contains(seals)) {
        return Ok(());
    }
    Err("its memory is not sealed".into())
}

/// Reads the sealed manifest of a state.
///
/// # Errors
/// Reason, for a person.
pub(super) fn text_of(manifest: &OwnedFd) -> Result<Vec<u8>, String> {
    is_sealed(manifest)?;
    let length = fs::fstat(manifest).map_err(|error| error.to_string())?.st_size as usize;
    if length > TEXT_BYTES_MAX {
        return Err(format!("its manifest has {length} bytes; the most is {TEXT_BYTES_MAX}"));
    }
    let mut bytes = vec![0; length];
    let mut at = 0;
    while at < length {
        match rustix::io::pread(manifest, &mut bytes[at..], at as u64) {
            Ok(0) | Err(_) => return Err("its manifest could not be read".into()),
            Ok(read) => at += read,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::to_string;

    use super::*;
    use crate::forks::digests::tests::described;

    /// Returns one of each message, with all fields: `messages.rs` digests them.
    pub(crate) fn messages(refusal: Refusal) -> Vec<String> {
        let mut messages = requests();
        messages.extend(responses(refusal));
        messages.extend(described());
        messages.extend(crate::forks::hosts::message::tests::messages());
        messages
    }

    fn requests() -> Vec<String> {
        let forks = vec![1, 2];
        let requests = [
            ForkRequest::Register {
                version: 0,
                job: "job".into(),
                rank: 1,
                ranks: 2,
                rejoins: true,
                shadow: 3,
            },
            ForkRequest::Measured { bytes: 1 },
            ForkRequest::Layout,
            ForkRequest::Publish {
                forks: forks.clone(),
                epoch: 1,
                step: 2,
            },
            ForkRequest::Abort {
                forks: forks.clone(),
                why: "why".into(),
            },
            ForkRequest::Fork {
                version: 0,
                job: "job".into(),
                at: Some(1),
                shadow: Some(2),
                scope: ForkScope::Registered,
            },
            ForkRequest::Gathered { ranks: vec![1] },
            ForkRequest::Confirm,
            ForkRequest::Job { job: "job".into() },
            ForkRequest::Progress,
            ForkRequest::Fetch {
                version: 0,
                fork: 1,
                rank: 2,
                ranks: 3,
            },
            ForkRequest::Loaded,
            ForkRequest::Repeated { forks },
            ForkRequest::Failed { why: "why".into() },
            ForkRequest::Jobs,
        ];
        requests.iter().map(|request| to_string(request).unwrap()).collect()
    }

    fn responses(refusal: Refusal) -> Vec<String> {
        let responses = [
            ForkResponse::Registered { secret: 1 },
            ForkResponse::Forking {
                fork: 1,
                name: "name".into(),
                ranks: 2,
                shadow: 3,
                secret: 4,
                here: vec![5],
            },
            ForkResponse::Job(JobRanks {
                ranks: 1,
                here: vec![2],
                step: Some(3),
                bytes: 4,
            }),
            ForkResponse::Progress(ForkProgress {
                asked: true,
                ranks: 1,
                here: 2,
                taken: true,
                loaded: 3,
                is_over: true,
                arrived: vec![4],
            }),
            ForkResponse::Waiting,
            ForkResponse::State {
                name: "name".into(),
                reader: 1,
                ranks: 2,
            },
            ForkResponse::Shadow,
            ForkResponse::Exists,
            ForkResponse::Jobs {
                jobs: vec![ForkableJob {
                    job: "job".into(),
                    ranks: 1,
                    ranks_here: 2,
                    step: Some(3),
                    bytes: 4,
                    clones: 5,
                }],
            },
            ForkResponse::Refused(refusal),
        ];
        responses.iter().map(|response| to_string(response).unwrap()).collect()
    }
}
