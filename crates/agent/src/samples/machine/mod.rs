//! What a loader does about what happens: a plain state machine without I/O, clock or threads. Times are seconds on the driver's clock.
//!
//! What is fetched, kept and read next is asked of `policy`, in the order in which the simulator asks it; this module knows what lies where, and
//! who waits for it. An [`Event`] goes in, [`Action`]s come out; the driver carries them out in their order.
//!
//! - `ranks.rs`: what each rank has asked for, and how far it is.
//! - `flights.rs`: samples that are being read; `hung.rs`: those that are for very long.
//! - `beyond.rs`: samples that are read long before their use, for want of anything better to do.
//! - `threads.rs`: how many threads serve which rank, where the schedule assigns them; `speeds.rs`: what was measured for that.
//! - `copies.rs`: samples that are there: in memory, on a disk, or both; `line.rs`: in which order they are looked through.
//! - `figures.rs`: what was done, to be told.

mod beyond;
#[cfg(test)]
mod bound_tests;
mod copies;
mod figures;
mod flights;
mod hung;
mod line;
mod ranks;
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

use copies::{Copies, MEMORY};
pub use figures::{Figures, RankFigures};
use flights::Flights;
use line::Line;
use ranks::{Rank, Stage};
pub(crate) use speeds::Speeds;

/// The node: each loader agent decides for its own.
const HERE: u16 = 0;

/// Bytes in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

/// A disk by its place in the loader's settings.
pub(crate) type Disk = usize;

/// What a disk is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Read,
    Write,
}

/// From where a sample is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFrom {
    /// Its file; or a disk on which an earlier job left it.
    Source,
    /// This disk, where this version of it lies.
    Disk { disk: Disk, version: Version, bytes: u32 },
}

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its bytes lie there.
    Whole {
        place: Place,
        version: Version,
        /// It was not the source that was read: an earlier job had left it on this disk. It is claimed now.
        left_on: Option<Disk>,
    },
    /// The arena has no room for so many bytes.
    NoRoom { bytes: u32 },
    /// It does not lie on that disk any more, or not as it was.
    Gone,
    /// It can't be read there, or is not what was written: it lies there no more.
    DiskFault,
    /// The source can't be read, or not as it should be.
    Failed,
}

/// A step of a rank: which it is, and how many there have been in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) steps: u64,
    pub(crate) epoch: u32,
    pub(crate) iteration: u32,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A rank asks for its next use.
    Asked { rank: usize, wanted: Use },
    /// A rank has done with a use, named by the low half of its turn.
    Released { rank: usize, turn: u32 },
    /// A rank has begun a step.
    Stepped { rank: usize, step: Step },
    /// A rank's threads together take so many nanoseconds to decode a sample; 0: that is not known.
    Decodes { rank: usize, ns: u64 },
    /// A rank is gone.
    Gone { rank: usize },
    /// A read has ended.
    Read { flight: u32, outcome: Outcome },
    /// A sample was written to a disk, or not.
    Written {
        sample: Sample,
        disk: Disk,
        result: Result<(), WriteError>,
    },
}

/// Why a sample could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteError {
    /// There is no room.
    Full,
    /// Something is wrong with the disk.
    Fault,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Read a sample; the answer is [`Event::Read`].
    Read { flight: u32, sample: Sample, from: ReadFrom },
    /// Write a sample to a disk, from where it lies in the arena; the answer is [`Event::Written`].
    Write {
        sample: Sample,
        disk: Disk,
        place: Place,
        version: Version,
    },
    /// The bytes in the arena are needed no more.
    Free { place: Place },
    /// A sample on a disk is this loader's no more.
    Release { sample: Sample, disk: Disk },
    /// Answer a use.
    Answer { rank: usize, turn: u64, answer: Answer },
}

/// What a loader is made of.
pub(crate) struct Parts {
    pub(crate) residency: Box<dyn Residency>,
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) order: order::Order,
    /// What ranks ask for: each is what policies call a sample.
    pub(crate) extents: u32,
    pub(crate) ranks: usize,
    /// Memory for residents, and bytes of each disk.
    pub(crate) placement: FillFirst,
    pub(crate) arena_bytes: u64,
    /// Steps ahead that the arena has room for beside residents, as the policy has it that bounds itself.
    pub(crate) window: u32,
    /// Bytes of the arena that samples beyond the window may fill; 0: none is read.
    pub(crate) fill_bytes: u64,
    /// Most reads at once.
    pub(crate) reads_max: u32,
    /// Share of reads that may be made again; 0: none.
    pub(crate) hedge_budget: f64,
}

/// A loader.
pub(crate) struct Core {
    residency: Box<dyn Residency>,
    scheduler: Box<dyn Scheduler>,
    order: order::Order,
    extents: u32,
    iterations: u32,
    ranks: Vec<Rank>,
    /// The pass that the policy is in; none before the first use. A pass is an epoch as it comes: the same may come again.
    pass: Option<EpochNumber>,
    /// What ranks call each pass, from the present one on, as far as is known.
    epochs: BTreeMap<EpochNumber, EpochNumber>,
    copies: Copies,
    flights: Flights,
    placement: FillFirst,
    /// Copies that were offered to the placement.
    offers: u64,
    /// Samples that are resident somewhere, looked through in turn when room is needed.
    residents: Line,
    sweep_pause: u32,
    writing_bytes: u64,
    arena_bytes: u64,
    /// Bytes of the arena that samples lie in.
    held_bytes: u64,
    window: u32,
    fill_bytes: u64,
    /// Reads of samples beyond the window that may still wait for a thread.
    fills: Vec<u32>,
    /// Faults of a disk in a row, of reads and of writes apart: one that has become read-only is read well.
    disk_faults: BTreeMap<(Disk, Way), u32>,
    hedge: Option<Hedge>,
    hedged: BTreeMap<ReadId, u32>,
    concurrency: Concurrency,
    /// How long reads of a disk, and of the source, take.
    recent: [Recent; 2],
    speeds: Speeds,
    /// Steps that the rank that is ahead had begun when threads were assigned last.
    assigned_at: u64,
    /// The policy has no room until something is consumed.
    full: bool,
    /// Nor for anything beyond the window.
    full_beyond: bool,
    /// Reads under way, in all and by rank, but for those that hang; how many these are, of how many at most, and when they were looked for last.
    reading: u32,
    busy: Vec<u32>,
    hung: u32,
    hung_max: u32,
    looked_s: f64,
    figures: Figures,
    rank_figures: Vec<RankFigures>,
}

type Actions = Vec<Action>;

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        let deal = parts.order.deal;
        Self {
            residency: parts.residency,
            scheduler: parts.scheduler,
            order: parts.order,
            extents: parts.extents,
            iterations: deal.iterations(),
            ranks: (0..parts.ranks).map(|_| Rank::default()).collect(),
            pass: None,
            epochs: BTreeMap::new(),
            copies: Copies::new(parts.extents),
            flights: Flights::default(),
            placement: parts.placement,
            offers: 0,
            residents: Line::new(parts.extents),
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

    /// These events are taken next. It changes nothing: see [`Self::glance`].
    pub(crate) fn expect(&self, events: &[Event]) {
        let sample_of = |event: &Event| match *event {
            Event::Asked { wanted, .. } => Some(wanted.sample),
            Event::Released { rank, turn } => self.ranks[rank].sample_of(turn),
            _ => None,
        };
        self.glance(events.iter().filter_map(sample_of));
    }

    /// Reads what is known of samples that come next, of all of them at once: it does not fit the processor's caches, and memory gives many answers in the time of
    /// one.
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

    /// Takes one event. After the last of several that came together, [`Self::go_on`] says what else follows.
    pub(crate) fn take(&mut self, event: Event, now_s: f64, actions: &mut Actions) {
        match event {
            Event::Asked { rank, wanted } => self.asked(rank, wanted, actions),
            Event::Released { rank, turn } => self.released(rank, turn, now_s, actions),
            Event::Stepped { rank, step } => self.stepped(rank, step, now_s, actions),
            Event::Decodes { rank, ns } => self.ranks[rank].decodes(ns),
            Event::Gone { rank } => self.gone(rank, now_s, actions),
            Event::Read { flight, outcome } => self.read_ended(flight, outcome, now_s, actions),
            Event::Written { sample, disk, result } => self.written(sample, disk, result, now_s, actions),
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

    /// When to come again, if nothing happens before.
    pub(crate) fn next_s(&mut self) -> Option<f64> {
        self.hedge.as_mut().and_then(Hedge::next_s)
    }

    /// What was done so far.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            reads_at_once: u64::from(self.reads_limit()),
            hung: u64::from(self.hung),
            ..self.figures
        }
    }

    /// What was done for one of the ranks.
    pub(crate) fn rank_figures(&self, rank: usize) -> RankFigures {
        self.rank_figures.get(rank).copied().unwrap_or_default()
    }

    /// Whether bytes in the arena, or a read, are still needed by anybody: for tests.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.reading + self.hung == 0 && self.ranks.iter().all(Rank::is_idle)
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

    /// The policy is told of passes that all ranks have come to.
    fn begin_passes(&mut self) {
        let reached = self.ranks.iter().filter(|rank| !rank.is_gone()).map(Rank::pass).min();
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

    /// Fetches the nearest use that was asked for and is within the window. Whether there was one, and room for it.
    fn fetch_next(&mut self, now_s: f64, actions: &mut Actions) -> bool {
        let Some((rank, turn)) = self.nearest(false) else {
            return false;
        };
        self.full = !self.let_in(rank, turn, Class::Demand, now_s, actions);
        !self.full
    }

    /// Asks the policy to let a use in. Whether it has room.
    fn let_in(&mut self, rank: usize, turn: u64, class: Class, now_s: f64, actions: &mut Actions) -> bool {
        let access = self.access(rank, turn);
        match self.residency.fetch(access) {
            Fetch::Wait => false,
            // Where it comes from is seen by what is there: what the policy keeps may have been lost, and what it does not keep may still be there.
            Fetch::From(_) => {
                self.ranks[rank].fetched(turn);
                self.begin_use(rank, turn, class, now_s, actions);
                true
            }
        }
    }

    /// Steps ahead that are fetched because they will be needed soon. A policy that is not held to a window is held to the memory's.
    fn reach(&self) -> u64 {
        u64::from(self.residency.window().unwrap_or(self.window).max(1))
    }

    /// The rank and turn of the nearest use that waits to be fetched, if its step is within the window, or *beyond* it, too.
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

    /// The policy lets something wait that a rank needs now: the rank reads it itself.
    fn refuse_what_waits(&mut self, now_s: f64, actions: &mut Actions) {
        while self.full {
            let stuck = self.ranks.iter_mut().enumerate().find_map(|(number, rank)| {
                let (step, turn) = rank.next_to_fetch()?;
                // All of a step is needed before any of it is over.
                (step <= rank.oldest_step()).then_some((number, turn))
            });
            let Some((rank, turn)) = stuck else { return };
            // It may be another rank's use that had to wait, and this one came later.
            if !self.let_in(rank, turn, Class::Demand, now_s, actions) {
                self.ranks[rank].fetched(turn);
                self.ranks[rank].set_stage(turn, Stage::Refused);
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

    /// A use that the policy knows of is over.
    fn consume(&mut self, access: Access, now_s: f64, actions: &mut Actions) {
        self.residency.consumed(access);
        // Of one node there is nobody to hand anything over to.
        while self.residency.handover().is_some() {}
        (self.full, self.full_beyond) = (false, false);
        // First: what is kept now lies where they do.
        self.free_given_up(now_s, actions);
        self.settle(access.sample, now_s, actions);
    }
}

/// The order of an epoch and those after it.
fn orders_from(order: &order::Order, epoch: EpochNumber, horizon: u32) -> Vec<order::Epoch> {
    (0..horizon.max(1)).map(|ahead| order.epoch(epoch.saturating_add(ahead))).collect()
}

const fn answer(rank: usize, turn: u64, answer: Answer) -> Action {
    Action::Answer { rank, turn, answer }
}

/// As policies and this module count origins.
const fn origin_of(from: ReadFrom) -> Origin {
    match from {
        ReadFrom::Source => Origin::Source,
        ReadFrom::Disk { .. } => Origin::Local,
    }
}
