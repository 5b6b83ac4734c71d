//! The processes of a run in which the preload library is loaded. They tell a parent whether all changes of an ended
//! child were seen.
//!
//! A program enters itself when the library's constructor runs in it, and so does a forked child. It is removed before
//! it executes another program, which enters itself if it is covered, too. An absent process counts as not covered: a
//! lost entry costs a comparison of copies with the source.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::region::Region;

/// Processes whose numbers differ by less than this never share a slot.
const SLOTS: u64 = 4096;
/// Length of the table in bytes.
pub(crate) const BYTES: u64 = SLOTS * 8;
/// Bits of a process number: Linux has no larger ones.
const PROCESS_BITS: u32 = 22;
const PROCESSES: u64 = 1 << PROCESS_BITS;

/// Layout that the preload library and the command share.
pub(crate) const LAYOUT: &[u64] = &[SLOTS, BYTES, PROCESS_BITS as u64];

/// Access to the table.
#[derive(Clone, Copy, Debug)]
pub struct Covered<'a> {
    region: Region<'a>,
    base: u64,
}

/// Returns the milliseconds of boot time that an entry keeps above the process number.
const fn milliseconds(now: u64) -> u64 {
    now / 1_000_000
}

impl<'a> Covered<'a> {
    /// Opens the table that begins at a byte offset, all zeroes at first.
    pub(crate) const fn at(region: Region<'a>, base: u64) -> Self {
        Self { region, base }
    }

    fn slot(&self, process: u64) -> Option<&'a AtomicU64> {
        self.region.element(self.base, process % SLOTS)
    }

    /// Enters a process at `now`, in nanoseconds of boot time.
    pub fn enter(&self, process: u64, now: u64) {
        if process < PROCESSES
            && let Some(slot) = self.slot(process)
        {
            slot.store(milliseconds(now) << PROCESS_BITS | process, Release);
        }
    }

    /// Removes a process, and returns whether it was covered.
    pub fn remove(&self, process: u64) -> bool {
        self.remove_if(process, |_| true)
    }

    /// Removes an entry made before `begun`, in nanoseconds of boot time: it belongs to an earlier process with the
    /// same number.
    pub fn remove_older(&self, process: u64, begun: u64) {
        self.remove_if(process, |entered| entered < milliseconds(begun));
    }

    fn remove_if(&self, process: u64, test: impl Fn(u64) -> bool) -> bool {
        let Some(slot) = self.slot(process) else { return false };
        let entry = slot.load(Acquire);
        let is_it = entry != 0 && entry % PROCESSES == process && test(entry >> PROCESS_BITS);
        is_it && slot.compare_exchange(entry, 0, AcqRel, Relaxed).is_ok()
    }
}
