//! Requests of all ranks of a loader, and the passes over its epochs.

use std::collections::BTreeMap;

use forebay_contract::request_ring::SampleRequest;
use forebay_policy::ids::{EpochNumber, Iteration};
use forebay_policy::order;
use forebay_policy::residency::Access;

use super::HERE;
use super::ranks::RankRequests;

/// Requests of all ranks, and the passes that they have reached.
pub(super) struct LoaderRequests {
    ranks: Vec<RankRequests>,
    order: order::Order,
    extents: u32,
    /// Pass that the policy is in; none before the first request. A pass is one run through an epoch, which may be
    /// repeated.
    pass: Option<EpochNumber>,
    /// Epoch of each pass, from the present one on, as far as it is known.
    epochs: BTreeMap<EpochNumber, EpochNumber>,
}

impl LoaderRequests {
    pub(super) fn new(ranks: usize, order: order::Order, extents: u32) -> Self {
        Self {
            ranks: (0..ranks).map(|_| RankRequests::default()).collect(),
            order,
            extents,
            pass: None,
            epochs: BTreeMap::new(),
        }
    }

    pub(super) fn ranks(&self) -> &[RankRequests] {
        &self.ranks
    }

    pub(super) fn of(&self, rank: usize) -> &RankRequests {
        &self.ranks[rank]
    }

    pub(super) fn of_mut(&mut self, rank: usize) -> &mut RankRequests {
        &mut self.ranks[rank]
    }

    /// Number of samples, as policies count them.
    pub(super) const fn extents(&self) -> u32 {
        self.extents
    }

    /// Steps of an epoch.
    pub(super) const fn iterations(&self) -> u32 {
        self.order.deal.iterations()
    }

    /// Samples of a batch of one rank.
    pub(super) const fn batch(&self) -> u32 {
        self.order.deal.batch()
    }

    /// Pass that the policy is in.
    pub(super) const fn pass(&self) -> Option<EpochNumber> {
        self.pass
    }

    /// Step of the pass in which the last rank is.
    pub(super) fn iteration(&self) -> Iteration {
        let step = self.ranks.iter().map(RankRequests::oldest_step).min().unwrap_or(0);
        (step % u64::from(self.iterations().max(1))) as Iteration
    }

    /// Adds a request of a rank. Returns its sequence number, and false if there is no such sample.
    pub(super) fn ask(&mut self, rank: usize, wanted: SampleRequest) -> (u64, bool) {
        let is_known = wanted.sample < self.extents;
        let iterations = self.iterations();
        let (turn, pass) = self.ranks[rank].ask(wanted, iterations, is_known);
        self.epochs.entry(pass).or_insert(wanted.epoch);
        (turn, is_known)
    }

    /// Begins the next pass that all ranks have reached. Returns it with the orders of `horizon` epochs from its own
    /// on.
    pub(super) fn next_pass(&mut self, horizon: u32) -> Option<(EpochNumber, Vec<order::Epoch>)> {
        let reached = self.ranks.iter().filter(|rank| !rank.is_gone()).map(RankRequests::pass).min();
        let reached = reached.filter(|_| !self.epochs.is_empty())?;
        let next = self.pass.map_or(0, |pass| pass + 1);
        self.epochs = self.epochs.split_off(&next);
        let (&pass, &named) = self.epochs.first_key_value().filter(|(pass, _)| **pass <= reached)?;
        self.pass = Some(pass);
        Some((pass, orders_from(&self.order, SampleRequest::epoch_of(named), horizon)))
    }

    /// Returns the rank and sequence number of the nearest request that waits to be fetched, if its step is within the
    /// window, or anywhere if `beyond`.
    pub(super) fn nearest(&mut self, reach: u64, beyond: bool) -> Option<(usize, u64)> {
        let mut nearest: Option<(u64, usize, u64)> = None;
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let Some((step, turn)) = rank.next_to_fetch() else { continue };
            let is_within = step < rank.oldest_step().saturating_add(reach);
            if (is_within || beyond) && nearest.is_none_or(|(nearest, ..)| step < nearest) {
                nearest = Some((step, number, turn));
            }
        }
        nearest.map(|(_, rank, turn)| (rank, turn))
    }

    /// Returns a request that its rank needs now and that waits to be fetched.
    pub(super) fn stuck(&mut self) -> Option<(usize, u64)> {
        self.ranks.iter_mut().enumerate().find_map(|(number, rank)| {
            let (step, turn) = rank.next_to_fetch()?;
            // All of a step is needed before any of it is over.
            (step <= rank.oldest_step()).then_some((number, turn))
        })
    }

    /// Returns a request as the policy knows it.
    pub(super) fn access(&self, rank: usize, turn: u64) -> Access {
        let used = self.ranks[rank].used(turn);
        Access {
            node: HERE,
            sample: used.sample,
            iteration: used.iteration,
            epoch: used.pass,
        }
    }
}

/// Returns the orders of an epoch and of those after it.
fn orders_from(order: &order::Order, epoch: EpochNumber, horizon: u32) -> Vec<order::Epoch> {
    (0..horizon.max(1)).map(|ahead| order.epoch(epoch.saturating_add(ahead))).collect()
}
