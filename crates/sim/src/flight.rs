//! Samples on their way to a rank: asked for, read, preprocessed.

use forebay_policy::ids::{Rank, Sample};
use forebay_policy::residency::Origin;
use forebay_policy::schedule::Class;
use forebay_policy::schedule::hedge::ReadId;

/// How far a sample has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for a thread to read it.
    Queued,
    /// It is read, and nothing of it has come yet.
    Asked,
    /// Its bytes come.
    Coming,
    /// It is in the node's memory or on its link, and then waits for a thread to preprocess it, or has one.
    Here,
    /// Nothing is left to do for it.
    Done,
}

/// One sample on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) rank: Rank,
    pub(crate) sample: Sample,
    /// The step that uses it, counted over all epochs.
    pub(crate) step: u64,
    pub(crate) bytes: u32,
    pub(crate) origin: Origin,
    pub(crate) class: Class,
    pub(crate) stage: Stage,
    /// Events and requests that still name it, besides the one that its stage waits for.
    pub(crate) held: u8,
    /// When its step was predicted to begin, in seconds.
    pub(crate) deadline_s: f64,
    /// Its read of the source, while that may be made again.
    pub(crate) hedged: Option<ReadId>,
    /// Requests made to the source for it.
    pub(crate) requests: u32,
    /// When a thread began to read it.
    pub(crate) began_s: f64,
}

/// All that are on their way, by slot. Slots are used again.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    slots: Vec<Flight>,
    free: Vec<u32>,
}

impl Flights {
    pub(crate) fn add(&mut self, flight: Flight) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = flight;
            return slot;
        }
        self.slots.push(flight);
        (self.slots.len() - 1) as u32
    }

    pub(crate) fn get(&mut self, slot: u32) -> &mut Flight {
        &mut self.slots[slot as usize]
    }

    /// Nothing is left to do for the rank.
    pub(crate) fn end(&mut self, slot: u32) {
        self.get(slot).stage = Stage::Done;
        self.free_if_unnamed(slot);
    }

    /// Something that names the slot is to come.
    pub(crate) fn hold(&mut self, slot: u32) {
        self.get(slot).held += 1;
    }

    /// It has come.
    pub(crate) fn release(&mut self, slot: u32) {
        self.get(slot).held -= 1;
        self.free_if_unnamed(slot);
    }

    fn free_if_unnamed(&mut self, slot: u32) {
        let flight = self.get(slot);
        if flight.stage == Stage::Done && flight.held == 0 {
            self.free.push(slot);
        }
    }
}
