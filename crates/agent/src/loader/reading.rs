//! The threads of a loader that read samples into the arena, and write those that stay to disks. What is done is decided elsewhere.
//!
//! Threads begin as they are needed. One that waits for a source that hangs holds nobody up but who waits for that sample, and ends when the source answers.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use forebay_contract::{Extents, Identity, extents::TO_THE_END};
use forebay_store::{Ask, ExtentKey, Segments, Source, SourceFile, Version};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{
    arena::{Arena, Taken},
    doorbell::Doorbell,
    machine::{Disk, Event, Outcome, Place, ReadFrom, WriteError},
};
use crate::{clock::unix_s, limits::CLOCK_SKEW_MAX, shared::SharedFile};

/// How often in a row a call is repeated that was interrupted before it did anything.
const INTERRUPTIONS_MAX: u32 = 100;

/// What a thread is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// Read a sample.
    Read { flight: u32, sample: u32, from: ReadFrom },
    /// Write one.
    Write {
        sample: u32,
        disk: Disk,
        place: Place,
        version: Version,
    },
}

/// What threads work with.
#[derive(Debug)]
pub(crate) struct Tools {
    /// In which the table of extents lies.
    pub(crate) table: SharedFile,
    pub(crate) arena: Arc<Arena>,
    pub(crate) disks: Vec<Arc<Segments>>,
    /// Rung when something is done.
    pub(crate) doorbell: Arc<Doorbell>,
    /// What was changed longer ago than this has times that tell the next change.
    pub(crate) settled_after: Duration,
}

#[derive(Debug)]
struct Shared {
    tools: Tools,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reads: VecDeque<Job>,
    /// Only when nothing is to be read.
    writes: VecDeque<Job>,
    /// With the job of each.
    done: Vec<(Job, Event)>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

/// The threads of a loader. They end when this is dropped, but for those that wait for a source.
#[derive(Debug)]
pub(crate) struct Readers {
    shared: Arc<Shared>,
    threads_max: usize,
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_closed = true;
        state.reads.clear();
        state.writes.clear();
        let unheard = std::mem::take(&mut state.done);
        drop(state);
        self.shared.wake.notify_all();
        for (job, event) in unheard {
            self.shared.tools.undo_claim(job, event);
        }
    }
}

impl Readers {
    pub(crate) fn new(tools: Tools, threads_max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                tools,
                state: Mutex::default(),
                wake: Condvar::new(),
            }),
            threads_max,
        }
    }

    pub(crate) fn tools(&self) -> &Tools {
        &self.shared.tools
    }

    /// Has a thread do this.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.shared.state();
        match job {
            Job::Read { .. } => state.reads.push_back(job),
            Job::Write { .. } => state.writes.push_back(job),
        }
        let waiting = state.reads.len() + state.writes.len();
        let is_new_needed = waiting > state.idle && state.threads < self.threads_max;
        state.threads += usize::from(is_new_needed);
        drop(state);
        if is_new_needed {
            let shared = Arc::clone(&self.shared);
            let begun = thread::Builder::new().name("loader-read".into()).spawn(move || shared.work());
            if begun.is_err() {
                self.shared.state().threads -= 1;
                self.give_up_if_alone();
            }
        }
        self.shared.wake.notify_one();
    }

    /// Without any thread nothing would ever be read: ranks are to do it themselves.
    fn give_up_if_alone(&self) {
        let mut state = self.shared.state();
        if state.threads > 0 {
            return;
        }
        let jobs: Vec<Job> = state.reads.drain(..).collect();
        let writes: Vec<Job> = state.writes.drain(..).collect();
        let failed = jobs.into_iter().chain(writes).map(|job| (job, job.failed()));
        state.done.extend(failed);
        drop(state);
        self.shared.tools.doorbell.ring();
    }

    /// What was done since the last look.
    pub(crate) fn done(&self) -> Vec<Event> {
        let done = std::mem::take(&mut self.shared.state().done);
        done.into_iter().map(|(_, event)| event).collect()
    }

    /// Samples on disks are this loader's no more: of millions a thread of its own says so.
    pub(crate) fn let_go(&self, residents: Vec<(u32, Disk)>) {
        if residents.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let work = move || {
            for (sample, disk) in residents {
                shared.tools.release(sample, disk);
            }
        };
        // Without one they keep their room as long as another loader has the disk.
        let _ = thread::Builder::new().name("loader-end".into()).spawn(work);
    }
}

impl Job {
    /// The event that it has failed.
    fn failed(self) -> Event {
        match self {
            Self::Read { flight, .. } => Event::Read {
                flight,
                outcome: Outcome::Failed,
            },
            Self::Write { sample, disk, .. } => Event::Written {
                sample,
                disk,
                result: Err(WriteError::Fault),
            },
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in it can be left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life.
    fn work(&self) {
        while let Some(job) = self.next_job() {
            // Should one of them ever panic, nobody is to wait for it: the event is told in any case.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.tools.carry_out(job)));
            let event = done.unwrap_or_else(|_| job.failed());
            let mut state = self.state();
            if state.is_closed {
                drop(state);
                return self.tools.undo_claim(job, event);
            }
            state.done.push((job, event));
            drop(state);
            self.tools.doorbell.ring();
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.reads.pop_front() {
                return Some(job);
            }
            if let Some(job) = state.writes.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

impl Tools {
    fn carry_out(&self, job: Job) -> Event {
        match job {
            Job::Read { flight, sample, from } => {
                let outcome = match from {
                    ReadFrom::Source => self.read_source(sample),
                    ReadFrom::Disk { disk, version, bytes } => self.read_disk(sample, disk, version, bytes),
                };
                Event::Read { flight, outcome }
            }
            Job::Write {
                sample,
                disk,
                place,
                version,
            } => {
                let result = self.write(sample, disk, place, version);
                Event::Written { sample, disk, result }
            }
        }
    }

    fn key(&self, sample: u32) -> Option<ExtentKey> {
        let extent = Extents::open(self.table.region())?.locate(u64::from(sample))?;
        Some(ExtentKey::new(extent.path, extent.offset, extent.length))
    }

    /// A sample on a disk is this loader's no more.
    pub(crate) fn release(&self, sample: u32, disk: Disk) {
        if let (Some(key), Some(disk)) = (self.key(sample), self.disks.get(disk)) {
            disk.release(key);
        }
    }

    /// Nobody will hear that a job is done: what it has claimed on a disk is let go.
    fn undo_claim(&self, job: Job, event: Event) {
        let claimed = match (job, event) {
            (Job::Write { sample, disk, .. }, Event::Written { result: Ok(()), .. }) => Some((sample, disk)),
            (
                Job::Read { sample, .. },
                Event::Read {
                    outcome: Outcome::Whole { left_on, .. },
                    ..
                },
            ) => left_on.map(|disk| (sample, disk)),
            _ => None,
        };
        if let Some((sample, disk)) = claimed {
            self.release(sample, disk);
        }
    }

    fn read_disk(&self, sample: u32, disk: Disk, version: Version, bytes: u32) -> Outcome {
        let (Some(key), Some(disk)) = (self.key(sample), self.disks.get(disk)) else {
            return Outcome::Gone;
        };
        let Some(mut taken) = Arena::take(&self.arena, bytes) else {
            return Outcome::NoRoom { bytes };
        };
        // What can't be read there is read at the source.
        match disk.read(key, version, taken.bytes_mut()) {
            Ok(true) => whole(taken, version, None),
            Ok(false) => Outcome::Gone,
            Err(_) => {
                // Where this fails, too, it is still there for nobody: its record is written with the next one.
                let _ = disk.forget(key);
                Outcome::DiskFault
            }
        }
    }

    /// Any error is the rank's to see, when it reads itself.
    fn read_source(&self, sample: u32) -> Outcome {
        self.try_source(sample).unwrap_or(Outcome::Failed)
    }

    fn try_source(&self, sample: u32) -> Result<Outcome, Errno> {
        let table = Extents::open(self.table.region()).ok_or(Errno::INVAL)?;
        let extent = table.locate(u64::from(sample)).ok_or(Errno::INVAL)?;
        // Something else than a file may be there: to open it must not wait.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let source = SourceFile::new(uninterrupted(|| rustix::fs::open(extent.path, flags, Mode::empty()))?);
        let before = source.stat(Ask::Kernel)?;
        if !before.is_regular() {
            return Err(Errno::INVAL);
        }
        let left = before.identity.size.checked_sub(extent.offset).ok_or(Errno::INVAL)?;
        let length = if extent.length == TO_THE_END { left } else { extent.length };
        if length > left {
            return Err(Errno::INVAL);
        }
        let bytes = u32::try_from(length).ok().filter(|bytes| *bytes < u32::MAX).ok_or(Errno::FBIG)?;
        let Some(mut taken) = Arena::take(&self.arena, bytes) else {
            return Ok(Outcome::NoRoom { bytes });
        };
        let version = self.version(&before.identity);
        let key = ExtentKey::new(extent.path, extent.offset, extent.length);
        for (number, disk) in self.disks.iter().enumerate() {
            if !disk.claim(key, version) {
                continue;
            }
            if disk.read(key, version, taken.bytes_mut()).is_ok_and(|is_there| is_there) {
                return Ok(whole(taken, version, Some(number)));
            }
            disk.release(key);
        }
        read_full(&source, taken.bytes_mut(), extent.offset)?;
        // One version of the file, from its beginning to its end.
        if source.stat(Ask::Kernel)?.identity != before.identity {
            return Err(Errno::STALE);
        }
        Ok(whole(taken, version, None))
    }

    /// As which version of its file something is kept. Where the file was changed only just, its times may not tell the next change (fault F5): then only this
    /// loader knows what it has.
    fn version(&self, identity: &Identity) -> Version {
        let (newest_s, now_s) = (identity.mtime.sec.max(identity.ctime.sec), unix_s());
        let is_recent = newest_s > now_s - self.settled_after.as_secs() as i64 && newest_s < now_s + CLOCK_SKEW_MAX.as_secs() as i64;
        if is_recent { Version::of_nothing() } else { Version::of(identity) }
    }

    fn write(&self, sample: u32, disk: Disk, place: Place, version: Version) -> Result<(), WriteError> {
        let (Some(key), Some(disk)) = (self.key(sample), self.disks.get(disk)) else {
            return Err(WriteError::Fault);
        };
        disk.put(key, version, self.arena.bytes(place))
            .map_err(|error| if error.is_full() { WriteError::Full } else { WriteError::Fault })
    }
}

fn whole(taken: Taken, version: Version, left_on: Option<Disk>) -> Outcome {
    Outcome::Whole {
        place: taken.keep(),
        version,
        left_on,
    }
}

fn read_full(source: &SourceFile, bytes: &mut [u8], offset: u64) -> Result<(), Errno> {
    let mut filled = 0;
    while filled < bytes.len() {
        let (at, rest) = (offset + filled as u64, &mut bytes[filled..]);
        match uninterrupted(|| source.read_at(rest, at))? {
            // It ends before its size.
            0 => return Err(Errno::INVAL),
            read => filled += read,
        }
    }
    Ok(())
}

fn uninterrupted<T>(mut operation: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..INTERRUPTIONS_MAX {
        match operation() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
    Err(Errno::INTR)
}

#[cfg(test)]
mod tests;
