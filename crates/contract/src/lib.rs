//! Contract between the preload library, the agent and the loader: the memory that they share, the message between
//! them, the names of environment variables.
//!
//! The preload library lives in other people's programs, so the functions that it calls here take no lock, allocate
//! nothing and cannot panic: each offset read from shared memory is checked before it is followed. Only the agent
//! writes an index; the types that write ([`IndexWriter`]) say so. Not allowed here: system calls (the callers map the
//! memory), policy, I/O.
//!
//! Start with [`index`] (path -> copy) and [`cached_directory`] (the copy of a directory), then [`control`]
//! (tombstones, validity), [`run`] (settings and counters of one run) and [`message`] (the descriptor handoff).
//! [`mappings`] is private to each process, and [`libraries`] joins the two libraries in it. The loader's agent shares
//! [`request_ring`] and [`extents`] with the ranks of a job, the fork agent [`job_page`] and [`read_lease`].
#![no_std]

pub mod cached_directory;
pub mod control;
pub mod counters;
pub mod covered;
mod digest;
pub mod env;
pub mod exclude;
pub mod extents;
mod hash;
mod identity;
pub mod index;
pub mod job_page;
pub mod latency;
mod layout;
pub mod libraries;
pub mod mappings;
pub mod message;
pub mod open_waits;
mod opens;
pub mod read_lease;
pub mod region;
pub mod request_ring;
pub mod run;
pub mod startup;
mod version;
mod writer;

pub use control::{Control, Freshness};
pub use counters::{Counter, NotCached};
pub use covered::Covered;
pub use exclude::Excludes;
pub use extents::Extents;
pub use hash::{hash_bytes, hash_pair};
pub use identity::{Attributes, FileTime, Identity};
pub use index::{Class, Directory, Index, Record, Tier, object_path};
pub use mappings::{IndexReader, Mappings};
pub use open_waits::{OpenWait, OpenWaits};
pub use opens::Opens;
pub use region::Region;
pub use request_ring::RequestRing;
pub use run::Run;
pub use startup::{FileKind, Startup};
pub use version::{CONTRACT_VERSION, VERSIONS, Version};
pub use writer::{Entry, INSERTION_BYTES_MAX, IndexFull, IndexLayout, IndexWriter};

/// Longest path that is looked up or handed to the agent, in bytes without the final NUL.
pub const PATH_BYTES_MAX: usize = 4095;
/// Largest number of tiers of an agent.
pub const TIERS_MAX: usize = 8;
