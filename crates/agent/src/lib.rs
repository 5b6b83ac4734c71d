//! The agent: one process a node, user and set of tiers. It takes descriptors that openers hand over, lets `policy` choose a tier,
//! has `store` make the copies, and publishes them in the shared index. If it dies, programs go on from the source.
//!
//! One thread, the *clerk* ([`clerk`]), owns all state: index, placement, catalogue. Others only bring it events and carry
//! out what it decided: the *receiver* takes hand-overs, *workers* copy small files, *followers* copy one large file each in
//! its reader's wake, the *lister* lists directories, the *adopter* of a tier brings copies of earlier runs, the *sweeper* compares
//! directories with the source, *control* speaks with commands. So nothing is locked across I/O, and a source that hangs holds only the
//! thread that asked it.
//!
//! Forks of training jobs, and the loader's samples, have processes of their own, built of the same parts: see [`fork`] and [`loader`].
//!
//! What must not be here: decisions (policy), how bytes get onto a tier (store). Start with [`serve`], then `clerk.rs`.

mod admission;
mod adopter;
mod clerk;
pub mod client;
mod clock;
pub mod config;
mod connection;
mod control;
mod copier;
mod counts;
mod durations;
mod error;
pub mod fork;
mod limits;
mod lister;
pub mod loader;
mod log;
pub mod memory;
mod mounts;
mod packet;
mod pages;
mod prefetcher;
mod private_dir;
pub mod protocol;
pub mod ram;
mod reader;
mod receiver;
mod serve;
pub mod shared;
mod sweeper;
pub mod text;

pub use client::{Connection, JoinedRun, RunRequest};
pub use config::{AgentConfig, Policy, TierSetting};
pub use counts::{Answered, Counts, Totals};
pub use durations::Durations;
pub use error::AgentError;
pub use private_dir::{private_dir, private_dir_all};
pub use serve::serve;
