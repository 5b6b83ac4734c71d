//! Forks of training jobs on one node: the jobs, the clones that wait, and the states that pass from one to the
//! other.
//!
//! This is a process of its own, one a node and user ([`serve`]), beside the agents of tiers: it lives as long as
//! jobs train, has no tier, and holds copies of states. If the kernel ends it for lack of memory, no program's reads
//! suffer. A state passes through as descriptors: of sealed memory, and of the memory that holds a job's large
//! tensors. The agent neither reads nor copies its bytes.
//!
//! Every rank of a job, every command `forebay clone`, and every rank of a clone has one connection, which is its
//! lease: its end, of whatever kind, leaves nothing here. `registry.rs` maps each message to its effects (no I/O;
//! `job.rs` is one job of it, `making.rs` one fork, `registry/shadow.rs` shadow verification); `service.rs` carries
//! the effects (`effects.rs`) out, in one thread; `page.rs` is the memory by which ranks hear of forks without a system
//! call; [`read_lease`] that by which clones read tensors in place; `digests.rs` compares the entries that all ranks
//! should hold alike; [`client`] is the other side; [`hosts`] takes a state to another host.

pub mod client;
mod digests;
mod effects;
pub mod hosts;
mod job;
mod limits;
mod making;
mod names;
mod page;
pub mod protocol;
pub mod read_lease;
mod registry;
mod service;

pub use crate::forks::limits::FORK_SHADOW_MAX;
pub use page::{BoundaryRequests, RequestedFork};
pub use service::serve;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::start::RoleSettings;

/// Settings of the fork agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForkConfig {
    /// Private directory of the fork agent.
    pub forks_dir: PathBuf,
}

impl RoleSettings for ForkConfig {
    const ROLE: &'static str = "forks";

    fn dir(&self) -> &Path {
        &self.forks_dir
    }
}

/// Name of the fork agent's directory in the runtime directory. No tiering agent has this name.
pub const DIR: &str = "forks";

pub(crate) fn socket_path(dir: &Path) -> PathBuf {
    dir.join("fork.sock")
}

/// Returns the directory of the jobs' secrets, private to this user.
fn secrets_dir(dir: &Path) -> PathBuf {
    dir.join("secrets")
}

/// Returns the path of a job's secret, which exists as long as the job trains or a clone of it is being made: with it
/// a clone validates that a state is that job's.
pub fn secret_path(dir: &Path, secret: u64) -> PathBuf {
    secrets_dir(dir).join(format!("{secret:016x}"))
}
