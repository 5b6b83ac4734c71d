//! Fetches versions of objects into the staging directory: many requests in parallel, large objects in parts. A file
//! under its final name is complete, of one version, and in the journal.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    slice,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Relaxed},
    },
    thread,
};

use rustix::{
    fs::{Mode, Timespec, Timestamps, fchmod, futimens},
    io::Errno,
};

use crate::{
    Error,
    disk::{self, Dir},
    limits,
    read::{NotGot, Sink},
    record::{FileRecord, Journal},
    stop::Stop,
    store::{Object, Store},
};

/// A version to fetch.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    /// Path below the view.
    pub(crate) path: &'a str,
    pub(crate) object: &'a Object,
    /// Name under which it is staged.
    pub(crate) name: String,
}

/// Result of fetching.
#[derive(Debug, Default)]
pub(crate) struct FetchedObjects {
    pub(crate) records: Vec<FileRecord>,
    /// An object that was no longer the listed version.
    pub(crate) changed: Option<String>,
}

/// Fetches all tasks, and reports bytes to `tell` as they come.
///
/// # Errors
/// The first; objects fetched before stay staged.
pub(crate) fn fetch(
    store: &Store,
    tasks: &[Task<'_>],
    staged: &Dir,
    journal: &Journal,
    tell: &(dyn Fn(u64) + Sync),
) -> Result<FetchedObjects, Error> {
    let fetching = ObjectFetch {
        store,
        staged,
        journal,
        tell,
        queue: Mutex::new(PartQueue {
            tasks: tasks.iter(),
            open: None,
        }),
        stop: Stop::default(),
        done: Mutex::new(Ok(FetchedObjects::default())),
    };
    let parts: u64 = tasks.iter().map(|task| parts_of(task.object.size)).sum();
    thread::scope(|scope| {
        for _ in 0..parts.min(limits::FETCHERS as u64) {
            scope.spawn(|| fetching.work());
        }
    });
    fetching.done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// An empty object is requested, too, since it may have changed.
fn parts_of(size: u64) -> u64 {
    size.div_ceil(limits::PART_BYTES).max(1)
}

struct ObjectFetch<'a> {
    store: &'a Store,
    staged: &'a Dir,
    journal: &'a Journal,
    tell: &'a (dyn Fn(u64) + Sync),
    queue: Mutex<PartQueue<'a>>,
    /// Set by the first error.
    stop: Stop,
    done: Mutex<Result<FetchedObjects, Error>>,
}

/// Bytes of an object for one request.
type ObjectPart<'a> = (Arc<Staging<'a>>, Range<u64>);

/// PartQueue of parts, one object after the other.
struct PartQueue<'a> {
    tasks: slice::Iter<'a, Task<'a>>,
    /// Present object, and the number of its next part.
    open: Option<(Arc<Staging<'a>>, u64)>,
}

/// An object that is being written.
struct Staging<'a> {
    task: &'a Task<'a>,
    file: File,
    /// Name until it is complete.
    partial: String,
    /// Number of parts that have not ended.
    left: AtomicU64,
    changed: AtomicBool,
}

impl ObjectFetch<'_> {
    fn work(&self) {
        let mut piece = vec![0; limits::PIECE_BYTES];
        while !self.stop.is_set() {
            let (staging, range) = match self.next() {
                Ok(Some(next)) => next,
                Ok(None) => return,
                Err(error) => return self.fail(error),
            };
            if let Err(error) = self.part(&staging, &range, &mut piece) {
                return self.fail(error);
            }
            // The end of the last part is the object's.
            if staging.left.fetch_sub(1, AcqRel) == 1
                && let Err(error) = self.end(&staging)
            {
                return self.fail(error);
            }
        }
    }

    fn fail(&self, error: Error) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.is_ok() {
            *done = Err(error);
        }
        drop(done);
        // Not earlier: a thread that this stops fails, too, with a less useful error.
        self.stop.set();
    }

    fn next(&self) -> Result<Option<ObjectPart<'_>>, Error> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (staging, part) = match queue.open.take() {
            Some(open) => open,
            None => match queue.tasks.next() {
                Some(task) => (Arc::new(Staging::begin(task, self.staged)?), 0),
                None => return Ok(None),
            },
        };
        let size = staging.task.object.size;
        let from = part * limits::PART_BYTES;
        if part + 1 < parts_of(size) {
            queue.open = Some((Arc::clone(&staging), part + 1));
        }
        Ok(Some((staging, from..(from + limits::PART_BYTES).min(size))))
    }

    fn part(&self, staging: &Staging<'_>, range: &Range<u64>, piece: &mut [u8]) -> Result<(), Error> {
        if staging.changed.load(Relaxed) {
            return Ok(());
        }
        // Other programs write to this disk, too.
        let (room, _) = self.staged.room()?;
        if room < range.end - range.start {
            return Err(staging.failed(
                self.staged,
                "keep a part of the disk free for others and write",
                Errno::NOSPC.into(),
            ));
        }
        match self
            .store
            .get(staging.task.object, range, &self.stop, &mut PieceWriter(&staging.file, piece))
        {
            Ok(()) => (self.tell)(range.end - range.start),
            Err(NotGot::Changed) => staging.changed.store(true, Relaxed),
            Err(NotGot::Store(error)) => return Err(error),
            Err(NotGot::Disk(error)) => return Err(staging.failed(self.staged, "write", error)),
        }
        Ok(())
    }

    /// Gives a complete object its name, or removes the file of one that changed.
    fn end(&self, staging: &Staging<'_>) -> Result<(), Error> {
        let record = if staging.changed.load(Relaxed) {
            self.staged.remove(&staging.partial)?;
            None
        } else {
            let record = staging.seal(self.staged)?;
            self.journal
                .add(&record)
                .map_err(|error| staging.failed(self.staged, "note", error))?;
            Some(record)
        };
        if let Ok(done) = &mut *self.done.lock().unwrap_or_else(PoisonError::into_inner) {
            match record {
                Some(record) => done.records.push(record),
                None => done.changed = Some(staging.task.object.shown()),
            }
        }
        Ok(())
    }
}

impl<'a> Staging<'a> {
    fn begin(task: &'a Task<'a>, staged: &Dir) -> Result<Self, Error> {
        let partial = format!("{}.part", task.name);
        Ok(Self {
            file: disk::create(staged, &partial)?,
            partial,
            left: AtomicU64::new(parts_of(task.object.size)),
            changed: AtomicBool::new(false),
            task,
        })
    }

    /// Sets the file's time, mode and name.
    fn seal(&self, staged: &Dir) -> Result<FileRecord, Error> {
        let object = self.task.object;
        let time = Timespec {
            tv_sec: object.modified_ms.div_euclid(1000),
            tv_nsec: object.modified_ms.rem_euclid(1000) * 1_000_000,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        let sealed = || -> io::Result<String> {
            // Reading back finds a file system that returns other bytes than were written.
            let checksum = disk::checksum(WholeFile(&self.file, 0))?;
            futimens(&self.file, &times)?;
            fchmod(&self.file, Mode::RUSR)?;
            if self.file.metadata()?.len() != object.size {
                return Err(io::Error::other("its size differs from the written one"));
            }
            staged.rename(&self.partial, staged, &self.task.name)?;
            Ok(checksum)
        };
        Ok(FileRecord {
            path: self.task.path.to_owned(),
            etag: object.etag.clone(),
            size: object.size,
            modified_ms: object.modified_ms,
            checksum: sealed().map_err(|error| self.failed(staged, "finish", error))?,
        })
    }

    fn failed(&self, staged: &Dir, operation: &'static str, error: io::Error) -> Error {
        Error::disk(&staged.path.join(&self.partial), operation, error)
    }
}

/// A file that is written piece by piece, and room for one piece.
struct PieceWriter<'a>(&'a File, &'a mut [u8]);

impl Sink for PieceWriter<'_> {
    fn room(&mut self, _: u64) -> &mut [u8] {
        self.1
    }

    fn keep(&mut self, at: u64, count: usize) -> io::Result<()> {
        self.0.write_all_at(&self.1[..count], at)
    }
}

/// A file from its beginning, whatever its own offset.
struct WholeFile<'a>(&'a File, u64);

impl io::Read for WholeFile<'_> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read_at(piece, self.1)?;
        self.1 += count as u64;
        Ok(count)
    }
}
