//! The loader's agent: fetches the samples that the ranks of a node's jobs will use, keeps those that the policy
//! selects, and passes them on in shared memory.
//!
//! It is a process of its own, one a node and user ([`serve`]), beside the agents of tiers and of forks; see "Life of a
//! batch" in `docs/architecture.md`. Each rank of each loader has one connection, which is its lease, and a request
//! ring ([`forebay_contract::board`]), which carries requests and answers without a system call.
//!
//! - `rendezvous.rs`: rendezvous of a loader's ranks (no I/O); `build.rs`: the policies that their settings name.
//! - `machine/`: decides what is read, kept and answered, by `policy` (no I/O).
//! - `prepare.rs`: threads that prepare a loader, with disks from `disks.rs`.
//! - `reading.rs`: threads that read and write for it; `arena.rs`: its memory; `homes.rs`: the NUMA nodes of
//!   both.
//! - `service.rs`: the one thread that connects these.
//! - [`client`]: the other side; [`table`]: its description of a dataset; [`worker`]: a process that works for it;
//!   `shared_memory.rs`: the shared memory of these.

mod arena;
mod build;
pub mod client;
mod disks;
mod homes;
mod limits;
mod machine;
mod nodes;
mod prepare;
pub mod protocol;
mod reading;
mod rendezvous;
mod run;
mod service;
mod shared_memory;
pub mod status;
pub mod table;
pub mod worker;

pub use machine::{Figures, RankFigures};
pub use service::serve;
pub use shared_memory::SampleStatus;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::start::RoleSettings;

/// Configuration of the loader agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoaderConfig {
    /// Its private directory.
    pub loaders_dir: PathBuf,
    /// Directory of the user's secret, with which copies on disks are tagged.
    pub state_dir: PathBuf,
}

impl RoleSettings for LoaderConfig {
    const ROLE: &'static str = "samples";

    fn dir(&self) -> &Path {
        &self.loaders_dir
    }
}

/// Name of the loader agent's directory in the runtime directory. No agent of tiers has this name.
pub const DIR: &str = "loaders";

pub(crate) fn socket_path(dir: &Path) -> PathBuf {
    dir.join("loader.sock")
}

/// Returns the directory for a loader's samples in a directory that was given to it. It is one of its own, since the
/// given one may be a tier, too. It has the form that `forebay_store::clean` removes.
pub fn disk_dir(dir: &Path) -> PathBuf {
    dir.join(format!("forebay-loader-{}", rustix::process::geteuid().as_raw()))
}
