//! The memory of a loader's samples: ranks map it for reading, and the reading threads write to it.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use forebay_policy::ranges::Ranges;

use super::machine::ArenaRange;

use crate::host::shared::SharedFile;

/// Step in bytes in which memory is taken from the kernel.
const BACKED_STEP_BYTES: u64 = 16 << 20;
/// Length of the shortest mapping in bytes.
const BYTES_MIN: usize = 4096;

/// A loader's memory.
#[derive(Debug)]
pub(crate) struct Arena {
    file: SharedFile,
    /// NUMA nodes whose ranks' samples have a part of it each; 0 if samples of all ranks lie anywhere.
    homes: u64,
    state: Mutex<ArenaState>,
}

#[derive(Debug)]
struct ArenaState {
    free: Ranges,
    /// True for each step that has memory behind it.
    is_backed: Vec<bool>,
}

/// A range of the arena owned by one holder; given back when dropped.
#[derive(Debug)]
pub(crate) struct TakenRange {
    arena: Arc<Arena>,
    place: ArenaRange,
}

impl Arena {
    /// Creates an arena of `bytes` for ranks on so many NUMA nodes. Its memory is taken only as it is needed.
    pub(crate) fn create(bytes: u64, homes: usize) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(io::Error::other)?.max(BYTES_MIN);
        Ok(Self {
            file: SharedFile::anonymous_for_readers("forebay-arena", length)?,
            homes: homes as u64,
            state: Mutex::new(ArenaState {
                free: Ranges::new(bytes),
                is_backed: vec![false; length.div_ceil(BACKED_STEP_BYTES as usize)],
            }),
        })
    }

    /// Descriptor to send to ranks.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.descriptor()
    }

    /// Length of the mapping.
    pub(crate) fn length(&self) -> u64 {
        self.file.region().len() as u64
    }

    /// Bytes that it may still take from the kernel.
    pub(crate) fn unbacked_bytes(&self) -> u64 {
        let state = self.state();
        let unbacked = (0..state.is_backed.len()).filter(|step| !state.is_backed[*step]);
        unbacked.map(|step| self.step(step).1).sum()
    }

    /// Returns offset and length of a step in which memory is taken.
    fn step(&self, number: usize) -> (u64, u64) {
        let from = number as u64 * BACKED_STEP_BYTES;
        (from, BACKED_STEP_BYTES.min(self.length() - from))
    }

    fn state(&self) -> MutexGuard<'_, ArenaState> {
        // A panic can't leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a range of `bytes`, if there is one, with memory behind it: in the part of the NUMA node with the number
    /// `home` if there is room, else anywhere. New memory is on the node of the calling thread.
    pub(crate) fn take(arena: &Arc<Self>, bytes: u32, home: Option<usize>) -> Option<TakenRange> {
        let mut state = arena.state();
        let part = home
            .filter(|_| arena.homes > 1)
            .map(|home| home as u64 * (arena.length() / arena.homes));
        let offset = match part {
            Some(from) => state.free.take_from(from, u64::from(bytes)),
            None => state.free.take(u64::from(bytes)),
        }?;
        let end = offset + u64::from(bytes);
        for number in (offset / BACKED_STEP_BYTES) as usize..end.div_ceil(BACKED_STEP_BYTES) as usize {
            let (from, length) = arena.step(number);
            if !state.is_backed[number] && arena.file.reserve(from, length).is_err() {
                state.free.give(offset, u64::from(bytes));
                return None;
            }
            state.is_backed[number] = true;
        }
        Some(TakenRange {
            arena: Arc::clone(arena),
            place: ArenaRange { offset, bytes },
        })
    }

    /// Gives a range back.
    pub(crate) fn give(&self, place: ArenaRange) {
        self.state().free.give(place.offset, u64::from(place.bytes));
    }

    /// Returns the bytes of a range that was kept ([`TakenRange::keep`]) and not given back.
    pub(crate) fn bytes(&self, place: ArenaRange) -> &[u8] {
        self.file.region().bytes(place.offset, u64::from(place.bytes)).unwrap_or_default()
    }
}

impl TakenRange {
    /// Bytes of the range.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let ArenaRange { offset, bytes } = self.place;
        let base = self.arena.file.region().base();
        // SAFETY: within the mapping, writable, and backed; no other piece overlaps it, no rank has been told of it,
        // and only one can borrow it from here.
        unsafe { std::slice::from_raw_parts_mut(base.add(offset as usize).as_ptr(), bytes as usize) }
    }

    /// Gives back all but the first `bytes` of the range.
    pub(crate) fn shorten(&mut self, bytes: u32) {
        let ArenaRange { offset, bytes: taken } = self.place;
        let rest = ArenaRange {
            offset: offset + u64::from(bytes),
            bytes: taken.saturating_sub(bytes),
        };
        self.place.bytes = taken - rest.bytes;
        self.arena.give(rest);
    }

    /// Keeps the range after this value is gone, until [`Arena::give`].
    pub(crate) fn keep(mut self) -> ArenaRange {
        let place = self.place;
        // Leaves nothing to give back on drop.
        self.place.bytes = 0;
        place
    }
}

impl Drop for TakenRange {
    fn drop(&mut self) {
        self.arena.give(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_seen_by_who_maps_it_and_can_be_changed_by_nobody_else() {
        let arena = Arc::new(Arena::create(100_000, 0).unwrap());
        let mut taken = Arena::take(&arena, 5, None).unwrap();
        taken.bytes_mut().copy_from_slice(b"hello");
        let place = taken.keep();
        assert_eq!(arena.bytes(place), b"hello");
        let mut seen = [0; 5];
        rustix::io::pread(arena.descriptor(), &mut seen, place.offset).unwrap();
        assert_eq!(&seen, b"hello");
        assert!(
            rustix::io::pwrite(arena.descriptor(), b"x", place.offset).is_err(),
            "sealed against writing"
        );
        assert!(rustix::fs::ftruncate(arena.descriptor(), 0).is_err(), "and shrinking");
    }

    #[test]
    fn what_was_taken_too_much_is_given_back() {
        let arena = Arc::new(Arena::create(10_000, 0).unwrap());
        let mut taken = Arena::take(&arena, 10_000, None).unwrap();
        taken.shorten(20_000);
        assert!(Arena::take(&arena, 1, None).is_none());
        taken.shorten(4000);
        taken.bytes_mut().fill(7);
        let place = taken.keep();
        assert_eq!((place.bytes, arena.bytes(place).len()), (4000, 4000));
        let rest = Arena::take(&arena, 6000, None).unwrap();
        drop(rest);
        arena.give(place);
        assert!(Arena::take(&arena, 10_000, None).is_some());
    }

    #[test]
    fn it_is_as_large_as_was_said_and_what_is_dropped_comes_back() {
        let arena = Arc::new(Arena::create(10_000, 0).unwrap());
        assert_eq!(arena.unbacked_bytes(), 10_000);
        let first = Arena::take(&arena, 6000, None).unwrap().keep();
        let second = Arena::take(&arena, 4000, None).unwrap();
        assert!(Arena::take(&arena, 1, None).is_none());
        assert!(Arena::take(&arena, 0, None).is_some(), "nothing fits anywhere");
        assert_eq!(arena.unbacked_bytes(), 0);
        drop(second);
        assert_eq!(Arena::take(&arena, 4000, None).unwrap().keep().offset, 6000);
        arena.give(first);
        assert!(Arena::take(&arena, 6001, None).is_none());
        assert!(Arena::take(&arena, 6000, None).is_some());
    }

    #[test]
    fn ranks_of_a_numa_node_have_a_part_of_it_and_the_rest_when_that_is_full() {
        let length = 8 * BACKED_STEP_BYTES;
        let arena = Arc::new(Arena::create(length, 2).unwrap());
        let near = |home| Arena::take(&arena, 100, home).unwrap().keep().offset;
        assert_eq!([near(Some(0)), near(Some(1)), near(Some(1))], [0, length / 2, length / 2 + 100]);
        assert_eq!(arena.unbacked_bytes(), 6 * BACKED_STEP_BYTES, "a step of each part");
        let half = (length / 2) as u32;
        assert_eq!(Arena::take(&arena, half - 200, Some(1)).unwrap().keep().offset, length / 2 + 200);
        assert_eq!(near(Some(1)), 100, "in the other part");
        let one = Arc::new(Arena::create(length, 1).unwrap());
        assert_eq!(Arena::take(&one, 100, Some(0)).unwrap().keep().offset, 0);
    }
}
