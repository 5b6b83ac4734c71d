//! The tiering role: takes the descriptors that openers hand over, lets `policy` choose a tier, has `store` make the copies, and publishes them in
//! the shared index. If it dies, programs go on from the source.
//!
//! One thread, the *clerk* ([`event_loop`]), owns all state: index, placement, catalogue. Others only bring it events and carry
//! out what it decided: the *receiver* takes hand-overs, *workers* copy small files, *followers* copy one large file each in
//! its reader's wake, the *lister* lists directories, the *adopter* of a tier brings copies of earlier runs, the *sweeper* compares
//! directories with the source, *control* speaks with commands. So nothing is locked across I/O, and a source that hangs holds only the
//! thread that asked it. Start with [`serve`], then `event_loop.rs`.

pub mod client;
pub mod config;
mod control;
mod copier;
mod counts;
mod durations;
mod event_loop;
mod handoff;
mod limits;
mod lister;
mod mounts;
mod pages;
mod prefetcher;
pub mod protocol;
pub mod ram;
mod reader;
mod recovery;
mod serve;
mod skipped;
mod sweeper;

pub use client::{Connection, JoinedRun, RunRequest};
pub use config::{AgentConfig, TierSetting};
pub use counts::{Answered, Counts};
pub use durations::Durations;
pub use protocol::Totals;
pub use serve::serve;
