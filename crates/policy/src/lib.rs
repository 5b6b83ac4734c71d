//! Forebay's decisions as plain functions: (state, event) -> (state, action).
//!
//! What must not be here: I/O, clocks, threads, randomness, hash maps with random order, anything that blocks. Time comes in as a
//! number in the event. Whatever carries decisions out lives in `store` (files) and `agent` (sockets).
//!
//! Where to start: [`fill_first::step`] decides which tier takes a copy (Monarch's placement: top tier first, then the next, no
//! eviction). [`retention::is_due`] decides when a copy that nobody uses is given up. [`wake::follow`] decides how far a copy may follow its
//! reader. [`pressure::Pressure`] decides how much memory copies give
//! back, and [`eviction::choose`] which. [`speed::Speed`] decides when a tier is too slow to be of use, and
//! [`tier_order::fastest_first`] which of several comes first. [`prefetch::Prefetch`] decides what is copied while the source is idle.
//!
//! For a job that knows its order: [`order::Order`] says which rank uses which sample when, [`residency::Residency`] what lies in which
//! node's memory, [`schedule::Scheduler`] which read comes next, [`models`] how long that takes, and [`bounds`] what no policy can beat.
//! [`residency::Replay`] goes through epochs without a clock. [`ranges::Ranges`] says where in a memory or a file something is put.

#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../tests/drawn/mod.rs"]
mod drawn;

pub mod bounds;
pub mod eviction;
pub mod fill_first;
pub mod ids;
pub mod models;
pub mod order;
pub mod prefetch;
pub mod pressure;
pub mod ranges;
pub mod residency;
pub mod retention;
pub mod schedule;
pub mod speed;
pub mod tier_order;
pub mod wake;

pub use fill_first::{Action, CopyId, Event, FillFirst, Refusal, TierIndex, TierSpec, step};
