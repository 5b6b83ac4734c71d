//! Reading a place by number of threads, within bounds of time and bytes, past this machine's page cache as far as
//! that can be done.

use std::{
    collections::VecDeque,
    fs,
    hash::{BuildHasher, RandomState},
    io::{self, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Advice, MemfdFlags, Mode, OFlags, fadvise, memfd_create, open},
    io::{Errno, ReadWriteFlags, pread, preadv2, pwrite, retry_on_intr},
};

use super::record::{FoundFiles, ReadRound};
use crate::inspect::measure::ProbeFile;

/// Longest search for files.
const SEARCH_MAX: Duration = Duration::from_secs(20);
/// Most files that a search finds.
const FILES_MAX: usize = 2_000_000;
/// Samples that are kept to be read; more are only counted.
const KEPT_MAX: usize = 200_000;
/// A file is read in samples of at most this.
const SAMPLE_BYTES_MAX: u64 = 16 << 20;
/// The first read of a sample asks for so much: its time is that to the first byte.
const FIRST_BYTES: usize = 4 << 10;
const PIECE_BYTES: usize = 256 << 10;
/// Local copies take at most so much.
const LOCAL_BYTES_MAX: u64 = 256 << 20;
/// Largest number of files; each takes a descriptor, of which a shell allows 1024.
const LOCAL_FILES_MAX: usize = 512;
/// After that no further one is made.
const LOCAL_TIME_MAX: Duration = Duration::from_secs(20);

/// Range of a file to read, by name or by descriptor.
#[derive(Clone, Debug)]
struct SampleRange {
    place: SamplePlace,
    start: u64,
    bytes: u64,
}

#[derive(Clone, Debug)]
enum SamplePlace {
    Named(PathBuf),
    /// A local copy without a name. In memory there is nothing to drop.
    Held {
        file: Arc<OwnedFd>,
        memory: bool,
    },
}

/// Samples to read, none twice until there are no more.
#[derive(Debug)]
pub struct Stock {
    samples: Vec<SampleRange>,
    next: usize,
}

/// Bounds of one round.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// It ends after this.
    pub time: Duration,
    /// It ends when so much has been read.
    pub bytes: u64,
}

impl Stock {
    /// Files below these directories, in an order of chance: whoever measures again reads others, which no server has
    /// in memory.
    pub fn find(dirs: &[PathBuf]) -> (Self, FoundFiles) {
        let begun = Instant::now();
        let mut found = FoundFiles {
            files: 0,
            bytes: 0,
            complete: true,
        };
        let mut files: Vec<(u64, PathBuf, u64)> = Vec::new();
        let chance = RandomState::new();
        let mut folders: VecDeque<PathBuf> = dirs.iter().cloned().collect();
        'search: while let Some(folder) = folders.pop_front() {
            for entry in fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
                let path = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push_back(path),
                    Ok(kind) if kind.is_file() => {
                        let bytes = entry.metadata().map_or(0, |meta| meta.len());
                        found.files += 1;
                        found.bytes += bytes;
                        if bytes > 0 && files.len() < KEPT_MAX {
                            files.push((chance.hash_one(&path), path, bytes));
                        }
                    }
                    _ => {}
                }
                if found.files as usize >= FILES_MAX || begun.elapsed() > SEARCH_MAX {
                    found.complete = false;
                    break 'search;
                }
            }
        }
        files.sort_unstable();
        let samples = files.into_iter().flat_map(|(_, path, bytes)| {
            let starts = (0..bytes).step_by(SAMPLE_BYTES_MAX as usize);
            starts.map(move |start| SampleRange {
                place: SamplePlace::Named(path.clone()),
                start,
                bytes: (bytes - start).min(SAMPLE_BYTES_MAX),
            })
        });
        let samples = samples.take(KEPT_MAX).collect();
        (Self { samples, next: 0 }, found)
    }

    /// Returns whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Copies of some of these samples in a local directory, or in memory. They have no names, so nothing can be left
    /// behind.
    ///
    /// # Errors
    /// When they can't be read or written.
    pub fn local(&self, dir: Option<&Path>) -> io::Result<Self> {
        let mut samples = Vec::new();
        let mut bytes = 0;
        let begun = Instant::now();
        // From the end: what the source is asked for comes from the front.
        for sample in self.samples.iter().rev().take(LOCAL_FILES_MAX) {
            if bytes >= LOCAL_BYTES_MAX || (bytes > 0 && begun.elapsed() > LOCAL_TIME_MAX) {
                break;
            }
            let content = sample.content()?;
            bytes += content.len() as u64;
            let file = match dir {
                Some(dir) => ProbeFile::write(dir, &content)?.into_file(),
                None => in_memory(&content)?,
            };
            let place = SamplePlace::Held {
                file: Arc::new(file),
                memory: dir.is_none(),
            };
            samples.push(SampleRange {
                place,
                start: 0,
                bytes: content.len() as u64,
            });
        }
        Ok(Self { samples, next: 0 })
    }

    /// Reads with so many threads until a bound is reached. `share`: of the samples not read yet, the part that this
    /// round may use up.
    ///
    /// # Errors
    /// The first error of any read.
    pub fn read(&mut self, threads: u32, bounds: Bounds, share: usize) -> io::Result<ReadRound> {
        let unread = self.samples.len() - self.next.min(self.samples.len());
        let fresh = unread.div_ceil(share.max(1));
        let round = Round {
            samples: &self.samples,
            first: self.next,
            fresh,
            taken: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            begun: Instant::now(),
            bounds,
        };
        let seen: Vec<io::Result<RoundReads>> = thread::scope(|scope| {
            let readers: Vec<_> = (0..threads).map(|_| scope.spawn(|| round.reader())).collect();
            let broken = || io::Error::other("a reading thread panicked");
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap_or_else(|_| Err(broken())))
                .collect()
        });
        let seconds = round.begun.elapsed().as_secs_f64();
        let taken = round.taken.load(Ordering::Relaxed);
        let mut all = RoundReads::default();
        for seen in seen {
            all.add(seen?);
        }
        self.next += taken.min(fresh);
        Ok(all.reading(threads, seconds))
    }
}

fn in_memory(content: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create("forebay-profile", MemfdFlags::CLOEXEC)?;
    let mut done = 0;
    while done < content.len() {
        done += retry_on_intr(|| pwrite(&file, content.get(done..).unwrap_or_default(), done as u64))?;
    }
    Ok(file)
}

struct Round<'a> {
    samples: &'a [SampleRange],
    first: usize,
    fresh: usize,
    taken: AtomicUsize,
    bytes: AtomicU64,
    begun: Instant,
    bounds: Bounds,
}

impl Round<'_> {
    fn reader(&self) -> io::Result<RoundReads> {
        let mut seen = RoundReads::default();
        let mut buffer = vec![0; PIECE_BYTES];
        // A thread that starts late on a busy machine reads one at least.
        while seen.whole_s.is_empty() || (self.begun.elapsed() < self.bounds.time && self.bytes.load(Ordering::Relaxed) < self.bounds.bytes)
        {
            let turn = self.taken.fetch_add(1, Ordering::Relaxed);
            let again = turn >= self.fresh;
            // What is read a second time is what was read longest ago.
            let at = if again {
                (turn - self.fresh) % self.samples.len()
            } else {
                self.first + turn
            };
            let Some(sample) = self.samples.get(at) else { break };
            let read = sample.read(&mut buffer)?;
            self.bytes.fetch_add(read.bytes, Ordering::Relaxed);
            seen.note(&read, again);
        }
        Ok(seen)
    }
}

/// One sample's read.
struct Read {
    bytes: u64,
    first_byte: Duration,
    first_bytes: u64,
    whole: Duration,
    cached: Option<bool>,
}

impl SampleRange {
    fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(match &self.place {
            SamplePlace::Named(path) => open(path, flags | OFlags::NONBLOCK, Mode::empty())
                .map_err(|error| io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", path.display())))?,
            SamplePlace::Held { file, .. } => open(format!("/proc/self/fd/{}", file.as_raw_fd()), flags, Mode::empty())?,
        })
    }

    fn is_memory(&self) -> bool {
        matches!(self.place, SamplePlace::Held { memory: true, .. })
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<Read> {
        let begun = Instant::now();
        let file = self.open()?;
        let opening = begun.elapsed();
        if !self.is_memory() {
            forget_pages(file.as_fd(), self.start, self.bytes);
        }
        let begun = Instant::now();
        let cached = if self.is_memory() {
            Some(true)
        } else {
            is_cached(file.as_fd(), self.start)
        };
        let mut done = 0;
        let mut first = (Duration::ZERO, 0);
        while done < self.bytes {
            let piece = if done == 0 { FIRST_BYTES } else { PIECE_BYTES }.min((self.bytes - done) as usize);
            let into = buffer.get_mut(..piece).unwrap_or_default();
            match retry_on_intr(|| pread(&file, &mut *into, self.start + done))? {
                0 => break,
                read => done += read as u64,
            }
            if first.1 == 0 {
                first = (opening + begun.elapsed(), done);
            }
        }
        let whole = opening + begun.elapsed();
        Ok(Read {
            bytes: done,
            first_byte: first.0,
            first_bytes: first.1,
            whole,
            cached,
        })
    }

    fn content(&self) -> io::Result<Vec<u8>> {
        let file = self.open()?;
        let mut content = vec![0; self.bytes as usize];
        let mut done = 0;
        while done < content.len() {
            let into = content.get_mut(done..).unwrap_or_default();
            match retry_on_intr(|| pread(&file, &mut *into, self.start + done as u64))? {
                0 => break,
                read => done += read,
            }
        }
        content.truncate(done);
        Ok(content)
    }
}

/// Without it the figure is one of this machine's memory. A file system may not honour it, or may have kept others'
/// pages: see [`is_cached`].
fn forget_pages(file: BorrowedFd<'_>, start: u64, bytes: u64) {
    let _ = fadvise(file, start, std::num::NonZeroU64::new(bytes), Advice::DontNeed);
}

/// Returns whether the first byte is in the page cache nevertheless: a non-blocking read returns it. `None`: this
/// file system does not support such reads.
fn is_cached(file: BorrowedFd<'_>, start: u64) -> Option<bool> {
    let mut byte = [0];
    match preadv2(file, &mut [IoSliceMut::new(&mut byte)], start, ReadWriteFlags::NOWAIT) {
        Ok(read) => Some(read > 0),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

/// Result of a round of reads.
#[derive(Debug, Default)]
struct RoundReads {
    bytes: u64,
    first_s: Vec<f64>,
    whole_s: Vec<f64>,
    stream_bytes: u64,
    stream: Duration,
    cached: u64,
    untold: u64,
    again: u64,
}

impl RoundReads {
    fn note(&mut self, read: &Read, again: bool) {
        self.bytes += read.bytes;
        self.first_s.push(read.first_byte.as_secs_f64());
        self.whole_s.push(read.whole.as_secs_f64());
        self.stream_bytes += read.bytes - read.first_bytes;
        self.stream += read.whole.saturating_sub(read.first_byte);
        match read.cached {
            Some(cached) => self.cached += u64::from(cached),
            None => self.untold += 1,
        }
        self.again += u64::from(again);
    }

    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.first_s.extend(other.first_s);
        self.whole_s.extend(other.whole_s);
        self.stream_bytes += other.stream_bytes;
        self.stream += other.stream;
        self.cached += other.cached;
        self.untold += other.untold;
        self.again += other.again;
    }

    fn reading(mut self, threads: u32, seconds: f64) -> ReadRound {
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
        let stream = (self.stream_bytes > 0).then(|| self.stream_bytes as f64 / self.stream.as_secs_f64().max(1e-9));
        ReadRound {
            threads,
            samples: self.whole_s.len() as u64,
            bytes: self.bytes,
            seconds,
            read_s: percentiles(&mut self.whole_s),
            first_byte_s: percentiles(&mut self.first_s),
            stream_bytes_per_s: stream,
            cached: (self.untold == 0).then_some(self.cached),
            again: self.again,
        }
    }
}

/// Median, 95th, 98th and 99th percentile: the smallest value that so many per cent do not exceed.
fn percentiles(values: &mut [f64]) -> [f64; 4] {
    values.sort_unstable_by(f64::total_cmp);
    [50, 95, 98, 99].map(|percent| {
        let rank = (values.len() * percent).div_ceil(100).max(1);
        values.get(rank - 1).copied().unwrap_or(0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let mut values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let whole = |values: &mut [f64]| percentiles(values).map(|value| value as u32);
        assert_eq!(whole(&mut values), [100, 190, 196, 198]);
        assert_eq!(whole(&mut [3.0]), [3; 4]);
        assert_eq!(whole(&mut []), [0; 4]);
    }

    #[test]
    fn each_sample_is_read_once_until_there_are_no_more() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        for number in 0..40 {
            fs::write(dir.path().join(format!("sub/{number}")), vec![1; 1000]).unwrap();
        }
        fs::write(dir.path().join("empty"), "").unwrap();
        let (mut stock, found) = Stock::find(&[dir.path().to_owned()]);
        assert_eq!(
            found,
            FoundFiles {
                files: 41,
                bytes: 40_000,
                complete: true
            }
        );
        let bounds = |bytes| Bounds {
            time: Duration::from_secs(600),
            bytes,
        };
        // Half of the stock; reads that are under way when the bound is reached are ended.
        let reading = stock.read(1, bounds(20_000), 2).unwrap();
        assert_eq!((reading.samples, reading.bytes, reading.again), (20, 20_000, 0));
        let reading = stock.read(1, bounds(30_000), 1).unwrap();
        assert_eq!((reading.samples, reading.again), (30, 10));
        let reading = stock.read(4, bounds(10_000), 1).unwrap();
        assert!(
            (10..=13).contains(&reading.samples) && reading.again == reading.samples,
            "{reading:?}"
        );
        let mut memory = stock.local(None).unwrap();
        let reading = memory.read(2, bounds(100_000), 1).unwrap();
        assert_eq!(reading.cached, Some(reading.samples));
        let mut tier = stock.local(Some(dir.path())).unwrap();
        assert_eq!(tier.read(1, bounds(1), 1).unwrap().samples, 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left in the tier");
    }

    #[test]
    fn a_large_file_is_several_samples() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join("shard")).unwrap();
        file.set_len(SAMPLE_BYTES_MAX * 2 + 5).unwrap();
        let (mut stock, _) = Stock::find(&[dir.path().to_owned()]);
        let bounds = Bounds {
            time: Duration::from_secs(600),
            bytes: u64::MAX,
        };
        assert_eq!(stock.samples.len(), 3);
        let small = stock.samples.iter().map(|sample| sample.bytes).min();
        assert_eq!(small, Some(5));
        stock.next = 0;
        let reading = stock
            .read(
                1,
                Bounds {
                    bytes: SAMPLE_BYTES_MAX * 2 + 5,
                    ..bounds
                },
                1,
            )
            .unwrap();
        assert_eq!((reading.bytes, reading.again), (SAMPLE_BYTES_MAX * 2 + 5, 0));
        assert!(reading.stream_bytes_per_s.is_some());
    }
}
