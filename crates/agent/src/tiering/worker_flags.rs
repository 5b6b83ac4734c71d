//! Orders of the event loop to the threads that make copies.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
};

/// State of prefetched copies that are being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PrefetchGate {
    /// The workers give them up.
    End,
    /// The workers let them wait.
    Hold,
    /// The workers go on with them.
    Go,
}

impl PrefetchGate {
    fn of(stored: &AtomicU8) -> Self {
        [Self::End, Self::Hold, Self::Go]
            .into_iter()
            .find(|ahead| *ahead as u8 == stored.load(Relaxed))
            .unwrap_or(Self::End)
    }
}

/// Orders to all workers.
#[derive(Debug, Default)]
pub(crate) struct WorkerFlags {
    /// True if copies in memory that are being made are to be given up.
    memory_short: AtomicBool,
    /// A [`PrefetchGate`].
    ahead: AtomicU8,
    /// Copies that other nodes wait for, and that do not follow their readers any more.
    hurried: Mutex<HashSet<u64>>,
    /// True if there are such copies.
    are_hurried: AtomicBool,
}

impl WorkerFlags {
    /// Returns true if copies in memory are to be given up.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.memory_short.load(Relaxed)
    }

    pub(crate) fn set_memory_short(&self, is_short: bool) {
        self.memory_short.store(is_short, Relaxed);
    }

    pub(crate) fn ahead(&self) -> PrefetchGate {
        PrefetchGate::of(&self.ahead)
    }

    pub(crate) fn set_ahead(&self, ahead: PrefetchGate) {
        self.ahead.store(ahead as u8, Relaxed);
    }

    fn hurried(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.hurried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a copy goes on at full speed, whatever its reader does.
    pub(crate) fn is_hurried(&self, number: u64) -> bool {
        self.are_hurried.load(Relaxed) && self.hurried().contains(&number)
    }

    /// Has a copy go on at full speed, or forgets it.
    pub(crate) fn set_hurried(&self, number: u64, is_hurried: bool) {
        if !is_hurried && !self.are_hurried.load(Relaxed) {
            return;
        }
        let mut hurried = self.hurried();
        if is_hurried {
            hurried.insert(number);
        } else {
            hurried.remove(&number);
        }
        self.are_hurried.store(!hurried.is_empty(), Relaxed);
    }
}
