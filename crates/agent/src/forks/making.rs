//! A fork that is being made: from its command's request until the clone exists, or has failed.

use super::{
    digests::{Digests, RankState},
    names::{name_of_guest, ranks_text},
    protocol::{ForkProgress, ForkScope},
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
    /// Steps that both sides take with equal data before they are compared; 0: the clone exists without them.
    pub(super) shadow: u32,
    /// State published by each rank of the job.
    pub(super) offers: Vec<Option<RankState<S>>>,
    /// Connection of each rank of the clone; empty until the first one has come and said how many there are.
    pub(super) takers: Vec<Option<Receiver>>,
    /// Digests of each rank of the job after the steps of shadow verification.
    pub(super) after: Vec<Option<Digests>>,
    pub(super) stage: ForkStage,
    pub(super) scope: ForkScope,
    /// True for each rank of the job, or of a clone on several hosts, with which this host has to do; all false until
    /// that is known.
    pub(super) here: Vec<bool>,
}

#[derive(Clone, Debug)]
pub(super) struct Receiver {
    pub(super) peer: Peer,
    /// Digests that the clone's rank computed from its loaded state.
    pub(super) loaded: Option<Digests>,
    /// Digests of the clone's rank after the steps of shadow verification.
    pub(super) after: Option<Digests>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ForkStage {
    UnderWay,
    /// All ranks on this host have loaded their states, and those on other hosts may not have.
    LoadedHere,
    /// Shadow verification: all ranks have loaded their states and train, as the job's do; then both are compared.
    ShadowVerification,
    Exists,
    Failed(String),
}

impl<S> Fork<S> {
    /// Returns whether the clone neither exists nor has failed.
    pub(super) fn is_open(&self) -> bool {
        matches!(
            self.stage,
            ForkStage::UnderWay | ForkStage::LoadedHere | ForkStage::ShadowVerification
        )
    }

    /// Returns whether this host has to do with a rank.
    pub(super) fn is_here(&self, rank: usize) -> bool {
        self.scope == ForkScope::All || self.here.get(rank).is_some_and(|here| *here)
    }

    /// Returns whether the ranks are known with which this host has to do.
    fn is_gathered(&self) -> bool {
        self.scope == ForkScope::All || self.here.contains(&true)
    }

    /// Returns the number of the clone's ranks on this host.
    pub(super) fn expected(&self) -> usize {
        (0..self.takers.len()).filter(|rank| self.is_here(*rank)).count()
    }

    /// Returns whether a rank of the clone may come now.
    pub(super) fn may_come(&self, rank: usize) -> bool {
        self.is_here(rank) || !self.is_gathered()
    }

    /// Returns whether all ranks of the clone are waiting.
    pub(super) fn is_awaited(&self) -> bool {
        let mut takers = self.takers.iter().enumerate();
        !self.takers.is_empty() && self.is_gathered() && takers.all(|(rank, taker)| taker.is_some() || !self.is_here(rank))
    }

    /// Returns whether the clone has another number of ranks than the job.
    pub(super) fn is_dealt(&self) -> bool {
        !self.takers.is_empty() && self.takers.len() != self.offers.len()
    }

    /// Returns whether all ranks of the clone are waiting and read large tensors in place. For another number of
    /// ranks the state is copied: then all digests are known, and each rank may read all of it.
    pub(super) fn is_read_in_place(&self) -> bool {
        self.is_awaited() && !self.is_dealt()
    }

    /// Sets the number of the clone's ranks, as one of them says it.
    pub(super) fn expect(&mut self, ranks: usize) -> Result<(), String> {
        let (theirs, ours) = (ranks_text(self.offers.len()), ranks_text(ranks));
        let job = name_of_guest(&self.job).unwrap_or(&self.job);
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
        if ranks != self.offers.len() && self.scope == ForkScope::Registered {
            return Err(format!(
                "{job} has {theirs}, of which some are here, this program {ours}: start it with as many"
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

    /// Returns whether all ranks of the job with which this host has to do have published their states, even if they
    /// were released since. A clone of another number of ranks needs all states.
    pub(super) fn is_complete(&self) -> bool {
        let mut offers = self.offers.iter().enumerate();
        matches!(self.stage, ForkStage::ShadowVerification | ForkStage::Exists)
            || (self.is_gathered() && offers.all(|(rank, offer)| offer.is_some() || !(self.is_dealt() || self.is_here(rank))))
    }

    /// Returns the progress that its command is sent.
    pub(super) fn progress(&self) -> ForkProgress {
        let here = self.takers.iter().flatten();
        let arrived = (0..).zip(&self.takers).filter_map(|(rank, taker)| taker.as_ref().map(|_| rank));
        ForkProgress {
            asked: self.stage != ForkStage::UnderWay || self.takers.iter().any(Option::is_some),
            ranks: self.takers.len() as u32,
            here: here.clone().count() as u32,
            taken: self.is_complete(),
            loaded: here.filter(|taker| taker.loaded.is_some()).count() as u32,
            is_over: !self.is_open(),
            arrived: arrived.collect(),
        }
    }

    /// Returns whether this rank of the job has still something to send.
    pub(super) fn needs(&self, rank: usize) -> bool {
        let lacks_steps = self.shadow > 0 && self.is_open() && self.after.get(rank).is_some_and(Option::is_none);
        !self.is_complete() || lacks_steps
    }
}
