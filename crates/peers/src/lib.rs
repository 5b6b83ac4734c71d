//! The data plane between nodes: ranges of named, immutable objects, pulled from the node that has them.
//!
//! Nodes speak HTTP/1.1 over TLS 1.3. Nothing is pushed, nothing is listed, and no name is a path. Both sides of a
//! connection prove with a raw public key (RFC 7250) that they belong to the job: each node's key is derived from the
//! job's secret, so each node knows all keys and accepts no other ([`identity`]).
//!
//! [`Server`] serves the objects of a [`Holder`]. [`Peers`] fetches a range: it asks the nodes that
//! `forebay_policy::peers` names, one after the other, within a deadline, into memory that the caller has reserved,
//! and compares digests. Each has one thread.
//!
//! Not allowed here: files, samples, tensors, and decisions about ownership.

pub mod blob;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod exchange;
pub mod hosts;
pub mod hydra;
pub mod identity;
pub mod interface;
pub mod join;
pub mod launcher;
pub mod limits;
pub mod members;
pub mod pull;
pub mod rendezvous;
pub mod secret_file;
pub mod serve;
pub mod wire;

mod announcement;
mod asking;
mod connection;
#[cfg(test)]
mod fuzzed;
mod gate;
#[cfg(test)]
mod idle;
mod runtime;
mod sent;
mod served;

pub use blob::{Blob, BlobRequest, Found, Holder, Reply};
pub use identity::Secret;
pub use join::{Group, JoinError, Joined, Rank};
pub use members::{Member, Members, MembersError};
pub use pull::{FetchEnd, Fetched, ManyDone, ManyWanted, Peers, PeersError, Room, Totals, Wanted};
pub use serve::{Served, Server};
pub use wire::{BlobId, BlobName, Kind};
