//! Reads of a loader: their queue, their threads, and the measurements of both.

use std::collections::BTreeMap;

use forebay_policy::ids::Sample;
use forebay_policy::models::Recent;
use forebay_policy::residency::Origin;
use forebay_policy::schedule::hedge::ReadId;
use forebay_policy::schedule::{Concurrency, Hedge, ReadRequest, Scheduler, StepLoad};

use super::copies::{MEMORY, SampleCopies};
use super::figures::RankFigures;
use super::flights::{ReadState, SampleReads};
use super::hung::ReadThreads;
use super::ranks::RankRequests;
use super::requests::LoaderRequests;
use super::speeds::Speeds;
use super::storage::SampleStorage;
use super::{Actions, MachineAction, ReadFrom, origin_of};

/// Repeated reads of the source: those under way by their number, and how many there have been.
pub(super) struct Hedges {
    hedge: Hedge,
    numbers: BTreeMap<ReadId, u32>,
    repeated: u64,
}

impl Hedges {
    fn begin(&mut self, number: u32, bytes: u64, deadline_s: f64, now_s: f64) -> ReadId {
        let read = self.hedge.begun(now_s, bytes, deadline_s);
        self.numbers.insert(read, number);
        read
    }

    /// Returns the number of a read that is to be repeated now.
    fn due(&mut self, now_s: f64) -> Option<u32> {
        while let Some(read) = self.hedge.due(now_s) {
            if let Some(&number) = self.numbers.get(&read) {
                self.repeated += 1;
                return Some(number);
            }
        }
        None
    }

    /// Ends a read; `at_s` is the time if its duration is a measurement of the source.
    fn end(&mut self, read: ReadId, at_s: Option<f64>) {
        self.numbers.remove(&read);
        match at_s {
            Some(now_s) => self.hedge.ended(now_s, read),
            None => self.hedge.abandoned(read),
        }
    }
}

/// Queue and threads of a loader's reads.
pub(super) struct ReadControl {
    pub(super) scheduler: Box<dyn Scheduler>,
    pub(super) flights: SampleReads,
    /// Background fills that may still wait for a thread.
    pub(super) fills: Vec<u32>,
    hedges: Option<Hedges>,
    pub(super) concurrency: Concurrency,
    /// Recent read times of a disk, and of the source.
    recent: [Recent; 2],
    speeds: Speeds,
    /// Steps begun by the foremost rank when threads were assigned last.
    assigned_at: u64,
    pub(super) threads: ReadThreads,
    pub(super) rank_figures: Vec<RankFigures>,
}

impl ReadControl {
    pub(super) fn new(scheduler: Box<dyn Scheduler>, ranks: usize, reads_max: u32, hedge_budget: f64) -> Self {
        let hedges = (hedge_budget > 0.0).then(|| Hedges {
            hedge: Hedge::new(hedge_budget),
            numbers: BTreeMap::new(),
            repeated: 0,
        });
        Self {
            scheduler,
            flights: SampleReads::default(),
            fills: Vec::new(),
            hedges,
            concurrency: Concurrency::new(reads_max),
            recent: [Recent::default(); 2],
            speeds: Speeds::default(),
            assigned_at: 0,
            threads: ReadThreads::new(ranks, reads_max),
            rank_figures: vec![RankFigures::default(); ranks],
        }
    }

    /// Adds a read to the scheduler's queue.
    pub(super) fn queue(&mut self, number: u32, step: u64, copies: &SampleCopies, now_s: f64) {
        let Some(flight) = self.flights.get(number) else { return };
        flight.state = ReadState::Queued;
        flight.requests += 1;
        flight.times.queued_s = now_s;
        let bytes = copies.expected_bytes(flight.sample);
        let origin = origin_of(flight.from);
        let request = ReadRequest {
            ticket: number,
            local_rank: flight.rank as u32,
            sample: flight.sample,
            bytes,
            origin,
            step,
            deadline_s: flight.deadline_s,
            predicted_s: self.recent[recent_of(origin)].seconds(u64::from(bytes)),
            queued_s: now_s,
            class: flight.class,
        };
        self.scheduler.push(request);
    }

    /// Most reads that may be under way.
    pub(super) fn reads_limit(&self) -> u32 {
        self.scheduler.loading_threads().min(self.concurrency.limit())
    }

    /// Returns true if another read may begin.
    pub(super) fn has_free_thread(&self) -> bool {
        self.threads.reading() < self.reads_limit()
    }

    /// Lets free threads take the most urgent reads.
    pub(super) fn dispatch(&mut self, storage: &SampleStorage, now_s: f64, actions: &mut Actions) {
        while self.has_free_thread() {
            let Some(request) = self.scheduler.pick(self.threads.busy()) else {
                return;
            };
            // An entry that was queued again may have been read since.
            if self.flights.picked(request.ticket) {
                self.begin_try(request.ticket, storage, now_s, actions);
            }
        }
    }

    /// Begins a try of a read.
    pub(super) fn begin_try(&mut self, number: u32, storage: &SampleStorage, now_s: f64, actions: &mut Actions) {
        let Some(flight) = self.flights.get(number) else { return };
        flight.state = ReadState::Reading;
        flight.freed_bytes = storage.freed_bytes();
        flight.under_way += 1;
        flight.tries += 1;
        flight.times.tried_s = now_s;
        if flight.tries == 1 {
            flight.times.began_s = now_s;
            self.rank_figures[flight.rank].waited(now_s - flight.times.queued_s);
        }
        let (sample, from, rank) = (flight.sample, flight.from, flight.rank);
        if from.is_peer() {
            actions.push(MachineAction::Read {
                flight: number,
                sample,
                from,
            });
            return;
        }
        if let (Some(hedges), ReadFrom::Source, None) = (&mut self.hedges, from, flight.hedged) {
            let bytes = u64::from(storage.copies.expected_bytes(sample));
            flight.hedged = Some(hedges.begin(number, bytes, flight.deadline_s, now_s));
        }
        self.rank_figures[rank].begun(self.threads.begin(rank));
        actions.push(MachineAction::Read {
            flight: number,
            sample,
            from,
        });
    }

    /// Repeats slow reads of the source.
    pub(super) fn hedge(&mut self, storage: &SampleStorage, now_s: f64, actions: &mut Actions) {
        while let Some(number) = self.hedges.as_mut().and_then(|hedges| hedges.due(now_s)) {
            self.begin_try(number, storage, now_s, actions);
        }
    }

    /// Number of reads that were repeated.
    pub(super) fn repeated(&self) -> u64 {
        self.hedges.as_ref().map_or(0, |hedges| hedges.repeated)
    }

    /// Time of the next repeated read, if nothing happens before.
    pub(super) fn next_s(&mut self) -> Option<f64> {
        self.hedges.as_mut().and_then(|hedges| hedges.hedge.next_s())
    }

    /// Ends the hedging of a read that has failed or found no room.
    pub(super) fn abandon_hedge(&mut self, number: u32) {
        let hedged = self.flights.get(number).and_then(|flight| flight.hedged.take());
        if let (Some(read), Some(hedges)) = (hedged, &mut self.hedges) {
            hedges.end(read, None);
        }
    }

    /// Takes the measurements of a complete read: its origin, its tries, and its time.
    pub(super) fn measure(&mut self, number: u32, bytes: u64, is_of_source: bool, now_s: f64) {
        let Some(flight) = self.flights.get(number) else { return };
        let (tries, took_s) = (flight.tries, now_s - flight.times.began_s);
        if let (Some(read), Some(hedges)) = (flight.hedged.take(), &mut self.hedges) {
            hedges.end(read, is_of_source.then_some(now_s));
        }
        let from = flight.from;
        if from.is_peer() {
            self.speeds.observe(origin_of(from), 1, bytes, took_s);
        } else if tries == 1 {
            let origin = if is_of_source { Origin::Source } else { Origin::Local };
            self.recent[recent_of(origin)].observe(bytes, took_s);
            // Including this one.
            self.speeds.observe(origin, self.threads.reading() + 1, bytes, took_s);
        }
        if is_of_source {
            let others_wait = self.scheduler.waiting() > 0;
            self.concurrency.ended(now_s, bytes, others_wait);
        }
    }

    /// Assigns threads again if a rank has begun a step since the last time, for the batches that have just come within
    /// the window.
    ///
    /// `is_elsewhere` says of a sample whether another node is asked for it.
    pub(super) fn assign(&mut self, requests: &LoaderRequests, copies: &SampleCopies, reach: u64, is_elsewhere: impl Fn(Sample) -> bool) {
        let ranks = requests.ranks();
        let steps = ranks.iter().map(RankRequests::steps).max().unwrap_or(0);
        // Before any step was measured, no rank is late: all ranks have the same number of threads.
        if !self.scheduler.assigns() || steps == self.assigned_at || ranks.iter().all(|rank| rank.step_s() <= 0.0) {
            return;
        }
        self.assigned_at = steps;
        // Each rank decodes by itself: for one batch of each, the assignment takes the time of one after the other.
        let decoding_s = ranks.iter().map(RankRequests::decoding_s).fold(0.0, f64::max) / ranks.len() as f64;
        let (load, preprocessing) = self.speeds.models(decoding_s);
        self.scheduler.measured(load, preprocessing);
        self.scheduler.assign(&step_load(ranks, copies, reach, is_elsewhere));
    }
}

/// Returns the load of the last batch within the window, by rank; samples in memory need no read.
fn step_load(ranks: &[RankRequests], copies: &SampleCopies, reach: u64, is_elsewhere: impl Fn(Sample) -> bool) -> StepLoad {
    let mut load = StepLoad {
        // Ranks train together: the one that is slowest by itself delays the others.
        train_s: ranks.iter().map(RankRequests::step_s).fold(0.0, f64::max),
        ..StepLoad::default()
    };
    for rank in ranks {
        let (mut bytes, mut samples) = ([0; 3], 0);
        for sample in rank.of_step(rank.oldest_step() + reach - 1) {
            let copy = copies.get(sample);
            let size = u64::from(copies.expected_bytes(sample));
            match copy.and_then(|copy| copy.resident) {
                _ if copy.is_some_and(|copy| copy.memory.is_some()) => {}
                Some((tier, ..)) if tier != MEMORY => bytes[0] += size,
                _ if is_elsewhere(sample) => bytes[1] += size,
                _ => bytes[2] += size,
            }
            samples += 1;
        }
        load.bytes.push(bytes);
        load.samples.push(samples);
    }
    load
}

const fn recent_of(origin: Origin) -> usize {
    match origin {
        Origin::Local => 0,
        Origin::Peer(_) | Origin::Source => 1,
    }
}
