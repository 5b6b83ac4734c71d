//! The loader's agent: fetches the samples that the ranks of a node's jobs will use, keeps what is worth it, and hands them over in shared memory.
//!
//! This is a process of its own, one a node and user ([`serve`]), beside the agents of tiers and of forks; see "Life of a batch" in
//! `docs/architecture.md`. Each rank of each loader has one connection, which is its lease, and a board
//! ([`forebay_contract::board`]) by which it asks and is answered without a system call.
//!
//! `agreement.rs` says who takes part in which loader, and whether all want the same (no I/O), `build.rs` what the policies are that they name. `machine/` decides
//! what is read, kept and answered (no I/O), by `policy`. `prepare.rs` has the threads that make a loader, with disks from `disks.rs`; `reading.rs` those that read
//! and write for it; `arena.rs` its memory. `service.rs` is the one thread that brings these together. [`client`] is the other side, [`table`] what it says of a
//! dataset, [`worker`] a process that works for it; what both of these look at is `answers.rs`.

mod agreement;
mod answers;
mod arena;
mod build;
pub mod client;
mod disks;
mod doorbell;
mod limits;
mod machine;
mod prepare;
pub mod protocol;
mod reading;
mod run;
mod service;
pub mod table;
pub mod worker;

pub use answers::Told;
pub use machine::{Figures, RankFigures};
pub use service::serve;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What the loader agent needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoaderConfig {
    /// Its private directory.
    pub loaders_dir: PathBuf,
    /// Where the user's secret is kept, with which what lies on disks is tagged.
    pub state_dir: PathBuf,
}

/// Name of the loader agent's directory in the runtime directory. No agent of tiers is called so.
pub const DIR: &str = "loaders";

pub(crate) fn socket_path(dir: &Path) -> PathBuf {
    dir.join("loader.sock")
}

/// Where a loader's samples lie in a directory that was given to it: a directory of their own in it, for the other may be a tier, too. It is of the form that
/// `forebay_store::clean` removes.
pub fn disk_dir(dir: &Path) -> PathBuf {
    dir.join(format!("forebay-loader-{}", rustix::process::geteuid().as_raw()))
}
