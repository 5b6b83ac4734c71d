//! Repeated reads of the source: policy chooses them, this finds them.

use std::collections::BTreeMap;

use forebay_policy::schedule::Hedge;
use forebay_policy::schedule::hedge::ReadId;

use crate::calendar::Event;
use crate::flight::Stage;
use crate::world::World;

/// The hedging of a node.
#[derive(Debug)]
pub(crate) struct Hedging {
    hedge: Hedge,
    slots: BTreeMap<ReadId, u32>,
    /// Time of its next check.
    asks_at_s: f64,
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

impl World<'_> {
    /// Records that a first read of the source has begun.
    pub(crate) fn hedge_begun(&mut self, node: usize, slot: u32) {
        let Some(hedging) = &mut self.nodes[node].hedging else { return };
        let flight = self.flights.get(slot);
        let read = hedging.hedge.begun(self.calendar.now_s(), flight.bytes.into(), flight.deadline_s);
        flight.hedged = Some(read);
        hedging.slots.insert(read, slot);
        self.ask_again(node);
    }

    /// Records that the sample has arrived.
    pub(crate) fn hedge_ended(&mut self, node: usize, slot: u32) {
        let Some(read) = self.flights.get(slot).hedged.take() else { return };
        if let Some(hedging) = &mut self.nodes[node].hedging {
            hedging.hedge.ended(self.calendar.now_s(), read);
            hedging.slots.remove(&read);
        }
        self.hedge(node);
    }

    /// Repeats the reads that are due.
    pub(crate) fn hedge(&mut self, node: usize) {
        let now_s = self.calendar.now_s();
        while let Some(hedging) = &mut self.nodes[node].hedging {
            if hedging.asks_at_s <= now_s {
                hedging.asks_at_s = f64::INFINITY;
            }
            let Some(read) = hedging.hedge.due(now_s) else { break };
            let slot = hedging.slots[&read];
            // A read whose bytes are arriving is not made faster, but a reader of files does not know that.
            if matches!(self.flights.get(slot).stage, Stage::Asked | Stage::Coming) {
                self.request_from_source(slot);
            }
        }
        self.ask_again(node);
    }

    /// Enters the time at which a read may be due.
    fn ask_again(&mut self, node: usize) {
        let now_s = self.calendar.now_s();
        let Some(hedging) = &mut self.nodes[node].hedging else { return };
        let Some(next_s) = hedging.hedge.next_s().map(|next_s| next_s.max(now_s)) else {
            return;
        };
        if next_s < hedging.asks_at_s {
            hedging.asks_at_s = next_s;
            self.calendar.enter(next_s, Event::HedgeDue { node: node as u16 });
        }
    }
}
