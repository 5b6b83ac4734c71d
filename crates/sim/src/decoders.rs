//! Threads of a rank that preprocess: they take parts of batches in order, and wait for one sample after the other.

use std::collections::{BTreeMap, VecDeque};

/// Parts for each thread that a batch is cut into, as the data loader does.
const PARTS: u32 = 2;

/// Samples of a batch that one thread preprocesses, from the next one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BatchPart {
    step: u64,
    next: u32,
    end: u32,
}

/// Preprocessing threads of a rank.
#[derive(Debug, Default)]
pub(crate) struct RankDecoders {
    /// Parts that wait for a thread.
    parts: VecDeque<BatchPart>,
    /// First step whose parts are not queued yet.
    queued_to: u64,
    /// Threads at work, those that wait for bytes included.
    at_work: u32,
    /// Slots of samples that have come, by step and place in the batch.
    here: BTreeMap<(u64, u32), u32>,
    /// Parts of threads that wait for a sample, by its step and place.
    awaiting: BTreeMap<(u64, u32), BatchPart>,
    /// Parts of threads that preprocess a sample, by its slot.
    preparing: BTreeMap<u32, BatchPart>,
}

impl RankDecoders {
    /// Step whose parts are queued next, if it comes before `limit`.
    pub(crate) fn unqueued(&self, limit: u64) -> Option<u64> {
        (self.queued_to < limit).then_some(self.queued_to)
    }

    /// Queues the parts of the next step, of `samples`, for `threads`.
    pub(crate) fn queue(&mut self, samples: u32, threads: u32) {
        let size = samples.div_ceil(threads.max(1) * PARTS).max(1);
        let step = self.queued_to;
        let firsts = (0..samples).step_by(size as usize);
        self.parts.extend(firsts.map(|next| BatchPart {
            step,
            next,
            end: samples.min(next + size),
        }));
        self.queued_to += 1;
    }

    /// Takes a sample that has come. Returns true if a thread waited for it, and preprocesses it now.
    pub(crate) fn came(&mut self, step: u64, place: u32, slot: u32) -> bool {
        if let Some(part) = self.awaiting.remove(&(step, place)) {
            self.preparing.insert(slot, part);
            true
        } else {
            self.here.insert((step, place), slot);
            false
        }
    }

    /// Lets threads, `threads` in all, take parts. Returns the slot of the first sample that one of them preprocesses
    /// now; `None` if no further thread can go on.
    pub(crate) fn work(&mut self, threads: u32) -> Option<u32> {
        while self.at_work < threads {
            let part = self.parts.pop_front()?;
            self.at_work += 1;
            if let Some(slot) = self.go_on(part) {
                return Some(slot);
            }
        }
        None
    }

    /// Ends a sample. Returns the slot of the next one of the same part, if it has come.
    pub(crate) fn prepared(&mut self, slot: u32) -> Option<u32> {
        let part = self.preparing.remove(&slot)?;
        let next = part.next + 1;
        if next < part.end {
            return self.go_on(BatchPart { next, ..part });
        }
        self.at_work -= 1;
        None
    }

    fn go_on(&mut self, part: BatchPart) -> Option<u32> {
        let slot = self.here.remove(&(part.step, part.next));
        match slot {
            Some(slot) => {
                self.preparing.insert(slot, part);
            }
            None => {
                self.awaiting.insert((part.step, part.next), part);
            }
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_a_sample_takes_no_other() {
        let mut decoders = RankDecoders::default();
        assert_eq!(decoders.unqueued(1), Some(0));
        decoders.queue(8, 2);
        assert_eq!(decoders.unqueued(1), None);
        // Of the parts 0 and 1, 2 and 3, and so on, two have a thread.
        assert!(!decoders.came(0, 1, 11) && !decoders.came(0, 2, 12) && !decoders.came(0, 4, 14));
        assert_eq!(decoders.work(2), Some(12));
        assert_eq!(decoders.work(2), None, "the other waits for place 0");
        assert_eq!(decoders.prepared(12), None, "place 3 has not come");
        assert_eq!(decoders.work(2), None, "place 4 has come, but nobody is free");
        assert!(decoders.came(0, 0, 10), "the thread that waited takes it");
        assert_eq!(decoders.prepared(10), Some(11));
        assert_eq!(decoders.prepared(11), None);
        assert_eq!(decoders.work(2), Some(14));
    }
}
