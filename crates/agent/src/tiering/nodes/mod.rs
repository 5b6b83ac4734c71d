//! The other nodes of a job, as the tiering role reaches them: asks them for the bytes of files that they own, and
//! reads files of its own for them.
//!
//! A file belongs to the node that its path's hash names, and one node of each group keeps it
//! ([`forebay_policy::peers::FileHolders`]). On a miss of another node's file a *fetcher* pulls the owner's copy into a
//! tier of this node, while the opener waits on a word of the run page ([`open_waits`]); on a miss of a file of its own
//! nothing is asked, and the copy is made behind the reader as without other nodes. An owner without a copy has an
//! *opener* open the source, and copies it at once. The event loop decides (`state/nodes.rs`); threads carry out.
//!
//! Versions are compared by size and times. Device and inode differ between nodes for some file systems.

pub(crate) mod blob;
pub(crate) mod fetcher;
pub(crate) mod group;
pub(crate) mod open_waits;
pub(crate) mod opener;
pub(crate) mod partial;
pub(crate) mod pulled;
pub(crate) mod threads;

#[cfg(test)]
mod holder_tests;
#[cfg(test)]
mod pieces_tests;
