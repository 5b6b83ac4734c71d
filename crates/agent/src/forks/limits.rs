//! Bounds of the forks role, each with its unit.

use std::time::Duration;

pub(crate) use forebay_contract::job_page::FORKS_PER_JOB_MAX;

use crate::host::limits::{PACKET_BYTES_MAX, PACKET_DESCRIPTORS_MAX};

/// Connections to the fork agent: ranks of jobs, commands, ranks of clones.
pub(crate) const FORK_PEERS_MAX: usize = 4096;
/// Time without a connection after which the fork agent ends.
pub(crate) const FORK_IDLE_MAX: Duration = Duration::from_secs(5);
/// Longest wait for an answer of the fork agent that needs nothing but the agent itself.
pub(crate) const FORK_REPLY_MAX: Duration = Duration::from_secs(10);
/// Longest wait of a rank until the fork agent's socket takes its packet: it is full only if the agent is blocked.
pub(crate) const FORK_SEND_MAX: Duration = Duration::from_millis(50);
/// Jobs on one node that can be forked. All of them fit into one packet.
pub(crate) const JOBS_MAX: usize = 200;
/// Longest name of a job in bytes. Clones of clones of it have longer ones.
pub(crate) const JOB_NAME_BYTES_MAX: usize = 100;
/// Ranks of a job.
pub(crate) const FORK_RANKS_MAX: u32 = 1024;
/// Pause between two checks of a source for a reader's request, on a kernel without a usable futex.
pub(crate) const WINDOW_LOOK_EVERY: Duration = Duration::from_millis(1);
/// Ranks of a job whose state can be distributed to another number of ranks: all descriptions go into one packet.
pub(crate) const FORK_DEALT_RANKS_MAX: usize = PACKET_DESCRIPTORS_MAX - 2;
/// Largest number of steps of shadow verification.
pub const FORK_SHADOW_MAX: u32 = 1000;

const _: () = assert!(JOBS_MAX * (JOB_NAME_BYTES_MAX + 200) < PACKET_BYTES_MAX);
