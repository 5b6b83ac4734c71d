//! Opens files and directories that earlier runs have read or that a program will open next, and reads parts of files
//! into the page cache. Threads of their own, since each waits for the source.

use std::{
    collections::VecDeque,
    fmt,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Instant,
};

use forebay_policy::{
    read_ahead::{AheadWindow, WINDOW_MIN_BYTES},
    read_list::{ReadEntry, ReadParts, ReadVersion},
};
use forebay_store::SourceStat;
use rustix::fs::OFlags;

use crate::{
    host::{
        error::{AgentError, io_error},
        shared::set_thread_nice,
    },
    tiering::{
        ahead::{
            file::{read_byte, request_range},
            programs::ReadAhead,
        },
        handoff::{DescriptorBudget, Handoff},
        limits::{AHEAD_WAITED_MIN, COPY_NICE, LIST_OPENERS, ORDERED_NAMES_MAX},
        prefetcher::{entries_of, open_as},
    },
};

/// Request to the openers.
#[derive(Debug)]
pub(crate) enum ListedRequest {
    /// Opens an entry of a list.
    Open {
        run: u64,
        /// Place of the entry in its list.
        at: u64,
        entry: ReadEntry,
    },
    /// Reads the parts of a file into the page cache.
    Pages {
        run: u64,
        parts: ReadParts,
        file: Box<Handoff>,
        /// False once the run has left.
        is_wanted: Arc<AtomicBool>,
    },
    /// Lists the names in a directory, through which a program goes in order.
    Names { reader: u64, directory: Vec<u8> },
    /// Opens the file that a program opens next.
    Next { run: u64, path: Vec<u8> },
}

/// Answer of an opener.
#[derive(Debug)]
pub(crate) enum ListedAnswer {
    /// An entry was opened, or why not.
    Opened {
        run: u64,
        at: u64,
        entry: ReadEntry,
        opened: Result<Box<Handoff>, NotOpened>,
    },
    /// Parts of a file were read into the page cache: their bytes.
    Pages { run: u64, bytes: u64 },
    /// Names in a directory; none if it can't be listed.
    Names { reader: u64, names: Vec<Vec<u8>> },
    /// The file that a program opens next; `None` if there is no such file.
    Next(Option<Box<Handoff>>),
}

/// Reason why an entry was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOpened {
    /// It is missing, or another version: nobody has read that.
    Gone,
    /// The agent holds too many descriptors.
    TooManyDescriptors,
}

/// Passes an answer to the event loop.
type DeliverListed = Arc<dyn Fn(ListedAnswer) + Send + Sync>;

/// Handle of the openers, which start with the first list.
pub(crate) struct Openers {
    requests: Sender<ListedRequest>,
    waiting: Option<Receiver<ListedRequest>>,
    work: OpenerWork,
}

/// Parts that the threads share.
#[derive(Clone)]
struct OpenerWork {
    budget: DescriptorBudget,
    ahead: Arc<ReadAhead>,
    /// Requests of opens to the source at the same time, each of which counts like a piece of a file.
    window: Arc<Mutex<AheadWindow>>,
    deliver: DeliverListed,
}

impl fmt::Debug for Openers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Openers")
            .field("is_started", &self.waiting.is_none())
            .finish_non_exhaustive()
    }
}

impl Openers {
    /// Prepares the threads, which will pass their answers to `deliver`.
    pub(crate) fn new(budget: DescriptorBudget, ahead: Arc<ReadAhead>, deliver: DeliverListed) -> Self {
        let (requests, received) = channel();
        Self {
            requests,
            waiting: Some(received),
            work: OpenerWork {
                budget,
                ahead,
                window: Arc::default(),
                deliver,
            },
        }
    }

    /// Starts the threads, the first time.
    pub(crate) fn start(&mut self) -> Result<(), AgentError> {
        let Some(received) = self.waiting.take() else { return Ok(()) };
        let received = Arc::new(Mutex::new(received));
        for number in 0..LIST_OPENERS {
            let (received, work) = (Arc::clone(&received), self.work.clone());
            thread::Builder::new()
                .name(format!("opener-{number}"))
                .spawn(move || work.serve(&received))
                .map_err(io_error("start a thread", Path::new("opener")))?;
        }
        Ok(())
    }

    /// Sends a request. The threads end with the process.
    pub(crate) fn ask(&self, request: ListedRequest) {
        let _ = self.requests.send(request);
    }

    /// Returns the number of files that may be opened and copied at the same time, by how fast the source answers.
    pub(crate) fn files_at_once(&self) -> usize {
        let bytes = self.work.window.lock().unwrap_or_else(PoisonError::into_inner).share();
        2 * (bytes / WINDOW_MIN_BYTES) as usize
    }

    /// Returns true if memory is short, so that nothing is read ahead.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.work.ahead.is_memory_short()
    }
}

impl OpenerWork {
    fn serve(&self, requests: &Mutex<Receiver<ListedRequest>>) {
        set_thread_nice(COPY_NICE);
        loop {
            let next = requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(request) = next else { return };
            (self.deliver)(match request {
                ListedRequest::Open { run, at, entry } => {
                    let opened = self.open(run, &entry).map(Box::new);
                    ListedAnswer::Opened { run, at, entry, opened }
                }
                ListedRequest::Pages {
                    run,
                    parts,
                    file,
                    is_wanted,
                } => ListedAnswer::Pages {
                    run,
                    bytes: self.read_pages(parts, &file, &is_wanted),
                },
                ListedRequest::Names { reader, directory } => ListedAnswer::Names {
                    reader,
                    names: names_in(&directory),
                },
                ListedRequest::Next { run, path } => {
                    let opened = self.budget.take().and_then(|place| open_as(run, &path, OFlags::empty(), place));
                    ListedAnswer::Next(opened.filter(|file| file.stat.is_regular()).map(Box::new))
                }
            });
        }
    }

    fn open(&self, run: u64, entry: &ReadEntry) -> Result<Handoff, NotOpened> {
        let begun = Instant::now();
        let kind = if entry.version.is_none() {
            OFlags::DIRECTORY
        } else {
            OFlags::empty()
        };
        let place = self.budget.take().ok_or(NotOpened::TooManyDescriptors)?;
        // Links are followed, as the program did. The event loop checks where they lead.
        let opened = open_as(run, entry.path.as_bytes(), kind, place);
        let took_us = begun.elapsed().as_micros() as u64;
        self.window.lock().unwrap_or_else(PoisonError::into_inner).answered(took_us);
        let is_same = |handoff: &Handoff| match entry.version {
            Some(version) => handoff.stat.is_regular() && version_of(&handoff.stat) == version,
            None => handoff.stat.is_directory(),
        };
        opened.filter(is_same).ok_or(NotOpened::Gone)
    }

    /// Reads the parts of a file into the page cache, in as many pieces at the same time as its source's window allows.
    /// Returns the bytes that were requested.
    fn read_pages(&self, parts: ReadParts, file: &Handoff, is_wanted: &AtomicBool) -> u64 {
        let identity = file.stat.identity;
        if !self.ahead.begin(identity.dev) {
            return 0;
        }
        let mut bytes = 0;
        let mut pieces = VecDeque::new();
        for (from, upto) in parts.ranges(identity.size) {
            let mut at = from;
            while at < upto && is_wanted.load(Relaxed) && !self.ahead.is_memory_short() {
                let end = upto.min(at + WINDOW_MIN_BYTES);
                request_range(&file.source, at, end);
                pieces.push_back((end, Instant::now()));
                bytes += end - at;
                at = end;
                while pieces.len() as u64 * WINDOW_MIN_BYTES > self.ahead.share(identity.dev) {
                    self.wait(file, pieces.pop_front());
                }
            }
        }
        pieces.drain(..).for_each(|piece| self.wait(file, Some(piece)));
        self.ahead.end(identity.dev);
        bytes
    }

    fn wait(&self, file: &Handoff, piece: Option<(u64, Instant)>) {
        let Some((end, requested_at)) = piece else { return };
        // The program meets an error of the source by itself.
        if read_byte(&file.source, end - 1).is_some_and(|took| took >= AHEAD_WAITED_MIN) {
            self.ahead.answered(file.stat.identity.dev, requested_at.elapsed());
        }
    }
}

/// Returns the names in a directory, without `.` and `..`, one more than are used at most.
fn names_in(directory: &[u8]) -> Vec<Vec<u8>> {
    entries_of(directory)
        .map(|entry| entry.file_name().to_bytes().to_vec())
        .filter(|name| !matches!(name.as_slice(), b"." | b".."))
        .take(ORDERED_NAMES_MAX + 1)
        .collect()
}

/// Returns the version of a file that a list keeps.
pub(crate) const fn version_of(stat: &SourceStat) -> ReadVersion {
    let identity = &stat.identity;
    ReadVersion {
        size: identity.size,
        changed: (identity.mtime.sec, identity.mtime.nsec),
    }
}
