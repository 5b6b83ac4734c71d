//! The orders of the epochs that are under way.

use forebay_policy::ids::{EpochNumber, Iteration, Rank, Sample};
use forebay_policy::order::{Epoch, Order};

/// The order of the epoch under way and of some after it.
#[derive(Debug)]
pub(crate) struct Orders {
    order: Order,
    iterations: Iteration,
    number: EpochNumber,
    epochs: Vec<Epoch>,
}

impl Orders {
    /// Computes the orders of epoch 0 and those after it, `known` in all.
    pub(crate) fn new(order: Order, known: u32) -> Self {
        let epochs: Vec<Epoch> = (0..known).map(|number| order.epoch(number)).collect();
        Self {
            order,
            iterations: epochs[0].iterations(),
            number: 0,
            epochs,
        }
    }

    /// Steps of an epoch.
    pub(crate) fn iterations(&self) -> Iteration {
        self.iterations
    }

    /// The order of the epoch under way, and those of the epochs after it.
    pub(crate) fn epochs(&self) -> &[Epoch] {
        &self.epochs
    }

    /// Ends the epoch under way.
    pub(crate) fn advance(&mut self) {
        let next = self.number + self.epochs.len() as EpochNumber;
        self.number += 1;
        self.epochs.remove(0);
        self.epochs.push(self.order.epoch(next));
    }

    /// Returns the epoch of a step, and its iteration there.
    pub(crate) fn place(&self, step: u64) -> (EpochNumber, Iteration) {
        let iterations = u64::from(self.iterations);
        ((step / iterations) as EpochNumber, (step % iterations) as Iteration)
    }

    /// Returns the batch of a rank in a step; `None` in an epoch whose order is not known.
    pub(crate) fn batch(&self, rank: Rank, step: u64) -> Option<impl Iterator<Item = Sample> + '_> {
        let (epoch, iteration) = self.place(step);
        Some(self.epochs.get((epoch - self.number) as usize)?.batch(rank, iteration))
    }
}
