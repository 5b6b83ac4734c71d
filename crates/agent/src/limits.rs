//! Every bound of the agent, with its unit.

use std::time::Duration;

/// Workers that copy small files.
pub(crate) const SMALL_WORKERS: usize = 3;
/// Most large files that are read from at the same moment; each open one is followed, a piece at a time.
pub(crate) const LARGE_WORKERS: usize = 6;
/// Small files that a worker takes from the queue at once. A large one is a worker's own.
pub(crate) const SMALL_AT_ONCE: usize = 8;
/// Bytes copied in one go before the worker looks at the reader again.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;
/// Buffer of a worker in bytes.
pub(crate) const BUFFER_BYTES: usize = 256 << 10;
/// Niceness of the clerk, who must keep up with programs without taking their cores.
pub(crate) const CLERK_NICE: i32 = 5;
/// Niceness of the threads that copy.
pub(crate) const COPY_NICE: i32 = 10;
/// Hand-overs may hold one in this many of the descriptors that the limit allows.
pub(crate) const DESCRIPTOR_SHARE: u64 = 2;
/// Most descriptors of hand-overs held at once, whatever the limit.
pub(crate) const HANDED_MAX: usize = 16_384;
/// The listening socket's queue of hand-overs; the kernel caps it at net.core.somaxconn.
pub(crate) const BACKLOG: i32 = 4096;
/// How long the receiver waits for the packet of a connection.
pub(crate) const PACKET_WAIT_MAX: Duration = Duration::from_millis(50);
/// How long the receiver and the clerk let events gather before they take them: on a machine whose cores the program uses, each waking
/// takes something from it.
pub(crate) const BATCH_PAUSE: Duration = Duration::from_millis(2);
/// First look at a file after its hand-over: by then its reader has most likely read it.
pub(crate) const FIRST_LOOK: Duration = Duration::from_millis(8);
/// Longest pause between two looks.
pub(crate) const LOOK_PAUSE_MAX: Duration = Duration::from_millis(250);
/// A file that was modified so recently is not published: its timestamps may not tell its next change (fault F5).
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// A file that was changed so long before the agent started, and not marked by a door since, has no writer that is worth a look.
pub(crate) const WRITERS_BEFORE_START: Duration = Duration::from_secs(60);
/// How long a look at what processes have open for writing is good for.
pub(crate) const WRITERS_LOOK: Duration = Duration::from_millis(200);
/// A modification time further in the future than this is a setting, not a clock that differs.
pub(crate) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(3600);
/// Part of the time that sweeps may keep the source busy.
pub(crate) const SWEEP_SHARE: f64 = 0.05;
/// A directory is swept when this part of its validity is over.
pub(crate) const SWEEP_AT: f64 = 0.85;
/// A directory whose copies nobody has used for so long is not swept any more, until somebody asks for one of them.
pub(crate) const SWEEP_UNUSED_MAX: Duration = Duration::from_secs(600);
/// How often the clerk looks at the clock.
pub(crate) const TICK: Duration = Duration::from_millis(200);
/// How often the room of the tiers' file systems is looked at.
pub(crate) const ROOM_EVERY: Duration = Duration::from_secs(1);
/// How long copies that were begun may go on after the last run has ended.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Errors of a tier after which it is switched off.
pub(crate) const TIER_FAULTS_MAX: u32 = 3;
/// Records in the first index.
pub(crate) const FIRST_RECORDS: u64 = 1 << 16;
/// Memory for the index is taken in steps of this many bytes.
pub(crate) const BACKED_STEP_BYTES: u64 = 1 << 20;
/// Adopted copies that are brought to the clerk at once.
pub(crate) const ADOPT_BATCH: usize = 512;
/// Niceness of the thread that reads catalogues.
pub(crate) const ADOPT_NICE: i32 = 19;
/// Longest pause after a batch.
pub(crate) const ADOPT_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Leftovers of dead agents that one start removes.
pub(crate) const REAP_MAX: u64 = 1_000_000;
/// Longest request on the control socket in bytes.
pub(crate) const REQUEST_BYTES_MAX: u64 = 1 << 20;

const _: () = assert!(BUFFER_BYTES as u64 <= PIECE_BYTES);
const _: () = assert!(SWEEP_AT < 1.0 && SWEEP_SHARE < 0.5);
