//! Memory of both hosts of a clone for a state, with its pages. The kernel takes as long to make pages as a copy into
//! them takes: so they are made before the state comes.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
};

use rustix::{
    fs::{self, FallocateFlags, MemfdFlags},
    io::pread,
};

use crate::host::memory::Gauge;

/// Memory is made by one thread at a time: each sees what the others have taken.
static MAKING: Mutex<()> = Mutex::new(());

/// Has memory made for a state of this length, of which `more` bytes are new.
///
/// # Errors
/// There is not enough memory beside what the host needs to go on.
pub(super) fn make_memory<T>(length: u64, more: u64, make: impl FnOnce() -> io::Result<T>) -> Result<T, String> {
    let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let free = free_bytes();
    if more > free {
        return Err(format!(
            "no memory: a state of {length} bytes does not fit into the {free} bytes that are free, and a clone on another host needs a \
             copy at both hosts"
        ));
    }
    make().map_err(|error| format!("no memory for the {length} bytes of its state: {error}"))
}

/// Returns the bytes of memory that a state may take: what is free, but for the part that keeps the host alive.
pub(super) fn free_bytes() -> u64 {
    let memory = Gauge::find().look().memory;
    memory.free_bytes.saturating_sub(2 * memory.floor_bytes())
}

/// Memory for a state at the clone's host, whose ranks read it by its descriptor.
#[derive(Debug)]
pub(super) struct ReceivedMemory {
    pub(super) file: OwnedFd,
    length: u64,
}

impl ReceivedMemory {
    /// Makes memory of this length, pages included.
    ///
    /// # Errors
    /// There is not enough beside what the host needs to go on.
    pub(super) fn make(length: u64) -> Result<Self, String> {
        let create = || fs::memfd_create("forebay-state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = create().map_err(|error| format!("no memory for its state: {error}"))?;
        let mut memory = Self { file, length: 0 };
        memory.set_length(length)?;
        Ok(memory)
    }

    /// Gives the memory another length.
    ///
    /// # Errors
    /// There is not enough memory beside what the host needs to go on.
    pub(super) fn set_length(&mut self, length: u64) -> Result<(), String> {
        let had = self.length;
        let cut = || fs::ftruncate(&self.file, length);
        if length > had {
            let grow = || Ok(cut().and_then(|()| fs::fallocate(&self.file, FallocateFlags::empty(), had, length - had))?);
            make_memory(length, length - had, grow)?;
        } else {
            cut().map_err(|error| format!("the memory for its state can't be cut: {error}"))?;
        }
        self.length = length;
        Ok(())
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
    fn f54_memory_has_its_pages_before_bytes_come_and_is_refused_with_numbers() {
        let mut memory = ReceivedMemory::make(3 << 20).unwrap();
        let pages = |memory: &ReceivedMemory| fs::fstat(&memory.file).unwrap().st_blocks * 512;
        assert_eq!(pages(&memory), 3 << 20);
        memory.set_length(1 << 20).unwrap();
        assert_eq!(pages(&memory), 1 << 20);
        memory.set_length(2 << 20).unwrap();
        assert_eq!(pages(&memory), 2 << 20);
        let why = memory.set_length(1 << 60).unwrap_err();
        assert!(why.contains(&format!("{} bytes does not fit into the", 1u64 << 60)), "{why}");
    }
}
