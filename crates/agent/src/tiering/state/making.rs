//! From an opened file to a copy that is being made: the parts that have a say in it.

use std::sync::Arc;

use forebay_contract::{NotCached, control::SMALL_FILE_BYTES};
use forebay_policy::{read_ahead::AheadMode, wake::SMALL_BYTES_MAX};
use forebay_store::StatFrom;

use crate::tiering::{
    copier::Copier,
    copy_job::{CopyJob, CopyPace, CopyTarget, OpenedSource, TierTarget},
    handoff::Handoff,
    state::{
        copies::PublishedCopies,
        flights::{CopyFlight, CopyFlights, CopyName, CopyPlace, FlightOfNodes},
        runs::ServedRuns,
        source_files::SourceFiles,
        tier_set::reason_of,
    },
};

// What programs hand over to have it read ahead is what a copy follows piece by piece.
const _: () = assert!(
    SMALL_FILE_BYTES == SMALL_BYTES_MAX,
    "the preload library and the copier differ in what is small"
);

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
    /// Begins the copy of a file that a program has opened. A file that no tier takes is read ahead into the page cache
    /// alone, if the run reads ahead and memory has room.
    ///
    /// # Errors
    /// The reason why no tier takes it.
    pub(crate) fn begin(&mut self, handoff: Handoff) -> Result<(), NotCached> {
        let pace = handoff.pace();
        let refused = match self.place(handoff.stat.identity.size, pace) {
            Ok(placed) => {
                let job = self.prepare_in(handoff, placed, pace, FlightOfNodes::default());
                self.copier.add(job.ok_or(NotCached::TierOff)?);
                return Ok(());
            }
            Err(refused) => refused,
        };
        let size = handoff.stat.identity.size;
        let room = self.copier.read_ahead().page_cache_bytes();
        let has_room = self.flights.page_cache_bytes().saturating_add(size) <= room;
        let ahead = self.runs.ahead_of(handoff.run, &handoff.path, &handoff.stat);
        if pace == CopyPace::Reader && size > SMALL_FILE_BYTES && has_room && ahead != AheadMode::Follow {
            let number = self.copies.tiers.next_number();
            let job = self.job_of(handoff, (number, None), pace, FlightOfNodes::default());
            self.copier.add(job);
        }
        Err(refused)
    }

    /// Places the copy of a file, and counts it among those that are being made.
    ///
    /// # Errors
    /// The reason why no tier takes it.
    pub(crate) fn prepare(&mut self, handoff: Handoff, pace: CopyPace, of_nodes: FlightOfNodes) -> Result<CopyJob, NotCached> {
        let placed = self.place(handoff.stat.identity.size, pace)?;
        self.prepare_in(handoff, placed, pace, of_nodes).ok_or(NotCached::TierOff)
    }

    /// Returns the number of a new copy, and its tier.
    fn place(&mut self, size: u64, pace: CopyPace) -> Result<(u64, usize), NotCached> {
        if self.copies.index.is_full() {
            return Err(NotCached::IndexFull);
        }
        // A copy that no program has asked for replaces no other, which may be needed more.
        let placed = if pace.is_ahead() {
            self.copies.tiers.offer(size)
        } else {
            self.copies.place(size)
        };
        self.copies.tiers.publish_room();
        placed.map_err(reason_of)
    }

    fn prepare_in(&mut self, handoff: Handoff, (number, tier): (u64, usize), pace: CopyPace, nodes: FlightOfNodes) -> Option<CopyJob> {
        let sampled = self.copies.tiers.is_sample_due(tier, handoff.stat.identity.size);
        let state = self.copies.tiers.get(tier)?;
        let copy = state.tier.next_id();
        let target = TierTarget {
            tier: Arc::clone(&state.tier),
            copy,
            sampled,
        };
        Some(self.job_of(handoff, (number, Some((tier, target))), pace, nodes))
    }

    /// Returns the job of a copy, which counts as being made from now on.
    fn job_of(
        &mut self,
        handoff: Handoff,
        (number, target): (u64, Option<(usize, TierTarget)>),
        pace: CopyPace,
        nodes: FlightOfNodes,
    ) -> CopyJob {
        let identity = handoff.stat.identity;
        let ahead = self.runs.ahead_of(handoff.run, &handoff.path, &handoff.stat);
        let flight = CopyFlight {
            place: target.as_ref().map(|(tier, target)| CopyPlace {
                tier: *tier,
                copy: target.copy,
            }),
            identity,
            stat: handoff.stat,
            run: handoff.run,
            ahead: pace.is_ahead(),
            names: vec![CopyName::of(&handoff)],
            nodes,
        };
        self.flights.add(number, flight);
        CopyJob {
            number,
            target: target.map_or(CopyTarget::PageCache, |(_, target)| CopyTarget::Tier(target)),
            identity,
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
        }
    }
}
