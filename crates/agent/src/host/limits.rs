//! Bounds that all roles of the agent share, each with its unit.

use std::time::Duration;

/// Queue of a listening socket in connections; the kernel caps it at net.core.somaxconn.
pub(crate) const BACKLOG: i32 = 4096;
/// Age below which a modified file is not published: its timestamps may not show the next change (fault F5).
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Largest difference of clocks: a modification time further in the future was set by a program.
pub(crate) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(3600);
/// Longest packet in bytes.
pub(crate) const PACKET_BYTES_MAX: usize = 64 << 10;
/// Descriptors beside a packet: those of a state, and of at most 200 pieces of memory that hold tensors, which is the
/// bound of `forebay.clone`. The kernel allows 253.
pub(crate) const PACKET_DESCRIPTORS_MAX: usize = 204;
/// Pause of admission after there was no descriptor for a connection, unless another one closes before.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Longest table of a job's nodes in bytes: of 4,096 of them.
pub(crate) const PEER_TABLE_BYTES_MAX: usize = 1 << 20;
