//! Bounds that every role of the agent shares, each with its unit.

use std::time::Duration;

/// The listening socket's queue of hand-overs; the kernel caps it at net.core.somaxconn.
pub(crate) const BACKLOG: i32 = 4096;
/// A file that was modified so recently is not published: its timestamps may not tell its next change (fault F5).
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// A modification time further in the future than this is a setting, not a clock that differs.
pub(crate) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(3600);
/// Longest packet on the sockets of the fork agent and the loader agent in bytes.
pub(crate) const PACKET_BYTES_MAX: usize = 64 << 10;
/// Descriptors beside such a packet: a state's, and those of at most 200 pieces of memory in which tensors lie, as `forebay.clone` has it. The kernel's own
/// bound is 253.
pub(crate) const PACKET_DESCRIPTORS_MAX: usize = 204;
/// How long either takes on nobody new after it had no descriptor for somebody, unless somebody leaves before.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
