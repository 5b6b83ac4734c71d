//! Bounds of the forks role, each with its unit.

use std::time::Duration;

use crate::host::limits::{PACKET_BYTES_MAX, PACKET_DESCRIPTORS_MAX};

/// Connections to the fork agent: ranks of jobs, commands, ranks of clones.
pub(crate) const FORK_PEERS_MAX: usize = 4096;
/// The fork agent ends when nobody has been connected for so long.
pub(crate) const FORK_IDLE_MAX: Duration = Duration::from_secs(5);
/// How long somebody waits for an answer of the fork agent that needs nothing but the agent itself.
pub(crate) const FORK_REPLY_MAX: Duration = Duration::from_secs(10);
/// How long a rank may wait until the fork agent's socket takes its packet: that happens only if the agent stands still.
pub(crate) const FORK_SEND_MAX: Duration = Duration::from_millis(50);
/// Most bytes of what describes a state; `forebay.clone` has the same bound on a manifest.
pub(crate) const FORK_TEXT_BYTES_MAX: usize = (256 << 20) + 4096;
/// Jobs on one node that can be forked. All of them fit into one packet.
pub(crate) const JOBS_MAX: usize = 200;
/// Longest name of a job in bytes. Clones of clones of it have longer ones.
pub(crate) const JOB_NAME_BYTES_MAX: usize = 100;
/// Ranks of a job.
pub(crate) const FORK_RANKS_MAX: u32 = 1024;
/// Clones of one job that are being made at once.
pub(crate) const FORKS_PER_JOB_MAX: usize = 16;
/// How often a source looks whether a clone asks for its word, on a kernel that can't wake it.
pub(crate) const WINDOW_LOOK_EVERY: Duration = Duration::from_millis(1);
/// Ranks of a job whose state can be dealt to another number of them: what describes each goes with it in one packet.
pub(crate) const FORK_DEALT_RANKS_MAX: usize = PACKET_DESCRIPTORS_MAX - 2;
/// Steps that a clone takes on probation, at most.
pub const FORK_SHADOW_MAX: u32 = 1000;

const _: () = assert!(JOBS_MAX * (JOB_NAME_BYTES_MAX + 200) < PACKET_BYTES_MAX);
