//! A job's page: memory that its ranks and the fork agent share, so that a point costs no system call while nobody wants a fork.
//!
//! Ranks must take their states after the same step without speaking to each other. All count their points alike. Rank 0 hears of a fork first and
//! *announces* it for its next point: no rank can come to that one before the gradients of the step in between were summed over all ranks, rank 0
//! included, so each has the announcement before it. Where a job does not sum over its ranks, they may be at different steps; the agent sees that and
//! refuses the fork.

use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, os::fd::OwnedFd};

use forebay_contract::Region;

use crate::{forks::limits::FORKS_PER_JOB_MAX, host::shared::SharedFile};

/// Points of rank 0 so far; then its last step; then how many slots are in use.
const POINTS: u64 = 0;
const STEP: u64 = 8;
const WANTED: u64 = 16;
const SLOTS: u64 = 64;
const SLOT_BYTES: u64 = 40;
const PAGE_BYTES: usize = 4096;

const _: () = assert!(SLOTS as usize + SLOT_BYTES as usize * FORKS_PER_JOB_MAX <= PAGE_BYTES);

/// The page.
#[derive(Debug)]
pub(crate) struct Page(SharedFile);

/// A fork that is wanted.
#[derive(Clone, Copy, Debug)]
struct Slot<'a> {
    /// Its number; 0: the slot is free. Written last and read twice, so that what stands beside it belongs to it.
    fork: &'a AtomicU64,
    /// Not before this step.
    at: &'a AtomicU64,
    /// Not before this point; 0: rank 0 has not announced it yet, and the others can only guess.
    from: &'a AtomicU64,
    /// 1: all ranks of its clone are waiting for it.
    is_awaited: &'a AtomicU64,
    /// So many steps after it each rank says what it has then; 0: it does not.
    shadow: &'a AtomicU64,
}

/// A fork for which a rank has to take its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its number.
    pub fork: u64,
    /// So many steps later the rank says what it has then; 0: it does not.
    pub shadow: u64,
}

/// What a point is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The forks for which a rank has to take its state now.
    pub forks: Vec<Wanted>,
    /// The clones of all of these are waiting.
    pub is_awaited: bool,
    /// There most likely is another one within as many points as it takes to make ready for it: whether the clones of all of those are waiting.
    pub near: Option<bool>,
}

impl Page {
    /// A page for a new job.
    pub(crate) fn create() -> io::Result<Self> {
        SharedFile::anonymous("forebay-job", PAGE_BYTES).map(Self)
    }

    /// The page behind a descriptor that the fork agent sent.
    pub(crate) fn open(descriptor: OwnedFd) -> io::Result<Self> {
        SharedFile::received(descriptor, PAGE_BYTES).map(Self)
    }

    /// The memory behind it.
    pub(crate) fn file(&self) -> &SharedFile {
        &self.0
    }

    /// The agent: has the ranks take their states for a fork, whose clone is waiting by now or is not, and say `shadow` steps later what they have then. False
    /// if no slot is free.
    pub(crate) fn want(&self, fork: u64, at: u64, is_awaited: bool, shadow: u32) -> bool {
        let Some(slot) = self.slots().find(|slot| slot.fork.load(Ordering::Acquire) == 0) else {
            return false;
        };
        slot.at.store(at, Ordering::Release);
        slot.from.store(0, Ordering::Release);
        slot.is_awaited.store(u64::from(is_awaited), Ordering::Release);
        slot.shadow.store(u64::from(shadow), Ordering::Release);
        slot.fork.store(fork, Ordering::Release);
        self.word(WANTED).fetch_add(1, Ordering::Release);
        true
    }

    /// The agent: all ranks of the fork's clone are waiting now.
    pub(crate) fn awaited(&self, fork: u64) {
        for slot in self.slots().filter(|slot| slot.fork.load(Ordering::Acquire) == fork) {
            slot.is_awaited.store(1, Ordering::Release);
        }
    }

    /// The agent: the fork has its states, or is given up.
    pub(crate) fn unwant(&self, fork: u64) {
        for slot in self.slots().filter(|slot| slot.fork.load(Ordering::Acquire) == fork) {
            slot.fork.store(0, Ordering::Release);
            self.word(WANTED).fetch_sub(1, Ordering::Release);
        }
    }

    /// The step of rank 0's last point.
    pub(crate) fn step(&self) -> Option<u64> {
        (self.word(POINTS).load(Ordering::Acquire) > 0).then(|| self.word(STEP).load(Ordering::Acquire))
    }

    /// What a rank has to do at a point. `point` counts from 1, alike in all ranks. To make ready takes it `ahead` points, at least one: rank 0 announces no
    /// fork before, unless that was asked for at a step. It looks `sight` points ahead, at least as many.
    pub(crate) fn due(&self, rank: u32, point: u64, step: u64, ahead: u64, sight: u64) -> Due {
        if rank == 0 {
            self.word(STEP).store(step, Ordering::Release);
            self.word(POINTS).store(point, Ordering::Release);
        }
        if self.word(WANTED).load(Ordering::Acquire) == 0 {
            return Due::default();
        }
        let mut due = Due {
            is_awaited: true,
            ..Due::default()
        };
        for slot in self.slots() {
            slot.tell(rank, point, step, (ahead.max(1), sight.max(ahead).max(1)), &mut due);
        }
        due
    }

    fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        let region = self.0.region();
        (0..FORKS_PER_JOB_MAX as u64).map(move |index| {
            let at = SLOTS + index * SLOT_BYTES;
            Slot {
                fork: word(region, at),
                at: word(region, at + 8),
                from: word(region, at + 16),
                is_awaited: word(region, at + 24),
                shadow: word(region, at + 32),
            }
        })
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        word(self.0.region(), offset)
    }
}

impl Slot<'_> {
    fn tell(self, rank: u32, point: u64, step: u64, (ahead, sight): (u64, u64), due: &mut Due) {
        let fork = self.fork.load(Ordering::Acquire);
        let (at, mut from) = (self.at.load(Ordering::Acquire), self.from.load(Ordering::Acquire));
        let is_awaited = self.is_awaited.load(Ordering::Acquire) == 1;
        let shadow = self.shadow.load(Ordering::Acquire);
        if fork == 0 || self.fork.load(Ordering::Acquire) != fork {
            return;
        }
        if from == 0 {
            // One that was asked for at a step is to be of that step.
            from = point.saturating_add(if at == 0 { ahead } else { 1 });
            if rank == 0 {
                self.from.store(from, Ordering::Release);
            }
            // Another rank comes to the point of the announcement before rank 0 half of the time, and would have nothing ready at the next.
        }
        let is_due = |point, step| from <= point && at <= step;
        if is_due(point, step) {
            due.forks.push(Wanted { fork, shadow });
            due.is_awaited &= is_awaited;
        } else if is_due(point.saturating_add(sight), step.saturating_add(sight)) {
            due.near = Some(due.near.unwrap_or(true) && is_awaited);
        }
    }
}

/// # Panics
/// Never: all offsets lie within the page, whose length was checked when it was mapped, and are multiples of eight.
fn word(region: Region<'_>, offset: u64) -> &AtomicU64 {
    region.at(offset).expect("the offset lies within the page")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(due: &Due) -> Vec<u64> {
        due.forks.iter().map(|wanted| wanted.fork).collect()
    }

    fn due(page: &Page, rank: u32, point: u64, step: u64) -> (Vec<u64>, bool) {
        let due = page.due(rank, point, step, 1, 1);
        (numbers(&due), due.near.is_some())
    }

    #[test]
    fn all_ranks_take_their_states_at_the_point_that_rank_0_has_announced() {
        let page = Page::create().unwrap();
        assert_eq!((page.step(), due(&page, 0, 1, 10), page.step()), (None, (vec![], false), Some(10)));
        assert!(page.want(7, 0, true, 0));
        assert_eq!(
            due(&page, 1, 2, 11),
            (vec![], true),
            "rank 1 comes first, has no announcement yet, and expects it"
        );
        assert_eq!(due(&page, 0, 2, 11), (vec![], true), "rank 0 announces");
        assert_eq!(due(&page, 1, 3, 12), (vec![7], false));
        assert_eq!(due(&page, 0, 3, 12), (vec![7], false));
        page.unwant(7);
        assert_eq!([due(&page, 0, 4, 13), due(&page, 1, 4, 13)], [(vec![], false), (vec![], false)]);
    }

    #[test]
    fn a_fork_waits_for_its_step() {
        let page = Page::create().unwrap();
        assert!(page.want(7, 15, false, 0));
        let seen: Vec<_> = (1..6).map(|point| due(&page, 0, point, 10 + point)).collect();
        let not_yet = || (vec![], false);
        assert_eq!(seen, [not_yet(), not_yet(), not_yet(), (vec![], true), (vec![7], false)]);
    }

    #[test]
    fn a_fork_comes_when_it_can_be_ready() {
        let page = Page::create().unwrap();
        let due = |rank, point, ahead| {
            let due = page.due(rank, point, 10 + point, ahead, 0);
            (numbers(&due), due.near.is_some())
        };
        assert!(page.want(7, 0, true, 0));
        assert_eq!(due(1, 1, 2), (vec![], true), "nothing is announced, and nothing due before that");
        let seen: Vec<_> = (1..5).map(|point| due(0, point, 3)).collect();
        assert_eq!(seen, [(vec![], true), (vec![], true), (vec![], true), (vec![7], false)]);
        let other: Vec<_> = (1..5).map(|point| due(1, point, 2)).collect();
        assert_eq!(other, [(vec![], false), (vec![], true), (vec![], true), (vec![7], false)]);
        page.unwant(7);
        assert!(page.want(8, 18, false, 0));
        let seen: Vec<_> = (5..9).map(|point| due(0, point, 2)).collect();
        assert_eq!(
            seen,
            [(vec![], false), (vec![], true), (vec![], true), (vec![8], false)],
            "of the step that was asked for"
        );
    }

    #[test]
    fn who_comes_before_the_announcement_expects_it() {
        let page = Page::create().unwrap();
        assert!(page.want(7, 14, true, 0));
        let seen: Vec<_> = (1..4).map(|point| page.due(1, point, 10 + point, 1, 2).near).collect();
        assert_eq!(seen, [None, Some(true), Some(true)], "of a step that is within sight");
        assert_eq!(page.due(1, 4, 14, 1, 2).forks, [], "only what rank 0 has announced is due");
        page.due(0, 4, 14, 1, 1);
        assert_eq!(due(&page, 1, 5, 15), (vec![7], false));
        assert!(page.want(8, 0, true, 0));
        assert_eq!(page.due(1, 5, 15, 1, 1).near, Some(true));
        page.unwant(8);
        assert_eq!(page.due(1, 5, 15, 1, 1).near, None);
    }

    #[test]
    fn a_fork_at_a_step_is_not_put_off_though_its_clone_waits() {
        let page = Page::create().unwrap();
        assert!(page.want(7, 12, true, 0));
        let seen: Vec<_> = (1..4).map(|point| numbers(&page.due(0, point, 10 + point, 100, 1))).collect();
        assert_eq!(seen, [vec![], vec![7], vec![7]]);
        assert!(page.want(8, 0, false, 0));
        let seen: Vec<_> = (4..7).map(|point| numbers(&page.due(0, point, 10 + point, 2, 1))).collect();
        assert_eq!(seen, [vec![7], vec![7], vec![7, 8]], "one without a step is, whoever waits");
    }

    #[test]
    fn how_far_a_rank_looks_puts_no_fork_off() {
        let page = Page::create().unwrap();
        assert!(page.want(7, 0, true, 0));
        assert!(page.want(8, 40, true, 0));
        let seen: Vec<_> = (1..4).map(|point| page.due(0, point, 10 + point, 2, 28)).collect();
        let seen: Vec<_> = seen.iter().map(|due| (numbers(due), due.near)).collect();
        assert_eq!(seen, [(vec![], Some(true)), (vec![], Some(true)), (vec![7], Some(true))]);
        assert_eq!(page.due(0, 3, 13, 2, 26).near, None);
    }

    #[test]
    fn clones_are_waiting_if_all_are() {
        let page = Page::create().unwrap();
        assert!(page.want(7, 0, true, 0));
        assert_eq!(page.due(0, 1, 1, 1, 1).near, Some(true));
        assert!(page.due(0, 2, 2, 1, 1).is_awaited, "due");
        assert!(page.want(8, 0, false, 3));
        let due = page.due(0, 3, 3, 1, 1);
        assert_eq!(
            (due.is_awaited, due.near),
            (true, Some(false)),
            "another is near that nobody waits for"
        );
        assert!(!page.due(0, 4, 4, 1, 1).is_awaited);
        page.awaited(8);
        let due = page.due(0, 4, 4, 1, 1);
        assert_eq!((numbers(&due), due.is_awaited, due.near), (vec![7, 8], true, None));
        assert_eq!([due.forks[0].shadow, due.forks[1].shadow], [0, 3]);
    }

    #[test]
    fn there_are_so_many_slots_and_they_come_back() {
        let page = Page::create().unwrap();
        let wanted: Vec<_> = (1..=FORKS_PER_JOB_MAX as u64).collect();
        assert!(wanted.iter().all(|fork| page.want(*fork, 0, true, 0)));
        assert!(!page.want(99, 0, true, 0));
        assert_eq!(due(&page, 0, 1, 1), (vec![], true));
        assert_eq!(due(&page, 0, 2, 2), (wanted, false));
        page.unwant(3);
        assert!(page.want(99, 0, true, 0));
    }
}
