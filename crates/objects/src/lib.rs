//! Object stores, and local views of what they hold.
//!
//! The door can only ever redirect the open of a path, and an object has none. So what a bucket holds is fetched into a *view* first: a
//! directory tree of whole files, which any program reads. The command is the only one that uses this crate: what speaks HTTP and TLS comes
//! neither into the agent nor into anybody's program.
//!
//! What must not be here: the environment (variables are looked up through a function), terminals, decisions of the command.
//!
//! Where to start: [`View::open`], [`View::fill`]. A listing ([`Store::list`]) is laid out as paths (`names.rs`), compared with what is there
//! (`plan.rs`), the rest is fetched (`fetch.rs`), and all of it is given its names (`view.rs`).

#![forbid(unsafe_code)]

mod access;
mod address;
mod disk;
mod error;
mod fetch;
pub mod limits;
mod names;
mod plan;
mod record;
mod store;
mod view;

pub use access::{Access, Variables};
pub use address::Address;
pub use error::Error;
pub use names::Odd;
pub use store::{Object, Store};
pub use view::{Event, Outcome, Tell, View, Wish};
