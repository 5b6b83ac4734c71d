//! State machine of a loader, without I/O, clock or threads. Times are seconds on the driver's clock.
//!
//! `policy` decides what to fetch, keep and read next, asked in the order in which the simulator asks it. This module
//! tracks the copies and the waiting requests. A [`MachineEvent`] goes in, [`MachineAction`]s come out; the driver carries them out
//! in their order.
//!
//! - `ranks.rs`: requests and progress of each rank.
//! - `flights.rs`: samples that are being read; `hung.rs`: reads that hang.
//! - `background_fill.rs`: background fill.
//! - `threads.rs`: threads for each rank, if the schedule assigns them; `speeds.rs`: measurements for that.
//! - `copies.rs`: samples in memory, on a disk, or both; `sample_queue.rs`: the order in which they are searched.
//! - `figures.rs`: figures for reports.

mod background_fill;
#[cfg(test)]
mod bound_tests;
mod copies;
mod figures;
mod flights;
mod hung;
mod ranks;
mod sample_queue;
mod speeds;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::BTreeMap;

use forebay_contract::board::{Answer, Use};
use forebay_policy::fill_first::FillFirst;
use forebay_policy::ids::{EpochNumber, Sample};
use forebay_policy::models::Recent;
use forebay_policy::order;
use forebay_policy::residency::{Access, Fetch, Origin, Residency};
use forebay_policy::schedule::hedge::ReadId;
use forebay_policy::schedule::{Class, Concurrency, Hedge, Scheduler};
use forebay_store::Version;

use copies::{MEMORY, SampleCopies};
pub use figures::{Figures, RankFigures};
use flights::SampleReads;
use ranks::{RankRequests, RequestStage};
use sample_queue::SampleQueue;
pub(crate) use speeds::Speeds;

/// Number of this node: each loader agent decides for its own node.
const HERE: u16 = 0;

/// A range in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaRange {
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

/// A disk by its place in the loader's settings.
pub(crate) type DiskIndex = usize;

/// Kind of operation on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DiskOperation {
    Read,
    Write,
}

/// Place from which a sample is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFrom {
    /// Its source; or a disk on which an earlier job left it.
    Source,
    /// A disk that has this version of it.
    Disk { disk: DiskIndex, version: Version, bytes: u32 },
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// Its bytes are in this range.
    Whole {
        place: ArenaRange,
        version: Version,
        /// The disk on which an earlier job had left it, if it was read there. It is claimed now.
        left_on: Option<DiskIndex>,
    },
    /// The arena has no room for `bytes`.
    NoRoom { bytes: u32 },
    /// The disk does not have it any more, or not in this version.
    Gone,
    /// The disk can't read it, or its bytes are not those written: it is removed there.
    DiskFault,
    /// The source can't be read, or does not match.
    Failed,
}

/// A step of a rank, and the number of steps in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankStep {
    pub(crate) steps: u64,
    pub(crate) epoch: u32,
    pub(crate) iteration: u32,
}

/// Events for the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineEvent {
    /// A rank makes its next request.
    Asked { rank: usize, wanted: Use },
    /// A rank has released a request, named by the low half of its sequence number.
    Released { rank: usize, turn: u32 },
    /// A rank has begun a step.
    Stepped { rank: usize, step: RankStep },
    /// Nanoseconds that a rank's threads together take to decode a sample; 0 if unknown.
    Decodes { rank: usize, ns: u64 },
    /// A rank is gone.
    Gone { rank: usize },
    /// A read has ended.
    Read { flight: u32, outcome: ReadOutcome },
    /// The result of a write to a disk.
    Written {
        sample: Sample,
        disk: DiskIndex,
        result: Result<(), WriteError>,
    },
}

/// Reason why a sample could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteError {
    /// There is no room.
    Full,
    /// The disk has failed.
    Fault,
}

/// Actions for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineAction {
    /// Read a sample; the answer is [`MachineEvent::Read`].
    Read { flight: u32, sample: Sample, from: ReadFrom },
    /// Write a sample to a disk, from its range in the arena; the answer is [`MachineEvent::Written`].
    Write {
        sample: Sample,
        disk: DiskIndex,
        place: ArenaRange,
        version: Version,
    },
    /// Free this range of the arena.
    Free { place: ArenaRange },
    /// Give up a claim to a sample on a disk.
    Release { sample: Sample, disk: DiskIndex },
    /// Answer a request.
    Answer { rank: usize, turn: u64, answer: Answer },
}

/// Inputs of a machine.
pub(crate) struct MachineInput {
    pub(crate) residency: Box<dyn Residency>,
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) order: order::Order,
    /// Number of extents, which ranks ask for: policies call them samples.
    pub(crate) extents: u32,
    pub(crate) ranks: usize,
    /// Memory for residents, and bytes of each disk.
    pub(crate) placement: FillFirst,
    pub(crate) arena_bytes: u64,
    /// Steps ahead for which the arena has room beside residents, as computed by a policy that bounds itself.
    pub(crate) window: u32,
    /// Bytes of the arena that samples beyond the window may fill; 0 for no background fill.
    pub(crate) fill_bytes: u64,
    /// Most concurrent reads.
    pub(crate) reads_max: u32,
    /// Share of reads that may be made again; 0 for none.
    pub(crate) hedge_budget: f64,
}

/// A loader.
pub(crate) struct Machine {
    residency: Box<dyn Residency>,
    scheduler: Box<dyn Scheduler>,
    order: order::Order,
    extents: u32,
    iterations: u32,
    ranks: Vec<RankRequests>,
    /// Pass that the policy is in; none before the first request. A pass is one run through an epoch, which may be
    /// repeated.
    pass: Option<EpochNumber>,
    /// Epoch of each pass, from the present one on, as far as it is known.
    epochs: BTreeMap<EpochNumber, EpochNumber>,
    copies: SampleCopies,
    flights: SampleReads,
    placement: FillFirst,
    /// SampleCopies that were offered to the placement.
    offers: u64,
    /// Resident samples, searched in cyclic order when room is needed.
    residents: SampleQueue,
    sweep_pause: u32,
    writing_bytes: u64,
    arena_bytes: u64,
    /// Bytes of the arena that hold samples.
    held_bytes: u64,
    window: u32,
    fill_bytes: u64,
    /// Background fills that may still wait for a thread.
    fills: Vec<u32>,
    /// Faults of a disk in a row, of reads and of writes separately: a disk that has become read-only reads well.
    disk_faults: BTreeMap<(DiskIndex, DiskOperation), u32>,
    hedge: Option<Hedge>,
    hedged: BTreeMap<ReadId, u32>,
    concurrency: Concurrency,
    /// Recent read times of a disk, and of the source.
    recent: [Recent; 2],
    speeds: Speeds,
    /// Steps begun by the foremost rank when threads were assigned last.
    assigned_at: u64,
    /// True if the policy has no room until something is consumed.
    full: bool,
    /// True if the policy has no room beyond the window.
    full_beyond: bool,
    /// Reads under way except hanging ones, in all and by rank; number and limit of hanging ones, and time of the last
    /// search for them.
    reading: u32,
    busy: Vec<u32>,
    hung: u32,
    hung_max: u32,
    looked_s: f64,
    figures: Figures,
    rank_figures: Vec<RankFigures>,
}

type Actions = Vec<MachineAction>;

impl Machine {
    pub(crate) fn new(parts: MachineInput) -> Self {
        let deal = parts.order.deal;
        Self {
            residency: parts.residency,
            scheduler: parts.scheduler,
            order: parts.order,
            extents: parts.extents,
            iterations: deal.iterations(),
            ranks: (0..parts.ranks).map(|_| RankRequests::default()).collect(),
            pass: None,
            epochs: BTreeMap::new(),
            copies: SampleCopies::new(parts.extents),
            flights: SampleReads::default(),
            placement: parts.placement,
            offers: 0,
            residents: SampleQueue::new(parts.extents),
            sweep_pause: 0,
            writing_bytes: 0,
            arena_bytes: parts.arena_bytes,
            held_bytes: 0,
            window: parts.window,
            fill_bytes: parts.fill_bytes,
            fills: Vec::new(),
            disk_faults: BTreeMap::new(),
            hedge: (parts.hedge_budget > 0.0).then(|| Hedge::new(parts.hedge_budget)),
            hedged: BTreeMap::new(),
            concurrency: Concurrency::new(parts.reads_max),
            recent: [Recent::default(); 2],
            speeds: Speeds::default(),
            assigned_at: 0,
            full: false,
            full_beyond: false,
            reading: 0,
            busy: vec![0; parts.ranks],
            hung: 0,
            hung_max: parts.reads_max,
            looked_s: 0.0,
            figures: Figures::default(),
            rank_figures: vec![RankFigures::default(); parts.ranks],
        }
    }

    /// Announces the events that are taken next, so that their entries can be touched together. It changes nothing.
    pub(crate) fn expect(&self, events: &[MachineEvent]) {
        let sample_of = |event: &MachineEvent| match *event {
            MachineEvent::Asked { wanted, .. } => Some(wanted.sample),
            MachineEvent::Released { rank, turn } => self.ranks[rank].sample_of(turn),
            _ => None,
        };
        self.glance(events.iter().filter_map(sample_of));
    }

    /// Touches the entries of upcoming samples together: they do not fit the processor's caches, and the cache misses
    /// of many overlap.
    fn glance(&self, samples: impl Iterator<Item = Sample>) {
        // Before the first pass policies know nothing.
        let Some(epoch) = self.pass else { return };
        let access = |sample| Access {
            node: HERE,
            sample,
            iteration: 0,
            epoch,
        };
        let accesses: Vec<Access> = samples.filter(|sample| *sample < self.extents).map(access).collect();
        self.copies.expect(accesses.iter().map(|access| access.sample));
        self.residency.expect(&accesses);
    }

    /// Takes one event. After the last event of a group, [`Self::go_on`] decides what follows.
    pub(crate) fn take(&mut self, event: MachineEvent, now_s: f64, actions: &mut Actions) {
        match event {
            MachineEvent::Asked { rank, wanted } => self.asked(rank, wanted, actions),
            MachineEvent::Released { rank, turn } => self.released(rank, turn, now_s, actions),
            MachineEvent::Stepped { rank, step } => self.stepped(rank, step, now_s, actions),
            MachineEvent::Decodes { rank, ns } => self.ranks[rank].decodes(ns),
            MachineEvent::Gone { rank } => self.gone(rank, now_s, actions),
            MachineEvent::Read { flight, outcome } => self.read_ended(flight, outcome, now_s, actions),
            MachineEvent::Written { sample, disk, result } => self.written(sample, disk, result, now_s, actions),
        }
    }

    /// Asks the policy for what may be fetched, and puts free threads to work.
    pub(crate) fn go_on(&mut self, now_s: f64, actions: &mut Actions) {
        self.begin_passes();
        self.set_hung_aside(now_s);
        self.feed_starved(now_s, actions);
        while !self.full && self.fetch_next(now_s, actions) {}
        self.refuse_what_waits(now_s, actions);
        self.fetch_beyond(now_s, actions);
        self.assign();
        self.dispatch(now_s, actions);
        self.hedge(now_s, actions);
    }

    /// Time at which to call again, if nothing happens before.
    pub(crate) fn next_s(&mut self) -> Option<f64> {
        self.hedge.as_mut().and_then(Hedge::next_s)
    }

    /// Figures so far.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            reads_at_once: u64::from(self.reads_limit()),
            hung: u64::from(self.hung),
            ..self.figures
        }
    }

    /// Figures of one rank so far.
    pub(crate) fn rank_figures(&self, rank: usize) -> RankFigures {
        self.rank_figures.get(rank).copied().unwrap_or_default()
    }

    /// Returns true if no range of the arena and no read is needed any more: for tests.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.reading + self.hung == 0 && self.ranks.iter().all(RankRequests::is_idle)
    }

    fn asked(&mut self, rank: usize, wanted: Use, actions: &mut Actions) {
        let is_known = wanted.sample < self.extents;
        let (turn, pass) = self.ranks[rank].ask(wanted, self.iterations, is_known);
        if !is_known {
            self.figures.refused_unknown += 1;
            actions.push(answer(rank, turn, Answer::Refused));
        }
        self.epochs.entry(pass).or_insert(wanted.epoch);
    }

    /// Tells the policy of passes that all ranks have reached.
    fn begin_passes(&mut self) {
        let reached = self.ranks.iter().filter(|rank| !rank.is_gone()).map(RankRequests::pass).min();
        let Some(reached) = reached.filter(|_| !self.epochs.is_empty()) else {
            return;
        };
        loop {
            let next = self.pass.map_or(0, |pass| pass + 1);
            self.epochs = self.epochs.split_off(&next);
            let Some((&pass, &named)) = self.epochs.first_key_value().filter(|(pass, _)| **pass <= reached) else {
                return;
            };
            let orders = orders_from(&self.order, Use::epoch_of(named), self.residency.horizon());
            self.residency.begin(pass, &orders);
            self.pass = Some(pass);
            (self.full, self.full_beyond) = (false, false);
        }
    }

    /// Fetches the nearest request within the window. Returns true if there was one, and room for it.
    fn fetch_next(&mut self, now_s: f64, actions: &mut Actions) -> bool {
        let Some((rank, turn)) = self.nearest(false) else {
            return false;
        };
        self.full = !self.let_in(rank, turn, Class::Demand, now_s, actions);
        !self.full
    }

    /// Asks the policy to let a request in. Returns true if it has room.
    fn let_in(&mut self, rank: usize, turn: u64, class: Class, now_s: f64, actions: &mut Actions) -> bool {
        let access = self.access(rank, turn);
        match self.residency.fetch(access) {
            Fetch::Wait => false,
            // The copies decide on the origin: a sample that the policy keeps may have been lost, and one that it does
            // not keep may still be there.
            Fetch::From(_) => {
                self.ranks[rank].fetched(turn);
                self.begin_use(rank, turn, class, now_s, actions);
                true
            }
        }
    }

    /// Steps ahead that are fetched as needed soon. A policy without a window gets that of the memory.
    fn reach(&self) -> u64 {
        u64::from(self.residency.window().unwrap_or(self.window).max(1))
    }

    /// Returns the rank and sequence number of the nearest request that waits to be fetched, if its step is within the
    /// window, or anywhere if `beyond`.
    fn nearest(&mut self, beyond: bool) -> Option<(usize, u64)> {
        let window = self.reach();
        let mut nearest: Option<(u64, usize, u64)> = None;
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let Some((step, turn)) = rank.next_to_fetch() else { continue };
            let is_within = step < rank.oldest_step().saturating_add(window);
            if (is_within || beyond) && nearest.is_none_or(|(nearest, ..)| step < nearest) {
                nearest = Some((step, number, turn));
            }
        }
        nearest.map(|(_, rank, turn)| (rank, turn))
    }

    /// Refuses requests that a rank needs now and the policy lets wait: the rank reads them itself.
    fn refuse_what_waits(&mut self, now_s: f64, actions: &mut Actions) {
        while self.full {
            let stuck = self.ranks.iter_mut().enumerate().find_map(|(number, rank)| {
                let (step, turn) = rank.next_to_fetch()?;
                // All of a step is needed before any of it is over.
                (step <= rank.oldest_step()).then_some((number, turn))
            });
            let Some((rank, turn)) = stuck else { return };
            // Another rank's request may be the one that had to wait, before this one came.
            if !self.let_in(rank, turn, Class::Demand, now_s, actions) {
                self.ranks[rank].fetched(turn);
                self.ranks[rank].set_stage(turn, RequestStage::Refused);
                self.figures.refused_no_room += 1;
                actions.push(answer(rank, turn, Answer::Refused));
            }
            self.full = false;
            while !self.full && self.fetch_next(now_s, actions) {}
        }
    }

    fn access(&self, rank: usize, turn: u64) -> Access {
        let used = self.ranks[rank].used(turn);
        Access {
            node: HERE,
            sample: used.sample,
            iteration: used.iteration,
            epoch: used.pass,
        }
    }

    /// Ends a request that the policy knows.
    fn consume(&mut self, access: Access, now_s: f64, actions: &mut Actions) {
        self.residency.consumed(access);
        // A single node has no other to hand anything over to.
        while self.residency.handover().is_some() {}
        (self.full, self.full_beyond) = (false, false);
        // Given-up copies go first: kept ones take their place.
        self.free_given_up(now_s, actions);
        self.settle(access.sample, now_s, actions);
    }
}

/// Returns the orders of an epoch and of those after it.
fn orders_from(order: &order::Order, epoch: EpochNumber, horizon: u32) -> Vec<order::Epoch> {
    (0..horizon.max(1)).map(|ahead| order.epoch(epoch.saturating_add(ahead))).collect()
}

const fn answer(rank: usize, turn: u64, answer: Answer) -> MachineAction {
    MachineAction::Answer { rank, turn, answer }
}

/// Maps a place to the policies' origin.
const fn origin_of(from: ReadFrom) -> Origin {
    match from {
        ReadFrom::Source => Origin::Source,
        ReadFrom::Disk { .. } => Origin::Local,
    }
}
