//! A job's page: memory shared by its ranks and the fork agent, so that a step boundary costs no system call while no
//! fork is requested.
//!
//! Ranks must take their states after the same step without communicating. All count their step boundaries (points)
//! alike. Rank 0 reads of a fork first and *announces* it for its next point: no rank reaches that point before the
//! gradients of the step in between were summed over all ranks, rank 0 included, so each rank has the announcement
//! before it. If a job does not sum over its ranks, they may be at different steps; the agent sees that and refuses
//! the fork.

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
pub(crate) struct JobPage(SharedFile);

/// A requested fork in the page.
#[derive(Clone, Copy, Debug)]
struct ForkSlot<'a> {
    /// Number of the fork; 0: the slot is free. Written last and read twice, so that the other words belong to it.
    fork: &'a AtomicU64,
    /// Earliest step.
    at: &'a AtomicU64,
    /// Earliest point; 0: rank 0 has not announced it yet, and the others can only guess.
    from: &'a AtomicU64,
    /// 1: all ranks of its clone are waiting for it.
    is_awaited: &'a AtomicU64,
    /// Steps of shadow verification after which each rank sends its digests; 0: none.
    shadow: &'a AtomicU64,
}

/// A fork for which a rank has to take its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedFork {
    /// Number of the fork.
    pub fork: u64,
    /// Steps of shadow verification after which the rank sends its digests; 0: none.
    pub shadow: u64,
}

/// Requests of forks at a step boundary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundaryRequests {
    /// Forks for which a rank has to take its state now.
    pub forks: Vec<RequestedFork>,
    /// True if the clones of all these forks are waiting.
    pub is_awaited: bool,
    /// Upcoming forks within the points that preparing takes: true if all their clones are waiting; `None` if there
    /// are none.
    pub near: Option<bool>,
}

impl JobPage {
    /// Creates the page of a new job.
    pub(crate) fn create() -> io::Result<Self> {
        SharedFile::anonymous("forebay-job", PAGE_BYTES).map(Self)
    }

    /// Maps the page behind a descriptor that the fork agent sent.
    pub(crate) fn open(descriptor: OwnedFd) -> io::Result<Self> {
        SharedFile::received(descriptor, PAGE_BYTES).map(Self)
    }

    /// Returns the memory of the page.
    pub(crate) fn file(&self) -> &SharedFile {
        &self.0
    }

    /// Requests a fork (called by the agent): ranks take their states, and send digests `shadow` steps later.
    /// `is_awaited`: the clone is waiting. Returns false if no slot is free.
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

    /// Notes that all ranks of the fork's clone are waiting (called by the agent).
    pub(crate) fn awaited(&self, fork: u64) {
        for slot in self.slots().filter(|slot| slot.fork.load(Ordering::Acquire) == fork) {
            slot.is_awaited.store(1, Ordering::Release);
        }
    }

    /// Withdraws a fork that has its states, or has failed (called by the agent).
    pub(crate) fn unwant(&self, fork: u64) {
        for slot in self.slots().filter(|slot| slot.fork.load(Ordering::Acquire) == fork) {
            slot.fork.store(0, Ordering::Release);
            self.word(WANTED).fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns the step of rank 0's last point.
    pub(crate) fn step(&self) -> Option<u64> {
        (self.word(POINTS).load(Ordering::Acquire) > 0).then(|| self.word(STEP).load(Ordering::Acquire))
    }

    /// Returns the forks requested at a point. `point` counts from 1, alike in all ranks. Preparing takes `ahead`
    /// points, at least one: rank 0 announces no fork earlier, unless it was requested for a step. The rank looks
    /// `sight` points ahead, at least as many.
    pub(crate) fn due(&self, rank: u32, point: u64, step: u64, ahead: u64, sight: u64) -> BoundaryRequests {
        if rank == 0 {
            self.word(STEP).store(step, Ordering::Release);
            self.word(POINTS).store(point, Ordering::Release);
        }
        if self.word(WANTED).load(Ordering::Acquire) == 0 {
            return BoundaryRequests::default();
        }
        let mut due = BoundaryRequests {
            is_awaited: true,
            ..BoundaryRequests::default()
        };
        for slot in self.slots() {
            slot.tell(rank, point, step, (ahead.max(1), sight.max(ahead).max(1)), &mut due);
        }
        due
    }

    fn slots(&self) -> impl Iterator<Item = ForkSlot<'_>> {
        let region = self.0.region();
        (0..FORKS_PER_JOB_MAX as u64).map(move |index| {
            let at = SLOTS + index * SLOT_BYTES;
            ForkSlot {
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

impl ForkSlot<'_> {
    fn tell(self, rank: u32, point: u64, step: u64, (ahead, sight): (u64, u64), due: &mut BoundaryRequests) {
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
            // Another rank comes to the point of the announcement before rank 0 half of the time, and would have
            // nothing ready at the next.
        }
        let is_due = |point, step| from <= point && at <= step;
        if is_due(point, step) {
            due.forks.push(RequestedFork { fork, shadow });
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

    fn numbers(due: &BoundaryRequests) -> Vec<u64> {
        due.forks.iter().map(|wanted| wanted.fork).collect()
    }

    fn due(page: &JobPage, rank: u32, point: u64, step: u64) -> (Vec<u64>, bool) {
        let due = page.due(rank, point, step, 1, 1);
        (numbers(&due), due.near.is_some())
    }

    #[test]
    fn all_ranks_take_their_states_at_the_point_that_rank_0_has_announced() {
        let page = JobPage::create().unwrap();
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
        let page = JobPage::create().unwrap();
        assert!(page.want(7, 15, false, 0));
        let seen: Vec<_> = (1..6).map(|point| due(&page, 0, point, 10 + point)).collect();
        let not_yet = || (vec![], false);
        assert_eq!(seen, [not_yet(), not_yet(), not_yet(), (vec![], true), (vec![7], false)]);
    }

    #[test]
    fn a_fork_comes_when_it_can_be_ready() {
        let page = JobPage::create().unwrap();
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
        let page = JobPage::create().unwrap();
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
        let page = JobPage::create().unwrap();
        assert!(page.want(7, 12, true, 0));
        let seen: Vec<_> = (1..4).map(|point| numbers(&page.due(0, point, 10 + point, 100, 1))).collect();
        assert_eq!(seen, [vec![], vec![7], vec![7]]);
        assert!(page.want(8, 0, false, 0));
        let seen: Vec<_> = (4..7).map(|point| numbers(&page.due(0, point, 10 + point, 2, 1))).collect();
        assert_eq!(seen, [vec![7], vec![7], vec![7, 8]], "one without a step is, whoever waits");
    }

    #[test]
    fn how_far_a_rank_looks_puts_no_fork_off() {
        let page = JobPage::create().unwrap();
        assert!(page.want(7, 0, true, 0));
        assert!(page.want(8, 40, true, 0));
        let seen: Vec<_> = (1..4).map(|point| page.due(0, point, 10 + point, 2, 28)).collect();
        let seen: Vec<_> = seen.iter().map(|due| (numbers(due), due.near)).collect();
        assert_eq!(seen, [(vec![], Some(true)), (vec![], Some(true)), (vec![7], Some(true))]);
        assert_eq!(page.due(0, 3, 13, 2, 26).near, None);
    }

    #[test]
    fn clones_are_waiting_if_all_are() {
        let page = JobPage::create().unwrap();
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
        let page = JobPage::create().unwrap();
        let wanted: Vec<_> = (1..=FORKS_PER_JOB_MAX as u64).collect();
        assert!(wanted.iter().all(|fork| page.want(*fork, 0, true, 0)));
        assert!(!page.want(99, 0, true, 0));
        assert_eq!(due(&page, 0, 1, 1), (vec![], true));
        assert_eq!(due(&page, 0, 2, 2), (wanted, false));
        page.unwant(3);
        assert!(page.want(99, 0, true, 0));
    }
}
