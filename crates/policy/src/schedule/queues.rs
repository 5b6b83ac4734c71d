//! Queues by rank (Lobster, Section 4.2), and threads that serve them.

use std::collections::VecDeque;

use super::ReadRequest;

/// One queue a rank, each in order of arrival.
#[derive(Clone, Debug)]
pub(super) struct RankQueues {
    by_rank: Vec<VecDeque<(u64, ReadRequest)>>,
    pushed: u64,
    waiting: usize,
}

impl RankQueues {
    pub(super) fn new(ranks: u32) -> Self {
        Self {
            by_rank: vec![VecDeque::new(); ranks as usize],
            pushed: 0,
            waiting: 0,
        }
    }

    pub(super) fn push(&mut self, request: ReadRequest) {
        self.by_rank[request.local_rank as usize].push_back((self.pushed, request));
        self.pushed += 1;
        self.waiting += 1;
    }

    /// Returns the next read of a free thread. It serves the rank with the smallest share of its threads busy (`busy
    /// / threads`; of equal ones the oldest request): if more threads are given out than there are, each rank still
    /// gets its share. If no rank is below its number, it serves one that was given none and has none: else such a
    /// rank, and with it the whole job, would wait for ever.
    pub(super) fn pick(&mut self, threads: &[u32], busy: &[u32]) -> Option<ReadRequest> {
        let mut next: Option<(f64, u64, usize)> = None;
        for (rank, queue) in self.by_rank.iter().enumerate() {
            let Some(&(turn, _)) = queue.front() else { continue };
            let (threads, busy) = (threads[rank], busy[rank]);
            // A rank below its number uses a part of its threads; a rank that was given none comes after all of
            // these.
            let used = match (threads, busy) {
                (0, 0) => 1.0,
                _ if busy < threads => f64::from(busy) / f64::from(threads),
                _ => continue,
            };
            if next.is_none_or(|(least, first, _)| (used, turn) < (least, first)) {
                next = Some((used, turn, rank));
            }
        }
        let (_, request) = self.by_rank[next?.2].pop_front()?;
        self.waiting -= 1;
        Some(request)
    }

    /// Requests that wait, by rank.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.by_rank.iter().map(VecDeque::len)
    }

    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }
}
