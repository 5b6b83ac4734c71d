//! A queue of samples without duplicates.

use std::collections::VecDeque;

use forebay_policy::ids::Sample;

const WORD_BITS: usize = u64::BITS as usize;

/// A queue: four bytes for each queued sample, and a bit for each sample in all.
#[derive(Debug)]
pub(super) struct SampleQueue {
    samples: VecDeque<Sample>,
    is_in: Vec<u64>,
}

impl SampleQueue {
    /// Creates an empty queue, for sample numbers below `samples`.
    pub(super) fn new(samples: u32) -> Self {
        Self {
            samples: VecDeque::new(),
            is_in: vec![0; (samples as usize).div_ceil(WORD_BITS)],
        }
    }

    /// Adds a sample at the end, unless it is queued already.
    pub(super) fn push(&mut self, sample: Sample) {
        let (word, bit) = bit_of(sample);
        if self.is_in[word] & bit == 0 {
            self.is_in[word] |= bit;
            self.samples.push_back(sample);
        }
    }

    /// Takes the first sample.
    pub(super) fn pop(&mut self) -> Option<Sample> {
        let sample = self.samples.pop_front()?;
        let (word, bit) = bit_of(sample);
        self.is_in[word] &= !bit;
        Some(sample)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Sample> + '_ {
        self.samples.iter().copied()
    }
}

const fn bit_of(sample: Sample) -> (usize, u64) {
    let at = sample as usize;
    (at / WORD_BITS, 1 << (at % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_in_line_once_and_may_join_again() {
        let mut line = SampleQueue::new(130);
        for sample in [129, 0, 64, 0, 129] {
            line.push(sample);
        }
        assert_eq!(line.iter().collect::<Vec<_>>(), [129, 0, 64]);
        assert_eq!(line.pop(), Some(129));
        line.push(129);
        assert_eq!(
            [line.pop(), line.pop(), line.pop(), line.pop()],
            [Some(0), Some(64), Some(129), None]
        );
    }
}
