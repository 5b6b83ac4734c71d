//! Object stores: local mirrors of buckets, and ranges of objects for the loader.
//!
//! The preload library can only redirect the open of a path, and an object has none. So a bucket's objects are first
//! fetched into a local mirror (a [`View`]): a directory tree of complete files, which any program reads. The loader
//! chooses what it reads, so it needs none: it reads ranges of objects ([`Stores`], `read.rs`), each of the listed
//! version. HTTP and TLS are used only here. Stores speak S3, or the protocols of Google or Azure (`dialect.rs`).
//!
//! Not allowed here: the environment (a function looks variables up), terminals, decisions of the command.
//!
//! Start with [`View::open`], [`View::fill`]. A listing ([`Store::list`]) is laid out as paths (`names.rs`) and
//! compared with the existing files (`plan.rs`); the missing ones are fetched (`fetch.rs`), and all get their names
//! (`view.rs`).

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
mod variables;
mod view;

pub use access::StoreAccess;
pub use address::{Address, Scheme};
pub use error::Error;
pub use names::Odd;
pub use read::OpenedRange;
pub use store::{Object, ObjectVersion, Store};
pub use stores::Stores;
pub use variables::{VARIABLES, VariableLookup};
pub use view::{FillOptions, FillReport, Reporter, View, ViewEvent};
