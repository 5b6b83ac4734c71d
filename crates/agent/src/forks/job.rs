//! A job that can be forked.

use super::{
    digests::Digests,
    protocol::{ForkableJob as JobLine, JobRanks},
};
use crate::host::role::Peer;

#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) secret: u64,
    pub(super) ranks: Vec<Option<Peer>>,
    /// True for each rank that reads the job's page at its step boundaries. A rank that rejoins reads it some steps
    /// after it is known here.
    pub(super) looking: Vec<bool>,
    /// It trained before this agent was there.
    pub(super) rejoins: bool,
    /// Steps of shadow verification of its clones, unless their commands say otherwise.
    pub(super) shadow: u32,
    /// Bytes of each rank's state.
    pub(super) bytes: Vec<u64>,
    /// Digests of each rank at its first step boundary, until all have sent theirs.
    pub(super) first: Vec<Option<Digests>>,
    /// Why its ranks have never been those of one job, if so.
    pub(super) apart: Option<String>,
    /// Clones that were named, and those of them that came to be.
    pub(super) named: u64,
    pub(super) clones: u64,
}

impl Job {
    /// Makes a job of N ranks, none of which is here, with the number of its secret.
    pub(super) fn new(secret: u64, ranks: usize) -> Self {
        Self {
            secret,
            ranks: vec![None; ranks],
            looking: vec![false; ranks],
            bytes: vec![0; ranks],
            first: vec![None; ranks],
            ..Self::default()
        }
    }

    /// Returns the job as it is listed, without its step.
    pub(super) fn line(&self, name: &str) -> JobLine {
        let here = self.ranks.iter().zip(&self.bytes).filter(|(rank, _)| rank.is_some());
        JobLine {
            job: name.to_owned(),
            ranks: self.ranks.len() as u32,
            ranks_here: here.clone().count() as u32,
            step: None,
            bytes: here.map(|(_, bytes)| bytes).sum(),
            clones: self.clones,
        }
    }

    /// Returns for each rank whether it is on this host.
    pub(super) fn here(&self) -> Vec<bool> {
        self.ranks.iter().map(Option::is_some).collect()
    }

    /// Returns the ranks on this host, without the job's step.
    pub(super) fn ranks_here(&self) -> JobRanks {
        let here = (0..).zip(&self.ranks).filter_map(|(rank, peer)| peer.map(|_| rank)).collect();
        JobRanks {
            ranks: self.ranks.len() as u32,
            here,
            step: None,
            bytes: self.line("").bytes,
        }
    }

    /// Compares all ranks, once they have said what they had.
    pub(super) fn compare(&mut self) {
        if self.first.iter().any(Option::is_none) {
            return;
        }
        let first: Vec<_> = self.first.iter_mut().filter_map(Option::take).collect();
        self.apart = first
            .iter()
            .enumerate()
            .find_map(|(rank, other)| first[0].disagreement(other, (0, rank)));
    }
}
