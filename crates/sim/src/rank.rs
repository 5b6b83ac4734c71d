//! A rank of the job: where it is in its order, and the batches that are being made for it.

use std::collections::VecDeque;

use forebay_policy::ids::{Rank, Sample};

use crate::orders::Orders;

/// A batch that is being made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batch {
    /// Samples of it that were asked for, and their bytes from memory, peers and the source.
    pub(crate) asked: u32,
    pub(crate) asked_bytes: [u64; 3],
    /// Samples of it that are in the node's memory.
    pub(crate) here: u32,
    /// Samples of it that have not been preprocessed.
    pub(crate) unprepared: u32,
    /// When the first read of it began, and the last one ended.
    pub(crate) read_s: Option<(f64, f64)>,
    /// When preprocessing of it began, and when it ended so far.
    pub(crate) prepared_s: Option<(f64, f64)>,
}

impl Batch {
    pub(crate) fn is_ready(&self) -> bool {
        self.unprepared == 0
    }

    /// When it was ready.
    pub(crate) fn ready_s(&self) -> f64 {
        self.prepared_s.or(self.read_s).map_or(0.0, |(_, end_s)| end_s)
    }
}

/// Extends a span of time to `now_s`.
pub(crate) fn extend(span: &mut Option<(f64, f64)>, now_s: f64) {
    let (begin_s, _) = span.unwrap_or((now_s, now_s));
    *span = Some((begin_s, now_s));
}

/// A rank.
#[derive(Debug)]
pub(crate) struct RankState {
    rank: Rank,
    /// Steps ahead that its samples are demanded.
    pub(crate) window: u64,
    /// How many times as long as others its reads and its preprocessing take.
    pub(crate) slowness: f64,
    /// Batches from the next step to begin on.
    batches: VecDeque<Batch>,
    /// The step of the first of these.
    first: u64,
    /// Samples of the batch that is being asked for, from the next one on, last first.
    unasked: Vec<Sample>,
    /// The place of that next one.
    place: u32,
}

impl RankState {
    pub(crate) fn new(rank: Rank, window: u64, slowness: f64) -> Self {
        Self {
            rank,
            window,
            slowness,
            batches: VecDeque::new(),
            first: 0,
            unasked: Vec::new(),
            place: 0,
        }
    }

    /// The step and the place in its batch of the sample that is to be asked for next.
    pub(crate) fn next_place(&self) -> (u64, u32) {
        if self.unasked.is_empty() {
            (self.first + self.batches.len() as u64, 0)
        } else {
            (self.asking(), self.place)
        }
    }

    /// The step that is being asked for.
    fn asking(&self) -> u64 {
        self.first + self.batches.len() as u64 - 1
    }

    /// The sample that is to be asked for next and its step; `None` where the order is not known yet.
    pub(crate) fn next_sample(&mut self, orders: &Orders) -> Option<(u64, Sample)> {
        if self.unasked.is_empty() {
            let step = self.first + self.batches.len() as u64;
            self.unasked.extend(orders.batch(self.rank, step)?);
            self.unasked.reverse();
            self.place = 0;
            self.batches.push_back(Batch {
                unprepared: self.unasked.len() as u32,
                ..Batch::default()
            });
        }
        Some((self.asking(), *self.unasked.last()?))
    }

    /// It has been asked for: the batch that it is of.
    pub(crate) fn advance(&mut self) -> &mut Batch {
        self.unasked.pop();
        self.place += 1;
        self.batch(self.asking())
    }

    /// The batch of a step that has not begun.
    pub(crate) fn batch(&mut self, step: u64) -> &mut Batch {
        &mut self.batches[(step - self.first) as usize]
    }

    /// The latest batch before step `limit` of which something was asked for.
    pub(crate) fn latest_batch(&self, limit: u64) -> Option<&Batch> {
        let before = limit.saturating_sub(self.first).min(self.batches.len() as u64);
        self.batches.range(..before as usize).next_back()
    }

    /// The batch of the next step to begin.
    pub(crate) fn next_batch(&self) -> Option<&Batch> {
        self.batches.front()
    }

    /// The next step begins, and takes its batch.
    pub(crate) fn take_batch(&mut self) -> Batch {
        self.first += 1;
        self.batches.pop_front().unwrap_or_default()
    }
}
