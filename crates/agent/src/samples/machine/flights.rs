//! Samples that are being read: the requests that wait for each, and the tries.

use forebay_policy::ids::Sample;
use forebay_policy::schedule::ReadClass;
use forebay_policy::schedule::hedge::ReadId;

use super::ReadFrom;
use super::peers::Ticket;

/// Progress of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    /// It waits for a thread.
    Queued,
    /// One thread or more read it.
    Reading,
    /// It waits for room in the arena.
    Starved,
    /// No request waits for it any more. Threads may still be reading.
    Done,
}

/// A sample that is being read.
#[derive(Debug)]
pub(super) struct SampleRead {
    pub(super) sample: Sample,
    pub(super) from: ReadFrom,
    pub(super) state: ReadState,
    /// Rank and sequence number of the requests that wait for it; the first one's rank is charged for the thread.
    pub(super) waiting: Vec<(usize, u64)>,
    /// Requests of other nodes that wait for it.
    pub(super) tickets: Vec<Ticket>,
    pub(super) rank: usize,
    pub(super) deadline_s: f64,
    pub(super) class: ReadClass,
    /// Expected size in bytes.
    bytes: u32,
    /// Entries that the scheduler has for it: a second one if it was queued again in a higher class.
    pub(super) requests: u32,
    /// Threads at work.
    pub(super) under_way: u32,
    /// Threads at work that were set aside as hanging.
    pub(super) hung: u32,
    pub(super) tries: u32,
    pub(super) times: ReadTimes,
    pub(super) hedged: Option<ReadId>,
    /// The arena's total of freed bytes when it was last tried.
    pub(super) freed_bytes: u64,
}

/// Times of a read in seconds.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "the unit stands last in names")]
pub(super) struct ReadTimes {
    /// Time at which it was queued last.
    pub(super) queued_s: f64,
    /// Beginning of the first try.
    pub(super) began_s: f64,
    /// Beginning of the last try.
    pub(super) tried_s: f64,
}

impl SampleRead {
    /// Creates a read of `bytes`, charged to a rank, for its request `turn` if there is one.
    pub(super) fn new(
        (sample, bytes): (Sample, u32),
        from: ReadFrom,
        (rank, turn): (usize, Option<u64>),
        class: ReadClass,
        now_s: f64,
    ) -> Self {
        Self {
            sample,
            from,
            state: ReadState::Queued,
            waiting: turn.into_iter().map(|turn| (rank, turn)).collect(),
            tickets: Vec::new(),
            rank,
            deadline_s: now_s,
            class,
            bytes,
            requests: 0,
            under_way: 0,
            hung: 0,
            tries: 0,
            times: ReadTimes {
                queued_s: now_s,
                began_s: now_s,
                tried_s: now_s,
            },
            hedged: None,
            freed_bytes: 0,
        }
    }
}

/// Reads by slot. Slots are used again.
#[derive(Debug, Default)]
pub(super) struct SampleReads {
    slots: Vec<Option<SampleRead>>,
    free: Vec<u32>,
    pub(super) starved: Vec<u32>,
    /// Expected bytes of samples that are being read.
    coming_bytes: u64,
}

impl SampleReads {
    pub(super) fn add(&mut self, flight: SampleRead) -> u32 {
        self.coming_bytes += u64::from(flight.bytes);
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = Some(flight);
            return number;
        }
        self.slots.push(Some(flight));
        self.slots.len() as u32 - 1
    }

    pub(super) fn get(&mut self, number: u32) -> Option<&mut SampleRead> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn free_if_over(&mut self, number: u32) {
        let is_over = self
            .get(number)
            .is_some_and(|flight| flight.state == ReadState::Done && flight.under_way == 0 && flight.requests == 0);
        if is_over {
            self.slots[number as usize] = None;
            self.free.push(number);
        }
    }

    /// Ends a read, and returns the requests that waited for it.
    pub(super) fn end(&mut self, number: u32) -> Vec<(usize, u64)> {
        let Some(flight) = self.slots.get_mut(number as usize).and_then(Option::as_mut) else {
            return Vec::new();
        };
        flight.state = ReadState::Done;
        self.coming_bytes -= u64::from(flight.bytes);
        std::mem::take(&mut flight.waiting)
    }

    /// Takes an entry back from the scheduler. Returns true if a thread is to read.
    pub(super) fn picked(&mut self, number: u32) -> bool {
        let Some(flight) = self.get(number) else { return false };
        flight.requests -= 1;
        let is_wanted = flight.state == ReadState::Queued;
        self.free_if_over(number);
        is_wanted
    }

    /// Returns the requests that wait for a background fill which waits for a thread; `None` for any other read.
    pub(super) fn waiting_for_fill(&mut self, number: u32) -> Option<&[(usize, u64)]> {
        let flight = self.get(number)?;
        (flight.class == ReadClass::Fill && flight.state == ReadState::Queued).then_some(flight.waiting.as_slice())
    }

    /// Returns the numbers of a rank's reads that wait for a thread, background fills left out.
    pub(super) fn queued_for(&self, rank: usize) -> Vec<u32> {
        let is_queued = |read: &SampleRead| read.rank == rank && read.state == ReadState::Queued && read.class == ReadClass::Demand;
        let numbered = (0..).zip(&self.slots);
        numbered
            .filter_map(|(number, slot)| slot.as_ref().is_some_and(is_queued).then_some(number))
            .collect()
    }

    /// Suspends the reads whose last try began before `before_s`, at most `room`. Returns the rank of each.
    pub(super) fn set_aside(&mut self, before_s: f64, mut room: u32) -> Vec<usize> {
        let mut ranks = Vec::new();
        for flight in self.slots.iter_mut().flatten() {
            // Another node takes no thread.
            while !flight.from.is_peer() && flight.times.tried_s < before_s && flight.hung < flight.under_way && room > 0 {
                flight.hung += 1;
                room -= 1;
                ranks.push(flight.rank);
            }
        }
        ranks
    }

    /// Expected bytes of samples that are being read.
    pub(super) const fn coming_bytes(&self) -> u64 {
        self.coming_bytes
    }
}
