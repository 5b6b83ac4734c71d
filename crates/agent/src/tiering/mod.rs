//! The tiering role. It receives the descriptors of files that programs open, places their copies in tiers with
//! `policy`, makes the copies with `store`, and publishes them in the shared index. If it dies, programs continue from
//! the source.
//!
//! One thread, the `event_loop`, owns all `state`: index, placement, catalogue. The other threads send it messages
//! and carry out its decisions. The *receiver* (`handoff`) takes descriptors, the *workers* (`copier`) copy files
//! behind their readers, the `lister` lists directories, the `prefetcher` opens files that are copied ahead, the
//! `recovery` of a tier reads the copies of earlier runs, the `sweeper` compares directories with the source, and
//! `control` talks to commands. So no lock is held across I/O, and a source that hangs blocks only the thread that
//! asked it. Start with [`serve()`], then `event_loop.rs`.

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
mod state;
mod sweeper;

pub use client::{JoinedRun, RunRequest, TieringConnection};
pub use config::{AgentConfig, TierSetting};
pub use counts::{Answered, Counts};
pub use durations::Durations;
pub use protocol::Totals;
pub use serve::serve;
