//! Threads of a loader that read samples into the arena, and write residents to disks. The machine decides what they
//! do.
//!
//! Threads begin as they are needed. One that waits for a source that hangs delays only requests for that sample, and
//! ends when the source answers; a store is not tried again then.

mod source;

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use forebay_contract::Extents;
use forebay_objects::Stores;
use forebay_store::{ExtentKey, FileVersion, Segments};

use self::source::{OpenedExtent, Unreadable};
use super::{
    arena::{Arena, TakenRange},
    homes::{Homes, ThreadHome},
    machine::{ArenaRange, DiskIndex, MachineEvent, ReadFrom, ReadOutcome, WriteError},
};

use crate::host::doorbell::Doorbell;
use crate::host::shared::SharedFile;

/// ReaderJob of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReaderJob {
    /// Read a sample for a rank.
    Read {
        flight: u32,
        sample: u32,
        from: ReadFrom,
        rank: usize,
    },
    /// Write a sample.
    Write {
        sample: u32,
        disk: DiskIndex,
        place: ArenaRange,
        version: FileVersion,
    },
}

/// Resources of the threads.
#[derive(Debug)]
pub(crate) struct Tools {
    /// File of the table of extents.
    pub(crate) table: SharedFile,
    pub(crate) arena: Arc<Arena>,
    pub(crate) disks: Vec<Arc<Segments>>,
    /// Stores of the objects among the extents.
    pub(crate) stores: Stores,
    /// Doorbell to ring when a job is done.
    pub(crate) doorbell: Arc<Doorbell>,
    /// Age of a change from which a file's times are sure to show the next change.
    pub(crate) settled_after: Duration,
}

#[derive(Debug)]
struct ReaderShared {
    tools: Tools,
    homes: Homes,
    state: Mutex<ReaderState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct ReaderState {
    reads: VecDeque<ReaderJob>,
    /// Writes, done only if nothing is to be read.
    writes: VecDeque<ReaderJob>,
    /// Finished jobs with their events.
    done: Vec<(ReaderJob, MachineEvent)>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

/// The threads of a loader. They end when this is dropped, except for those that wait for a source.
#[derive(Debug)]
pub(crate) struct Readers {
    shared: Arc<ReaderShared>,
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
    pub(crate) fn new(tools: Tools, homes: Homes, threads_max: usize) -> Self {
        Self {
            shared: Arc::new(ReaderShared {
                tools,
                homes,
                state: Mutex::default(),
                wake: Condvar::new(),
            }),
            threads_max,
        }
    }

    pub(crate) fn tools(&self) -> &Tools {
        &self.shared.tools
    }

    /// Queues a job for a thread.
    pub(crate) fn submit(&self, job: ReaderJob) {
        let mut state = self.shared.state();
        match job {
            ReaderJob::Read { .. } => state.reads.push_back(job),
            ReaderJob::Write { .. } => state.writes.push_back(job),
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

    /// Refuses all reads if there is no thread at all: ranks have to read themselves.
    fn give_up_if_alone(&self) {
        let mut state = self.shared.state();
        if state.threads > 0 {
            return;
        }
        let jobs: Vec<ReaderJob> = state.reads.drain(..).collect();
        let writes: Vec<ReaderJob> = state.writes.drain(..).collect();
        let failed = jobs.into_iter().chain(writes).map(|job| (job, job.failed()));
        state.done.extend(failed);
        drop(state);
        self.shared.tools.doorbell.ring();
    }

    /// Returns the events since the last call.
    pub(crate) fn done(&self) -> Vec<MachineEvent> {
        let done = std::mem::take(&mut self.shared.state().done);
        done.into_iter().map(|(_, event)| event).collect()
    }

    /// Gives up claims to samples on disks, in a thread of its own: there may be millions.
    pub(crate) fn let_go(&self, residents: Vec<(u32, DiskIndex)>) {
        if residents.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let work = move || {
            for (sample, disk) in residents {
                shared.tools.release(sample, disk);
            }
        };
        // Without a thread they keep their room as long as another loader uses the disk.
        let _ = thread::Builder::new().name("loader-end".into()).spawn(work);
    }
}

impl ReaderJob {
    /// Returns the event of a failure.
    fn failed(self) -> MachineEvent {
        match self {
            Self::Read { flight, .. } => MachineEvent::Read {
                flight,
                outcome: ReadOutcome::Failed,
            },
            Self::Write { sample, disk, .. } => MachineEvent::Written {
                sample,
                disk,
                result: Err(WriteError::Fault),
            },
        }
    }
}

impl ReaderShared {
    fn state(&self) -> MutexGuard<'_, ReaderState> {
        // A panic can't leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a thread.
    fn work(&self) {
        let mut thread = (self.homes.count() > 0).then(ThreadHome::of_this_thread);
        while let Some(job) = self.next_job() {
            let home = match job {
                ReaderJob::Read { rank, .. } => self.homes.of_rank(rank),
                ReaderJob::Write { .. } => None,
            };
            if let Some(thread) = &mut thread {
                thread.move_to(home, &self.homes);
            }
            // If a job panics, no rank may wait for it: its event is reported in any case.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.tools.carry_out(job, home)));
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

    fn next_job(&self) -> Option<ReaderJob> {
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
    /// Carries out a job. What it reads is kept near the NUMA node with the number `home`.
    fn carry_out(&self, job: ReaderJob, home: Option<usize>) -> MachineEvent {
        match job {
            ReaderJob::Read { flight, sample, from, .. } => {
                let outcome = match from {
                    // Other nodes are asked by the data plane.
                    ReadFrom::Source | ReadFrom::Peer { .. } => self.read_source(sample, home),
                    ReadFrom::Disk { disk, version, bytes } => self.read_disk(sample, (disk, version), bytes, home),
                };
                MachineEvent::Read { flight, outcome }
            }
            ReaderJob::Write {
                sample,
                disk,
                place,
                version,
            } => {
                let result = self.write(sample, disk, place, version);
                MachineEvent::Written { sample, disk, result }
            }
        }
    }

    fn key(&self, sample: u32) -> Option<ExtentKey> {
        let extent = Extents::open(self.table.region())?.locate(u64::from(sample))?;
        Some(ExtentKey::new(extent.path, extent.offset, extent.length))
    }

    /// Gives up the claim to a sample on a disk.
    pub(crate) fn release(&self, sample: u32, disk: DiskIndex) {
        if let (Some(key), Some(disk)) = (self.key(sample), self.disks.get(disk)) {
            disk.release(key);
        }
    }

    /// Undoes the claim of a job whose end nobody will see.
    fn undo_claim(&self, job: ReaderJob, event: MachineEvent) {
        let claimed = match (job, event) {
            (ReaderJob::Write { sample, disk, .. }, MachineEvent::Written { result: Ok(()), .. }) => Some((sample, disk)),
            (
                ReaderJob::Read { sample, .. },
                MachineEvent::Read {
                    outcome: ReadOutcome::Whole { left_on, .. },
                    ..
                },
            ) => left_on.map(|disk| (sample, disk)),
            _ => None,
        };
        if let Some((sample, disk)) = claimed {
            self.release(sample, disk);
        }
    }

    fn read_disk(&self, sample: u32, (disk, version): (DiskIndex, FileVersion), bytes: u32, home: Option<usize>) -> ReadOutcome {
        let (Some(key), Some(disk)) = (self.key(sample), self.disks.get(disk)) else {
            return ReadOutcome::Gone;
        };
        let Some(mut taken) = Arena::take(&self.arena, bytes, home) else {
            return ReadOutcome::NoRoom { bytes };
        };
        // A read that fails here is made at the source.
        match disk.read(key, version, taken.bytes_mut()) {
            Ok(true) => whole(taken, version, None),
            Ok(false) => ReadOutcome::Gone,
            Err(_) => {
                // If this fails, too, no loader finds it anyway: its record is written with the next one.
                let _ = disk.forget(key);
                ReadOutcome::DiskFault
            }
        }
    }

    /// Reads a sample from its source. The rank sees the error when it reads by itself.
    fn read_source(&self, sample: u32, home: Option<usize>) -> ReadOutcome {
        self.try_source(sample, home).unwrap_or(ReadOutcome::Failed)
    }

    fn try_source(&self, sample: u32, home: Option<usize>) -> Result<ReadOutcome, Unreadable> {
        let table = Extents::open(self.table.region()).ok_or(Unreadable)?;
        let extent = table.locate(u64::from(sample)).ok_or(Unreadable)?;
        let key = ExtentKey::new(extent.path, extent.offset, extent.length);
        if let Some(outcome) = source::meant(&extent).and_then(|version| self.left(key, version, home)) {
            return Ok(outcome);
        }
        let opened = OpenedExtent::of(&extent, &self.stores)?;
        let bytes = u32::try_from(opened.bytes())
            .ok()
            .filter(|bytes| *bytes < u32::MAX)
            .ok_or(Unreadable)?;
        let Some(mut taken) = Arena::take(&self.arena, bytes, home) else {
            return Ok(ReadOutcome::NoRoom { bytes });
        };
        let version = opened.version(self.settled_after);
        if let Some(disk) = self.claimed(key, version, taken.bytes_mut()) {
            return Ok(whole(taken, version, Some(disk)));
        }
        opened.read(taken.bytes_mut())?;
        Ok(whole(taken, version, None))
    }

    /// Reads an extent in this version from a disk on which an earlier job has left it.
    fn left(&self, key: ExtentKey, version: FileVersion, home: Option<usize>) -> Option<ReadOutcome> {
        let found = self.disks.iter().filter_map(|disk| disk.find(key));
        let bytes = found.filter(|found| found.version == version).map(|found| found.bytes).next()?;
        let Some(mut taken) = Arena::take(&self.arena, bytes, home) else {
            return Some(ReadOutcome::NoRoom { bytes });
        };
        let disk = self.claimed(key, version, taken.bytes_mut())?;
        Some(whole(taken, version, Some(disk)))
    }

    /// Claims an extent in this version on a disk that has it, and reads it there.
    fn claimed(&self, key: ExtentKey, version: FileVersion, into: &mut [u8]) -> Option<DiskIndex> {
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

    fn write(&self, sample: u32, disk: DiskIndex, place: ArenaRange, version: FileVersion) -> Result<(), WriteError> {
        let (Some(key), Some(disk)) = (self.key(sample), self.disks.get(disk)) else {
            return Err(WriteError::Fault);
        };
        disk.put(key, version, self.arena.bytes(place))
            .map_err(|error| if error.is_full() { WriteError::Full } else { WriteError::Fault })
    }
}

fn whole(taken: TakenRange, version: FileVersion, left_on: Option<DiskIndex>) -> ReadOutcome {
    ReadOutcome::Whole {
        place: taken.keep(),
        version,
        left_on,
    }
}

#[cfg(test)]
mod tests;
