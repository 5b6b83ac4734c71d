//! `forebay read-all`: reads files, and nothing else. `warm` runs it as the program, and the preload library does all
//! the rest.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use forebay_agent::tiering::read_lists::file;
use forebay_policy::read_list::{ReadEntry, ReadVersion};
use indicatif::{HumanBytes, HumanCount, ProgressBar};

use crate::args::ReadAllArgs;

const PIECE_BYTES: usize = 1 << 20;
/// Names that wait to be read: a tree of any size is listed while it is read.
const WAITING_MAX: usize = 10_000;
/// Interval between two updates of the progress bar.
const TICK: Duration = Duration::from_millis(200);
/// Failures that are told one by one.
const TOLD_MAX: u64 = 5;

/// Reads all files; gives the exit status: 1 when one could not be read.
pub fn main(args: &ReadAllArgs) -> u8 {
    let bar = if args.quiet {
        ProgressBar::hidden()
    } else {
        ProgressBar::new_spinner().with_message("looking for files")
    };
    bar.enable_steady_tick(TICK);
    let reading = TreeReader {
        copies: &args.copies,
        bar,
        files: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    };
    let (found, waiting) = sync_channel::<FoundFile>(WAITING_MAX);
    let waiting = Mutex::new(waiting);
    thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| reading.work(&waiting));
        }
        if let Some(list) = &args.list {
            reading.read_list(list, &found);
        }
        for path in &args.paths {
            reading.walk(path, &found);
        }
        drop(found);
    });
    reading.bar.finish_and_clear();
    u8::from(reading.failed.load(Relaxed) > 0)
}

/// A file to read.
struct FoundFile {
    path: PathBuf,
    /// Parts that earlier runs have read; `None` for the whole file, whatever its version.
    known: Option<ReadEntry>,
}

impl From<PathBuf> for FoundFile {
    fn from(path: PathBuf) -> Self {
        Self { path, known: None }
    }
}

struct TreeReader<'a> {
    /// Directories of copies: a file that opens there is cached already.
    copies: &'a [PathBuf],
    bar: ProgressBar,
    files: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

impl TreeReader<'_> {
    /// Sends the files of a list in its order, and lists its directories. Those that are gone are left out.
    fn read_list(&self, list: &Path, found: &SyncSender<FoundFile>) {
        let list = match file::open(list.to_owned()) {
            Ok(list) => list,
            Err(error) => return self.failed(list, &io::Error::other(error)),
        };
        for entry in list.in_order() {
            let path = PathBuf::from(&entry.path);
            if entry.version.is_some() {
                let known = Some(entry.clone());
                drop(found.send(FoundFile { path, known }));
            } else if let Ok(entries) = fs::read_dir(&path) {
                entries.for_each(drop);
            }
        }
    }

    /// Sends every regular file at or below `path`. Links are not followed below it: their targets are found at
    /// their own paths, or are not meant.
    fn walk(&self, path: &Path, found: &SyncSender<FoundFile>) {
        let mut dirs = match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => vec![path.to_owned()],
            Ok(meta) if meta.is_file() => return drop(found.send(path.to_owned().into())),
            Ok(_) => return self.failed(path, &io::Error::other("it is neither a file nor a directory")),
            Err(error) => return self.failed(path, &error),
        };
        while let Some(dir) = dirs.pop() {
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) => {
                    self.failed(&dir, &error);
                    continue;
                }
            };
            for entry in entries {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(error) => {
                        self.failed(&dir, &error);
                        break;
                    }
                };
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                    Ok(kind) if kind.is_file() => drop(found.send(entry.path().into())),
                    _ => {}
                }
            }
        }
    }

    fn work(&self, waiting: &Mutex<Receiver<FoundFile>>) {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(FoundFile { path, known }) = next else { return };
            let read = match &known {
                Some(entry) => self.read_known(entry, &mut piece),
                None => self.read(&path, &mut piece),
            };
            match read {
                Ok(bytes) => {
                    let (files, bytes) = (self.files.fetch_add(1, Relaxed) + 1, self.bytes.fetch_add(bytes, Relaxed) + bytes);
                    self.bar
                        .set_message(format!("{} files, {} read", HumanCount(files), HumanBytes(bytes)));
                }
                Err(error) => self.failed(&path, &error),
            }
        }
    }

    /// Reads what earlier runs have read of a file, if it is still there in that version.
    fn read_known(&self, entry: &ReadEntry, piece: &mut [u8]) -> io::Result<u64> {
        let path = Path::new(&entry.path);
        let Ok(meta) = fs::metadata(path) else { return Ok(0) };
        let changed = (meta.mtime(), meta.mtime_nsec() as u32);
        let version = ReadVersion { size: meta.len(), changed };
        if !meta.is_file() || entry.version != Some(version) {
            return Ok(0);
        }
        if entry.parts.is_whole() {
            return self.read(path, piece);
        }
        let file = File::open(path)?;
        let mut bytes = 0;
        for (mut at, upto) in entry.parts.ranges(meta.len()) {
            while at < upto {
                let len = piece.len().min((upto - at) as usize);
                match file.read_at(&mut piece[..len], at)? {
                    0 => break,
                    count => (at, bytes) = (at + count as u64, bytes + count as u64),
                }
            }
        }
        Ok(bytes)
    }

    /// Reads a file to its end, unless its copy was opened; gives the bytes that were read.
    fn read(&self, path: &Path, piece: &mut [u8]) -> io::Result<u64> {
        let mut file = File::open(path)?;
        // A redirected descriptor's name is the copy's (the first of the listed deviations).
        let opened = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if self.copies.iter().any(|dir| opened.starts_with(dir)) {
            return Ok(0);
        }
        let mut bytes = 0;
        loop {
            match file.read(piece) {
                Ok(0) => return Ok(bytes),
                Ok(count) => bytes += count as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn failed(&self, path: &Path, error: &io::Error) {
        let before = self.failed.fetch_add(1, Relaxed);
        self.bar.suspend(|| {
            let line = match before {
                0..TOLD_MAX => format!("forebay: {}: {error}\n", path.display()),
                TOLD_MAX => "forebay: more files can't be read\n".into(),
                _ => return,
            };
            let _ = io::stderr().write_all(line.as_bytes());
        });
    }
}
