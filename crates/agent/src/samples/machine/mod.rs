//! State machine of a loader, without I/O, clock or threads. Times are seconds on the driver's clock.
//!
//! `policy` decides what to fetch, keep and read next, asked in the order in which the simulator asks it. This module
//! tracks the copies and the waiting requests. A [`MachineEvent`] goes in, [`MachineAction`]s come out; the driver
//! carries them out in their order.
//!
//! - `events.rs`: events and actions.
//! - `requests.rs`: requests of all ranks; `ranks.rs`: requests and progress of each rank.
//! - `lifecycle.rs`: life of a request.
//! - `decoders.rs`: threads with which ranks decode.
//! - `reads.rs`: queue and threads of reads; `flights.rs`: samples that are being read; `hung.rs`: reads that hang.
//! - `peers.rs`: samples that other nodes are asked for, or ask for.
//! - `storage.rs`: placement of samples in memory and on disks; `copies.rs`: their copies; `sample_queue.rs`: the order
//!   in which residents are searched.
//! - `figures.rs`: figures for reports.
//!
//! *Background fill* reads samples long before their use, when threads are idle, and into memory that would stay
//! unused. For that, ranks ask further ahead than they need. A background fill waits behind all other reads, until its
//! step comes within the window. A policy without a window (Lobster as it is written) reads ahead by its own rules: its
//! reads are no background fill.

#[cfg(test)]
mod bound_tests;
mod copies;
mod decoders;
mod events;
mod figures;
mod flights;
mod hung;
mod lifecycle;
mod peers;
mod ranks;
mod reads;
mod requests;
mod sample_queue;
mod storage;
#[cfg(test)]
mod tests;

use forebay_contract::request_ring::{SampleAnswer, SampleRequest};
use forebay_policy::fill_first::FillFirst;
use forebay_policy::ids::Sample;
use forebay_policy::models::LearnedDecoding;
use forebay_policy::order;
use forebay_policy::residency::{Access, Fetch, Residency};
use forebay_policy::schedule::{ReadClass, Scheduler};

use decoders::Decoders;
use events::{Actions, DiskOperation, answer, origin_of};
pub(crate) use events::{ArenaRange, DiskIndex, MachineAction, MachineEvent, RankStep, ReadFrom, ReadOutcome, WriteError};
pub use figures::{Figures, RankFigures};
use peers::SharedSamples;
pub(crate) use peers::Ticket;
#[cfg(test)]
use ranks::RankRequests;
use ranks::RequestStage;
use reads::ReadControl;
use requests::LoaderRequests;
use storage::SampleStorage;

/// Number of this node: each loader agent decides for its own node.
const HERE: u16 = 0;

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
    /// Sum of these in bytes.
    pub(crate) room_bytes: u64,
    pub(crate) arena_bytes: u64,
    /// Steps ahead for which the arena has room beside residents, as computed by a policy that bounds itself.
    pub(crate) window: u32,
    /// Bytes of the arena that samples beyond the window may fill; 0 for no background fill.
    pub(crate) fill_bytes: u64,
    /// Most concurrent reads.
    pub(crate) reads_max: u32,
    /// Share of reads that may be made again; 0 for none.
    pub(crate) hedge_budget: f64,
    /// Steps between two decisions on threads, at least 1.
    pub(crate) thread_steps: u32,
    /// Model of the ranks' decoding.
    pub(crate) learned: LearnedDecoding,
}

/// State machine of a loader.
pub(crate) struct LoaderMachine {
    residency: Box<dyn Residency>,
    requests: LoaderRequests,
    storage: SampleStorage,
    reads: ReadControl,
    /// Other nodes; none for a node alone.
    shared: Option<SharedSamples>,
    /// Bytes that this node may keep.
    room_bytes: u64,
    figures: Figures,
    window: u32,
    fill_bytes: u64,
    /// True if the policy has no room until something is consumed.
    full: bool,
    /// True if the policy has no room beyond the window.
    full_beyond: bool,
}

impl LoaderMachine {
    pub(crate) fn new(input: MachineInput) -> Self {
        let batch = input.order.deal.batch();
        Self {
            residency: input.residency,
            requests: LoaderRequests::new(input.ranks, input.order, input.extents),
            storage: SampleStorage::new(input.extents, input.placement, input.arena_bytes),
            reads: ReadControl::new(
                input.scheduler,
                Decoders::new(input.learned, input.ranks, batch),
                input.reads_max,
                input.hedge_budget,
                input.thread_steps,
            ),
            shared: None,
            room_bytes: input.room_bytes,
            figures: Figures::default(),
            window: input.window,
            fill_bytes: input.fill_bytes,
            full: false,
            full_beyond: false,
        }
    }

    /// Returns all samples that this loader has on disks, to be released when it ends.
    pub(crate) fn on_disks(&self) -> Vec<(Sample, DiskIndex)> {
        self.storage.on_disks()
    }

    /// Announces the events that are taken next, so that their entries can be touched together. It changes nothing.
    pub(crate) fn expect(&self, events: &[MachineEvent]) {
        let sample_of = |event: &MachineEvent| match *event {
            MachineEvent::Asked { wanted, .. } => Some(wanted.sample),
            MachineEvent::Released { rank, turn } => self.requests.of(rank).sample_of(turn),
            _ => None,
        };
        self.glance(events.iter().filter_map(sample_of));
    }

    /// Touches the entries of upcoming samples together: they do not fit the processor's caches, and the cache misses
    /// of many overlap.
    fn glance(&self, samples: impl Iterator<Item = Sample>) {
        // Before the first pass policies know nothing.
        let Some(epoch) = self.requests.pass() else { return };
        let access = |sample| Access {
            node: HERE,
            sample,
            iteration: 0,
            epoch,
        };
        let accesses: Vec<Access> = samples.filter(|sample| *sample < self.requests.extents()).map(access).collect();
        self.storage.copies.expect(accesses.iter().map(|access| access.sample));
        self.residency.expect(&accesses);
    }

    /// Takes one event. After the last event of a group, [`Self::go_on`] decides what follows.
    pub(crate) fn take(&mut self, event: MachineEvent, now_s: f64, actions: &mut Actions) {
        match event {
            MachineEvent::Asked { rank, wanted } => self.asked(rank, wanted, actions),
            MachineEvent::Released { rank, turn } => self.released(rank, turn, now_s, actions),
            MachineEvent::Stepped { rank, step } => self.stepped(rank, step, now_s, actions),
            MachineEvent::Decodes { rank, decoding } => self.reads.decodes(rank, decoding, actions),
            MachineEvent::Gone { rank } => self.gone(rank, now_s, actions),
            MachineEvent::Read { flight, outcome } => self.read_ended(flight, outcome, now_s, actions),
            MachineEvent::PeerAsked { ticket, sample, from } => self.peer_asked((ticket, sample), from, now_s, actions),
            MachineEvent::PeerReleased { ticket } => self.peer_released(ticket, now_s, actions),
            MachineEvent::Written { sample, disk, result } => {
                self.storage.written((sample, disk, result), &*self.residency, now_s, actions);
            }
        }
    }

    /// Asks the policy for what may be fetched, and puts free threads to work.
    pub(crate) fn go_on(&mut self, now_s: f64, actions: &mut Actions) {
        self.begin_passes();
        self.reads.threads.set_hung_aside(&mut self.reads.flights, now_s);
        self.feed_starved(now_s, actions);
        while !self.full && self.fetch_next(now_s, actions) {}
        self.refuse_what_waits(now_s, actions);
        self.fetch_beyond(now_s, actions);
        self.reads.assign(&self.requests, actions);
        self.reads.dispatch(&self.storage, now_s, actions);
        self.reads.hedge(&self.storage, now_s, actions);
    }

    /// Time at which to call again, if nothing happens before.
    pub(crate) fn next_s(&mut self) -> Option<f64> {
        self.reads.next_s()
    }

    /// Figures so far.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            reads_at_once: u64::from(self.reads.reads_limit()),
            hung: u64::from(self.reads.threads.hung()),
            hedged: self.reads.repeated(),
            lost: self.storage.lost(),
            ..self.figures
        }
    }

    /// Figures of one rank so far.
    pub(crate) fn rank_figures(&self, rank: usize) -> RankFigures {
        self.reads.rank_figures.get(rank).copied().unwrap_or_default()
    }

    /// Returns true if no range of the arena and no read is needed any more: for tests.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.reads.threads.reading() + self.reads.threads.hung() == 0 && self.requests.ranks().iter().all(RankRequests::is_idle)
    }

    fn asked(&mut self, rank: usize, wanted: SampleRequest, actions: &mut Actions) {
        let (turn, is_known) = self.requests.ask(rank, wanted);
        if !is_known {
            self.figures.refused_unknown += 1;
            actions.push(answer(rank, turn, SampleAnswer::Refused));
        }
    }

    /// Tells the policy of passes that all ranks have reached.
    fn begin_passes(&mut self) {
        while let Some((pass, orders)) = self.requests.next_pass(self.residency.horizon()) {
            self.residency.begin(pass, &orders);
            (self.full, self.full_beyond) = (false, false);
        }
    }

    /// Fetches the nearest request within the window. Returns true if there was one, and room for it.
    fn fetch_next(&mut self, now_s: f64, actions: &mut Actions) -> bool {
        let Some((rank, turn)) = self.requests.nearest(self.reach(), false) else {
            return false;
        };
        self.full = !self.let_in(rank, turn, ReadClass::Demand, now_s, actions);
        !self.full
    }

    /// Asks the policy to let a request in. Returns true if it has room.
    fn let_in(&mut self, rank: usize, turn: u64, class: ReadClass, now_s: f64, actions: &mut Actions) -> bool {
        let access = self.requests.access(rank, turn);
        match self.residency.fetch(access) {
            Fetch::Wait => false,
            // The copies decide on the origin: a sample that the policy keeps may have been lost, and one that it does
            // not keep may still be there.
            Fetch::From(_) => {
                self.requests.of_mut(rank).fetched(turn);
                self.begin_use(rank, turn, class, now_s, actions);
                true
            }
        }
    }

    /// Steps ahead that are fetched as needed soon. A policy without a window gets that of the memory.
    fn reach(&self) -> u64 {
        u64::from(self.residency.window().unwrap_or(self.window).max(1))
    }

    /// Refuses requests that a rank needs now and the policy lets wait: the rank reads them itself.
    fn refuse_what_waits(&mut self, now_s: f64, actions: &mut Actions) {
        while self.full {
            let stuck = self.requests.stuck();
            let Some((rank, turn)) = stuck else { return };
            // Another rank's request may be the one that had to wait, before this one came.
            if !self.let_in(rank, turn, ReadClass::Demand, now_s, actions) {
                self.requests.of_mut(rank).fetched(turn);
                self.requests.of_mut(rank).set_stage(turn, RequestStage::Refused);
                self.figures.refused_no_room += 1;
                actions.push(answer(rank, turn, SampleAnswer::Refused));
            }
            self.full = false;
            while !self.full && self.fetch_next(now_s, actions) {}
        }
    }

    /// Ends a request that the policy knows.
    fn consume(&mut self, access: Access, now_s: f64, actions: &mut Actions) {
        let weighs_replicas = self.residency.weighs_replicas();
        match &self.shared {
            Some(shared) if weighs_replicas && !shared.is_owner(access.sample) => self.residency.passed(access),
            Some(shared) if !weighs_replicas && !shared.keeps(access.sample, &self.storage.copies) => self.residency.passed(access),
            _ => self.residency.consumed(access),
        }
        // The policy knows this node only, which has nobody to hand anything over to.
        while self.residency.handover().is_some() {}
        (self.full, self.full_beyond) = (false, false);
        // Given-up copies go first: kept ones take their place.
        self.storage.free_given_up(&mut *self.residency, now_s, actions);
        self.storage.settle(access.sample, &*self.residency, now_s, actions);
    }

    /// Asks the policy for samples beyond the window, up to the number of reads that can begin soon.
    pub(super) fn fetch_beyond(&mut self, now_s: f64, actions: &mut Actions) {
        if self.fill_bytes == 0 {
            return;
        }
        self.raise_near_fills(now_s);
        let class = if self.residency.window().is_some() {
            ReadClass::Fill
        } else {
            ReadClass::Demand
        };
        while !self.full && !self.full_beyond && self.reads.scheduler.waiting() < self.reads.reads_limit() as usize {
            let Some((rank, turn)) = self.requests.nearest(self.reach(), true) else {
                return;
            };
            if !self.has_room_for(self.requests.of(rank).used(turn).sample) {
                return;
            }
            self.full_beyond = !self.let_in(rank, turn, class, now_s, actions);
        }
    }

    /// Returns true if there is room beside the memory reserved for samples needed soon. False while no size is known.
    fn has_room_for(&self, sample: Sample) -> bool {
        let is_there = self.storage.copies.get(sample).is_some_and(|copy| copy.memory.is_some());
        let bytes = u64::from(self.storage.copies.expected_bytes(sample));
        is_there
            || (self.storage.copies.knows_sizes()
                && self.storage.held_bytes() + self.reads.flights.coming_bytes() + bytes <= self.fill_bytes)
    }

    /// Raises requests of background fill that are within the window now to demand.
    fn raise_near_fills(&mut self, now_s: f64) {
        let window = self.reach();
        for number in std::mem::take(&mut self.reads.fills) {
            let Some(waiting) = self.reads.flights.waiting_for_fill(number) else {
                continue;
            };
            let ranks = self.requests.ranks();
            let near = waiting.iter().find_map(|&(rank, turn)| {
                let step = ranks[rank].used(turn).step;
                (step < ranks[rank].oldest_step().saturating_add(window)).then_some((rank, step))
            });
            match near {
                Some((rank, step)) => self.hurry(number, rank, step, now_s),
                None => self.reads.fills.push(number),
            }
        }
    }
}
