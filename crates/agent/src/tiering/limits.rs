//! Bounds of the tiering role, each with its unit.

use std::time::Duration;

/// Workers that copy small files.
pub(crate) const SMALL_WORKERS: usize = 3;
/// Most large files that are read at the same moment. Each open one is followed, a piece at a time.
pub(crate) const LARGE_WORKERS: usize = 6;
/// Most files that are prefetched at the same moment. These workers are separate, so that no copy behind a program
/// waits for them.
pub(crate) const AHEAD_WORKERS: usize = 2;
/// Small files that a worker takes from the queue together. It takes one large file at a time.
pub(crate) const SMALL_AT_ONCE: usize = 8;
/// Threads that pull files from other nodes. Each waits for its file most of the time.
pub(crate) const NODE_FETCHERS: usize = 16;
/// Threads that open files of the source for other nodes.
pub(crate) const NODE_OPENERS: usize = 8;
/// Workers that read files of the source for other nodes.
pub(crate) const NODE_READERS: usize = 6;
/// Bytes of a file that another node is asked for in one request. A node serves each such piece as soon as it has it.
pub(crate) const FETCH_PIECE_BYTES: u64 = 4 << 20;
/// Longest wait for a piece of a file, which its owner may have to read from the source first.
pub(crate) const FETCH_WAIT_MAX: Duration = Duration::from_secs(30);
/// Pause after which a thread that waits for a piece looks whether the copy is still wanted.
pub(crate) const FETCH_LOOK: Duration = Duration::from_millis(250);
/// Longest time for which a request of another node waits here for a piece or a copy. Then the node asks again, and its
/// connection is free for others meanwhile.
pub(crate) const ASKED_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest pause between two pieces in which an opener waits on beyond its usual time.
pub(crate) const PIECE_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Multiple of its usual time for which an opener waits at most: while pieces come and the speed of its node's source
/// is not measured, or is measured to be so slow.
pub(crate) const COMING_WAITS: u64 = 10;
/// Time for which an opener is told to wait on, beyond the time that it would wait by itself. It is told so at each
/// tick.
pub(crate) const OPENER_LEASE: Duration = Duration::from_secs(2);
/// Time between the moment when an opener is released and the one when it would give up by itself.
pub(crate) const OPENER_MARGIN: Duration = Duration::from_millis(300);
/// Largest file whose digest is not kept: its bytes are digested when they are sent.
pub(crate) const UNDIGESTED_BYTES_MAX: u64 = 256 << 10;
/// Bytes copied in one go before the worker looks at the reader again.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;
/// Buffer of a worker in bytes.
pub(crate) const BUFFER_BYTES: usize = 256 << 10;
/// Most directories that wait to be listed or are being listed, and most directories that are remembered because they
/// can't be cached.
pub(crate) const LISTINGS_WAITING_MAX: usize = 1024;
/// Bytes of a listing that are requested from the source in one call, as much as it gives in one answer.
pub(crate) const LISTING_BYTES: usize = 256 << 10;
/// Largest listing in bytes: some million names. It is in the agent's memory while it is made, and in a program's
/// memory while it is read.
pub(crate) const LISTING_BYTES_MAX: usize = 64 << 20;
/// Bytes of listings in memory, made and not yet written, above which no further directory is listed.
pub(crate) const LISTINGS_HELD_BYTES: usize = 8 << 20;
/// Niceness of the event loop, which must keep up with programs without taking their cores.
pub(crate) const EVENT_LOOP_NICE: i32 = 5;
/// Niceness of the threads that copy.
pub(crate) const COPY_NICE: i32 = 10;
/// Divisor of the descriptor limit that gives the descriptors for handoffs.
pub(crate) const DESCRIPTOR_SHARE: u64 = 2;
/// Most descriptors of handoffs held at the same time, whatever the limit.
pub(crate) const HANDOFF_DESCRIPTORS_MAX: usize = 16_384;
/// Longest wait of the receiver for the packet of a connection: on a busy machine a program may lose its core right
/// before it sends.
pub(crate) const PACKET_WAIT_MAX: Duration = Duration::from_millis(500);
/// Longest wait of a command's request for handoffs that came before it: without descriptors the queue stands still.
pub(crate) const QUEUE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Pause in which receiver and event loop let events gather before they take them. On a machine whose cores the program
/// uses, each wake-up takes time from it.
pub(crate) const BATCH_PAUSE: Duration = Duration::from_millis(2);
/// Time from a file's handoff to the first look at it. By then its reader has most likely read it.
pub(crate) const FIRST_LOOK: Duration = Duration::from_millis(8);
/// Longest pause between two looks.
pub(crate) const LOOK_PAUSE_MAX: Duration = Duration::from_millis(250);
/// Bytes of a file that are prefetched in one go. A program that reads meanwhile waits for no more.
pub(crate) const AHEAD_PIECE_BYTES: u64 = 1 << 20;
/// Pause after which a prefetched copy that is held up looks whether it may go on.
pub(crate) const AHEAD_HELD_LOOK: Duration = Duration::from_millis(100);
/// Bytes that the kernel is asked to read into the page cache with one call. It reads no more by one than it would for
/// a program that reads in order, 128 KiB unless it is set otherwise.
pub(crate) const AHEAD_REQUEST_BYTES: u64 = 128 << 10;
/// Duration of a read from which it has waited for the source, and was not answered by the page cache.
pub(crate) const AHEAD_WAITED_MIN: Duration = Duration::from_micros(100);
/// Time between two looks at a program's mappings, as a multiple of the duration of one.
pub(crate) const AHEAD_LOOK_PART: u32 = 20;
/// Time between two looks at the readers of files that were read ahead of them.
pub(crate) const AHEAD_JUDGED_EVERY: Duration = Duration::from_millis(20);
/// Most of them that are looked at together, which may hold up the event loop.
pub(crate) const AHEAD_JUDGED_AT_ONCE: usize = 8;
/// Most such readers.
pub(crate) const AHEAD_UNJUDGED_MAX: usize = 64;
/// Validity of a look at the free memory.
pub(crate) const AHEAD_MEMORY_LOOK: Duration = Duration::from_millis(200);
/// Time from the open of a large file to the first look at it, where it may be read ahead of its reader.
pub(crate) const AHEAD_FIRST_LOOK: Duration = Duration::from_millis(1);
/// Longest pause between two looks at a file that may be read ahead of its reader, which is moving.
pub(crate) const AHEAD_LOOK_PAUSE_MAX: Duration = Duration::from_millis(32);
/// Threads that open what earlier runs of a command have read.
pub(crate) const LIST_OPENERS: usize = 16;
/// Workers that copy small files which earlier runs have read. Each waits for the source most of the time.
pub(crate) const LISTED_SMALL_WORKERS: usize = 16;
/// Most large files which earlier runs have read that are read at the same moment: the first of them is wanted first.
pub(crate) const LISTED_LARGE_WORKERS: usize = 2;
/// Longest wait for the page of a run, which its command makes right after it has joined.
pub(crate) const RUN_PAGE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest wait of an agent that ends for the lists of what its runs have read.
pub(crate) const LISTS_WRITTEN_MAX: Duration = Duration::from_secs(2);
/// Pairs of a program and a directory whose order of opens is remembered.
pub(crate) const ORDERED_DIRECTORIES_MAX: usize = 64;
/// Most names of a directory whose next file is read ahead.
pub(crate) const ORDERED_NAMES_MAX: usize = 10_000;
/// Directories that are remembered for prefetching.
pub(crate) const AHEAD_DIRECTORIES_MAX: usize = 1 << 16;
/// Names of a directory that are taken for prefetching.
pub(crate) const AHEAD_NAMES_MAX: usize = 100_000;
/// Wait of a file whose times are ahead of this node's clock before it is copied: longer than `SETTLED_AFTER`,
/// whatever the resolution of the times.
pub(crate) const AHEAD_OF_CLOCK_WAIT: Duration = Duration::from_millis(2200);
/// Most files that wait so; each holds a descriptor of the source.
pub(crate) const AHEAD_OF_CLOCK_MAX: usize = 4096;
/// Age at the agent's start from which a file without a change mark is not checked for writers.
pub(crate) const WRITERS_BEFORE_START: Duration = Duration::from_secs(60);
/// Validity of a look at the files that processes have open for writing.
pub(crate) const WRITERS_LOOK: Duration = Duration::from_millis(200);
/// Validity of a look at the descriptors of all processes, as a multiple of its duration, if that is longer.
pub(crate) const WRITERS_OPENED_PART: u32 = 5;
/// Validity of a look at writable mappings, likewise. To list them takes longer.
pub(crate) const WRITERS_MAPPED_PART: u32 = 20;
/// Share of the time in which sweeps may keep the source busy.
pub(crate) const SWEEP_SHARE: f64 = 0.05;
/// Share of the time in which sweeps of directories that programs wait for may keep the source busy.
pub(crate) const SWEEP_WANTED_SHARE: f64 = 0.5;
/// Longest time of which that share may be saved up.
pub(crate) const SWEEP_WANTED_SAVED: Duration = Duration::from_secs(2);
/// Time that the first sweeps may take together, whatever their share.
pub(crate) const FIRST_SWEEPS: Duration = Duration::from_secs(2);
/// Part of its validity after which a directory in use is swept as if programs waited for it.
pub(crate) const SWEEP_PRESSING_AT: f64 = 0.95;
/// Part of its validity after which a directory is swept.
pub(crate) const SWEEP_AT: f64 = 0.85;
/// Time without use after which a directory is not swept any more, until a program asks for one of its copies.
pub(crate) const SWEEP_UNUSED_MAX: Duration = Duration::from_secs(600);
/// Period of the event loop's regular work.
pub(crate) const TICK: Duration = Duration::from_millis(200);
/// Period of looks at the free room of the tiers' file systems.
pub(crate) const ROOM_EVERY: Duration = Duration::from_secs(1);
/// Longest wait of a run that ends for the last status of its agent; the agent itself waits for [`QUEUE_WAIT_MAX`].
pub(crate) const LEAVE_MAX: Duration = Duration::from_secs(30);
/// Longest time that begun copies may take after the last run has ended.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Longest time for the recovery of all copies of earlier runs after the last run, if a file of a source was changed.
pub(crate) const RECOVERY_DRAIN_MAX: Duration = Duration::from_secs(600);
/// Divisor of a tier's quota that gives the most bytes that `lru` frees in one go beyond its need.
pub(crate) const REPLACED_PART: u64 = 64;
/// Most copies that `lru` removes in one go beyond its need. The event loop does nothing else while they are removed,
/// some tens of milliseconds.
pub(crate) const REPLACED_COPIES: usize = 1024;
/// Pause of `lru` after it found no copy to remove.
pub(crate) const NO_VICTIMS_PAUSE: Duration = Duration::from_secs(5);
/// Longest wait of the event loop for a look at open copies.
pub(crate) const LOOK_MAX: Duration = Duration::from_secs(2);
/// Largest copy in bytes with which a tier's speed is measured: it is written to the disk first.
pub(crate) const SAMPLED_BYTES_MAX: u64 = 16 << 20;
/// Errors of a tier after which it is switched off.
pub(crate) const TIER_FAULTS_MAX: u32 = 3;
/// Time without new copies after the index had no room for one.
pub(crate) const INDEX_FULL_PAUSE: Duration = Duration::from_secs(60);
/// Room of an index, in files, in addition to those that it is made for. At least this many copies are published before
/// the next index is made.
pub(crate) const INDEX_SPARE: u64 = 1 << 16;
/// Step in bytes in which memory for the index is reserved.
pub(crate) const BACKED_STEP_BYTES: u64 = 1 << 20;
/// Recovered copies that are sent to the event loop in one message.
pub(crate) const RECOVERY_BATCH_COPIES: usize = 512;
/// Most copies of a tier that is recovered without rests. A larger tier is recovered within the budget below, except
/// for the directories that programs ask for.
pub(crate) const RECOVERY_SMALL_COPIES: u64 = 1 << 16;
/// Bytes of a small tier that are verified without rests after a reboot.
pub(crate) const RECOVERY_SMALL_VERIFIED_BYTES: u64 = 64 << 20;
/// Share of one processor's time that recovery may take while a run is connected.
pub(crate) const RECOVERY_SHARE: f64 = 0.0075;
/// Bytes a second that recovery may read from the tier while a run is connected.
pub(crate) const RECOVERY_BYTES_PER_S: u64 = 8_000_000;
/// Longest wait of the first run's start for a tier that is recovered without rests, so that its first opens find their
/// copies.
pub(crate) const RECOVERY_BEFORE_START_MAX: Duration = Duration::from_millis(150);
/// Pause after a catalogue was compacted before the next compaction.
pub(crate) const COMPACT_PAUSE: Duration = Duration::from_secs(10);
/// Leftovers of dead agents that one start removes.
pub(crate) const REAP_MAX: u64 = 1_000_000;
/// Most connections to the control socket at the same time: runs, and commands that ask.
pub(crate) const CONTROL_PEERS_MAX: usize = 4096;

const _: () = assert!(BUFFER_BYTES as u64 <= PIECE_BYTES);

const _: () = assert!(LEAVE_MAX.as_secs() > QUEUE_WAIT_MAX.as_secs());

const _: () = assert!(SWEEP_AT < SWEEP_PRESSING_AT && SWEEP_PRESSING_AT < 1.0);

const _: () = assert!(SWEEP_SHARE < SWEEP_WANTED_SHARE && SWEEP_WANTED_SHARE <= 0.5);

const _: () = assert!(RECOVERY_SHARE > 0.0 && RECOVERY_SHARE < 0.1);
