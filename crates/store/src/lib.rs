//! Forebay's access to files: tiers, copies, the catalogue, leases, reaping.
//!
//! All access to a tier goes through [`disk::Disk`]: one private root, names of our own alphabet only, `rustix` below.
//! `std::fs` is not used: inside a program its calls would run into our own hooks, and it follows links. A source file
//! is only read, through a descriptor that a program opened.
//!
//! Not allowed here: sockets, threads, clocks (times are arguments), decisions (which copy, which tier: `policy`), the
//! environment.
//!
//! Start with [`Tier::open`], then the life of a copy: [`Tier::begin`] -> [`CopyWriter::advance`] ->
//! [`CopyWriter::finish`] -> [`Tier::publish`]; and, in the next run, [`Tier::recover`]. A copy can't be found before
//! it is published; a partial one is removed when its writer is dropped, or by [`Tier::reap`] of the next opening. The
//! loader's extents are packed in [`Segments`].

#![deny(unsafe_code)]

pub mod catalogue;
mod clean;
mod copy;
pub mod disk;
mod error;
mod leased;
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

pub use catalogue::{
    CatalogueAlias, CatalogueCopy, CatalogueEntry, CatalogueItem, KnownCopies, Recovery, RecoveryReport, SourceMount, list,
};
pub use clean::{CleanReport, RootReport, clean, clean_on, inspect};
pub use copy::{CopyWriter, Finished};
pub use error::{Lack, StoreError};
pub use probe::probe;
pub use reap::ReapReport;
pub use root::{BootId, copy_path, root_path};
pub use secret::Secret;
pub use segments::{ExtentKey, FileVersion, FreeFloor, Segments, SegmentsConfig, StoredExtent};
pub use source::{CopySource, SourceFile, SourceStat, StatFrom};
pub use speed::{read_again, sample};
pub use tier::Tier;
