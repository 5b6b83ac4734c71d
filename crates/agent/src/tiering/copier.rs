//! Makes copies in the reader's wake. A job is looked at again and again until it is whole or given up; between looks it waits in
//! a queue by time, so that few workers follow many files and a worker is held only by the source itself.

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
    speed::Sample,
    wake::{self, GRACE_MS, Progress, SMALL_BYTES_MAX, Wake},
};
use forebay_store::{Ask, CopyWriter, Finished, SourceFile, StoreError, Tier};

use crate::{
    host::{
        error::{AgentError, io_error},
        shared::{DirtyPages, set_thread_nice, write_back},
    },
    tiering::{
        handoff::HeldDescriptor,
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
    /// Whether the speed of its tier is to be measured with it.
    pub(crate) sampled: bool,
    /// No program reads it: it is copied ahead, while the source is idle.
    pub(crate) ahead: bool,
    /// The source may have holes.
    pub(crate) sparse: bool,
    /// Whom to ask at the end whether a small source has changed; of a large one it is the server.
    pub(crate) ask: Ask,
    /// Which pages must be clean before it is read.
    pub(crate) pages: DirtyPages,
    /// When the descriptor was opened, and where programs mark what they change after that.
    pub(crate) opened_at: u64,
    pub(crate) control: Control<'static>,
}

impl CopyJob {
    /// Returns true if the file was changed or locked since: the copy would come to nothing, and a lock lasts for as long as our duplicate.
    fn is_marked(&self) -> bool {
        self.control.file_marked_at(self.identity.dev, self.identity.ino) >= self.opened_at
    }
}

/// Whether copies may be made ahead of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PrefetchGate {
    /// Those that are being made are given up.
    End,
    /// They wait.
    Hold,
    /// They go on.
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

/// Who opened a file last that is being copied in the wake of another reader, by the number of the flight.
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

/// How a copy ended.
#[derive(Debug)]
pub(crate) enum CopyOutcome {
    /// Whole, to be published; and what was measured with it.
    Whole(Finished, Option<Sample>),
    /// Its reader left most of it unread.
    GivenUp,
    /// It was to lie in memory, of which there is too little left.
    MemoryShort,
    /// The source was changed or locked by a program meanwhile.
    Marked,
    /// The source has pages that could not be written back: its times need not tell its next change.
    DirtyPages,
    /// Something failed; what was written has been removed.
    Failed(StoreError),
}

/// A job that has been begun.
#[derive(Debug)]
struct FollowedCopy {
    job: CopyJob,
    writer: Option<CopyWriter>,
    reader: Option<FollowedReader>,
    /// Bytes read of the source so far.
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

/// Jobs by the time of their next look. One idle worker at a time, the leader, waits for the first of them; when it has something to do it
/// passes that on, so that a due job wakes one worker and not all.
#[derive(Debug)]
struct LookQueue {
    /// Jobs that one worker takes at once.
    at_once: usize,
    state: Mutex<LookQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LookQueueState {
    waiting: BinaryHeap<Reverse<ScheduledLook>>,
    has_leader: bool,
}

/// The workers, small files and large ones apart: a long piece of a shard must not hold up a thousand small files. What is made ahead waits
/// for the source itself, and holds up neither.
#[derive(Debug)]
pub(crate) struct Copier {
    small: Arc<LookQueue>,
    large: Arc<LookQueue>,
    ahead: Arc<LookQueue>,
    followed: Followed,
    newer: LatestReaders,
    asks: Arc<WorkerFlags>,
}

/// What the clerk asks of all workers.
#[derive(Debug, Default)]
struct WorkerFlags {
    /// Copies in memory that are being made are given up.
    memory_short: AtomicBool,
    /// An [`PrefetchGate`].
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

    /// Takes on a copy.
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
    /// A large file's reader is watched from the first moment on, so that what it reads is counted.
    fn reader_of(&self, large: bool, opened: &OpenedSource) -> Option<FollowedReader> {
        large.then(|| FollowedReader::new(opened.pid, opened.descriptor, opened.source.as_fd(), &self.followed))
    }

    /// Somebody else reads a file that is being copied: the copy follows this reader once the other has left or rests.
    pub(crate) fn opened_again(&self, number: u64, size: u64, opened: OpenedSource) {
        let reader = self.reader_of(size > SMALL_BYTES_MAX, &opened);
        self.newer().insert(number, (opened, reader));
    }

    /// Whether there is too little memory left for copies in it that are being made: they are given up when they are looked at next.
    pub(crate) fn set_memory_short(&self, is_short: bool) {
        self.asks.memory_short.store(is_short, Relaxed);
    }

    /// Whether copies that are made ahead may go on.
    pub(crate) fn set_ahead(&self, ahead: PrefetchGate) {
        self.asks.ahead.store(ahead as u8, Relaxed);
    }

    /// The copy has ended.
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
        // Behind the first one it is found without a word.
        if is_first {
            self.changed.notify_all();
        }
    }

    /// Takes what is due, at least one.
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
                // What a program reads by now goes on among its like; a small one may wait for the source there, too.
                let queue = if was_ahead && !following.job.ahead { large } else { queue };
                queue.put(ScheduledLook {
                    due: Instant::now() + following.pause,
                    following,
                });
                continue;
            };
            let (number, read_bytes) = (following.job.number, following.read_bytes);
            // The descriptor goes before the news: who waits for the copy may then unmount the source.
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
    /// Looks at the reader once and copies what may be copied; `None`: look again after the pause.
    fn look(&mut self, buffer: &mut [u8], followed: &Followed, newer: &LatestReaders) -> Option<CopyOutcome> {
        let size = self.job.identity.size;
        let copied = self.writer.as_ref().map_or(0, CopyWriter::copied);
        let small = size <= SMALL_BYTES_MAX;
        let opened = &self.job.opened;
        let offset = shared_offset(opened.source.as_fd());
        let ahead = if small { size } else { (size - copied).min(PIECE_BYTES) };
        let cached = cached_run(opened.source.as_fd(), copied, ahead);
        // A small file whose reader is seen needs no look at the process.
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
        let next = wake::follow(&Progress {
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

    /// Copies a piece that nobody has read yet, if it may; `None`: look again after the pause.
    fn go_ahead(&mut self, ahead: PrefetchGate, buffer: &mut [u8], newer: &LatestReaders) -> Option<CopyOutcome> {
        if self.follow_newer(newer) {
            // A program reads it now: the copy goes on behind that.
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

    /// Goes on with who opened the file last, if somebody has since; tells whether.
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

    /// Begins the copy. From here on whatever changes the file moves its times, whoever does it.
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
            // More to copy at once, or a little patience with a reader that is just ahead.
            self.pause = if piece < upto { Duration::ZERO } else { FIRST_LOOK };
            return None;
        }
        let writer = self.writer.take()?;
        // A small file is read at once, so what the kernel knows is as old as its bytes; a large one was read over a while, and
        // one question to the server is little beside it.
        let ask = if self.job.identity.size <= SMALL_BYTES_MAX {
            self.job.ask
        } else {
            Ask::Server
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
                // What keeps a copy from being read again shows when programs open it.
                let sample = sampled.then(|| forebay_store::sample(tier, *copy, &opened.source).ok());
                CopyOutcome::Whole(finished, sample.flatten())
            }
            Err(error) => CopyOutcome::Failed(error),
        })
    }
}
