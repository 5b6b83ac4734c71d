//! Makes copies behind their readers. A worker looks at a job repeatedly until the copy is whole or given up. Between
//! looks the job waits in a queue ordered by time, so that few workers follow many files and only the source itself
//! holds up a worker.

use std::{
    collections::HashMap,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use forebay_contract::Identity;
use forebay_policy::{
    read_ahead::AheadMode,
    read_list::ReadParts,
    wake::{self, GRACE_MS, ReaderProgress, SMALL_BYTES_MAX, Wake},
};
use forebay_store::{CopyWriter, SourceFile, StatFrom};

use crate::{
    host::{
        error::{AgentError, io_error},
        shared::{set_thread_nice, write_back},
    },
    tiering::{
        ahead::{
            file::{AheadUse, FileAhead},
            programs::ReadAhead,
        },
        copy_job::{Copied, CopyJob, CopyOutcome, CopyPace, CopyTarget, OpenedSource, TierTarget},
        handoff::Handoff,
        limits::{
            AHEAD_FIRST_LOOK, AHEAD_HELD_LOOK, AHEAD_LOOK_PAUSE_MAX, AHEAD_PIECE_BYTES, AHEAD_WORKERS, BUFFER_BYTES, COPY_NICE, FIRST_LOOK,
            LARGE_WORKERS, LISTED_LARGE_WORKERS, LISTED_SMALL_WORKERS, LOOK_PAUSE_MAX, NODE_READERS, PIECE_BYTES, SMALL_AT_ONCE,
            SMALL_WORKERS,
        },
        look_queue::LookQueue,
        nodes::partial::PieceDigests,
        read_lists::evidence::{CopyEnd, parts_of},
        reader::{Followed, FollowedReader, ReaderDescriptor, cached_run, readahead_bytes, shared_offset},
        source_speed::SourceSpeeds,
        worker_flags::{PrefetchGate, WorkerFlags},
    },
};

/// Latest reader of each file that is being copied behind an earlier reader, by the number of the copy.
type LatestReaders = Arc<Mutex<HashMap<u64, (Handoff, Option<FollowedReader>)>>>;

/// A job that a worker has begun.
#[derive(Debug)]
struct FollowedCopy {
    job: CopyJob,
    writer: Option<CopyWriter>,
    pieces: Option<PieceDigests>,
    reader: Option<FollowedReader>,
    /// `None` for small files, and where a copy only follows its reader.
    ahead: Option<Box<FileAhead>>,
    /// Bytes that the kernel reads ahead of a reader of the source.
    readahead: u64,
    /// Offset up to which the file is copied, or, without a tier, has been read.
    copied: u64,
    /// Bytes read from the source so far.
    read_bytes: u64,
    seen: (u64, Option<u64>, Option<u64>),
    moved_at: Instant,
    /// Time of the first look, by which files of a list are ordered.
    due: Instant,
    pause: Duration,
}

/// Workers for small, large and prefetched files. They are separate, so that a long piece of a large file does not hold
/// up a thousand small files, and a prefetched file, which waits for the source, holds up neither.
#[derive(Debug)]
pub(crate) struct Copier {
    small: Arc<LookQueue<FollowedCopy>>,
    large: Arc<LookQueue<FollowedCopy>>,
    ahead: Arc<LookQueue<FollowedCopy>>,
    /// Copies for other nodes; its workers start with the first.
    for_nodes: Arc<LookQueue<FollowedCopy>>,
    /// Small and large files of lists; their workers start with the first list.
    listed: [Arc<LookQueue<FollowedCopy>>; 2],
    followed: Followed,
    newer: LatestReaders,
    asks: Arc<WorkerFlags>,
    read_ahead: Arc<ReadAhead>,
    speeds: Arc<SourceSpeeds>,
}

impl Copier {
    /// Starts the workers, each of which passes its reports to `deliver`.
    pub(crate) fn start(deliver: &(impl Fn(Copied) + Clone + Send + 'static)) -> Result<Self, AgentError> {
        let copier = Self {
            small: LookQueue::new(SMALL_AT_ONCE),
            large: LookQueue::new(1),
            ahead: LookQueue::new(1),
            for_nodes: LookQueue::new(1),
            listed: [LookQueue::new(1), LookQueue::new(1)],
            followed: Followed::default(),
            newer: LatestReaders::default(),
            asks: Arc::default(),
            read_ahead: Arc::default(),
            speeds: Arc::default(),
        };
        let workers = [
            ("small", SMALL_WORKERS, &copier.small),
            ("large", LARGE_WORKERS, &copier.large),
            ("ahead", AHEAD_WORKERS, &copier.ahead),
        ];
        for (name, count, queue) in workers {
            copier.start_workers(name, count, queue, deliver)?;
        }
        Ok(copier)
    }

    /// Starts the workers that copy files for other nodes.
    pub(crate) fn start_for_nodes(&self, deliver: &(impl Fn(Copied) + Clone + Send + 'static)) -> Result<(), AgentError> {
        self.start_workers("for-nodes", NODE_READERS, &self.for_nodes, deliver)
    }

    /// Starts the workers that copy files which earlier runs have read.
    pub(crate) fn start_listed(&self, deliver: &(impl Fn(Copied) + Clone + Send + 'static)) -> Result<(), AgentError> {
        let [small, large] = &self.listed;
        self.start_workers("listed-small", LISTED_SMALL_WORKERS, small, deliver)?;
        self.start_workers("listed-large", LISTED_LARGE_WORKERS, large, deliver)
    }

    /// Returns what all workers know about reading ahead.
    pub(crate) fn read_ahead(&self) -> Arc<ReadAhead> {
        Arc::clone(&self.read_ahead)
    }

    fn start_workers(
        &self,
        name: &str,
        count: usize,
        queue: &Arc<LookQueue<FollowedCopy>>,
        deliver: &(impl Fn(Copied) + Clone + Send + 'static),
    ) -> Result<(), AgentError> {
        for number in 0..count {
            let (queue, large, deliver) = (Arc::clone(queue), Arc::clone(&self.large), deliver.clone());
            let (followed, newer) = (Arc::clone(&self.followed), Arc::clone(&self.newer));
            let (asks, speeds) = (Arc::clone(&self.asks), Arc::clone(&self.speeds));
            thread::Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || work(&queue, &large, &deliver, &followed, &newer, (&asks, &speeds)))
                .map_err(io_error("start a thread", std::path::Path::new(name)))?;
        }
        Ok(())
    }

    /// Queues a copy.
    pub(crate) fn add(&self, job: CopyJob) {
        let is_listed = job.pace == CopyPace::Listed;
        let is_large = job.identity.size > SMALL_BYTES_MAX;
        let large = is_large && job.pace == CopyPace::Reader;
        let queue = match (job.pace, large) {
            (CopyPace::Idle, _) => &self.ahead,
            (CopyPace::Listed, _) => &self.listed[usize::from(is_large)],
            (CopyPace::Full, _) => &self.for_nodes,
            (CopyPace::Reader, true) | (CopyPace::Whole, _) => &self.large,
            (CopyPace::Reader, false) => &self.small,
        };
        let reader = self.reader_of(large, job.opened.reader, &job.opened.source);
        let now = Instant::now();
        let first_look = match (job.pace, job.ahead) {
            (pace, _) if pace.is_full() || is_listed => Duration::ZERO,
            (CopyPace::Reader, AheadMode::Auto | AheadMode::File) if large => AHEAD_FIRST_LOOK,
            _ => FIRST_LOOK,
        };
        let file = (job.identity.dev, job.identity.size);
        let ahead = ((large && job.ahead != AheadMode::Follow) || (is_large && is_listed))
            .then(|| FileAhead::new(&self.read_ahead, job.ahead, &job.opened.source, file, job.opened.reader.pid));
        let following = FollowedCopy {
            pieces: job.partial.clone().map(PieceDigests::new),
            job,
            writer: None,
            reader,
            ahead: ahead.map(Box::new),
            readahead: if large { readahead_bytes(file.0) } else { 0 },
            copied: 0,
            read_bytes: 0,
            seen: (0, None, None),
            moved_at: now,
            due: now + first_look,
            pause: FIRST_LOOK,
        };
        queue.put(following.due, Box::new(following));
    }
}

impl Copier {
    /// Watches the reader of a large file from the start, so that all its reads are counted.
    fn reader_of(&self, large: bool, reader: ReaderDescriptor, source: &SourceFile) -> Option<FollowedReader> {
        large.then(|| FollowedReader::new(reader, source.as_fd(), &self.followed))
    }

    /// Adds another reader of a file that is being copied. The copy follows it once the earlier reader has left or
    /// rests.
    pub(crate) fn opened_again(&self, number: u64, handoff: Handoff) {
        let is_large = handoff.stat.identity.size > SMALL_BYTES_MAX;
        let reader = self.reader_of(is_large, handoff.reader, &handoff.source);
        self.newer().insert(number, (handoff, reader));
    }

    /// Orders to the workers, for other threads that make copies.
    pub(crate) fn flags(&self) -> Arc<WorkerFlags> {
        Arc::clone(&self.asks)
    }

    /// Goes on with a copy at full speed, whatever its reader does: another node waits for it.
    pub(crate) fn hurry(&self, number: u64) {
        self.asks.set_hurried(number, true);
    }

    /// Returns the bytes that the source on a device gives this node in a second, if that was measured.
    pub(crate) fn source_bytes_per_s(&self, dev: u64) -> Option<u64> {
        self.speeds.bytes_per_s(dev)
    }

    /// Sets whether memory is short. If it is, workers give up copies in memory at their next look.
    pub(crate) fn set_memory_short(&self, is_short: bool) {
        self.asks.set_memory_short(is_short);
    }

    /// Sets whether prefetched copies go on.
    pub(crate) fn set_ahead(&self, ahead: PrefetchGate) {
        self.asks.set_ahead(ahead);
    }

    /// Forgets a copy that has ended. Returns the reader that came too late for the copy to follow it.
    pub(crate) fn ended(&self, number: u64) -> Option<Handoff> {
        self.asks.set_hurried(number, false);
        self.newer().remove(&number).map(|(handoff, _)| handoff)
    }

    fn newer(&self) -> MutexGuard<'_, HashMap<u64, (Handoff, Option<FollowedReader>)>> {
        self.newer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn work(
    queue: &LookQueue<FollowedCopy>,
    large: &LookQueue<FollowedCopy>,
    deliver: &impl Fn(Copied),
    followed: &Followed,
    newer: &LatestReaders,
    (asks, speeds): (&WorkerFlags, &SourceSpeeds),
) {
    set_thread_nice(COPY_NICE);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        for mut following in queue.take() {
            let had_no_reader = following.job.pace != CopyPace::Reader;
            let is_short = following.job.target.is_memory() && asks.is_memory_short();
            if asks.is_hurried(following.job.number) {
                following.job.pace = CopyPace::Full;
            }
            let outcome = if is_short {
                Some(CopyOutcome::MemoryShort)
            } else if following.job.is_marked() {
                Some(CopyOutcome::Marked)
            } else {
                match following.job.pace {
                    CopyPace::Reader => following.look(&mut buffer, followed, newer),
                    CopyPace::Idle => following.go_ahead(asks.ahead(), &mut buffer, newer),
                    CopyPace::Listed => following.go_listed(&mut buffer, newer),
                    CopyPace::Full => following.copy_measured(&mut buffer, speeds),
                    CopyPace::Whole => following.copy_piece(PIECE_BYTES, &mut buffer),
                }
            };
            let Some(outcome) = outcome else {
                // A file that was copied ahead and that a program reads now moves to the queue of large files, where a
                // small one may wait for the source, too.
                let queue = if had_no_reader && following.job.pace == CopyPace::Reader {
                    large
                } else {
                    queue
                };
                queue.put(following.next_look(), following);
                continue;
            };
            let (number, read_bytes) = (following.job.number, following.read_bytes);
            let parts = following.parts_read(&outcome);
            let ahead = following.end_ahead(&outcome);
            // Closed before the report: whoever waits for the copy may unmount the source then.
            drop(following);
            deliver(Copied {
                number,
                outcome,
                read_bytes,
                ahead,
                parts,
            });
        }
    }
}

impl FollowedCopy {
    /// Looks at the reader once and copies the bytes that it has passed. Returns `None` to look again after the pause.
    fn look(&mut self, buffer: &mut [u8], followed: &Followed, newer: &LatestReaders) -> Option<CopyOutcome> {
        let (size, copied) = (self.job.identity.size, self.copied);
        let small = size <= SMALL_BYTES_MAX;
        let opened = &self.job.opened;
        let ahead = if small { size } else { (size - copied).min(PIECE_BYTES) };
        let cached = cached_run(opened.source.as_fd(), copied, ahead);
        // The cache alone shows that the reader of a small file has begun, and costs less to ask.
        let has_begun = small && cached.is_some_and(|bytes| bytes > 0);
        let offset = if has_begun { 0 } else { shared_offset(opened.source.as_fd()) };
        // If offset or cache show the reader of a small file, no look at the process is needed.
        let needs_volume = !small || (offset == 0 && cached.is_none());
        if needs_volume && self.reader.is_none() {
            self.reader = Some(FollowedReader::new(opened.reader, opened.source.as_fd(), followed));
        }
        let reader = if needs_volume { self.reader.as_mut() } else { None };
        let ((volume, seeks), mut open) = match reader {
            Some(reader) => {
                let open = reader.is_open();
                (reader.observe(offset, open), open)
            }
            None => ((None, false), true),
        };
        if let Some(ahead) = &mut self.ahead {
            ahead.look_at_mappings(open);
            open |= ahead.is_mapped();
        }
        let seen = (offset, volume, cached);
        if seen != self.seen {
            self.seen = seen;
            self.moved_at = Instant::now();
        }
        let idle_ms = self.moved_at.elapsed().as_millis() as u64;
        let progress = ReaderProgress {
            size,
            copied,
            offset,
            volume,
            cached,
            readahead: self.readahead,
            seeks,
            open,
            idle_ms,
        };
        if let Some(ahead) = &mut self.ahead
            && ahead.decide(&self.job.opened.source, &progress)
            && let Some(upto) = ahead.next_piece(&self.job.opened.source, copied)
        {
            let outcome = self.take_to(upto, buffer);
            self.pause = Duration::ZERO;
            return outcome;
        }
        let next = wake::follow(&progress);
        let has_left = next == Wake::GiveUp || (next == Wake::Wait && (!open || idle_ms >= GRACE_MS));
        if has_left && self.follow_newer(newer) {
            return None;
        }
        match next {
            Wake::CopyTo(upto) => match self.job.target {
                CopyTarget::Tier(_) => self.copy_to(upto, buffer),
                // Its reader has read so far.
                CopyTarget::PageCache => self.pass_to(upto, FIRST_LOOK),
            },
            Wake::GiveUp => Some(CopyOutcome::GivenUp),
            Wake::Wait => {
                let is_moving = self.ahead.is_some() && idle_ms < GRACE_MS;
                let most = if is_moving { AHEAD_LOOK_PAUSE_MAX } else { LOOK_PAUSE_MAX };
                self.pause = (self.pause * 2).clamp(FIRST_LOOK, most);
                None
            }
        }
    }

    /// Ends reading ahead, and returns what came of it.
    fn end_ahead(&mut self, outcome: &CopyOutcome) -> AheadUse {
        let is_whole = match outcome {
            CopyOutcome::Whole(..) | CopyOutcome::InPageCache => Some(true),
            CopyOutcome::GivenUp => Some(false),
            _ => None,
        };
        let reader = self.reader.take();
        self.ahead.take().map_or(AheadUse::Followed, |ahead| ahead.ended(is_whole, reader))
    }

    /// Copies a piece of a prefetched file if that may go on. Returns `None` to look again after the pause.
    fn go_ahead(&mut self, ahead: PrefetchGate, buffer: &mut [u8], newer: &LatestReaders) -> Option<CopyOutcome> {
        if self.follow_newer(newer) {
            // A program reads the file now, and the copy goes on behind it.
            self.job.pace = CopyPace::Reader;
            return None;
        }
        match ahead {
            PrefetchGate::End => Some(CopyOutcome::GivenUp),
            PrefetchGate::Hold => {
                self.pause = AHEAD_HELD_LOOK;
                None
            }
            PrefetchGate::Go => self.copy_piece(AHEAD_PIECE_BYTES, buffer),
        }
    }

    /// Copies what has come of a file that earlier runs have read. Returns `None` to look again after the pause.
    fn go_listed(&mut self, buffer: &mut [u8], newer: &LatestReaders) -> Option<CopyOutcome> {
        if self.follow_newer(newer) {
            // A program of whatever run reads it now.
            self.job.is_wanted = None;
            if let Some(ahead) = &mut self.ahead {
                ahead.judge(self.job.opened.reader.pid);
            }
        }
        if self.job.is_wanted.as_ref().is_some_and(|wanted| !wanted.load(Relaxed)) {
            return Some(CopyOutcome::GivenUp);
        }
        self.pause = Duration::ZERO;
        let Some(ahead) = &mut self.ahead else {
            return self.copy_to(self.job.identity.size, buffer);
        };
        if !ahead.begin_whole() {
            // The program would read each byte from the source again. If it reads the file now, the copy follows it.
            self.job.pace = CopyPace::Reader;
            return self.reader.is_none().then_some(CopyOutcome::GivenUp);
        }
        if let Some(upto) = ahead.next_piece(&self.job.opened.source, self.copied) {
            return self.copy_to(upto, buffer);
        }
        self.pause = AHEAD_HELD_LOOK;
        None
    }

    /// Returns the time of the next look.
    fn next_look(&self) -> Instant {
        if self.job.pace == CopyPace::Listed && self.pause < FIRST_LOOK.saturating_mul(2) {
            self.due
        } else {
            Instant::now() + self.pause
        }
    }

    /// Returns the parts of the file that its program has read.
    fn parts_read(&mut self, outcome: &CopyOutcome) -> ReadParts {
        let is_whole = matches!(outcome, CopyOutcome::Whole(..) | CopyOutcome::InPageCache);
        let size = self.job.identity.size;
        if size <= SMALL_BYTES_MAX || !(is_whole || matches!(outcome, CopyOutcome::GivenUp)) {
            return if is_whole { ReadParts::WHOLE } else { ReadParts::NONE };
        }
        let was_ahead = self.job.pace != CopyPace::Reader || self.ahead.as_ref().is_some_and(|ahead| ahead.is_whole());
        let end = CopyEnd {
            size,
            copied: self.copied,
            is_whole,
            was_ahead,
        };
        parts_of(&self.job.opened.source, self.job.opened.reader.pid, self.reader.as_mut(), end)
    }

    /// Copies the next piece, whoever reads the file. Returns `None` to look again after the pause.
    fn copy_piece(&mut self, bytes: u64, buffer: &mut [u8]) -> Option<CopyOutcome> {
        let outcome = self.copy_to(self.job.identity.size.min(self.copied + bytes), buffer);
        if self.job.pace.is_full() {
            self.pause = Duration::ZERO;
        }
        outcome
    }

    /// Copies the next piece, and measures the source by those of its bytes that are not in the page cache.
    fn copy_measured(&mut self, buffer: &mut [u8], speeds: &SourceSpeeds) -> Option<CopyOutcome> {
        let Identity { dev, size, .. } = self.job.identity;
        let before = self.read_bytes;
        let cached = cached_run(self.job.opened.source.as_fd(), before, PIECE_BYTES.min(size - before)).unwrap_or(0);
        speeds.begin(dev, Instant::now());
        let outcome = self.copy_piece(PIECE_BYTES, buffer);
        speeds.end(dev, (self.read_bytes - before).saturating_sub(cached), Instant::now());
        outcome
    }

    /// Switches to the latest reader. Returns false if there is none.
    fn follow_newer(&mut self, newer: &LatestReaders) -> bool {
        let next = newer.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.job.number);
        let Some((handoff, reader)) = next else { return false };
        let opened = OpenedSource::from(handoff);
        if let Some(ahead) = &mut self.ahead {
            ahead.follow(opened.reader.pid);
        }
        self.job.opened = opened;
        self.reader = reader;
        self.seen = (0, None, None);
        self.moved_at = Instant::now();
        self.pause = FIRST_LOOK;
        true
    }

    /// Takes what has come of a file that is read ahead, up to an offset. Returns `None` to go on.
    fn take_to(&mut self, upto: u64, buffer: &mut [u8]) -> Option<CopyOutcome> {
        match self.job.target {
            CopyTarget::Tier(_) => self.copy_to(upto, buffer),
            CopyTarget::PageCache => {
                self.read_bytes += upto.saturating_sub(self.copied);
                self.pass_to(upto, Duration::ZERO)
            }
        }
    }

    /// Notes that the page cache had the file up to an offset. Returns `None` to look again after the pause.
    fn pass_to(&mut self, upto: u64, pause: Duration) -> Option<CopyOutcome> {
        self.copied = self.copied.max(upto);
        (self.moved_at, self.pause) = (Instant::now(), pause);
        (self.copied >= self.job.identity.size).then_some(CopyOutcome::InPageCache)
    }

    /// Begins the copy after dirty pages are written back, so that every later change of the file moves its times.
    fn begin(&self, target: &TierTarget) -> Result<CopyWriter, CopyOutcome> {
        write_back(self.job.opened.source.as_fd(), self.job.pages).map_err(|_| CopyOutcome::DirtyPages)?;
        let writer = target.tier.begin(target.copy, &self.job.identity).map_err(CopyOutcome::Failed)?;
        Ok(if self.job.sparse { writer.keep_holes() } else { writer })
    }

    fn copy_to(&mut self, upto: u64, buffer: &mut [u8]) -> Option<CopyOutcome> {
        let CopyTarget::Tier(target) = &self.job.target else {
            return Some(CopyOutcome::GivenUp);
        };
        let begun = self.writer.take().map_or_else(|| self.begin(target), Ok);
        let writer = match begun {
            Ok(writer) => self.writer.insert(writer),
            Err(outcome) => return Some(outcome),
        };
        let piece = upto.min(writer.copied() + PIECE_BYTES);
        let source = &self.job.opened.source;
        let advanced = match &self.pieces {
            Some(pieces) => pieces.advance(writer, source, piece, buffer),
            None => writer.advance(source, piece, buffer),
        };
        self.copied = writer.copied();
        self.read_bytes = self.copied;
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
                let TierTarget { tier, copy, sampled } = target;
                // If the copy can't be read again, programs that open it will find out.
                let sample = sampled.then(|| forebay_store::sample(tier, *copy, &self.job.opened.source).ok());
                CopyOutcome::Whole(finished, sample.flatten())
            }
            Err(error) => CopyOutcome::Failed(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::handoff::handoff_of;

    #[test]
    fn a_reader_that_comes_as_a_copy_ends_is_given_back_once() {
        let copier = Copier::start(&|_| {}).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        copier.opened_again(7, handoff_of(file.path()));
        let late = copier.ended(7).map(|handoff| handoff.path);
        assert_eq!(late.as_deref(), Some(file.path().as_os_str().as_encoded_bytes()));
        assert!(copier.ended(7).is_none() && copier.ended(8).is_none());
    }
}
