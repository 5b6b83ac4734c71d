//! The agent: the background processes of one user on one node.
//!
//! Each process plays one role. [`tiering`] copies the files that programs open into local tiers, one process for each
//! set of tiers. [`samples`] fetches samples for data loaders, and [`forks`] hands the state of training jobs over to
//! clones, one process each. A role that ends, or runs out of memory, ends no other. [`host`] has what they share:
//! start and lock, sockets and packets, memory, errors and the log.
//!
//! Not allowed here: decisions (`policy`), how bytes get onto a tier (`store`).

pub mod forks;
pub mod host;
#[cfg(test)]
mod messages;
mod roles;
pub mod samples;
pub mod tiering;

pub use roles::{RoleSetup, serve};
