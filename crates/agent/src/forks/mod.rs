//! Forks of training jobs on one node: who trains here, who wants to become a clone, and the states that pass from one to the other.
//!
//! This is a process of its own, one a node and user ([`serve`]), beside the agents of tiers: it lives as long as jobs train, has no tier, and holds copies
//! of states; where memory is so short that the kernel ends it, no program's reads suffer. A state passes through as descriptors: of sealed memory, and of the
//! memory in which a job's large tensors lie. Its bytes are neither read nor copied here.
//!
//! Every rank of a job, every command `forebay clone`, and every rank of a clone has one connection, which is its lease: whoever ends, however it ends,
//! leaves nothing here. `registry.rs` decides what follows from each message (no I/O; `job.rs` is one job of it, `making.rs` one fork, `probation.rs` what a clone
//! may have to pass); `service.rs` carries that out, in one thread; `page.rs` is the memory by which ranks hear of forks without a system call; [`window`] that
//! by which clones read tensors in their place; `agreement.rs` compares what all ranks should hold alike; [`client`] is the other side.

mod agreement;
pub mod client;
mod job;
mod limits;
mod making;
mod names;
mod page;
pub mod protocol;
mod registry;
mod service;
pub mod window;

pub use crate::forks::limits::FORK_SHADOW_MAX;
pub use page::{Due, Wanted};
pub use service::serve;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::start::RoleSettings;

/// Settings of the fork agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForkConfig {
    /// Its private directory.
    pub forks_dir: PathBuf,
}

impl RoleSettings for ForkConfig {
    const ROLE: &'static str = "forks";

    fn dir(&self) -> &Path {
        &self.forks_dir
    }
}

/// Name of the fork agent's directory in the runtime directory. No agent of tiers is called so.
pub const DIR: &str = "forks";

pub(crate) fn socket_path(dir: &Path) -> PathBuf {
    dir.join("fork.sock")
}

/// Where the secrets of jobs lie, private to this user.
fn secrets_dir(dir: &Path) -> PathBuf {
    dir.join("secrets")
}

/// Where the secret of a job lies, as long as the job trains or a clone of it is being made: with it a clone knows that a state is that job's.
pub fn secret_path(dir: &Path, secret: u64) -> PathBuf {
    secrets_dir(dir).join(format!("{secret:016x}"))
}
