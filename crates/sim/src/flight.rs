//! Samples on their way to a rank: asked for, read, preprocessed.

use forebay_policy::ids::{Rank, Sample};
use forebay_policy::residency::Origin;
use forebay_policy::schedule::ReadClass;
use forebay_policy::schedule::hedge::ReadId;

/// Progress of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleStage {
    /// It waits for a thread to read it.
    Queued,
    /// It is being read, and no byte has arrived yet.
    Asked,
    /// Its bytes are arriving.
    Coming,
    /// It is in the node's memory or on its link, and then waits for a thread to preprocess it, or has one.
    Here,
    /// Nothing is left to do for it.
    Done,
}

/// One sample on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleUnderWay {
    pub(crate) rank: Rank,
    pub(crate) sample: Sample,
    /// The step that uses it, counted over all epochs, and its place in the batch.
    pub(crate) step: u64,
    pub(crate) place: u32,
    pub(crate) bytes: u32,
    pub(crate) origin: Origin,
    pub(crate) class: ReadClass,
    pub(crate) stage: SampleStage,
    /// Events and requests that still name it, besides the one that its stage waits for.
    pub(crate) held: u8,
    /// Predicted start of its step when it was requested, in seconds.
    pub(crate) deadline_s: f64,
    /// Its read of the source, while that may be repeated.
    pub(crate) hedged: Option<ReadId>,
    /// Requests made to the source for it.
    pub(crate) requests: u32,
    /// Time at which a thread began to read it, in seconds.
    pub(crate) began_s: f64,
}

/// Samples on their way, by slot. Slots are used again.
#[derive(Debug, Default)]
pub(crate) struct SamplesUnderWay {
    slots: Vec<SampleUnderWay>,
    free: Vec<u32>,
}

impl SamplesUnderWay {
    pub(crate) fn add(&mut self, flight: SampleUnderWay) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = flight;
            return slot;
        }
        self.slots.push(flight);
        (self.slots.len() - 1) as u32
    }

    pub(crate) fn get(&mut self, slot: u32) -> &mut SampleUnderWay {
        &mut self.slots[slot as usize]
    }

    /// Ends a sample: the rank needs nothing more from it.
    pub(crate) fn end(&mut self, slot: u32) {
        self.get(slot).stage = SampleStage::Done;
        self.free_if_unnamed(slot);
    }

    /// Counts an event or request that names the slot.
    pub(crate) fn hold(&mut self, slot: u32) {
        self.get(slot).held += 1;
    }

    /// Uncounts one that has come.
    pub(crate) fn release(&mut self, slot: u32) {
        self.get(slot).held -= 1;
        self.free_if_unnamed(slot);
    }

    fn free_if_unnamed(&mut self, slot: u32) {
        let flight = self.get(slot);
        if flight.stage == SampleStage::Done && flight.held == 0 {
            self.free.push(slot);
        }
    }
}
