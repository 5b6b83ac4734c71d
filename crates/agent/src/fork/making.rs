//! A fork that is being made: from the command's word until its clone exists, or has failed.

use super::{
    agreement::{Digests, Offer},
    registry::Peer,
};

#[derive(Debug)]
pub(super) struct Fork<S> {
    pub(super) job: String,
    pub(super) secret: u64,
    pub(super) name: String,
    /// `None`: as soon as the clone's ranks are waiting.
    pub(super) at: Option<u64>,
    pub(super) wanted: bool,
    /// So many steps both sides take with equal data, and are compared, before the clone exists.
    pub(super) shadow: u32,
    /// Of each rank of the job.
    pub(super) offers: Vec<Option<Offer<S>>>,
    pub(super) takers: Vec<Option<Taker>>,
    /// What each rank of the job has after the shadow's steps.
    pub(super) after: Vec<Option<Digests>>,
    pub(super) stage: Stage,
}

#[derive(Clone, Debug)]
pub(super) struct Taker {
    pub(super) peer: Peer,
    /// What it has loaded, by its own digests.
    pub(super) loaded: Option<Digests>,
    /// What it has after the shadow's steps.
    pub(super) after: Option<Digests>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    UnderWay,
    /// All ranks have loaded their states and train, as the job's do; then both are compared.
    Probation,
    Exists,
    Failed(String),
}

impl<S> Fork<S> {
    /// Its clone neither exists nor has failed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::UnderWay | Stage::Probation)
    }

    /// All ranks of the clone are waiting.
    pub(super) fn is_awaited(&self) -> bool {
        self.takers.iter().all(Option::is_some)
    }

    /// All ranks of the job have taken their states, whether or not they are still held.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Probation | Stage::Exists) || self.offers.iter().all(Option::is_some)
    }

    /// This rank of the job has still something to say.
    pub(super) fn needs(&self, rank: usize) -> bool {
        let lacks_steps = self.shadow > 0 && self.is_open() && self.after.get(rank).is_some_and(Option::is_none);
        !self.is_complete() || lacks_steps
    }
}
