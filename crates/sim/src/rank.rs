//! A rank of the job: its position in its order, and the batches being prepared for it.

use std::collections::VecDeque;

use forebay_policy::ids::{Rank, Sample};

use crate::orders::Orders;

/// A batch being prepared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RankBatch {
    /// Samples of it that were requested, and their bytes from memory, peers and the source.
    pub(crate) asked: u32,
    pub(crate) asked_bytes: [u64; 3],
    /// Samples of it that are in the node's memory.
    pub(crate) here: u32,
    /// Samples of it that are not preprocessed yet.
    pub(crate) unprepared: u32,
    /// Start of its first read, and end of its last one, in seconds.
    pub(crate) read_s: Option<(f64, f64)>,
    /// Start of its preprocessing, and its latest end, in seconds.
    pub(crate) prepared_s: Option<(f64, f64)>,
}

impl RankBatch {
    pub(crate) fn is_ready(&self) -> bool {
        self.unprepared == 0
    }

    /// Time at which it was ready, in seconds.
    pub(crate) fn ready_s(&self) -> f64 {
        self.prepared_s.or(self.read_s).map_or(0.0, |(_, end_s)| end_s)
    }
}

/// Extends a span of time to `now_s`.
pub(crate) fn extend(span: &mut Option<(f64, f64)>, now_s: f64) {
    let (begin_s, _) = span.unwrap_or((now_s, now_s));
    *span = Some((begin_s, now_s));
}

#[derive(Debug)]
pub(crate) struct SimulatedRank {
    rank: Rank,
    /// Steps ahead that its samples are demanded.
    pub(crate) window: u64,
    /// Factor by which its reads and its preprocessing take longer than others'.
    pub(crate) slowness: f64,
    /// Batches from the next step to begin on.
    batches: VecDeque<RankBatch>,
    /// Step of the first of these batches.
    first: u64,
    /// Samples of the batch being requested, from the next one on, in reverse order.
    unasked: Vec<Sample>,
    /// Index of the next sample in its batch.
    place: u32,
}

impl SimulatedRank {
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

    /// Step of the next sample to request, and its index in the batch.
    pub(crate) fn next_place(&self) -> (u64, u32) {
        if self.unasked.is_empty() {
            (self.first + self.batches.len() as u64, 0)
        } else {
            (self.asking(), self.place)
        }
    }

    /// Step being requested.
    fn asking(&self) -> u64 {
        self.first + self.batches.len() as u64 - 1
    }

    /// Returns the next sample to request and its step; `None` if the order is not known yet.
    pub(crate) fn next_sample(&mut self, orders: &Orders) -> Option<(u64, Sample)> {
        if self.unasked.is_empty() {
            let step = self.first + self.batches.len() as u64;
            self.unasked.extend(orders.batch(self.rank, step)?);
            self.unasked.reverse();
            self.place = 0;
            self.batches.push_back(RankBatch {
                unprepared: self.unasked.len() as u32,
                ..RankBatch::default()
            });
        }
        Some((self.asking(), *self.unasked.last()?))
    }

    /// Records that the next sample was requested; returns its batch.
    pub(crate) fn advance(&mut self) -> &mut RankBatch {
        self.unasked.pop();
        self.place += 1;
        self.batch(self.asking())
    }

    /// The batch of a step that has not begun.
    pub(crate) fn batch(&mut self, step: u64) -> &mut RankBatch {
        &mut self.batches[(step - self.first) as usize]
    }

    /// Returns the latest batch before step `limit` of which a sample was requested.
    pub(crate) fn latest_batch(&self, limit: u64) -> Option<&RankBatch> {
        let before = limit.saturating_sub(self.first).min(self.batches.len() as u64);
        self.batches.range(..before as usize).next_back()
    }

    /// The batch of the next step to begin.
    pub(crate) fn next_batch(&self) -> Option<&RankBatch> {
        self.batches.front()
    }

    /// Begins the next step, and takes its batch.
    pub(crate) fn take_batch(&mut self) -> RankBatch {
        self.first += 1;
        self.batches.pop_front().unwrap_or_default()
    }
}
