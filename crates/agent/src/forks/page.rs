//! A job's page, by which its ranks hear of forks: a step boundary costs no system call while no fork is requested.
//!
//! Ranks must take their states after the same step without communicating. All count their step boundaries (points)
//! alike. Rank 0 reads of a fork first and *announces* it for its next point: no rank reaches that point before the
//! gradients of the step in between were summed over all ranks, rank 0 included, so each rank has the announcement
//! before it. If a job does not sum over its ranks, they may be at different steps; the agent sees that and refuses
//! the fork.
//!
//! Between hosts no announcement is in time. A fork of ranks on several hosts has a step that was named for all of
//! them: it stands on the page as announced, and each rank takes its state at that step, or at its next one if the step
//! has passed. Whoever asked compares the steps.

use std::{io, os::fd::OwnedFd};

use forebay_contract::job_page::{ForkSlot, JobPage};

use crate::host::shared::SharedFile;

/// The memory of a page.
#[derive(Debug)]
pub(crate) struct JobPageFile(SharedFile);

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

impl JobPageFile {
    /// Creates the page of a new job.
    pub(crate) fn create() -> io::Result<Self> {
        SharedFile::anonymous("forebay-job", JobPage::BYTES).map(Self)
    }

    /// Maps the page behind a descriptor that the fork agent sent.
    pub(crate) fn open(descriptor: OwnedFd) -> io::Result<Self> {
        SharedFile::received(descriptor, JobPage::BYTES).map(Self)
    }

    /// Returns the memory of the page.
    pub(crate) fn file(&self) -> &SharedFile {
        &self.0
    }

    /// Returns the page.
    ///
    /// # Panics
    /// Never: the length was checked when the memory was mapped.
    pub(crate) fn page(&self) -> JobPage<'_> {
        JobPage::open(self.0.region()).expect("the memory is as long as a page")
    }

    /// Returns the forks requested at a point. `point` counts from 1, alike in all ranks. Preparing takes `ahead`
    /// points, at least one: rank 0 announces no fork earlier, unless it was requested for a step. The rank looks
    /// `sight` points ahead, at least as many.
    pub(crate) fn due(&self, rank: u32, point: u64, step: u64, ahead: u64, sight: u64) -> BoundaryRequests {
        let page = self.page();
        // The first rank to come to it: rank 0 may be on another host.
        page.set_step(point, step);
        if !page.has_requests() {
            return BoundaryRequests::default();
        }
        let mut due = BoundaryRequests {
            is_awaited: true,
            ..BoundaryRequests::default()
        };
        for slot in page.slots() {
            add(slot, rank, (point, step), (ahead.max(1), sight.max(ahead).max(1)), &mut due);
        }
        due
    }
}

/// Adds the fork of a slot to the requests at a step boundary.
fn add(slot: &ForkSlot, rank: u32, (point, step): (u64, u64), (ahead, sight): (u64, u64), due: &mut BoundaryRequests) {
    let Some(request) = slot.request() else {
        return;
    };
    let mut from = request.from;
    if from == 0 {
        // One that was asked for at a step is to be of that step.
        from = point.saturating_add(if request.at == 0 { ahead } else { 1 });
        if rank == 0 {
            slot.announce(from);
        }
        // Another rank comes to the point of the announcement before rank 0 half of the time, and would have
        // nothing ready at the next.
    }
    let is_due = |point, step| from <= point && request.at <= step;
    if is_due(point, step) {
        due.forks.push(RequestedFork {
            fork: request.fork,
            shadow: request.shadow,
        });
        due.is_awaited &= request.is_awaited;
    } else if is_due(point.saturating_add(sight), step.saturating_add(sight)) {
        due.near = Some(due.near.unwrap_or(true) && request.is_awaited);
    }
}

#[cfg(test)]
mod tests {
    use forebay_contract::job_page::FORKS_PER_JOB_MAX;

    use super::*;

    fn numbers(due: &BoundaryRequests) -> Vec<u64> {
        due.forks.iter().map(|wanted| wanted.fork).collect()
    }

    fn due(page: &JobPageFile, rank: u32, point: u64, step: u64) -> (Vec<u64>, bool) {
        let due = page.due(rank, point, step, 1, 1);
        (numbers(&due), due.near.is_some())
    }

    #[test]
    fn all_ranks_take_their_states_at_the_point_that_rank_0_has_announced() {
        let page = JobPageFile::create().unwrap();
        assert_eq!(
            (page.page().step(), due(&page, 0, 1, 10), page.page().step()),
            (None, (vec![], false), Some(10))
        );
        assert!(page.page().want(7, 0, true, 0, false));
        assert_eq!(
            due(&page, 1, 2, 11),
            (vec![], true),
            "rank 1 comes first, has no announcement yet, and expects it"
        );
        assert_eq!(due(&page, 0, 2, 11), (vec![], true), "rank 0 announces");
        assert_eq!(due(&page, 1, 3, 12), (vec![7], false));
        assert_eq!(due(&page, 0, 3, 12), (vec![7], false));
        page.page().unwant(7);
        assert_eq!([due(&page, 0, 4, 13), due(&page, 1, 4, 13)], [(vec![], false), (vec![], false)]);
    }

    #[test]
    fn a_fork_waits_for_its_step() {
        let page = JobPageFile::create().unwrap();
        assert!(page.page().want(7, 15, false, 0, false));
        let seen: Vec<_> = (1..6).map(|point| due(&page, 0, point, 10 + point)).collect();
        let not_yet = || (vec![], false);
        assert_eq!(seen, [not_yet(), not_yet(), not_yet(), (vec![], true), (vec![7], false)]);
    }

    #[test]
    fn a_fork_comes_when_it_can_be_ready() {
        let page = JobPageFile::create().unwrap();
        let due = |rank, point, ahead| {
            let due = page.due(rank, point, 10 + point, ahead, 0);
            (numbers(&due), due.near.is_some())
        };
        assert!(page.page().want(7, 0, true, 0, false));
        assert_eq!(due(1, 1, 2), (vec![], true), "nothing is announced, and nothing due before that");
        let seen: Vec<_> = (1..5).map(|point| due(0, point, 3)).collect();
        assert_eq!(seen, [(vec![], true), (vec![], true), (vec![], true), (vec![7], false)]);
        let other: Vec<_> = (1..5).map(|point| due(1, point, 2)).collect();
        assert_eq!(other, [(vec![], false), (vec![], true), (vec![], true), (vec![7], false)]);
        page.page().unwant(7);
        assert!(page.page().want(8, 18, false, 0, false));
        let seen: Vec<_> = (5..9).map(|point| due(0, point, 2)).collect();
        assert_eq!(
            seen,
            [(vec![], false), (vec![], true), (vec![], true), (vec![8], false)],
            "of the step that was asked for"
        );
    }

    #[test]
    fn who_comes_before_the_announcement_expects_it() {
        let page = JobPageFile::create().unwrap();
        assert!(page.page().want(7, 14, true, 0, false));
        let seen: Vec<_> = (1..4).map(|point| page.due(1, point, 10 + point, 1, 2).near).collect();
        assert_eq!(seen, [None, Some(true), Some(true)], "of a step that is within sight");
        assert_eq!(page.due(1, 4, 14, 1, 2).forks, [], "only what rank 0 has announced is due");
        page.due(0, 4, 14, 1, 1);
        assert_eq!(due(&page, 1, 5, 15), (vec![7], false));
        assert!(page.page().want(8, 0, true, 0, false));
        assert_eq!(page.due(1, 5, 15, 1, 1).near, Some(true));
        page.page().unwant(8);
        assert_eq!(page.due(1, 5, 15, 1, 1).near, None);
    }

    #[test]
    fn a_fork_at_a_step_is_not_put_off_though_its_clone_waits() {
        let page = JobPageFile::create().unwrap();
        assert!(page.page().want(7, 12, true, 0, false));
        let seen: Vec<_> = (1..4).map(|point| numbers(&page.due(0, point, 10 + point, 100, 1))).collect();
        assert_eq!(seen, [vec![], vec![7], vec![7]]);
        assert!(page.page().want(8, 0, false, 0, false));
        let seen: Vec<_> = (4..7).map(|point| numbers(&page.due(0, point, 10 + point, 2, 1))).collect();
        assert_eq!(seen, [vec![7], vec![7], vec![7, 8]], "one without a step is, whoever waits");
    }

    #[test]
    fn how_far_a_rank_looks_puts_no_fork_off() {
        let page = JobPageFile::create().unwrap();
        assert!(page.page().want(7, 0, true, 0, false));
        assert!(page.page().want(8, 40, true, 0, false));
        let seen: Vec<_> = (1..4).map(|point| page.due(0, point, 10 + point, 2, 28)).collect();
        let seen: Vec<_> = seen.iter().map(|due| (numbers(due), due.near)).collect();
        assert_eq!(seen, [(vec![], Some(true)), (vec![], Some(true)), (vec![7], Some(true))]);
        assert_eq!(page.due(0, 3, 13, 2, 26).near, None);
    }

    #[test]
    fn clones_are_waiting_if_all_are() {
        let page = JobPageFile::create().unwrap();
        assert!(page.page().want(7, 0, true, 0, false));
        assert_eq!(page.due(0, 1, 1, 1, 1).near, Some(true));
        assert!(page.due(0, 2, 2, 1, 1).is_awaited, "due");
        assert!(page.page().want(8, 0, false, 3, false));
        let due = page.due(0, 3, 3, 1, 1);
        assert_eq!(
            (due.is_awaited, due.near),
            (true, Some(false)),
            "another is near that nobody waits for"
        );
        assert!(!page.due(0, 4, 4, 1, 1).is_awaited);
        page.page().awaited(8);
        let due = page.due(0, 4, 4, 1, 1);
        assert_eq!((numbers(&due), due.is_awaited, due.near), (vec![7, 8], true, None));
        assert_eq!([due.forks[0].shadow, due.forks[1].shadow], [0, 3]);
    }

    #[test]
    fn there_are_so_many_slots_and_they_come_back() {
        let page = JobPageFile::create().unwrap();
        let wanted: Vec<_> = (1..=FORKS_PER_JOB_MAX as u64).collect();
        assert!(wanted.iter().all(|fork| page.page().want(*fork, 0, true, 0, false)));
        assert!(!page.page().want(99, 0, true, 0, false));
        assert_eq!(due(&page, 0, 1, 1), (vec![], true));
        assert_eq!(due(&page, 0, 2, 2), (wanted, false));
        page.page().unwant(3);
        assert!(page.page().want(99, 0, true, 0, false));
    }
}
