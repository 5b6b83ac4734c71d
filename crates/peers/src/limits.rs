//! Bounds of the data plane, each with its unit.

use std::time::Duration;

/// Longest head of a request or an answer, in bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// Longest range of one request, in bytes.
pub const RANGE_BYTES_MAX: u64 = 64 << 20;
/// Ranges in one request for many.
pub const MANY_MAX: usize = 1024;
/// Bytes of all ranges of one request for many.
pub const MANY_BYTES_MAX: u64 = 4 << 20;
/// Bytes that are read of an object and sent before the next are read.
pub(crate) const CHUNK_BYTES: usize = 128 << 10;
/// Connections that a server has at most.
pub const CONNECTIONS_MAX: usize = 1024;
/// Connections that a server takes from one node, which may ask it in two ways: as a node of its group, and as one of
/// another group that some answer has named.
pub const CONNECTIONS_OF_NODE_MAX: usize = 8;
/// Handshakes that are under way at most.
pub(crate) const HANDSHAKES_MAX: usize = 64;
/// Time after a piece of a named object was handed to the kernel in which other askers are sent to the node that gets
/// it: the bytes wait in buffers of the network, and that node has to digest them.
pub(crate) const JUST_SERVED: Duration = Duration::from_secs(1);
/// Longest time of a handshake.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Answers of a server that are at work at the same moment.
pub(crate) const ANSWERS_MAX: usize = 16;
/// Requests that wait for their turn at a server.
pub(crate) const WAITING_MAX: usize = 1024;
/// Bytes that a node has asked for and not received.
pub const OUTSTANDING_BYTES_MAX: u64 = 32 << 20;
/// Connections to one node, in one of these ways.
pub(crate) const CONNECTIONS_TO_NODE_MAX: usize = 4;
/// Longest time until a node takes a connection, with its handshake.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the answer to a probe of a node that was silent.
pub(crate) const PROBE_WAIT: Duration = Duration::from_secs(1);
/// Longest time that a server takes an asker to wait, whatever the asker says.
pub(crate) const WITHIN_MAX: Duration = Duration::from_secs(60);
/// Longest pause in the middle of an answer, for the node that receives it and for the one that sends it.
pub(crate) const PROGRESS_MAX: Duration = Duration::from_secs(1);
/// A connection that was idle for so long is closed by the node that opened it.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(60);
/// The answer of a request that lost is read to its end up to this many bytes; beyond it the connection is closed.
pub(crate) const READ_OUT_BYTES_MAX: u64 = 256 << 10;
/// Share of the bytes that came which may be asked for twice, and how much of that is saved up.
pub(crate) const HEDGE_SHARE: f64 = 0.01;
pub(crate) const HEDGE_SAVED_BYTES: f64 = 8e6;
/// Niceness of the threads of the data plane, which is that of threads that make copies.
pub(crate) const NICE: i32 = 10;
/// Niceness of those that send or ask for the states of a job: somebody waits for a clone, and a link has nothing to
/// send while they have no processor.
pub(crate) const FORKS_NICE: i32 = 5;
