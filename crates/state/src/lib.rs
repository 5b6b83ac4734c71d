//! The state of a training job, as a rank of the job, a rank of its clone and the fork agent exchange it.
//!
//! A state consists of *entries*: a tensor each, or the encoded values of one component. An entry has a path, a kind
//! (placement on the ranks, layout, length), and either a digest or a place in the job's own memory. Entries come in
//! [`Section`]s, one for each component, since most components stay as they are from fork to fork: a section that has
//! not changed is written, read and compared by the bytes of its one line.
//!
//! [`Manifest`] lists all sections of a rank's state with their digests. [`write_state`] puts a header before it and
//! a tag by the job's secret around both; [`write_schema`] does so with the sections that are expected. Everything
//! that is read is checked: it may come from anybody.
//!
//! Not allowed here: I/O, and the bytes of tensors.
#![forbid(unsafe_code)]

mod captured;
mod description;
mod manifest;
mod section;
mod transfer;

pub use captured::{CapturedSection, EntryPlace};
pub use description::{
    ExpectedSection, StateHeader, TEXT_BYTES_MAX, read_schema, read_state, read_state_unverified, write_schema, write_state,
};
pub use manifest::{DIGEST_BYTES, MANIFEST_BYTES_MAX, Manifest, UNKNOWN_DIGEST};
pub use section::{EntryKind, KindRow, Layout, Placement, Section, SectionCache};
pub use transfer::{ALIGNMENT_BYTES, CopiedRanges, EntrySource, SentEntry, StateStream, StateTransfer, shard};

/// Reason why a text is invalid, complete for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidState(String);

/// Numbers of a state are below this bound, so that sums of some of them fit into 64 bits.
const COUNTS_END: u64 = 1 << 62;

/// Checks the numbers of a text.
fn checked_counts(counts: &[u64]) -> Result<(), String> {
    match counts.iter().find(|count| **count >= COUNTS_END) {
        Some(count) => Err(format!("invalid number {count}: the largest is {}", COUNTS_END - 1)),
        None => Ok(()),
    }
}

/// Reads JSON.
fn from_json<'a, T: serde::Deserialize<'a>>(text: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Writes JSON.
///
/// # Panics
/// Never: a value of this crate has no map, and no number that JSON lacks.
fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("the value is one of JSON's")
}
