//! The memory that samples lie in: shared with ranks, which read it, and written to by the threads that read.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use forebay_policy::ranges::Ranges;

use super::machine::Place;

use crate::host::shared::SharedFile;

/// Memory is taken from the kernel in steps of this many bytes.
const BACKED_STEP_BYTES: u64 = 16 << 20;
/// No mapping is shorter.
const BYTES_MIN: usize = 4096;

/// A loader's memory.
#[derive(Debug)]
pub(crate) struct Arena {
    file: SharedFile,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: Ranges,
    /// Up to here there is memory behind it.
    backed: u64,
}

/// A piece of it that nobody else has; given back when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    arena: Arc<Arena>,
    place: Place,
}

impl Arena {
    /// So many bytes, of which memory is taken only as they are needed.
    pub(crate) fn create(bytes: u64) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(io::Error::other)?.max(BYTES_MIN);
        Ok(Self {
            file: SharedFile::anonymous_for_readers("forebay-arena", length)?,
            state: Mutex::new(State {
                free: Ranges::new(bytes),
                backed: 0,
            }),
        })
    }

    /// To be sent to ranks.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.descriptor()
    }

    /// Length of the mapping.
    pub(crate) fn length(&self) -> u64 {
        self.file.region().len() as u64
    }

    /// Memory that it may still take from the kernel.
    pub(crate) fn unbacked_bytes(&self) -> u64 {
        self.length() - self.state().backed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in it can be left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for so many bytes, if there is any, and memory behind it.
    pub(crate) fn take(arena: &Arc<Self>, bytes: u32) -> Option<Taken> {
        let mut state = arena.state();
        let offset = state.free.take(u64::from(bytes))?;
        let end = offset + u64::from(bytes);
        if end > state.backed {
            let backed = end.next_multiple_of(BACKED_STEP_BYTES).min(arena.length());
            if arena.file.reserve(state.backed, backed - state.backed).is_err() {
                state.free.give(offset, u64::from(bytes));
                return None;
            }
            state.backed = backed;
        }
        Some(Taken {
            arena: Arc::clone(arena),
            place: Place { offset, bytes },
        })
    }

    /// A place is needed no more.
    pub(crate) fn give(&self, place: Place) {
        self.state().free.give(place.offset, u64::from(place.bytes));
    }

    /// What lies at a place that was kept ([`Taken::keep`]) and not given back.
    pub(crate) fn bytes(&self, place: Place) -> &[u8] {
        self.file.region().bytes(place.offset, u64::from(place.bytes)).unwrap_or_default()
    }
}

impl Taken {
    /// Its bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let Place { offset, bytes } = self.place;
        let base = self.arena.file.region().base();
        // SAFETY: within the mapping, writable, and backed; no other piece overlaps it, no rank has been told of it, and only one can borrow it from here.
        unsafe { std::slice::from_raw_parts_mut(base.add(offset as usize).as_ptr(), bytes as usize) }
    }

    /// From now on the place is somebody's, until [`Arena::give`].
    pub(crate) fn keep(mut self) -> Place {
        let place = self.place;
        // Nothing is left to be given back.
        self.place.bytes = 0;
        place
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.arena.give(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_seen_by_who_maps_it_and_can_be_changed_by_nobody_else() {
        let arena = Arc::new(Arena::create(100_000).unwrap());
        let mut taken = Arena::take(&arena, 5).unwrap();
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
    fn it_is_as_large_as_was_said_and_what_is_dropped_comes_back() {
        let arena = Arc::new(Arena::create(10_000).unwrap());
        assert_eq!(arena.unbacked_bytes(), 10_000);
        let first = Arena::take(&arena, 6000).unwrap().keep();
        let second = Arena::take(&arena, 4000).unwrap();
        assert!(Arena::take(&arena, 1).is_none());
        assert!(Arena::take(&arena, 0).is_some(), "nothing fits anywhere");
        assert_eq!(arena.unbacked_bytes(), 0);
        drop(second);
        assert_eq!(Arena::take(&arena, 4000).unwrap().keep().offset, 6000);
        arena.give(first);
        assert!(Arena::take(&arena, 6001).is_none());
        assert!(Arena::take(&arena, 6000).is_some());
    }
}
