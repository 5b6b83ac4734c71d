//! Makes copies behind their readers. A worker looks at a job repeatedly until the copy is whole or given up. Between
//! looks the job waits in a queue ordered by time, so that few workers follow many files and only the source itself
//! holds up a worker.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    os::fd::AsFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use forebay_contract::{Control, Identity};
use forebay_policy::{
    speed::SpeedSample,
    wake::{self, GRACE_MS, ReaderProgress, SMALL_BYTES_MAX, Wake},
};
use forebay_store::{CopyWriter, Finished, SourceFile, StatFrom, StoreError, Tier};

use crate::{
    host::{
        error::{AgentError, io_error},
        shared::{DirtyPages, set_thread_nice, write_back},
    },
    tiering::{
        handoff::{Handoff, HeldDescriptor},
        limits::{
            AHEAD_HELD_LOOK, AHEAD_PIECE_BYTES, AHEAD_WORKERS, BUFFER_BYTES, COPY_NICE, FIRST_LOOK, LARGE_WORKERS, LOOK_PAUSE_MAX,
            PIECE_BYTES, SMALL_AT_ONCE, SMALL_WORKERS,
        },
        reader::{Followed, FollowedReader, cached_run, shared_offset},
    },
};

/// A copy to make.
#[derive(Debug)]
pub(crate) struct CopyJob {
    /// Number of the flight.
    pub(crate) number: u64,
    /// Name of the copy.
    pub(crate) copy: u64,
    pub(crate) tier: Arc<Tier>,
    pub(crate) identity: Identity,
    pub(crate) opened: OpenedSource,
    /// True if the speed of the tier is measured with this copy.
    pub(crate) sampled: bool,
    /// True for a prefetched copy, which no program reads and which is made while the source is idle.
    pub(crate) ahead: bool,
    /// True if the source may have holes.
    pub(crate) sparse: bool,
    /// Party that tells at the end whether a small source has changed. For a large source it is always the server.
    pub(crate) ask: StatFrom,
    /// Pages to write back before the source is read.
    pub(crate) pages: DirtyPages,
    /// Boot time of the open in nanoseconds. A later change mark in `control` ends the copy.
    pub(crate) opened_at: u64,
    pub(crate) control: Control<'static>,
}

impl CopyJob {
    /// Returns true if the file was changed or locked since it was opened. Its copy would be invalid, and a lock lasts
    /// as long as our duplicate of the descriptor.
    fn is_marked(&self) -> bool {
        self.control.file_marked_at(self.identity.dev, self.identity.ino) >= self.opened_at
    }
}

/// State of prefetched copies that are being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PrefetchGate {
    /// The workers give them up.
    End,
    /// The workers let them wait.
    Hold,
    /// The workers go on with them.
    Go,
}

impl PrefetchGate {
    fn of(stored: &AtomicU8) -> Self {
        [Self::End, Self::Hold, Self::Go]
            .into_iter()
            .find(|ahead| *ahead as u8 == stored.load(Relaxed))
            .unwrap_or(Self::End)
    }
}

/// A program's descriptor of a source file, and our duplicate of it.
#[derive(Debug)]
pub(crate) struct OpenedSource {
    pub(crate) source: SourceFile,
    pub(crate) pid: i32,
    pub(crate) descriptor: i32,
    /// Held until the duplicate is closed.
    pub(crate) _place: HeldDescriptor,
}

impl From<Handoff> for OpenedSource {
    fn from(handoff: Handoff) -> Self {
        Self {
            source: handoff.source,
            pid: handoff.pid,
            descriptor: handoff.descriptor,
            _place: handoff.place,
        }
    }
}

/// Latest reader of each file that is being copied behind an earlier reader, by the number of the copy.
type LatestReaders = Arc<Mutex<HashMap<u64, (OpenedSource, Option<FollowedReader>)>>>;

/// Report of a worker: one copy has ended.
#[derive(Debug)]
pub(crate) struct Copied {
    /// Number of the flight.
    pub(crate) number: u64,
    pub(crate) outcome: CopyOutcome,
    /// Bytes read from the source.
    pub(crate) read_bytes: u64,
}

/// End of a copy.
#[derive(Debug)]
pub(crate) enum CopyOutcome {
    /// The copy is whole and can be published. It may carry a speed measurement.
    Whole(Finished, Option<SpeedSample>),
    /// The reader left most of the file unread.
    GivenUp,
    /// The tier is in memory, and memory is short.
    MemoryShort,
    /// A program changed or locked the source meanwhile.
    Marked,
    /// The source has pages that could not be written back, so its times may not show its next change.
    DirtyPages,
    /// An operation failed; the partial copy has been removed.
    Failed(StoreError),
}

/// A job that a worker has begun.
#[derive(Debug)]
struct FollowedCopy {
    job: CopyJob,
    writer: Option<CopyWriter>,
    reader: Option<FollowedReader>,
    /// Bytes read from the source so far.
    read_bytes: u64,
    seen: (u64, Option<u64>, Option<u64>),
    moved_at: Instant,
    pause: Duration,
}

#[derive(Debug)]
struct ScheduledLook {
    due: Instant,
    following: Box<FollowedCopy>,
}

impl PartialEq for ScheduledLook {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}
impl Eq for ScheduledLook {}
impl PartialOrd for ScheduledLook {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ScheduledLook {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

/// Jobs by the time of their next look. One idle worker at a time, the leader, waits for the first job. When the leader
/// gets a job it wakes another worker to lead, so that a due job wakes one worker and not all.
#[derive(Debug)]
struct LookQueue {
    /// Number of jobs that one worker takes together.
    at_once: usize,
    state: Mutex<LookQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LookQueueState {
    waiting: BinaryHeap<Reverse<ScheduledLook>>,
    has_leader: bool,
}

/// Workers for small, large and prefetched files. They are separate, so that a long piece of a large file does not hold
/// up a thousand small files, and a prefetched file, which waits for the source, holds up neither.
#[derive(Debug)]
pub(crate) struct Copier {
    small: Arc<LookQueue>,
    large: Arc<LookQueue>,
    ahead: Arc<LookQueue>,
    followed: Followed,
    newer: LatestReaders,
    asks: Arc<WorkerFlags>,
}

/// Orders of the event loop to all workers.
#[derive(Debug, Default)]
struct WorkerFlags {
    /// True if copies in memory that are being made are to be given up.
    memory_short: AtomicBool,
    /// A [`PrefetchGate`].
    ahead: AtomicU8,
}

impl Copier {
    /// Starts the workers, each of which passes its reports to `deliver`.
    pub(crate) fn start(deliver: &(impl Fn(Copied) + Clone + Send + 'static)) -> Result<Self, AgentError> {
        let copier = Self {
            small: LookQueue::new(SMALL_AT_ONCE),
            large: LookQueue::new(1),
            ahead: LookQueue::new(1),
            followed: Followed::default(),
            newer: LatestReaders::default(),
            asks: Arc::default(),
        };
        let workers = [
            ("small", SMALL_WORKERS, &copier.small),
            ("large", LARGE_WORKERS, &copier.large),
            ("ahead", AHEAD_WORKERS, &copier.ahead),
        ];
        for (name, count, queue) in workers {
            for number in 0..count {
                let (queue, large, deliver) = (Arc::clone(queue), Arc::clone(&copier.large), deliver.clone());
                let (followed, newer) = (Arc::clone(&copier.followed), Arc::clone(&copier.newer));
                let asks = Arc::clone(&copier.asks);
                thread::Builder::new()
                    .name(format!("{name}-{number}"))
                    .spawn(move || work(&queue, &large, &deliver, &followed, &newer, &asks))
                    .map_err(io_error("start a thread", std::path::Path::new(name)))?;
            }
        }
        Ok(copier)
    }

    /// Queues a copy.
    pub(crate) fn add(&self, job: CopyJob) {
        let large = job.identity.size > SMALL_BYTES_MAX && !job.ahead;
        let queue = match (job.ahead, large) {
            (true, _) => &self.ahead,
            (false, true) => &self.large,
            (false, false) => &self.small,
        };
        let reader = self.reader_of(large, &job.opened);
        let now = Instant::now();
        let following = FollowedCopy {
            job,
            writer: None,
            reader,
            read_bytes: 0,
            seen: (0, None, None),
            moved_at: now,
            pause: FIRST_LOOK,
        };
        queue.put(ScheduledLook {
            due: now + FIRST_LOOK,
            following: Box::new(following),
        });
    }
}

impl Copier {
    /// Watches the reader of a large file from the start, so that all its reads are counted.
    fn reader_of(&self, large: bool, opened: &OpenedSource) -> Option<FollowedReader> {
        large.then(|| FollowedReader::new(opened.pid, opened.descriptor, opened.source.as_fd(), &self.followed))
    }

    /// Adds another reader of a file that is being copied. The copy follows it once the earlier reader has left or
    /// rests.
    pub(crate) fn opened_again(&self, number: u64, size: u64, opened: OpenedSource) {
        let reader = self.reader_of(size > SMALL_BYTES_MAX, &opened);
        self.newer().insert(number, (opened, reader));
    }

    /// Sets whether memory is short. If it is, workers give up copies in memory at their next look.
    pub(crate) fn set_memory_short(&self, is_short: bool) {
        self.asks.memory_short.store(is_short, Relaxed);
    }

    /// Sets whether prefetched copies go on.
    pub(crate) fn set_ahead(&self, ahead: PrefetchGate) {
        self.asks.ahead.store(ahead as u8, Relaxed);
    }

    /// Forgets a copy that has ended.
    pub(crate) fn ended(&self, number: u64) {
        self.newer().remove(&number);
    }

    fn newer(&self) -> MutexGuard<'_, HashMap<u64, (OpenedSource, Option<FollowedReader>)>> {
        self.newer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LookQueue {
    fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self {
            at_once,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn put(&self, waiting: ScheduledLook) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = state.waiting.peek().is_none_or(|Reverse(first)| waiting.due < first.due);
        state.waiting.push(Reverse(waiting));
        drop(state);
        // A job behind the first one needs no wake-up.
        if is_first {
            self.changed.notify_all();
        }
    }

    /// Waits until a job is due, and takes all due ones up to a bound.
    #[expect(clippy::vec_box, reason = "most go back to the heap, as they are")]
    fn take(&self) -> Vec<Box<FollowedCopy>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            let mut due = Vec::new();
            while due.len() < self.at_once
                && state.waiting.peek().is_some_and(|Reverse(first)| first.due <= now)
                && let Some(Reverse(first)) = state.waiting.pop()
            {
                due.push(first.following);
            }
            if !due.is_empty() {
                if state.waiting.peek().is_some() {
                    self.changed.notify_one();
                }
                return due;
            }
            let pause = state.waiting.peek().map(|Reverse(first)| first.due - now);
            state = match pause.filter(|_| !state.has_leader) {
                Some(pause) => {
                    state.has_leader = true;
                    let mut state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
                    state.has_leader = false;
                    state
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

fn work(queue: &LookQueue, large: &LookQueue, deliver: &impl Fn(Copied), followed: &Followed, newer: &LatestReaders, asks: &WorkerFlags) {
    set_thread_nice(COPY_NICE);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        for mut following in queue.take() {
            let was_ahead = following.job.ahead;
            let is_short = following.job.tier.is_memory() && asks.memory_short.load(Relaxed);
            let outcome = if is_short {
                Some(CopyOutcome::MemoryShort)
            } else if following.job.is_marked() {
                Some(CopyOutcome::Marked)
            } else if following.job.ahead {
                following.go_ahead(PrefetchGate::of(&asks.ahead), &mut buffer, newer)
            } else {
                following.look(&mut buffer, followed, newer)
            };
            let Some(outcome) = outcome else {
                // A prefetched file that a program reads now moves to the queue of large files, where a small one may
                // wait for the source, too.
                let queue = if was_ahead && !following.job.ahead { large } else { queue };
                queue.put(ScheduledLook {
                    due: Instant::now() + following.pause,
                    following,
                });
                continue;
            };
            let (number, read_bytes) = (following.job.number, following.read_bytes);
            // Closed before the report: whoever waits for the copy may unmount the source then.
            drop(following);
            deliver(Copied {
                number,
                outcome,
                read_bytes,
            });
        }
    }
}

impl FollowedCopy {
    /// Looks at the reader once and copies the bytes that it has passed. Returns `None` to look again after the pause.
    fn look(&mut self, buffer: &mut [u8], followed: &Followed, newer: &LatestReaders) -> Option<CopyOutcome> {
        let size = self.job.identity.size;
        let copied = self.writer.as_ref().map_or(0, CopyWriter::copied);
        let small = size <= SMALL_BYTES_MAX;
        let opened = &self.job.opened;
        let offset = shared_offset(opened.source.as_fd());
        let ahead = if small { size } else { (size - copied).min(PIECE_BYTES) };
        let cached = cached_run(opened.source.as_fd(), copied, ahead);
        // If offset or cache show the reader of a small file, no look at the process is needed.
        let needs_volume = !small || (offset == 0 && cached.is_none());
        if needs_volume && self.reader.is_none() {
            self.reader = Some(FollowedReader::new(opened.pid, opened.descriptor, opened.source.as_fd(), followed));
        }
        let reader = if needs_volume { self.reader.as_mut() } else { None };
        let ((volume, seeks), open) = match reader {
            Some(reader) => {
                let open = reader.is_open();
                (reader.observe(offset, open), open)
            }
            None => ((None, false), true),
        };
        let seen = (offset, volume, cached);
        if seen != self.seen {
            self.seen = seen;
            self.moved_at = Instant::now();
        }
        let idle_ms = self.moved_at.elapsed().as_millis() as u64;
        let next = wake::follow(&ReaderProgress {
            size,
            copied,
            offset,
            volume,
            cached,
            seeks,
            open,
            idle_ms,
        });
        let has_left = next == Wake::GiveUp || (next == Wake::Wait && (!open || idle_ms >= GRACE_MS));
        if has_left && self.follow_newer(newer) {
            return None;
        }
        match next {
            Wake::CopyTo(upto) => self.copy_to(upto, buffer),
            Wake::GiveUp => Some(CopyOutcome::GivenUp),
            Wake::Wait => {
                self.pause = (self.pause * 2).clamp(FIRST_LOOK, LOOK_PAUSE_MAX);
                None
            }
        }
    }

    /// Copies a piece of a prefetched file if that may go on. Returns `None` to look again after the pause.
    fn go_ahead(&mut self, ahead: PrefetchGate, buffer: &mut [u8], newer: &LatestReaders) -> Option<CopyOutcome> {
        if self.follow_newer(newer) {
            // A program reads the file now, and the copy goes on behind it.
            self.job.ahead = false;
            return None;
        }
        match ahead {
            PrefetchGate::End => Some(CopyOutcome::GivenUp),
            PrefetchGate::Hold => {
                self.pause = AHEAD_HELD_LOOK;
                None
            }
            PrefetchGate::Go => {
                let copied = self.writer.as_ref().map_or(0, CopyWriter::copied);
                self.copy_to(self.job.identity.size.min(copied + AHEAD_PIECE_BYTES), buffer)
            }
        }
    }

    /// Switches to the latest reader. Returns false if there is none.
    fn follow_newer(&mut self, newer: &LatestReaders) -> bool {
        let next = newer.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.job.number);
        let Some((opened, reader)) = next else { return false };
        self.job.opened = opened;
        self.reader = reader;
        self.seen = (0, None, None);
        self.moved_at = Instant::now();
        self.pause = FIRST_LOOK;
        true
    }

    /// Begins the copy after dirty pages are written back, so that every later change of the file moves its times.
    fn begin(&self) -> Result<CopyWriter, CopyOutcome> {
        write_back(self.job.opened.source.as_fd(), self.job.pages).map_err(|_| CopyOutcome::DirtyPages)?;
        let writer = self
            .job
            .tier
            .begin(self.job.copy, &self.job.identity)
            .map_err(CopyOutcome::Failed)?;
        Ok(if self.job.sparse { writer.keep_holes() } else { writer })
    }

    fn copy_to(&mut self, upto: u64, buffer: &mut [u8]) -> Option<CopyOutcome> {
        let begun = self.writer.take().map_or_else(|| self.begin(), Ok);
        let writer = match begun {
            Ok(writer) => self.writer.insert(writer),
            Err(outcome) => return Some(outcome),
        };
        let piece = upto.min(writer.copied() + PIECE_BYTES);
        let advanced = writer.advance(&self.job.opened.source, piece, buffer);
        self.read_bytes = writer.copied();
        if let Err(error) = advanced {
            return Some(CopyOutcome::Failed(error));
        }
        self.moved_at = Instant::now();
        if !writer.is_complete() {
            // Continue immediately if there is more to copy; else wait for the reader, which is just ahead.
            self.pause = if piece < upto { Duration::ZERO } else { FIRST_LOOK };
            return None;
        }
        let writer = self.writer.take()?;
        // A small file is read in one go, so the kernel's attributes are as old as its bytes. Reading a large one took
        // a while, and a request to the server costs little beside it.
        let ask = if self.job.identity.size <= SMALL_BYTES_MAX {
            self.job.ask
        } else {
            StatFrom::Server
        };
        Some(match writer.finish(&self.job.opened.source, ask) {
            Ok(finished) => {
                let CopyJob {
                    tier,
                    copy,
                    opened,
                    sampled,
                    ..
                } = &self.job;
                // If the copy can't be read again, programs that open it will find out.
                let sample = sampled.then(|| forebay_store::sample(tier, *copy, &opened.source).ok());
                CopyOutcome::Whole(finished, sample.flatten())
            }
            Err(error) => CopyOutcome::Failed(error),
        })
    }
}
