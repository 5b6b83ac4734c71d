//! Settings below the command line: the user's choices with their origins, and the directories of this node.
//!
//! [`config::Config`] is resolved once from options, [`environment::Environment`] and configuration files; each value
//! knows its origin. [`mounts`], [`sources`], [`tiers`] and [`places`] look at the machine: which directories are
//! served, where copies go, where the runtime and state directories are. [`roles`] starts the loader agent and the
//! fork agent. Not allowed here: a command line, standard output, sockets, copying (the agent's crate),
//! decisions about copies (policy).

#![forbid(unsafe_code)]

pub mod config;
pub mod environment;
pub mod mounts;
pub mod places;
pub mod roles;
pub mod size;
pub mod sources;
pub mod text;
pub mod tiers;
pub mod user_error;
pub mod write;
