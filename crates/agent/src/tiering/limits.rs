//! Bounds of the tiering role, each with its unit.

use std::time::Duration;

/// Workers that copy small files.
pub(crate) const SMALL_WORKERS: usize = 3;
/// Most large files that are read from at the same moment; each open one is followed, a piece at a time.
pub(crate) const LARGE_WORKERS: usize = 6;
/// Most files that are copied ahead of programs at the same moment. These workers are apart, so that no copy behind a program waits for them.
pub(crate) const AHEAD_WORKERS: usize = 2;
/// Small files that a worker takes from the queue at once. A large one is a worker's own.
pub(crate) const SMALL_AT_ONCE: usize = 8;
/// Bytes copied in one go before the worker looks at the reader again.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;
/// Buffer of a worker in bytes.
pub(crate) const BUFFER_BYTES: usize = 256 << 10;
/// Directories that wait to be listed, or are being listed; and directories that are remembered since they can have no listing.
pub(crate) const LISTINGS_WAITING_MAX: usize = 1024;
/// Bytes of a listing that are asked of the source in one call, as much as it gives in one answer.
pub(crate) const LISTING_BYTES: usize = 256 << 10;
/// Largest listing in bytes: some million names. It lies in the memory of the agent while it is made, and in that of a program while it is read.
pub(crate) const LISTING_BYTES_MAX: usize = 64 << 20;
/// Bytes of listings in memory, made and not yet written, above which no further directory is listed.
pub(crate) const LISTINGS_HELD_BYTES: usize = 8 << 20;
/// Niceness of the clerk, who must keep up with programs without taking their cores.
pub(crate) const CLERK_NICE: i32 = 5;
/// Niceness of the threads that copy.
pub(crate) const COPY_NICE: i32 = 10;
/// Hand-overs may hold one in this many of the descriptors that the limit allows.
pub(crate) const DESCRIPTOR_SHARE: u64 = 2;
/// Most descriptors of hand-overs held at once, whatever the limit.
pub(crate) const HANDED_MAX: usize = 16_384;
/// How long the receiver waits for the packet of a connection: on a busy machine a program may lose its core right before it sends.
pub(crate) const PACKET_WAIT_MAX: Duration = Duration::from_millis(500);
/// How long a command's question waits for hand-overs that came before it: without descriptors the queue stands still.
pub(crate) const QUEUE_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long the receiver and the clerk let events gather before they take them: on a machine whose cores the program uses, each waking
/// takes something from it.
pub(crate) const BATCH_PAUSE: Duration = Duration::from_millis(2);
/// First look at a file after its hand-over: by then its reader has most likely read it.
pub(crate) const FIRST_LOOK: Duration = Duration::from_millis(8);
/// Longest pause between two looks.
pub(crate) const LOOK_PAUSE_MAX: Duration = Duration::from_millis(250);
/// Bytes of a file that are read ahead in one go: programs that read meanwhile wait for no more.
pub(crate) const AHEAD_PIECE_BYTES: u64 = 1 << 20;
/// How often a copy that is made ahead, and held up, looks whether it may go on.
pub(crate) const AHEAD_HELD_LOOK: Duration = Duration::from_millis(100);
/// Directories that are remembered for copying ahead.
pub(crate) const AHEAD_DIRECTORIES_MAX: usize = 1 << 16;
/// Names of a directory that are taken for copying ahead.
pub(crate) const AHEAD_NAMES_MAX: usize = 100_000;
/// How long a file whose times are ahead of this node's clock waits before it is copied: longer than [`SETTLED_AFTER`], whatever the times' step.
pub(crate) const AHEAD_OF_CLOCK_WAIT: Duration = Duration::from_millis(2200);
/// Most files that wait so at once; each holds a descriptor of the source.
pub(crate) const AHEAD_OF_CLOCK_MAX: usize = 4096;
/// A file that was changed so long before the agent started, and not marked by a door since, has no writer that is worth a look.
pub(crate) const WRITERS_BEFORE_START: Duration = Duration::from_secs(60);
/// How long a look at what processes have open for writing is good for.
pub(crate) const WRITERS_LOOK: Duration = Duration::from_millis(200);
/// A look at what processes have mapped for writing is good for this many times as long as it took, if that is longer.
pub(crate) const WRITERS_MAPS_PART: u32 = 20;
/// Part of the time that sweeps may keep the source busy.
pub(crate) const SWEEP_SHARE: f64 = 0.05;
/// The same for directories that programs wait for.
pub(crate) const SWEEP_WANTED_SHARE: f64 = 0.5;
/// Of how much time that part may be saved up.
pub(crate) const SWEEP_WANTED_SAVED: Duration = Duration::from_secs(2);
/// How long the first sweeps may take together, whatever their part.
pub(crate) const FIRST_SWEEPS: Duration = Duration::from_secs(2);
/// A directory in use that was not swept when this part of its validity is over is swept as if programs waited for it.
pub(crate) const SWEEP_PRESSING_AT: f64 = 0.95;
/// A directory is swept when this part of its validity is over.
pub(crate) const SWEEP_AT: f64 = 0.85;
/// A directory whose copies nobody has used for so long is not swept any more, until somebody asks for one of them.
pub(crate) const SWEEP_UNUSED_MAX: Duration = Duration::from_secs(600);
/// How often the clerk looks at the clock.
pub(crate) const TICK: Duration = Duration::from_millis(200);
/// How often the room of the tiers' file systems is looked at.
pub(crate) const ROOM_EVERY: Duration = Duration::from_secs(1);
/// How long a run that ends waits for what its agent has done for it; the agent itself waits for [`QUEUE_WAIT_MAX`].
pub(crate) const LEAVE_MAX: Duration = Duration::from_secs(30);
/// How long copies that were begun may go on after the last run has ended.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(5);
/// How long it may take to bring all copies of earlier runs, where something under the sources was changed.
pub(crate) const BRING_MAX: Duration = Duration::from_secs(600);
/// Where `lru` makes room it frees one in this many of the tier's bytes at once,
pub(crate) const REPLACED_PART: u64 = 64;
/// or, beyond what it must, so many copies: the clerk does nothing else while they are removed, some tens of milliseconds;
pub(crate) const REPLACED_COPIES: usize = 1024;
/// and where there was nothing to free it looks again after this time.
pub(crate) const NO_VICTIMS_PAUSE: Duration = Duration::from_secs(5);
/// How long the clerk waits to know which copies are open.
pub(crate) const LOOK_MAX: Duration = Duration::from_secs(2);
/// The largest copy with which a tier's speed is measured: it is written out first.
pub(crate) const SAMPLED_BYTES_MAX: u64 = 16 << 20;
/// Errors of a tier after which it is switched off.
pub(crate) const TIER_FAULTS_MAX: u32 = 3;
/// How long no copy is begun after the index had no room for one.
pub(crate) const INDEX_FULL_PAUSE: Duration = Duration::from_secs(60);
/// Files that an index has room for beside those that it is made for; so many copies at least are published before the next is made.
pub(crate) const INDEX_SPARE: u64 = 1 << 16;
/// Memory for the index is taken in steps of this many bytes.
pub(crate) const BACKED_STEP_BYTES: u64 = 1 << 20;
/// Adopted copies that are brought to the clerk in one message.
pub(crate) const ADOPT_BATCH: usize = 512;
/// A tier of at most so many copies is adopted at once; a larger one within the budget that follows, but for the directories
/// that programs ask for.
pub(crate) const ADOPT_AT_ONCE: u64 = 1 << 16;
/// Of such a tier so much is verified at once after a reboot.
pub(crate) const VERIFY_AT_ONCE_BYTES: u64 = 64 << 20;
/// Part of one processor's time that adoption may take while a run is there.
pub(crate) const ADOPT_SHARE: f64 = 0.0075;
/// Bytes a second that it may read of the tier meanwhile.
pub(crate) const ADOPT_BYTES_PER_S: u64 = 8_000_000;
/// How long the first run's start may wait for a tier that is adopted at once, so that its first opens find what there is.
pub(crate) const ADOPTED_BEFORE_START_MAX: Duration = Duration::from_millis(150);
/// How long no catalogue is rewritten after one was.
pub(crate) const COMPACT_PAUSE: Duration = Duration::from_secs(10);
/// Leftovers of dead agents that one start removes.
pub(crate) const REAP_MAX: u64 = 1_000_000;
/// Most connections to the control socket at the same time: runs, and commands that ask.
pub(crate) const CONTROL_PEERS_MAX: usize = 4096;

const _: () = assert!(BUFFER_BYTES as u64 <= PIECE_BYTES);

const _: () = assert!(LEAVE_MAX.as_secs() > QUEUE_WAIT_MAX.as_secs());

const _: () = assert!(SWEEP_AT < SWEEP_PRESSING_AT && SWEEP_PRESSING_AT < 1.0);

const _: () = assert!(SWEEP_SHARE < SWEEP_WANTED_SHARE && SWEEP_WANTED_SHARE <= 0.5);

const _: () = assert!(ADOPT_SHARE > 0.0 && ADOPT_SHARE < 0.1);
