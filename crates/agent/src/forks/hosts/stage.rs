//! Memory of the server of a job's states, from which they are sent as far as they have come.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
};

use forebay_peers::Blob;
use rustix::{
    fs::{self, FallocateFlags, MemfdFlags},
    io::{pread, pwrite},
};

use crate::host::memory::Gauge;

/// Memory for a state, with its pages. The kernel takes as long to make pages as a copy into them takes: so they are
/// made before the state comes.
#[derive(Debug)]
pub(super) struct StageMemory {
    pub(super) file: OwnedFd,
    length: u64,
}

/// One stage is made at a time: each sees the memory that the others have taken.
static MAKING: Mutex<()> = Mutex::new(());

impl StageMemory {
    /// Makes memory of this length, pages included.
    ///
    /// # Errors
    /// There is not enough beside what the host needs to go on.
    pub(super) fn make(length: u64) -> Result<Self, String> {
        let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let create = || fs::memfd_create("forebay-state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = create().map_err(|error| format!("no memory for its state: {error}"))?;
        let mut memory = Self { file, length: 0 };
        memory.grow(length)?;
        Ok(memory)
    }

    /// Gives the memory another length.
    ///
    /// # Errors
    /// There is not enough memory beside what the host needs to go on.
    pub(super) fn set_length(&mut self, length: u64) -> Result<(), String> {
        if length > self.length {
            let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
            return self.grow(length);
        }
        fs::ftruncate(&self.file, length).map_err(|error| format!("the memory for its state can't be cut: {error}"))?;
        self.length = length;
        Ok(())
    }

    fn grow(&mut self, length: u64) -> Result<(), String> {
        let (had, free) = (self.length, free_bytes());
        if length - had > free {
            return Err(format!(
                "no memory: a state of {length} bytes does not fit into the {free} bytes that are free, and a clone on another host needs a \
                 copy at both hosts"
            ));
        }
        let make = || {
            fs::ftruncate(&self.file, length)?;
            if length > had {
                fs::fallocate(&self.file, FallocateFlags::empty(), had, length - had)?;
            }
            Ok::<_, io::Error>(())
        };
        make().map_err(|error| format!("no memory for the {length} bytes of its state: {error}"))?;
        self.length = length;
        Ok(())
    }
}

/// Returns the bytes of memory that a state may take: what is free, but for the part that keeps the host alive.
pub(super) fn free_bytes() -> u64 {
    let memory = Gauge::find().look().memory;
    memory.free_bytes.saturating_sub(2 * memory.floor_bytes())
}

/// Part of a stream of a rank's state, which is sent as far as it has come.
#[derive(Debug)]
pub(super) struct Stage {
    file: OwnedFd,
    /// Part of the stream in bytes.
    part: Range<u64>,
    filled: Mutex<FilledRanges>,
}

/// Ranges of a stream that have come, by their beginnings.
#[derive(Debug, Default)]
pub(super) struct FilledRanges(BTreeMap<u64, u64>);

impl FilledRanges {
    /// Adds a range.
    pub(super) fn fill(&mut self, mut range: Range<u64>) {
        if let Some((start, _)) = self.0.range(..=range.start).next_back().filter(|(_, end)| **end >= range.start) {
            range.start = *start;
        }
        if let Some(end) = self.0.remove(&range.end) {
            range.end = end;
        }
        self.0.insert(range.start, range.end);
    }

    /// Returns whether all of a range has come.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        let before = self.0.range(..=range.start).next_back();
        before.is_some_and(|(_, end)| *end >= range.end) || range.is_empty()
    }
}

impl Stage {
    /// Makes a stage for a part of a stream, in memory that was reserved, if any.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn create(memory: Option<StageMemory>, part: Range<u64>) -> Result<Self, String> {
        let length = part.end - part.start;
        let mut memory = memory.map_or_else(|| StageMemory::make(length), Ok)?;
        memory.set_length(length)?;
        Ok(Self {
            file: memory.file,
            part,
            filled: Mutex::default(),
        })
    }

    /// Writes bytes of the stream at `at`; those outside of the stage's part are left out.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let (from, to) = (at.max(self.part.start), (at + bytes.len() as u64).min(self.part.end));
        if from >= to {
            return Ok(());
        }
        let within = |offset: u64| usize::try_from(offset - at).unwrap_or(bytes.len());
        let mut bytes = &bytes[within(from)..within(to)];
        let mut offset = from - self.part.start;
        while !bytes.is_empty() {
            let written = pwrite(&self.file, bytes, offset).map_err(|error| format!("no memory for its state: {error}"))?;
            (bytes, offset) = (&bytes[written..], offset + written as u64);
        }
        self.filled.lock().unwrap_or_else(PoisonError::into_inner).fill(from..to);
        Ok(())
    }

    /// Returns whether all bytes of a range have come, counted from the first byte of the stage.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        let start = self.part.start;
        let range = start.saturating_add(range.start)..start.saturating_add(range.end).min(self.part.end);
        self.filled.lock().unwrap_or_else(PoisonError::into_inner).has(&range)
    }
}

impl Blob for Stage {
    fn length(&self) -> u64 {
        self.part.end - self.part.start
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        if !self.has(&(offset..offset.saturating_add(room.len() as u64))) {
            return Err(io::Error::other("these bytes of the state have not come"));
        }
        fill(&self.file, offset, room)
    }
}

/// Reads all of `room` from a file.
pub(super) fn fill(file: &OwnedFd, offset: u64, room: &mut [u8]) -> io::Result<()> {
    let mut had = 0;
    while had < room.len() {
        match pread(file, &mut room[had..], offset.saturating_add(had as u64)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => had += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_what_was_put_of_its_part_in_any_order() {
        let stage = Stage::create(None, 10..20).unwrap();
        let mut room = [0; 4];
        stage.put(0, b"0123456789ab").unwrap();
        stage.put(16, b"ghijklmn").unwrap();
        assert!(stage.has(&(0..2)) && !stage.has(&(0..3)) && stage.has(&(6..10)));
        stage.read(0, &mut room[..2]).unwrap();
        assert_eq!(&room[..2], b"ab");
        assert!(stage.read(1, &mut room).is_err());
        stage.put(12, b"cdef").unwrap();
        assert!(stage.has(&(0..10)));
        stage.read(3, &mut room).unwrap();
        assert_eq!((&room, stage.length()), (b"defg", 10));
    }

    #[test]
    fn f54_memory_has_its_pages_before_bytes_come_and_is_refused_with_numbers() {
        let mut memory = StageMemory::make(3 << 20).unwrap();
        let pages = |memory: &StageMemory| fs::fstat(&memory.file).unwrap().st_blocks * 512;
        assert_eq!(pages(&memory), 3 << 20);
        memory.set_length(1 << 20).unwrap();
        assert_eq!(pages(&memory), 1 << 20);
        memory.set_length(2 << 20).unwrap();
        assert_eq!(pages(&memory), 2 << 20);
        let why = memory.set_length(1 << 60).unwrap_err();
        assert!(why.contains(&format!("{} bytes does not fit into the", 1u64 << 60)), "{why}");
    }
}
