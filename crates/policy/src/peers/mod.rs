//! Decisions about other nodes of a job: who owns a file, whom to ask for a range, when to ask a second one, and when
//! to go to the source.
//!
//! Nodes have numbers: their places in the job's table of members, which the launcher made. [`owners::Owners`] says
//! which place in a table has a file, and [`holders::FileHolders`] which node reads it from the source for all and
//! which keep it for their [`groups`]; [`files`] says how much room it takes, and [`shares::SampleShares`] which nodes
//! read and keep a sample. [`health::Health`] is one node's measurements of another, [`reach::Reach`] those of itself.
//! [`fetch::PeerFetch`] is one range on its way: it says after each event which node to ask next, or that the source is
//! to be read. [`pieces::PieceOrder`] is a large file on its way: which range to ask for next.
//!
//! Not allowed here: names, addresses, sockets, bytes.

pub mod admission;
pub mod fetch;
pub mod files;
pub mod groups;
pub mod health;
pub mod holders;
pub mod owners;
pub mod pieces;
pub mod reach;
pub mod shares;

pub use admission::{Admission, admit};
pub use fetch::{FetchStep, PeerAnswer, PeerFetch};
pub use groups::{JOB_NODES_MAX, NodeGroups};
pub use health::{Health, HedgeBudget};
pub use holders::{FileHolders, FilePart};
pub use owners::Owners;
pub use pieces::{PIECES_AT_ONCE, PieceOrder};
pub use reach::Reach;
pub use shares::SampleShares;
