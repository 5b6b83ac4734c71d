//! State of a node's repeated reads of the source.

use std::collections::BTreeMap;

use forebay_policy::schedule::Hedge;
use forebay_policy::schedule::hedge::ReadId;

/// The hedging of a node.
#[derive(Debug)]
pub(crate) struct Hedging {
    pub(crate) hedge: Hedge,
    pub(crate) slots: BTreeMap<ReadId, u32>,
    /// Time of its next check.
    pub(crate) asks_at_s: f64,
}

impl Hedging {
    pub(crate) fn new(budget: f64) -> Self {
        Self {
            hedge: Hedge::new(budget),
            slots: BTreeMap::new(),
            asks_at_s: f64::INFINITY,
        }
    }
}
