//! The threads of a loader that read samples into the arena, and write those that stay to disks. What is done is decided elsewhere.
//!
//! Threads begin as they are needed. One that waits for a source that hangs holds nobody up but who waits for that sample, and ends when the source answers; a store
//! is not tried again then.

mod source;

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use forebay_contract::Extents;
use forebay_objects::Stores;
use forebay_store::{ExtentKey, Segments, Version};

use self::source::{Opened, Unreadable};
use super::{
    arena::{Arena, Taken},
    doorbell::Doorbell,
    machine::{Disk, Event, Outcome, Place, ReadFrom, WriteError},
};

use crate::host::shared::SharedFile;

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
    /// Whose objects are among the extents.
    pub(crate) stores: Stores,
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
        self.shared.tools.stores.end();
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

    fn try_source(&self, sample: u32) -> Result<Outcome, Unreadable> {
        let table = Extents::open(self.table.region()).ok_or(Unreadable)?;
        let extent = table.locate(u64::from(sample)).ok_or(Unreadable)?;
        let key = ExtentKey::new(extent.path, extent.offset, extent.length);
        if let Some(outcome) = source::meant(&extent).and_then(|version| self.left(key, version)) {
            return Ok(outcome);
        }
        let opened = Opened::of(&extent, &self.stores)?;
        let bytes = u32::try_from(opened.bytes())
            .ok()
            .filter(|bytes| *bytes < u32::MAX)
            .ok_or(Unreadable)?;
        let Some(mut taken) = Arena::take(&self.arena, bytes) else {
            return Ok(Outcome::NoRoom { bytes });
        };
        let version = opened.version(self.settled_after);
        if let Some(disk) = self.claimed(key, version, taken.bytes_mut()) {
            return Ok(whole(taken, version, Some(disk)));
        }
        opened.read(taken.bytes_mut())?;
        Ok(whole(taken, version, None))
    }

    /// An extent in this version, where an earlier job has left it on a disk.
    fn left(&self, key: ExtentKey, version: Version) -> Option<Outcome> {
        let found = self.disks.iter().filter_map(|disk| disk.find(key));
        let bytes = found.filter(|found| found.version == version).map(|found| found.bytes).next()?;
        let Some(mut taken) = Arena::take(&self.arena, bytes) else {
            return Some(Outcome::NoRoom { bytes });
        };
        let disk = self.claimed(key, version, taken.bytes_mut())?;
        Some(whole(taken, version, Some(disk)))
    }

    /// Claims an extent in this version on a disk that has it, and reads it there.
    fn claimed(&self, key: ExtentKey, version: Version, into: &mut [u8]) -> Option<Disk> {
        for (number, disk) in self.disks.iter().enumerate() {
            if !disk.claim(key, version) {
                continue;
            }
            if disk.read(key, version, into).is_ok_and(|is_there| is_there) {
                return Some(number);
            }
            disk.release(key);
        }
        None
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

#[cfg(test)]
mod tests;
