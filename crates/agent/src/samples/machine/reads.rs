//! Reads of a loader: their queue, their threads, and the measurements of both.

use std::collections::BTreeMap;

use forebay_contract::request_ring::RankDecoding;
use forebay_policy::models::{LearnedDecoding, LearnedReads, Recent};
use forebay_policy::residency::Origin;
use forebay_policy::schedule::hedge::ReadId;
use forebay_policy::schedule::{Concurrency, EndedRead, Hedge, ReadRequest, Scheduler, StepLoad};

use super::copies::SampleCopies;
use super::decoders::Decoders;
use super::figures::RankFigures;
use super::flights::{ReadState, SampleReads};
use super::hung::ReadThreads;
use super::ranks::RankRequests;
use super::requests::LoaderRequests;
use super::storage::SampleStorage;
use super::{Actions, MachineAction, ReadFrom, ReadOutcome, origin_of};

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
    /// Recent read times of a disk, and of the source, by rank: one rank's files may be slower to read.
    recent: Vec<[Recent; 2]>,
    learned: LearnedReads,
    decoders: Decoders,
    reads_max: u32,
    /// Steps between two assignments of threads.
    thread_steps: u32,
    /// Steps begun by the foremost rank when threads were assigned last.
    assigned_at: u64,
    pub(super) threads: ReadThreads,
    pub(super) rank_figures: Vec<RankFigures>,
}

impl ReadControl {
    pub(super) fn new(scheduler: Box<dyn Scheduler>, decoders: Decoders, reads_max: u32, hedge_budget: f64, thread_steps: u32) -> Self {
        let ranks = decoders.ranks();
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
            recent: vec![[Recent::default(); 2]; ranks],
            learned: LearnedReads::default(),
            decoders,
            reads_max,
            thread_steps,
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
        let read_s = self.recent[flight.rank][recent_of(origin)].seconds(u64::from(bytes));
        let request = ReadRequest {
            ticket: number,
            local_rank: flight.rank as u32,
            sample: flight.sample,
            bytes,
            origin,
            step,
            deadline_s: flight.deadline_s,
            predicted_s: read_s + self.decoders.batch_s(flight.rank),
            queued_s: now_s,
            class: flight.class,
        };
        self.scheduler.push(request);
    }

    /// Most reads that may be under way. A schedule that weighs reading against decoding knows more than throughput
    /// alone tells: nothing else bounds its choice.
    pub(super) fn reads_limit(&self) -> u32 {
        let threads = self.scheduler.loading_threads();
        if self.scheduler.divides_loading() {
            threads
        } else {
            threads.min(self.concurrency.limit())
        }
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
            self.learned.peer_asked(now_s);
            actions.push(MachineAction::Read {
                flight: number,
                sample,
                from,
                rank,
            });
            return;
        }
        if let (Some(hedges), ReadFrom::Source, None) = (&mut self.hedges, from, flight.hedged) {
            let bytes = u64::from(storage.copies.expected_bytes(sample));
            let needed_s = flight.deadline_s - self.decoders.batch_s(rank);
            flight.hedged = Some(hedges.begin(number, bytes, needed_s, now_s));
        }
        self.rank_figures[rank].begun(self.threads.begin(rank));
        actions.push(MachineAction::Read {
            flight: number,
            sample,
            from,
            rank,
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

    /// Records the end of a request to another node.
    pub(super) fn peer_ended(&mut self, outcome: ReadOutcome, now_s: f64) {
        let bytes = match outcome {
            ReadOutcome::Whole { place, .. } => u64::from(place.bytes),
            _ => 0,
        };
        self.learned.peer_ended(bytes, now_s);
    }

    /// Takes the measurements of a complete read: its origin, its tries, and its time.
    pub(super) fn measure(&mut self, number: u32, bytes: u64, is_of_source: bool, now_s: f64) {
        let Some(flight) = self.flights.get(number) else { return };
        let (tries, took_s) = (flight.tries, now_s - flight.times.began_s);
        if let (Some(read), Some(hedges)) = (flight.hedged.take(), &mut self.hedges) {
            hedges.end(read, is_of_source.then_some(now_s));
        }
        if !flight.from.is_peer() && tries == 1 {
            let origin = if is_of_source { Origin::Source } else { Origin::Local };
            self.recent[flight.rank][recent_of(origin)].observe(bytes, took_s);
            // Including this one.
            self.learned.observe(is_of_source, self.threads.reading() + 1, bytes, took_s);
        }
        if is_of_source {
            let read = EndedRead {
                local_rank: flight.rank as u32,
                bytes,
                took_s: (tries == 1).then_some(took_s),
            };
            self.concurrency.ended(now_s, read, self.scheduler.waiting() > 0);
        }
    }

    /// Takes a rank's measurements of its decoding.
    pub(super) fn decodes(&mut self, rank: usize, decoding: RankDecoding, actions: &mut Actions) {
        self.decoders.measured(rank, decoding, &mut *self.scheduler);
        self.decoders.tell(&*self.scheduler, &mut self.rank_figures, actions);
    }

    /// Returns the threads that read or decode, of the node and of its ranks together.
    fn node_threads(&self) -> u32 {
        self.reads_max + self.decoders.budget()
    }

    /// Assigns threads again if a rank has begun a step since the last time, for the batches that were let in last.
    pub(super) fn assign(&mut self, requests: &LoaderRequests, actions: &mut Actions) {
        let ranks = requests.ranks();
        let steps = ranks.iter().map(RankRequests::steps).max().unwrap_or(0);
        // Before any step was measured, no rank is late: all ranks have the same number of threads.
        let is_due = steps >= self.assigned_at + u64::from(self.thread_steps);
        if !self.scheduler.assigns() || !is_due || ranks.iter().all(|rank| rank.step_s() <= 0.0) {
            return;
        }
        self.assigned_at = steps;
        let learned = self.decoders.learned();
        let threads = self.node_threads();
        let (load, preprocessing) = self.learned.models(self.decoders.models(threads), threads);
        self.scheduler.measured(load, preprocessing);
        self.scheduler.assign(&step_load(requests, learned));
        self.decoders.tell(&*self.scheduler, &mut self.rank_figures, actions);
    }
}

/// Returns the load of a step, by rank: that of the latest one whose requests were all let in.
///
/// It is not asked what the latest step within the window still lacks: a rank may request fewer steps than the window
/// has, and of a step that was let in some time ago most samples have been read.
fn step_load(requests: &LoaderRequests, learned: &LearnedDecoding) -> StepLoad {
    let ranks = requests.ranks();
    let mut load = StepLoad {
        // Ranks train together: the one that is slowest by itself delays the others.
        train_s: ranks.iter().map(RankRequests::step_s).fold(0.0, f64::max),
        ..StepLoad::default()
    };
    for (number, rank) in ranks.iter().enumerate() {
        let of_step = rank.step_load(requests.batch());
        load.bytes.push(of_step.read_bytes);
        load.samples.push(of_step.samples);
        load.sample_bytes += of_step.sample_bytes;
        let samples = f64::from(of_step.samples);
        // A rank that has requested nothing goes on as before.
        let before_s = f64::from(requests.batch()) * learned.recent_s(number);
        let mean_bytes = of_step.sample_bytes.checked_div(u64::from(of_step.samples));
        load.decode_s
            .push(mean_bytes.map_or(before_s, |bytes| samples * learned.seconds(number, bytes)));
        load.decode_threads.push(learned.threads(number));
    }
    load
}

const fn recent_of(origin: Origin) -> usize {
    match origin {
        Origin::Local => 0,
        Origin::Peer(_) | Origin::Source => 1,
    }
}
