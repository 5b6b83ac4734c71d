//! The simulated world against closed forms, with policies without randomness.

mod closed_forms;
mod counts;
mod policies;
mod refusals;
mod simple;
