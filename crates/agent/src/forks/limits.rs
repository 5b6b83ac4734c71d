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
/// Descriptors of a rank's state all of which was copied: of its manifest, and of the copy.
pub(crate) const STATE_DESCRIPTORS: usize = 2;
/// Ranks of a job whose state can be distributed to another number of ranks: all of their states go into one packet.
pub(crate) const FORK_DEALT_RANKS_MAX: usize = PACKET_DESCRIPTORS_MAX / STATE_DESCRIPTORS;
/// Largest number of steps of shadow verification.
pub const FORK_SHADOW_MAX: u32 = 1000;

/// Pause between two looks of a process that reads a lease for another host: for a piece in the copy-on-write buffer,
/// and for the job's confirmation.
pub(crate) const FORK_CONFIRM_EVERY: Duration = Duration::from_millis(1);
/// Time after which a thread that waits for the fork agent looks whether anybody still waits for it.
pub(crate) const HOST_WAIT_EVERY: Duration = Duration::from_millis(200);
/// Pause between two requests for the progress of a fork on another host.
pub(crate) const HOST_LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest such pause: they grow while nothing happens.
pub(crate) const HOST_LOOK_MAX: Duration = Duration::from_millis(250);
/// Time without an answer after which the other host of a fork counts as lost, for both sides.
pub(crate) const HOST_SILENT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the first answer of the host of a job, which has taken a connection: later the ticket counts as
/// refused.
pub(crate) const HOST_ACCEPT_MAX: Duration = Duration::from_secs(4);
/// Pause between two looks of a job's host for its step, which several hosts have to agree on.
pub(crate) const HOST_STEP_EVERY: Duration = Duration::from_millis(50);
/// Time that hosts have to hear of the step of a fork before their ranks come to it.
pub(crate) const HOST_AGREE_LEAD: Duration = Duration::from_millis(500);
/// Number of steps that are proposed for a fork of ranks on several hosts, each later than the one before.
pub(crate) const HOST_AGREE_TRIES: u32 = 4;
/// Pause before a host of a clone is asked again for a part that it does not have yet.
pub(crate) const HOST_GATHER_EVERY: Duration = Duration::from_millis(20);
/// Time without a part after which a clone's host asks another clone's no more: without an answer, and with the answer
/// that it does not have the part yet. The job's host is asked then.
pub(crate) const HOST_GONE_MAX: Duration = Duration::from_secs(2);
pub(crate) const HOST_SHARE_MAX: Duration = Duration::from_secs(30);
/// Longest time for which a clone that has its state keeps it for other clones of the step.
pub(crate) const HOST_LINGER_MAX: Duration = Duration::from_secs(120);
/// Pause between two looks of a host of a clone for the notes of the others, while it has nothing else to do.
pub(crate) const HOST_MEET_EVERY: Duration = Duration::from_millis(100);
/// Interval of the requests that keep a fork on another host while the clone's ranks start.
pub(crate) const HOST_KEEP_EVERY: Duration = Duration::from_secs(1);
/// Bytes of a state that are pulled in one request, and requests at the same time.
pub(crate) const HOST_RANGE_BYTES: usize = 1 << 20;
pub(crate) const HOST_RANGES: usize = 4;
/// Least bytes of a request after those before took too long.
pub(crate) const HOST_RANGE_BYTES_MIN: u64 = 64 << 10;
const _: () = assert!(HOST_RANGE_BYTES as u64 <= forebay_peers::limits::RANGE_BYTES_MAX);

const _: () = assert!(JOBS_MAX * (JOB_NAME_BYTES_MAX + 200) < PACKET_BYTES_MAX);
