//! Object stores: local views of what they hold, and objects as a loader reads them.
//!
//! The door can only ever redirect the open of a path, and an object has none. So what a bucket holds is fetched into a *view* first: a
//! directory tree of whole files, which any program reads. The loader, which says itself what it reads, needs none: it reads ranges of
//! objects ([`Stores`], `read.rs`), each of the version that was listed. What speaks HTTP and TLS comes into the house only here.
//! Stores speak S3, or the protocols of Google or Azure (`dialect.rs`).
//!
//! What must not be here: the environment (variables are looked up through a function), terminals, decisions of the command.
//!
//! Where to start: [`View::open`], [`View::fill`]. A listing ([`Store::list`]) is laid out as paths (`names.rs`), compared with what is there
//! (`plan.rs`), the rest is fetched (`fetch.rs`), and all of it is given its names (`view.rs`).

#![forbid(unsafe_code)]

mod access;
mod address;
mod amazon;
mod azure;
mod credentials;
mod dialect;
mod disk;
mod error;
mod fetch;
mod google;
pub mod limits;
mod names;
mod network;
mod plan;
mod profile;
mod read;
mod record;
mod stop;
mod store;
mod stores;
mod view;

pub use access::{Access, VARIABLES, Variables};
pub use address::{Address, Scheme};
pub use error::Error;
pub use names::Odd;
pub use read::Opened;
pub use store::{Object, Store, Version};
pub use stores::Stores;
pub use view::{Event, Outcome, Tell, View, Wish};
