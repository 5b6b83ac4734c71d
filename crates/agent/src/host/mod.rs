//! Parts that all roles of the agent share: lifecycle and lock, sockets and packets, shared memory, errors, the log.
//!
//! [`lifecycle`] runs a role's process, [`driver`] its one thread: the poll loop, connections and their admission. A
//! role implements [`role::Role`]. A client starts a role by [`start`], and speaks to it by [`connection`].

pub(crate) mod admission;
pub mod clock;
pub(crate) mod connection;
pub(crate) mod doorbell;
pub(crate) mod driver;
pub mod durations;
pub mod error;
pub(crate) mod lifecycle;
pub(crate) mod limits;
pub(crate) mod lock;
pub mod log;
pub mod memory;
pub mod mountinfo;
pub(crate) mod packet;
pub mod peer_table;
pub mod private_dir;
pub mod refusal;
pub(crate) mod role;
pub mod shared;
pub mod start;
pub mod text;
