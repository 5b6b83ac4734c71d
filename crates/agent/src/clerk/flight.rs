//! Copies that are being made.

use forebay_contract::Identity;
use forebay_store::SourceStat;

use crate::receiver::Handed;

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
    pub(super) fn of(handed: &Handed) -> Self {
        Self {
            path: handed.path.clone(),
            opened_at: handed.opened_at,
            plain: handed.plain,
        }
    }

    /// Adds it unless it is there.
    pub(super) fn add_to(names: &mut Vec<Self>, handed: &Handed) {
        if names.iter().all(|name| name.path != handed.path) {
            names.push(Self::of(handed));
        }
    }
}
