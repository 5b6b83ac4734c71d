//! The simulated world against closed forms, with policies that leave nothing to chance.

mod closed_forms;
mod counts;
mod policies;
mod refusals;
mod simple;
