//! Copies that are being made, and what else is under way.

use forebay_contract::Identity;
use forebay_store::SourceStat;

use crate::tiering::handoff::Handoff;

use super::Clerk;

/// A copy that is being made, and the names that it will have.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) copy: u64,
    pub(super) identity: Identity,
    pub(super) stat: SourceStat,
    pub(super) tier: usize,
    pub(super) run: u64,
    /// No program has opened the file yet.
    pub(super) ahead: bool,
    pub(super) names: Vec<FlightName>,
}

/// A name that a copy will have.
#[derive(Debug)]
pub(super) struct FlightName {
    pub(super) path: Vec<u8>,
    pub(super) opened_at: u64,
    pub(super) plain: bool,
}

impl FlightName {
    pub(super) fn of(handed: &Handoff) -> Self {
        Self {
            path: handed.path.clone(),
            opened_at: handed.opened_at,
            plain: handed.plain,
        }
    }

    /// Adds it unless it is there.
    pub(super) fn add_to(names: &mut Vec<Self>, handed: &Handoff) {
        if names.iter().all(|name| name.path != handed.path) {
            names.push(Self::of(handed));
        }
    }
}

/// How much is under way: copies that are being made, and hand-overs that wait for one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnderWay {
    /// Of files that programs have opened.
    pub(super) files: usize,
    /// Of directories that programs have listed.
    pub(super) listings: usize,
    /// Of files that no program has opened yet.
    pub(super) ahead: usize,
}

impl UnderWay {
    /// What programs have asked for.
    pub(super) const fn following(self) -> usize {
        self.files + self.listings
    }

    pub(super) const fn is_nothing(self) -> bool {
        self.following() + self.ahead == 0
    }
}

impl Clerk {
    /// What is under way, in all or for a run.
    pub(super) fn under_way(&self, run: Option<u64>) -> UnderWay {
        let flights = self.flights.values().map(|flight| (flight.run, &flight.stat, flight.ahead));
        let deferred = self.adoption.deferred().map(|handed| (handed.run, &handed.stat, false));
        let waiting = self.ahead_of_clock.waiting().map(|handed| (handed.run, &handed.stat, false));
        let mut under_way = UnderWay {
            listings: self.listings.waiting_of(run),
            ..UnderWay::default()
        };
        for (_, stat, ahead) in flights
            .chain(deferred)
            .chain(waiting)
            .filter(|(of, ..)| run.is_none_or(|run| run == *of))
        {
            let number = match (ahead, stat.is_directory()) {
                (true, _) => &mut under_way.ahead,
                (false, true) => &mut under_way.listings,
                (false, false) => &mut under_way.files,
            };
            *number += 1;
        }
        under_way
    }
}
