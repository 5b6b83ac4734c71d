//! Page of a job that can be forked: memory that its ranks share with the fork agent, by which they learn of requested
//! forks without a system call.
//!
//! The agent writes requests into free slots. The first rank at a step boundary writes its step, and rank 0 into a slot
//! the step boundary at which all ranks take their states. The page is zero at first.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
    fence,
};

use crate::{
    digest::layout,
    region::{Plain, Region},
};

/// Clones of one job that are being made concurrently: slots of the page, and readers of a read lease.
pub const FORKS_PER_JOB_MAX: usize = 16;

const SLOTS_AT: u64 = 64;
const PAGE_BYTES: usize = 4096;

#[repr(C)]
#[derive(Debug)]
struct PageHeader {
    /// Step boundaries so far.
    points: AtomicU64,
    /// Step of the last step boundary.
    step: AtomicU64,
    /// Number of slots in use.
    wanted: AtomicU64,
}

/// A requested fork in the page.
#[repr(C)]
#[derive(Debug)]
pub struct ForkSlot {
    /// Number of the fork; 0: the slot is free. Written last and read twice, so that the other words belong to it.
    fork: AtomicU64,
    /// Earliest step.
    at: AtomicU64,
    /// Earliest step boundary; 0: rank 0 has not announced it yet, and the others can only guess.
    from: AtomicU64,
    /// 1: all ranks of its clone are waiting for it.
    is_awaited: AtomicU64,
    /// Steps of shadow verification after which each rank sends its digests; 0: none.
    shadow: AtomicU64,
}

/// Layout that ranks and the agent share.
pub(crate) const LAYOUT: &[&[u64]] = &[
    layout!(PageHeader: points, step, wanted),
    layout!(ForkSlot: fork, at, from, is_awaited, shadow),
    &[SLOTS_AT, PAGE_BYTES as u64, FORKS_PER_JOB_MAX as u64],
];

const _: () = assert!(SLOTS_AT as usize + size_of::<ForkSlot>() * FORKS_PER_JOB_MAX <= PAGE_BYTES);

// SAFETY: atomics only.
unsafe impl Plain for PageHeader {}
// SAFETY: as above.
unsafe impl Plain for ForkSlot {}

/// Content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRequest {
    /// Number of the fork.
    pub fork: u64,
    /// Earliest step.
    pub at: u64,
    /// Earliest step boundary; 0: not announced.
    pub from: u64,
    /// True if all ranks of its clone are waiting for it.
    pub is_awaited: bool,
    /// Steps of shadow verification; 0: none.
    pub shadow: u64,
}

/// Access to the page.
#[derive(Clone, Copy, Debug)]
pub struct JobPage<'a> {
    region: Region<'a>,
    header: &'a PageHeader,
}

impl<'a> JobPage<'a> {
    /// Length of the page in bytes.
    pub const BYTES: usize = PAGE_BYTES;

    /// Opens the page in this memory. Returns `None` if it is too short.
    pub fn open(region: Region<'a>) -> Option<Self> {
        let header = region.at(0).filter(|_| region.len() >= PAGE_BYTES)?;
        Some(Self { region, header })
    }

    /// Returns the slots.
    pub fn slots(self) -> impl Iterator<Item = &'a ForkSlot> {
        (0..FORKS_PER_JOB_MAX as u64).filter_map(move |index| self.region.element(SLOTS_AT, index))
    }

    // Called by the agent.

    /// Requests a fork: ranks take their states, and send digests `shadow` steps later. `is_awaited`: the clone is
    /// waiting. `is_agreed`: several hosts have agreed on the step, so rank 0 does not announce a step boundary.
    /// Returns false if no slot is free. If [`Self::step`] is below `at` afterwards, each rank that comes to that step
    /// sees the request there.
    pub fn want(self, fork: u64, at: u64, is_awaited: bool, shadow: u32, is_agreed: bool) -> bool {
        let Some(slot) = self.slots_of(0).next() else {
            return false;
        };
        slot.at.store(at, Release);
        slot.from.store(u64::from(is_agreed), Release);
        slot.is_awaited.store(u64::from(is_awaited), Release);
        slot.shadow.store(u64::from(shadow), Release);
        slot.fork.store(fork, Release);
        self.header.wanted.fetch_add(1, Release);
        // Pairs with that of a rank: either the caller reads the rank's step, or the rank sees the request.
        fence(SeqCst);
        true
    }

    /// Records that all ranks of the fork's clone are waiting.
    pub fn awaited(self, fork: u64) {
        self.slots_of(fork).for_each(|slot| slot.is_awaited.store(1, Release));
    }

    /// Withdraws a fork that has its states, or has failed.
    pub fn unwant(self, fork: u64) {
        for slot in self.slots_of(fork) {
            slot.fork.store(0, Release);
            self.header.wanted.fetch_sub(1, Release);
        }
    }

    /// Returns the step of the last step boundary; `None` before the first.
    pub fn step(self) -> Option<u64> {
        (self.header.points.load(Acquire) > 0).then(|| self.header.step.load(Acquire))
    }

    fn slots_of(self, fork: u64) -> impl Iterator<Item = &'a ForkSlot> {
        self.slots().filter(move |slot| slot.fork.load(Acquire) == fork)
    }

    // Called by ranks.

    /// Records the step of a step boundary with this number, counted from 1, unless a rank came to it before.
    pub fn set_step(self, point: u64, step: u64) {
        if self.header.points.load(Acquire) < point {
            self.header.step.store(step, Release);
            self.header.points.store(point, Release);
        }
        // Before the rank looks for requests: see [`Self::want`].
        fence(SeqCst);
    }

    /// Returns whether a fork is requested.
    pub fn has_requests(self) -> bool {
        self.header.wanted.load(Acquire) > 0
    }
}

impl ForkSlot {
    /// Returns the slot's content; `None` if it is free, or changed meanwhile.
    pub fn request(&self) -> Option<SlotRequest> {
        let fork = self.fork.load(Acquire);
        let found = SlotRequest {
            fork,
            at: self.at.load(Acquire),
            from: self.from.load(Acquire),
            is_awaited: self.is_awaited.load(Acquire) == 1,
            shadow: self.shadow.load(Acquire),
        };
        (fork != 0 && self.fork.load(Acquire) == fork).then_some(found)
    }

    /// Announces the fork for a step boundary (rank 0).
    pub fn announce(&self, from: u64) {
        self.from.store(from, Release);
    }
}
