//! Forebay's decisions as plain functions: (state, event) -> (state, action).
//!
//! Not allowed here: I/O, clocks, threads, randomness, hash maps with random order, anything that blocks. Time comes
//! in as a number in the event. `store` (files) and `agent` (sockets) carry decisions out.
//!
//! Start reading here, for copies of files: [`fill_first::step`] places a copy in a tier (Monarch: top tier first,
//! then the next, no eviction). [`retention::is_due`] removes copies that nobody uses. [`wake::follow`] paces a copy
//! behind its reader, and [`read_ahead::reach`] decides when it goes ahead. [`read_list::ReadList`] tells what earlier
//! runs of a command have read. [`pressure::Pressure`] limits the memory of copies, and [`eviction::choose`] selects
//! the copies to remove. [`speed::Speed`] notices a slow tier, and [`tier_order::fastest_first`] orders tiers.
//! [`prefetch::PrefetchPlan`] copies ahead while the source is idle.
//!
//! For a job that knows its order: [`order::Order`] assigns samples to ranks and steps, [`residency::Residency`] to
//! the memories of nodes. [`schedule::Scheduler`] picks the next read, [`models`] predict its time, and [`bounds`]
//! are the limits of any policy. [`residency::Replay`] runs epochs without a clock. [`ranges::Ranges`] allocates
//! ranges of a memory or a file. For a job of several nodes: [`peers`] says which node owns a file, and whom to ask
//! for a range.

#![forbid(unsafe_code)]

#[cfg(test)]
mod drawn;
mod names;

pub mod bounds;
pub mod eviction;
pub mod file_order;
pub mod fill_first;
pub mod ids;
pub mod models;
pub mod order;
pub mod peers;
pub mod prefetch;
pub mod pressure;
pub mod ranges;
pub mod read_ahead;
pub mod read_list;
pub mod residency;
pub mod retention;
pub mod schedule;
pub mod speed;
pub mod splitmix;
pub mod tier_order;
pub mod wake;

pub use names::UnknownName;

pub use fill_first::{Action, CopyId, Event, FillFirst, PlacementRefusal, Space, TierIndex, step};
