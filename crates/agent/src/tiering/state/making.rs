//! From an opened file to a copy that is being made: the parts that have a say in it.

use std::sync::Arc;

use forebay_contract::NotCached;
use forebay_store::StatFrom;

use crate::tiering::{
    copier::Copier,
    copy_job::{CopyJob, CopyPace, OpenedSource},
    handoff::Handoff,
    state::{
        copies::PublishedCopies,
        flights::{CopyFlight, CopyFlights, CopyName, FlightOfNodes},
        runs::ServedRuns,
        source_files::SourceFiles,
        tier_set::reason_of,
    },
};

/// Parts of the event loop that begin a copy together.
#[derive(Debug)]
pub(crate) struct CopyMaking<'a> {
    pub(crate) runs: &'a mut ServedRuns,
    pub(crate) sources: &'a mut SourceFiles,
    pub(crate) copies: &'a mut PublishedCopies,
    pub(crate) flights: &'a mut CopyFlights,
    pub(crate) copier: &'a Copier,
}

impl CopyMaking<'_> {
    /// Places the copy of a file, and counts it among those that are being made.
    ///
    /// # Errors
    /// The reason why no tier takes it.
    pub(crate) fn prepare(&mut self, handoff: Handoff, pace: CopyPace, of_nodes: FlightOfNodes) -> Result<CopyJob, NotCached> {
        if self.copies.index.is_full() {
            return Err(NotCached::IndexFull);
        }
        let size = handoff.stat.identity.size;
        // A copy that no program has asked for replaces no other, which may be needed more.
        let placed = if pace.is_ahead() {
            self.copies.tiers.offer(size)
        } else {
            self.copies.place(size)
        };
        let job = placed
            .map_err(reason_of)
            .map(|(number, tier)| self.prepare_in(handoff, (number, tier), pace, of_nodes));
        self.copies.tiers.publish_room();
        job?.ok_or(NotCached::TierOff)
    }

    fn prepare_in(&mut self, handoff: Handoff, (number, tier): (u64, usize), pace: CopyPace, nodes: FlightOfNodes) -> Option<CopyJob> {
        let identity = handoff.stat.identity;
        let ahead = self.runs.ahead_of(handoff.run, &handoff.path, &handoff.stat);
        let sampled = self.copies.tiers.is_sample_due(tier, identity.size);
        let state = self.copies.tiers.get(tier)?;
        let copy = state.tier.next_id();
        let flight = CopyFlight {
            copy,
            identity,
            stat: handoff.stat,
            tier,
            run: handoff.run,
            ahead: pace.is_ahead(),
            names: vec![CopyName::of(&handoff)],
            nodes,
        };
        let job = CopyJob {
            number,
            copy,
            tier: Arc::clone(&state.tier),
            identity,
            sampled,
            pace,
            ahead,
            sparse: handoff.stat.may_have_holes(),
            ask: if handoff.waited.is_some() {
                StatFrom::Server
            } else {
                StatFrom::Kernel
            },
            pages: self.sources.pages_to_clean(&identity),
            opened_at: handoff.opened_at,
            control: self.copies.tiers.control(),
            opened: OpenedSource::from(handoff),
            partial: None,
            is_wanted: None,
        };
        self.flights.add(number, flight);
        Some(job)
    }
}
