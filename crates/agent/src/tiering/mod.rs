//! The tiering role. It receives the descriptors of files that programs open, places their copies in tiers with
//! `policy`, makes the copies with `store`, and publishes them in the shared index. If it dies, programs continue from
//! the source.
//!
//! One thread, the `event_loop`, owns all `state`: index, placement, catalogue. The other threads send it messages
//! and carry out its decisions. The *receiver* (`handoff`) takes descriptors, the *workers* (`copier`) copy files
//! behind their readers or `ahead` of them, the `lister` lists directories, the `prefetcher` opens files that are
//! copied ahead, threads in `read_lists` open what earlier runs of a command have read, the `recovery` of a tier reads
//! the copies of earlier runs, the `sweeper` compares directories with the source, and `control` talks to commands. So
//! no lock is held across I/O, and a source that hangs blocks only the thread that asked it. With other nodes of a job,
//! threads in `nodes` pull files from them and open files for them.
//! Start with [`serve()`], then `event_loop.rs`.

mod ahead;
pub mod client;
mod config;
mod control;
mod copier;
mod copy_job;
mod counts;
mod event_loop;
mod handoff;
mod limits;
mod lister;
mod look_queue;
mod mounts;
mod nodes;
mod open_files;
mod pages;
mod prefetcher;
pub mod protocol;
pub mod ram;
pub mod read_lists;
mod reader;
mod recovery;
mod serve;
pub mod sharing;
mod skipped;
mod source_speed;
mod state;
mod sweeper;
mod worker_flags;

pub use client::{JoinedRun, RunRequest, TieringConnection};
pub use config::{AgentConfig, TierSetting};
pub use counts::{Answered, Counts};
pub use protocol::Totals;
pub use serve::serve;
