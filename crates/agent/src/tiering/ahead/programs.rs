//! Knowledge that all workers share about reading ahead: what programs have read of each directory, how fast sources
//! answer, and whether memory is short.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    ffi::CString,
    hash::Hasher,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use forebay_policy::{
    pressure::JobMemory,
    read_ahead::{AheadWindow, WholeReads, has_used_whole, page_cache_bytes},
};
use twox_hash::XxHash3_64;

use crate::{
    host::memory::Gauge,
    tiering::{
        ahead::mapped::touched,
        limits::{AHEAD_JUDGED_AT_ONCE, AHEAD_JUDGED_EVERY, AHEAD_LOOK_PART, AHEAD_MEMORY_LOOK, AHEAD_UNJUDGED_MAX},
        reader::FollowedReader,
    },
};

/// Shared knowledge about reading ahead.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    reads: Mutex<ProgramReads>,
    /// Requests to each source, by device. `None` for a source whose files the kernel does not cache.
    windows: Mutex<HashMap<u64, Option<AheadWindow>>>,
    memory: Mutex<MemoryLook>,
}

#[derive(Debug, Default)]
struct ProgramReads {
    whole: WholeReads,
    unjudged: VecDeque<UnjudgedReader>,
    judged_at: Option<Instant>,
    /// Keys of programs that are done with a file, and were not seen to leave most of it, since the last request.
    done: BTreeSet<u64>,
}

/// A look at the free memory, which serves for a while.
#[derive(Debug)]
struct MemoryLook {
    gauge: Gauge,
    looked_at: Option<Instant>,
    seen: JobMemory,
}

/// Reader of a file that was read ahead of it: it has not used enough of it so far to tell whether it reads all.
#[derive(Debug)]
pub(crate) struct UnjudgedReader {
    /// Key of the program and the directory.
    pub(crate) key: u64,
    pub(crate) size: u64,
    /// The most bytes that it was seen to have used.
    pub(crate) used: u64,
    pub(crate) pid: i32,
    /// The kernel's name of the file.
    pub(crate) name: CString,
    pub(crate) reader: FollowedReader,
    /// True if it had used more at the last look than at the one before, so that it may have gone on after it.
    pub(crate) goes_on: bool,
    /// True if it may read through a mapping, of which only looks tell how much it uses.
    pub(crate) may_be_mapped: bool,
}

/// Result of a look at a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderVerdict {
    /// It has the file open, and has not used enough of it so far.
    Open,
    /// It has read the file whole, or has left without: `None` if it may have done so after the last look.
    Read(Option<bool>),
}

impl UnjudgedReader {
    /// Looks at the reader.
    pub(crate) fn judge(&mut self) -> ReaderVerdict {
        let mapped = touched(self.pid, &self.name, 0);
        let used = self.reader.volume_now().max(mapped.map_or(0, |touched| touched.anywhere));
        if has_used_whole(self.size, self.used.max(used)) {
            return ReaderVerdict::Read(Some(true));
        }
        if mapped.is_none() && !self.reader.is_open() {
            let is_untold = self.goes_on && self.may_be_mapped;
            return ReaderVerdict::Read(if is_untold { None } else { Some(false) });
        }
        self.may_be_mapped |= mapped.is_some();
        self.goes_on = used > self.used;
        self.used = self.used.max(used);
        ReaderVerdict::Open
    }
}

impl Default for ReadAhead {
    fn default() -> Self {
        let memory = MemoryLook {
            gauge: Gauge::find(),
            looked_at: None,
            seen: JobMemory::default(),
        };
        Self {
            reads: Mutex::default(),
            windows: Mutex::default(),
            memory: Mutex::new(memory),
        }
    }
}

impl ReadAhead {
    /// Returns knowledge in which memory was just found short.
    #[cfg(test)]
    pub(crate) fn of_short_memory() -> Self {
        let ahead = Self::default();
        let mut memory = locked(&ahead.memory);
        memory.looked_at = Some(Instant::now() + Duration::from_secs(60));
        drop(memory);
        ahead
    }

    /// Returns the number of files that a program has read whole in a directory, one after the other.
    pub(crate) fn streak(&self, key: u64) -> u32 {
        self.judge_readers();
        locked(&self.reads).whole.streak(key)
    }

    /// Looks at the readers that are watched, if it is time to. A reader that has left is judged by the last look.
    pub(crate) fn judge_readers(&self) {
        let mut reads = locked(&self.reads);
        if reads.judged_at.is_none_or(|at| at.elapsed() >= AHEAD_JUDGED_EVERY) {
            reads.judge();
        }
    }

    /// Notes whether a program has read a file whole.
    pub(crate) fn note(&self, key: u64, whole: bool) {
        locked(&self.reads).note(key, Some(whole));
    }

    /// Returns true if a reader went on at the last look: it may have read its file whole in a moment.
    pub(crate) fn has_fast_reader(&self) -> bool {
        locked(&self.reads).unjudged.iter().any(|reader| reader.goes_on)
    }

    /// Returns the keys of programs that were done with a file since the last call, and were not seen to leave most of
    /// it unread.
    pub(crate) fn take_done(&self) -> BTreeSet<u64> {
        mem::take(&mut locked(&self.reads).done)
    }

    /// Watches the reader of a file that was read ahead until it can be judged.
    pub(crate) fn watch(&self, mut reader: UnjudgedReader) {
        let judged = reader.judge();
        let mut reads = locked(&self.reads);
        match judged {
            ReaderVerdict::Read(whole) => reads.note(reader.key, whole),
            ReaderVerdict::Open if reads.unjudged.len() < AHEAD_UNJUDGED_MAX => reads.unjudged.push_back(reader),
            ReaderVerdict::Open => {}
        }
    }

    /// Begins to read a file of a source ahead. Returns false if the kernel does not cache files of it.
    pub(crate) fn begin(&self, dev: u64) -> bool {
        let mut windows = locked(&self.windows);
        let window = windows.entry(dev).or_insert_with(|| Some(AheadWindow::default()));
        window.as_mut().map(AheadWindow::begin).is_some()
    }

    /// Ends what [`Self::begin`] began.
    pub(crate) fn end(&self, dev: u64) {
        if let Some(Some(window)) = locked(&self.windows).get_mut(&dev) {
            window.end();
        }
    }

    /// Remembers a source whose files the kernel does not cache.
    pub(crate) fn set_uncached(&self, dev: u64) {
        locked(&self.windows).insert(dev, None);
    }

    /// Returns the bytes of one file that may be requested at the same time.
    pub(crate) fn share(&self, dev: u64) -> u64 {
        locked(&self.windows)
            .get(&dev)
            .copied()
            .flatten()
            .map_or(0, |window| window.share())
    }

    /// Notes the time from a request to its answer, for which a worker has waited.
    pub(crate) fn answered(&self, dev: u64, took: Duration) {
        if let Some(Some(window)) = locked(&self.windows).get_mut(&dev) {
            window.answered(took.as_micros() as u64);
        }
    }

    /// Returns true if memory is short: pages that are read ahead would push out others, or go before they are used.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.memory().room_bytes_each(1) == 0
    }

    /// Returns the bytes of files that may be read ahead at the same time into the page cache alone.
    pub(crate) fn page_cache_bytes(&self) -> u64 {
        page_cache_bytes(&self.memory())
    }

    fn memory(&self) -> JobMemory {
        let mut memory = locked(&self.memory);
        if memory.looked_at.is_none_or(|at| at.elapsed() >= AHEAD_MEMORY_LOOK) {
            memory.looked_at = Some(Instant::now());
            memory.seen = memory.gauge.look().memory;
        }
        memory.seen
    }
}

impl ProgramReads {
    fn note(&mut self, key: u64, whole: Option<bool>) {
        self.whole.note(key, whole);
        if whole != Some(false) {
            self.done.insert(key);
        }
    }

    fn judge(&mut self) {
        let begun = Instant::now();
        for _ in 0..self.unjudged.len().min(AHEAD_JUDGED_AT_ONCE) {
            let Some(mut reader) = self.unjudged.pop_front() else { break };
            match reader.judge() {
                ReaderVerdict::Read(whole) => self.note(reader.key, whole),
                ReaderVerdict::Open => self.unjudged.push_back(reader),
            }
        }
        // Many mapped files take long to look at: that is at most a twentieth of the time.
        self.judged_at = Some(Instant::now() + begun.elapsed() * AHEAD_LOOK_PART);
    }
}

/// Returns the key of a program, by its command line, and of the directory of a file. `None` if the process has ended.
pub(crate) fn key_of(pid: i32, name: &CString) -> Option<u64> {
    let command = std::fs::read(format!("/proc/{pid}/cmdline"))
        .ok()
        .filter(|command| !command.is_empty())?;
    let name = name.to_bytes();
    let directory = name.iter().rposition(|byte| *byte == b'/').and_then(|at| name.get(..at))?;
    let mut hasher = XxHash3_64::default();
    hasher.write(&command);
    // No command line and no path has a NUL twice in a row.
    hasher.write(b"\0\0");
    hasher.write(directory);
    Some(hasher.finish())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::tiering::reader::{Followed, ReaderDescriptor};

    #[test]
    fn a_program_is_known_by_its_command_line_and_the_directory() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let key = |name: &str| key_of(pid, &CString::new(name).unwrap());
        assert!(key("/data/a").is_some());
        assert_eq!(key("/data/a"), key("/data/b"));
        assert_ne!(key("/data/a"), key("/other/a"));
        assert_eq!(key_of(-1, &c"/data/a".to_owned()), None);
    }

    #[test]
    fn a_reader_that_has_left_is_judged_by_the_bytes_that_it_was_seen_to_use() {
        let source = tempfile::tempfile().unwrap();
        let judged = |used, goes_on, may_be_mapped| {
            let gone = -1;
            let descriptor = ReaderDescriptor {
                pid: gone,
                number: gone,
                read_bytes: None,
            };
            let mut reader = UnjudgedReader {
                key: 1,
                size: 100,
                used,
                pid: gone,
                name: c"/data/a".to_owned(),
                reader: FollowedReader::new(descriptor, source.as_fd(), &Followed::default()),
                goes_on,
                may_be_mapped,
            };
            reader.judge()
        };
        assert_eq!(judged(50, false, true), ReaderVerdict::Read(Some(true)));
        assert_eq!(judged(49, false, true), ReaderVerdict::Read(Some(false)));
        assert_eq!(judged(49, true, true), ReaderVerdict::Read(None), "it may have read on");
        assert_eq!(judged(49, true, false), ReaderVerdict::Read(Some(false)), "its reads are counted");
    }

    #[test]
    fn a_source_without_cached_files_is_left_alone() {
        let ahead = ReadAhead::default();
        assert!(ahead.begin(7) && ahead.share(7) > 0);
        ahead.end(7);
        ahead.set_uncached(7);
        assert!(!ahead.begin(7));
        assert_eq!(ahead.share(7), 0);
        assert!(ahead.begin(8));
    }
}
