//! A fork that is being made: from the command's word until its clone exists, or has failed.

use super::{
    agreement::{Digests, Offer},
    names::ranks_text,
    protocol::ForkProgress,
};

use crate::forks::limits::{FORK_DEALT_RANKS_MAX, FORK_RANKS_MAX};
use crate::host::role::Peer;

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
    /// Of each rank of the clone; none before the first has come and said how many there are.
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
        !self.takers.is_empty() && self.takers.iter().all(Option::is_some)
    }

    /// The clone has another number of ranks than the job.
    pub(super) fn is_dealt(&self) -> bool {
        !self.takers.is_empty() && self.takers.len() != self.offers.len()
    }

    /// All ranks of the clone are waiting, to read what is large where it lies. To be dealt to other ranks it is copied: by then all digests are known, and each
    /// may read all of it.
    pub(super) fn is_read_in_place(&self) -> bool {
        self.is_awaited() && !self.is_dealt()
    }

    /// A rank of the clone says how many there are; why that can't be, if so.
    pub(super) fn expect(&mut self, ranks: usize) -> Result<(), String> {
        let (theirs, ours) = (ranks_text(self.offers.len()), ranks_text(ranks));
        let job = &self.job;
        if ranks == 0 || ranks > FORK_RANKS_MAX as usize {
            return Err(format!("{ours}: there can be 1 to {FORK_RANKS_MAX}"));
        }
        if self.takers.len() == ranks {
            return Ok(());
        }
        if !self.takers.is_empty() {
            let others = ranks_text(self.takers.len());
            return Err(format!(
                "another rank of this clone said that it has {others}, this one says {ours}"
            ));
        }
        if ranks != self.offers.len() && self.shadow > 0 {
            return Err(format!(
                "{job} has {theirs}, this program {ours}: other ranks do not take its steps to the last bit; start it with as many, or with --verify digest"
            ));
        }
        if ranks != self.offers.len() && self.offers.len() > FORK_DEALT_RANKS_MAX {
            return Err(format!(
                "{job} has {theirs}, this program {ours}: start it with as many; only a job of at most {FORK_DEALT_RANKS_MAX} can be dealt to others"
            ));
        }
        self.takers = vec![None; ranks];
        Ok(())
    }

    /// All ranks of the job have taken their states, whether or not they are still held.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Probation | Stage::Exists) || self.offers.iter().all(Option::is_some)
    }

    /// As its command is told.
    pub(super) fn progress(&self) -> ForkProgress {
        let here = self.takers.iter().flatten();
        ForkProgress {
            asked: self.stage != Stage::UnderWay || self.takers.iter().any(Option::is_some),
            ranks: self.takers.len() as u32,
            here: here.clone().count() as u32,
            taken: self.is_complete(),
            loaded: here.filter(|taker| taker.loaded.is_some()).count() as u32,
            is_over: !self.is_open(),
        }
    }

    /// This rank of the job has still something to say.
    pub(super) fn needs(&self, rank: usize) -> bool {
        let lacks_steps = self.shadow > 0 && self.is_open() && self.after.get(rank).is_some_and(Option::is_none);
        !self.is_complete() || lacks_steps
    }
}
