//! Requests of files that are read ahead, by threads of their own: they keep the source busy, however long the copies
//! of what has come may take. Copies run at a low priority, beside programs that need the processor.

use std::{
    collections::VecDeque,
    io,
    num::NonZeroU64,
    os::fd::AsFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use forebay_policy::read_ahead::WINDOW_MIN_BYTES;
use forebay_store::{CopySource, SourceFile};
use rustix::fs::{Advice, fadvise};

use crate::{
    host::shared::cached_bytes,
    tiering::{
        ahead::programs::ReadAhead,
        limits::{AHEAD_ARRIVAL_WAIT, AHEAD_REQUEST_BYTES, AHEAD_REQUESTERS, AHEAD_UNCOPIED_LOOK, AHEAD_WAITED_MIN},
        look_queue::LookQueue,
    },
};

/// Bytes that are requested and waited for together.
pub(super) const PIECE_BYTES: u64 = WINDOW_MIN_BYTES;

/// Files that are being requested. The threads start with the first.
#[derive(Debug)]
pub(super) struct Requests {
    queue: Arc<LookQueue<RequestedFile>>,
    has_threads: Mutex<bool>,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            queue: LookQueue::new(1),
            has_threads: Mutex::new(false),
        }
    }
}

impl Requests {
    /// Begins to request a file of `size` bytes on the device `dev`, from an offset on.
    ///
    /// # Errors
    /// There is no descriptor or thread.
    pub(super) fn begin(
        &self,
        shared: &Arc<ReadAhead>,
        source: &SourceFile,
        (dev, size): (u64, u64),
        from: u64,
    ) -> io::Result<Arc<Arrival>> {
        self.start_threads(shared)?;
        let arrival = Arc::new(Arrival {
            state: Mutex::new(ArrivalState {
                come: from,
                copied: from,
                end: None,
                is_left: false,
            }),
            changed: Condvar::new(),
        });
        let file = RequestedFile {
            source: SourceFile::new(source.as_fd().try_clone_to_owned()?),
            dev,
            size,
            requested: from,
            pieces: VecDeque::new(),
            is_cached: false,
            arrival: Arc::clone(&arrival),
        };
        self.queue.put(Instant::now(), Box::new(file));
        Ok(arrival)
    }

    fn start_threads(&self, shared: &Arc<ReadAhead>) -> io::Result<()> {
        let mut has_threads = self.has_threads.lock().unwrap_or_else(PoisonError::into_inner);
        if *has_threads {
            return Ok(());
        }
        for number in 0..AHEAD_REQUESTERS {
            let (queue, shared) = (Arc::clone(&self.queue), Arc::clone(shared));
            let serve = move || {
                loop {
                    for file in queue.take() {
                        if let Some((due, file)) = file.step(&shared) {
                            queue.put(due, file);
                        }
                    }
                }
            };
            thread::Builder::new().name(format!("request-{number}")).spawn(serve)?;
            // One is enough.
            *has_threads = true;
        }
        Ok(())
    }
}

/// Reason why a file is requested no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestEnd {
    /// All of it has come.
    Whole,
    /// Memory is short: pages that are read ahead would push out others, or go before they are used.
    MemoryShort,
    /// The kernel does not cache files of its source.
    Uncached,
    /// The copy has ended.
    Left,
}

/// Bytes of a file that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// Up to this offset.
    UpTo(u64),
    /// Nothing new so far.
    NotYet,
    /// The rest will not come.
    Ended(RequestEnd),
}

/// How far a file has come, and how far it has been copied.
#[derive(Debug)]
pub(super) struct Arrival {
    state: Mutex<ArrivalState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ArrivalState {
    come: u64,
    copied: u64,
    /// Set once nothing more is requested, and the file is closed.
    end: Option<RequestEnd>,
    /// True once the copy has ended.
    is_left: bool,
}

impl Arrival {
    /// Waits a moment for bytes beyond those that have been copied.
    pub(super) fn beyond(&self, copied: u64) -> Arrived {
        let mut state = self.state();
        state.copied = copied;
        let lacks = |state: &mut ArrivalState| state.come <= copied && state.end.is_none();
        let waited = self.changed.wait_timeout_while(state, AHEAD_ARRIVAL_WAIT, lacks);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        match state.end {
            Some(RequestEnd::Whole) => Arrived::UpTo(state.come),
            Some(end) => Arrived::Ended(end),
            None if state.come > copied => Arrived::UpTo(state.come),
            None => Arrived::NotYet,
        }
    }

    /// Has the file requested no more. Once this returns, it is closed.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.is_left = true;
        drop(self.changed.wait_while(state, |state| state.end.is_none()));
    }

    fn state(&self) -> MutexGuard<'_, ArrivalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file of which pieces are requested.
#[derive(Debug)]
struct RequestedFile {
    source: SourceFile,
    dev: u64,
    size: u64,
    /// Offset up to which bytes were requested.
    requested: u64,
    /// Ends of the pieces that were requested and have not come, and the times of their requests.
    pieces: VecDeque<(u64, Instant)>,
    /// True once bytes of the file were found in the page cache after they had been read.
    is_cached: bool,
    arrival: Arc<Arrival>,
}

impl RequestedFile {
    /// Requests the next pieces, and waits for the first that was requested. Returns the file, and when to go on.
    fn step(mut self: Box<Self>, shared: &ReadAhead) -> Option<(Instant, Box<Self>)> {
        let (come, copied, is_left) = {
            let state = self.arrival.state();
            (state.come, state.copied, state.is_left)
        };
        if is_left {
            return self.end(RequestEnd::Left);
        }
        if shared.is_memory_short() {
            return self.end(RequestEnd::MemoryShort);
        }
        let (share, uncopied_max) = (shared.share(self.dev), shared.page_cache_bytes());
        while self.requested < self.size && self.requested - come < share + PIECE_BYTES && self.requested - copied < uncopied_max {
            let end = (self.requested + PIECE_BYTES).min(self.size);
            request_range(&self.source, self.requested, end);
            self.pieces.push_back((end, Instant::now()));
            self.requested = end;
        }
        let Some((end, requested_at)) = self.pieces.pop_front() else {
            if self.requested == self.size {
                return self.end(RequestEnd::Whole);
            }
            return Some((Instant::now() + AHEAD_UNCOPIED_LOOK, self));
        };
        // The copy meets an error of the source again, and reports it.
        let took = read_byte(&self.source, end - 1).unwrap_or_default();
        if took >= AHEAD_WAITED_MIN {
            shared.answered(self.dev, requested_at.elapsed());
            if !self.is_cached && !is_cached(&self.source, end) {
                return self.end(RequestEnd::Uncached);
            }
            self.is_cached = true;
        }
        if end == self.size {
            return self.end(RequestEnd::Whole);
        }
        self.arrival.state().come = end;
        self.arrival.changed.notify_all();
        Some((Instant::now(), self))
    }

    /// Closes the file, and tells that nothing more of it is requested.
    fn end(self, end: RequestEnd) -> Option<(Instant, Box<Self>)> {
        let Self { source, size, arrival, .. } = self;
        drop(source);
        let mut state = arrival.state();
        if end == RequestEnd::Whole {
            state.come = size;
        }
        state.end = Some(end);
        drop(state);
        arrival.changed.notify_all();
        None
    }
}

/// Asks the kernel to read a range of a file into the page cache.
pub(crate) fn request_range(source: &SourceFile, from: u64, upto: u64) {
    let mut at = from;
    while at < upto {
        let len = AHEAD_REQUEST_BYTES.min(upto - at);
        // Advice that the file system does not take leaves the reader as it is.
        let _ = fadvise(source, at, NonZeroU64::new(len), Advice::WillNeed);
        at += len;
    }
}

/// Reads a byte, and returns how long that took; `None` if it failed.
pub(crate) fn read_byte(source: &SourceFile, at: u64) -> Option<Duration> {
    let begun = Instant::now();
    source.read_at(&mut [0], at).ok()?;
    Some(begun.elapsed())
}

/// Returns true if the piece that ends at an offset, which was just read, is in the page cache. Where the kernel does
/// not tell, the time of another read does.
fn is_cached(source: &SourceFile, end: u64) -> bool {
    let begin = end.saturating_sub(PIECE_BYTES);
    match cached_bytes(source.as_fd(), begin, end - begin) {
        Some(cached) => cached > 0,
        None => (0..3)
            .filter_map(|_| read_byte(source, end - 1))
            .any(|took| took < AHEAD_WAITED_MIN),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const SIZE: u64 = 9 * PIECE_BYTES / 2;

    fn begun() -> (Arc<ReadAhead>, Arc<Arrival>) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; SIZE as usize]).unwrap();
        let shared = Arc::<ReadAhead>::default();
        assert!(shared.begin(7));
        let arrival = shared.request(&SourceFile::new(file.into()), (7, SIZE), 0).unwrap();
        (shared, arrival)
    }

    #[test]
    fn a_file_comes_whole_though_nothing_of_it_is_copied() {
        let (_shared, arrival) = begun();
        while arrival.beyond(0) != Arrived::UpTo(SIZE) {}
        // Its thread has closed it.
        while Arc::strong_count(&arrival) > 1 {
            thread::yield_now();
        }
        assert_eq!(arrival.beyond(PIECE_BYTES), Arrived::UpTo(SIZE));
    }

    #[test]
    fn a_copy_that_ends_leaves_no_request_behind() {
        let (_shared, arrival) = begun();
        arrival.leave();
        let end = arrival.state().end;
        assert!(matches!(end, Some(RequestEnd::Left | RequestEnd::Whole)), "{end:?}");
    }
}
