//! What every role of the agent shares: start and lock, sockets and packets, shared memory, errors, the log.

pub(crate) mod admission;
pub(crate) mod clock;
pub(crate) mod connection;
pub mod error;
pub(crate) mod limits;
pub(crate) mod lock;
pub(crate) mod log;
pub mod memory;
pub(crate) mod packet;
pub mod private_dir;
pub mod shared;
pub mod start;
pub mod text;
