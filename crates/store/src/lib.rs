//! Forebay's hold on files: tiers, copies, the catalogue, leases, reaping.
//!
//! Everything that touches a tier goes through [`disk::Disk`]: one private root, names of our own alphabet only, `rustix` below (never
//! `std::fs`, whose calls would run into our own hooks inside a program, and which follows links). A source file is only ever read,
//! through a descriptor that a program opened.
//!
//! What must not be here: sockets, threads, clocks (times come in), decisions (which copy, which tier: `policy`), the environment.
//!
//! Where to start: [`Tier::open`], then the life of a copy: [`Tier::begin`] -> [`CopyWriter::advance`] -> [`CopyWriter::finish`] ->
//! [`Tier::publish`]; and, in the next run, [`Tier::adopt`]. Nothing leads to a copy before it is published; a partial one is removed
//! when its writer is dropped, or by [`Tier::reap`] of the next opening. What the loader keeps lies packed in [`Segments`].

#![deny(unsafe_code)]

pub mod catalogue;
mod copy;
pub mod disk;
mod error;
pub mod limits;
mod opening;
mod probe;
mod reap;
mod root;
mod secret;
pub mod segments;
mod source;
mod speed;
pub mod testing;
mod tier;

pub use catalogue::{AdoptReport, Adopted, AdoptedAlias, AdoptedCopy, Adoption, Entry, Mount, list};
pub use copy::{CopyWriter, Finished};
pub use error::StoreError;
pub use probe::{Lack, probe};
pub use reap::{CleanReport, Known, Leftovers, ReapReport, RootReport, clean, clean_on, inspect};
pub use root::{BootId, copy_path, root_path};
pub use secret::Secret;
pub use segments::{ExtentKey, Found, Segments, SegmentsConfig, Version};
pub use source::{Ask, Source, SourceFile, SourceStat};
pub use speed::{read_again, sample};
pub use tier::{FreeFloor, Room, Tier, TierConfig};
