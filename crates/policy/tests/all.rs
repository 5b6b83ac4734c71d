//! All tests of the crate, in one program: each program would be optimised and linked by itself.

mod caches;
mod concurrency;
mod drawn;
mod eviction;
mod fill_first;
mod hedge;
mod memory;
mod models;
mod one_of_many;
mod order;
mod ranges;
mod residency;
mod schedule;
mod starving;
