//! Samples that are being read: who waits for each, and how often it was tried.

use forebay_contract::board::Answer;
use forebay_policy::ids::Sample;
use forebay_policy::residency::Origin;
use forebay_policy::schedule::hedge::ReadId;
use forebay_policy::schedule::{Class, Request};
use forebay_store::Version;

use super::ranks::Stage;
use super::{Action, Actions, Core, Disk, Outcome, Place, ReadFrom, Step, Way, answer, origin_of};

/// How far a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for a thread.
    Queued,
    /// It is read, by one thread or more.
    Reading,
    /// It waits for room in the arena.
    Starved,
    /// Nobody waits for it any more. Threads may still be reading.
    Done,
}

/// A sample that is being read.
#[derive(Debug)]
struct Flight {
    sample: Sample,
    from: ReadFrom,
    state: State,
    /// Rank and turn of the uses that wait for it; the first is whose thread reads.
    waiting: Vec<(usize, u64)>,
    rank: usize,
    deadline_s: f64,
    class: Class,
    /// Its size, as it was expected.
    bytes: u32,
    /// Requests for it that the scheduler has: one more where it was made anew in a higher class.
    requests: u32,
    /// Threads at work, and how many there were.
    under_way: u32,
    /// Of those at work, the ones that were set aside as hanging.
    hung: u32,
    tries: u32,
    /// When it was last queued, when it was begun first, and when last.
    queued_s: f64,
    began_s: f64,
    tried_s: f64,
    hedged: Option<ReadId>,
    /// What of the arena had been freed in all when it was last tried.
    freed_bytes: u64,
}

/// All that are being read, by slot. Slots are used again.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Vec<Option<Flight>>,
    free: Vec<u32>,
    starved: Vec<u32>,
    /// Bytes of the arena that were freed in all.
    freed_bytes: u64,
    /// Bytes that samples will have which are not there yet.
    coming_bytes: u64,
}

impl Flights {
    fn add(&mut self, flight: Flight) -> u32 {
        self.coming_bytes += u64::from(flight.bytes);
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = Some(flight);
            return number;
        }
        self.slots.push(Some(flight));
        self.slots.len() as u32 - 1
    }

    fn get(&mut self, number: u32) -> Option<&mut Flight> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    fn free_if_over(&mut self, number: u32) {
        let is_over = self
            .get(number)
            .is_some_and(|flight| flight.state == State::Done && flight.under_way == 0 && flight.requests == 0);
        if is_over {
            self.slots[number as usize] = None;
            self.free.push(number);
        }
    }

    /// Nobody waits for it any more; who did.
    fn end(&mut self, number: u32) -> Vec<(usize, u64)> {
        let Some(flight) = self.slots.get_mut(number as usize).and_then(Option::as_mut) else {
            return Vec::new();
        };
        flight.state = State::Done;
        self.coming_bytes -= u64::from(flight.bytes);
        std::mem::take(&mut flight.waiting)
    }

    /// The scheduler gives a request back. Whether a thread is to read.
    fn picked(&mut self, number: u32) -> bool {
        let Some(flight) = self.get(number) else { return false };
        flight.requests -= 1;
        let is_wanted = flight.state == State::Queued;
        self.free_if_over(number);
        is_wanted
    }

    /// Who waits for a sample that is to be read when nothing else is, and waits for a thread; `None` if it is none such.
    pub(super) fn waiting_for_fill(&mut self, number: u32) -> Option<&[(usize, u64)]> {
        let flight = self.get(number)?;
        (flight.class == Class::Fill && flight.state == State::Queued).then_some(flight.waiting.as_slice())
    }

    /// Sets aside what has been read since before a time, the last try too, as long as `room` has place for it; of which rank each was.
    pub(super) fn set_aside(&mut self, before_s: f64, mut room: u32) -> Vec<usize> {
        let mut ranks = Vec::new();
        for flight in self.slots.iter_mut().flatten() {
            while flight.tried_s < before_s && flight.hung < flight.under_way && room > 0 {
                flight.hung += 1;
                room -= 1;
                ranks.push(flight.rank);
            }
        }
        ranks
    }

    /// Bytes that samples will have which are not there yet.
    pub(super) const fn coming_bytes(&self) -> u64 {
        self.coming_bytes
    }

    pub(super) fn room_was_freed(&mut self, place: Place) {
        self.freed_bytes += u64::from(place.bytes);
    }
}

impl Core {
    /// The policy has let a use in: its bytes are there, or are to be read.
    pub(super) fn begin_use(&mut self, rank: usize, turn: u64, class: Class, now_s: f64, actions: &mut Actions) {
        let access = self.access(rank, turn);
        let sample = access.sample;
        let copy = *self.copies.of(sample);
        if let Some((place, _)) = copy.memory {
            let bytes = self.copies.learn(sample, place.bytes);
            self.residency.arrived(access, bytes);
            self.figures.from_memory += 1;
            self.hand_over(rank, turn, sample, place, actions);
            return;
        }
        if let Some(flight) = copy.flight.and_then(|number| self.flights.get(number)) {
            flight.waiting.push((rank, turn));
            return;
        }
        let from = match copy.resident {
            Some((tier, bytes, version)) if tier.0 > 0 => ReadFrom::Disk {
                disk: tier.0 - 1,
                version,
                bytes,
            },
            _ => ReadFrom::Source,
        };
        let step = self.ranks[rank].used(turn).step;
        let number = self.flights.add(Flight {
            sample,
            from,
            state: State::Queued,
            waiting: vec![(rank, turn)],
            rank,
            deadline_s: self.ranks[rank].deadline_s(step, now_s),
            class,
            bytes: self.copies.expected_bytes(sample),
            requests: 0,
            under_way: 0,
            hung: 0,
            tries: 0,
            queued_s: now_s,
            began_s: now_s,
            tried_s: now_s,
            hedged: None,
            freed_bytes: 0,
        });
        self.copies.of(sample).flight = Some(number);
        self.queue(number, step, now_s);
        if class == Class::Fill {
            self.fills.push(number);
        }
    }

    /// What was to be read when nothing else is will be needed soon, for this step of this rank.
    pub(super) fn hurry(&mut self, number: u32, rank: usize, step: u64, now_s: f64) {
        if let Some(flight) = self.flights.get(number) {
            flight.class = Class::Demand;
            flight.deadline_s = self.ranks[rank].deadline_s(step, now_s);
        }
        self.queue(number, step, now_s);
    }

    fn hand_over(&mut self, rank: usize, turn: u64, sample: Sample, place: Place, actions: &mut Actions) {
        self.copies.lend(sample);
        self.ranks[rank].set_stage(turn, Stage::Ready);
        let ready = Answer::Ready {
            offset: place.offset,
            length: place.bytes,
        };
        actions.push(answer(rank, turn, ready));
    }

    /// A flight joins the scheduler's queue.
    fn queue(&mut self, number: u32, step: u64, now_s: f64) {
        let Some(flight) = self.flights.get(number) else { return };
        flight.state = State::Queued;
        flight.requests += 1;
        flight.queued_s = now_s;
        let bytes = self.copies.expected_bytes(flight.sample);
        let origin = origin_of(flight.from);
        let request = Request {
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

    /// How many reads may be under way.
    pub(super) fn reads_limit(&self) -> u32 {
        self.scheduler.loading_threads().min(self.concurrency.limit())
    }

    /// Free threads take what is due first.
    pub(super) fn dispatch(&mut self, now_s: f64, actions: &mut Actions) {
        while self.reading < self.reads_limit() {
            let Some(request) = self.scheduler.pick(&self.busy) else { return };
            // What was asked for once more may have been read since.
            if self.flights.picked(request.ticket) {
                self.read(request.ticket, now_s, actions);
            }
        }
    }

    /// A thread begins to read.
    fn read(&mut self, number: u32, now_s: f64, actions: &mut Actions) {
        let freed_bytes = self.flights.freed_bytes;
        let Some(flight) = self.flights.get(number) else { return };
        flight.state = State::Reading;
        flight.freed_bytes = freed_bytes;
        flight.under_way += 1;
        flight.tries += 1;
        flight.tried_s = now_s;
        if flight.tries == 1 {
            flight.began_s = now_s;
            self.rank_figures[flight.rank].waited(now_s - flight.queued_s);
        }
        let (sample, from, rank) = (flight.sample, flight.from, flight.rank);
        if let (Some(hedge), ReadFrom::Source, None) = (&mut self.hedge, from, flight.hedged) {
            let bytes = u64::from(self.copies.expected_bytes(sample));
            let read = hedge.begun(now_s, bytes, flight.deadline_s);
            flight.hedged = Some(read);
            self.hedged.insert(read, number);
        }
        self.reading += 1;
        self.busy[rank] += 1;
        self.rank_figures[rank].begun(self.busy[rank]);
        actions.push(Action::Read {
            flight: number,
            sample,
            from,
        });
    }

    /// Reads of the source that take long are made again.
    pub(super) fn hedge(&mut self, now_s: f64, actions: &mut Actions) {
        while let Some(read) = self.hedge.as_mut().and_then(|hedge| hedge.due(now_s)) {
            if let Some(&number) = self.hedged.get(&read) {
                self.figures.hedged += 1;
                self.read(number, now_s, actions);
            }
        }
    }

    /// A thread has done with a read.
    pub(super) fn read_ended(&mut self, number: u32, outcome: Outcome, now_s: f64, actions: &mut Actions) {
        let Some(flight) = self.flights.get(number).filter(|flight| flight.under_way > 0) else {
            return;
        };
        flight.under_way -= 1;
        let (sample, from, rank) = (flight.sample, flight.from, flight.rank);
        self.rank_figures[rank].ended(now_s - flight.tried_s);
        let is_done = flight.state == State::Done;
        let is_last = flight.under_way == 0;
        if flight.hung > 0 {
            flight.hung -= 1;
            self.hung -= 1;
        } else {
            self.reading -= 1;
            self.busy[rank] -= 1;
        }
        match outcome {
            Outcome::Whole { place, version, left_on } => {
                self.count(from, place, left_on);
                if let ReadFrom::Disk { disk, .. } = from {
                    self.disk_faults.remove(&(disk, Way::Read));
                }
                if is_done {
                    // Another try was faster. What an earlier job had left is claimed twice then.
                    actions.push(Action::Free { place });
                    actions.extend(left_on.map(|disk| Action::Release { sample, disk }));
                    self.flights.room_was_freed(place);
                } else {
                    self.complete(number, place, version, left_on, now_s, actions);
                }
            }
            Outcome::NoRoom { bytes } => {
                self.copies.learn(sample, bytes);
                if !is_done && is_last {
                    self.abandon_hedge(number);
                    if let Some(flight) = self.flights.get(number) {
                        flight.state = State::Starved;
                    }
                    self.flights.starved.push(number);
                }
            }
            Outcome::Gone | Outcome::DiskFault if !is_done => {
                if let (Outcome::DiskFault, ReadFrom::Disk { disk, .. }) = (outcome, from) {
                    self.disk_failed(disk, Way::Read);
                }
                self.is_gone(sample);
                if let Some(flight) = self.flights.get(number) {
                    flight.from = ReadFrom::Source;
                    let step = flight.waiting.first().map_or(0, |&(rank, turn)| self.ranks[rank].used(turn).step);
                    self.queue(number, step, now_s);
                }
            }
            Outcome::Failed if !is_done && is_last => {
                let refused = self.refuse(number, now_s, actions);
                self.figures.refused_failed += refused;
            }
            Outcome::Gone | Outcome::DiskFault | Outcome::Failed => {}
        }
        self.flights.free_if_over(number);
    }

    fn count(&mut self, from: ReadFrom, place: Place, left_on: Option<Disk>) {
        let bytes = u64::from(place.bytes);
        if from == ReadFrom::Source && left_on.is_none() {
            self.figures.from_source += 1;
            self.figures.source_bytes += bytes;
        } else {
            self.figures.from_disk += 1;
            self.figures.disk_bytes += bytes;
            self.figures.left_by_others += u64::from(left_on.is_some());
        }
    }

    /// The first answer of a read: who waits for it has it.
    fn complete(&mut self, number: u32, place: Place, version: Version, left_on: Option<Disk>, now_s: f64, actions: &mut Actions) {
        let Some(flight) = self.flights.get(number) else { return };
        let (sample, from, tries, began_s) = (flight.sample, flight.from, flight.tries, flight.began_s);
        let hedged = flight.hedged.take();
        let waiting = self.flights.end(number);
        let is_of_source = from == ReadFrom::Source && left_on.is_none();
        if let (Some(read), Some(hedge)) = (hedged, &mut self.hedge) {
            self.hedged.remove(&read);
            if is_of_source {
                hedge.ended(now_s, read);
            } else {
                hedge.abandoned(read);
            }
        }
        if tries == 1 {
            let origin = if is_of_source { Origin::Source } else { Origin::Local };
            let took_s = now_s - began_s;
            self.recent[recent_of(origin)].observe(u64::from(place.bytes), took_s);
            // This one among them.
            self.speeds.observe(origin, self.reading + 1, u64::from(place.bytes), took_s);
        }
        if is_of_source {
            let others_wait = self.scheduler.waiting() > 0;
            self.concurrency.ended(now_s, u64::from(place.bytes), others_wait);
        }
        let bytes = self.copies.learn(sample, place.bytes);
        self.copies.of(sample).memory = Some((place, version));
        self.held_bytes += u64::from(place.bytes);
        if let Some(disk) = left_on {
            self.adopt(sample, disk, place.bytes, version, actions);
        }
        // As long as it counts as being read, nothing of it is given up between one use and the next.
        for (rank, turn) in waiting {
            let access = self.access(rank, turn);
            self.residency.arrived(access, bytes);
            if self.ranks[rank].used(turn).stage == Stage::Dropped {
                self.ranks[rank].set_stage(turn, Stage::Over);
                self.consume(access, now_s, actions);
            } else {
                self.hand_over(rank, turn, sample, place, actions);
            }
        }
        self.copies.of(sample).flight = None;
        self.settle(sample, now_s, actions);
    }

    /// Nobody gets this sample from us: who waits for it reads it itself. How many these are.
    fn refuse(&mut self, number: u32, now_s: f64, actions: &mut Actions) -> u64 {
        self.abandon_hedge(number);
        let Some(flight) = self.flights.get(number) else { return 0 };
        let sample = flight.sample;
        let waiting = self.flights.end(number);
        // A sample of unknown size is none for the policy, and it may be read well the next time: it counts as one like others.
        let expected_bytes = self.copies.expected_bytes(sample);
        let bytes = self.copies.learn(sample, expected_bytes);
        let mut refused = 0;
        for (rank, turn) in waiting {
            let access = self.access(rank, turn);
            self.residency.arrived(access, bytes);
            if self.ranks[rank].used(turn).stage == Stage::Dropped {
                self.ranks[rank].set_stage(turn, Stage::Over);
            } else {
                self.ranks[rank].set_stage(turn, Stage::Refused);
                actions.push(answer(rank, turn, Answer::Refused));
                refused += 1;
            }
            self.consume(access, now_s, actions);
        }
        self.copies.of(sample).flight = None;
        self.settle(sample, now_s, actions);
        refused
    }

    fn abandon_hedge(&mut self, number: u32) {
        let hedged = self.flights.get(number).and_then(|flight| flight.hedged.take());
        if let (Some(read), Some(hedge)) = (hedged, &mut self.hedge) {
            self.hedged.remove(&read);
            hedge.abandoned(read);
        }
    }

    /// Samples for which the arena had no room are tried again when as much was freed; of those that a rank needs now, whatever was. Where nothing was, the
    /// rank reads it itself.
    pub(super) fn feed_starved(&mut self, now_s: f64, actions: &mut Actions) {
        for number in std::mem::take(&mut self.flights.starved) {
            let all_freed_bytes = self.flights.freed_bytes;
            let Some(flight) = self.flights.get(number) else { continue };
            let freed_bytes = all_freed_bytes - flight.freed_bytes;
            let (sample, ranks) = (flight.sample, &self.ranks);
            let is_needed = flight.waiting.iter().any(|&(rank, turn)| {
                let rank = &ranks[rank];
                rank.used(turn).step <= rank.oldest_step()
            });
            let wanted_bytes = u64::from(self.copies.expected_bytes(sample));
            if is_needed && freed_bytes == 0 {
                self.figures.refused_no_room += self.refuse(number, now_s, actions);
                self.flights.free_if_over(number);
            } else if (is_needed || freed_bytes >= wanted_bytes) && self.reading < self.reads_limit() {
                self.read(number, now_s, actions);
            } else {
                self.flights.starved.push(number);
            }
        }
    }

    /// A rank has done with a use.
    pub(super) fn released(&mut self, rank: usize, low: u32, now_s: f64, actions: &mut Actions) {
        if let Some(turn) = self.ranks[rank].turn(low) {
            self.let_go(rank, turn, now_s, actions);
        } else if let Some(sample) = self.ranks[rank].let_held_go(low) {
            self.give_back(sample, now_s, actions);
        }
    }

    /// A rank begins a step: see [`super::ranks::Rank::overtake`].
    pub(super) fn stepped(&mut self, rank: usize, step: Step, now_s: f64, actions: &mut Actions) {
        self.ranks[rank].stepped(step.steps, now_s);
        // As uses are counted.
        let iteration = step.iteration.min(self.iterations.saturating_sub(1));
        let overtaken = self.ranks[rank].overtake(step.epoch, iteration);
        self.glance(overtaken.iter().map(|turn| self.ranks[rank].used(*turn).sample));
        for turn in overtaken {
            let access = self.access(rank, turn);
            self.ranks[rank].set_stage(turn, Stage::Over);
            self.consume(access, now_s, actions);
        }
    }

    fn give_back(&mut self, sample: Sample, now_s: f64, actions: &mut Actions) {
        self.copies.give_back(sample);
        self.settle(sample, now_s, actions);
    }

    fn let_go(&mut self, rank: usize, turn: u64, now_s: f64, actions: &mut Actions) {
        match self.ranks[rank].used(turn).stage {
            Stage::Coming => self.ranks[rank].drop_use(turn),
            Stage::Ready => {
                let access = self.access(rank, turn);
                self.ranks[rank].set_stage(turn, Stage::Over);
                self.copies.give_back(access.sample);
                self.consume(access, now_s, actions);
            }
            Stage::Asked | Stage::Refused => self.ranks[rank].set_stage(turn, Stage::Over),
            Stage::Dropped | Stage::Over => {}
        }
    }

    /// A rank is gone: nobody waits for what it has asked for.
    pub(super) fn gone(&mut self, rank: usize, now_s: f64, actions: &mut Actions) {
        self.ranks[rank].set_gone();
        for turn in self.ranks[rank].open() {
            self.let_go(rank, turn, now_s, actions);
        }
        for sample in self.ranks[rank].let_all_held_go() {
            self.give_back(sample, now_s, actions);
        }
    }
}

const fn recent_of(origin: Origin) -> usize {
    match origin {
        Origin::Local => 0,
        Origin::Peer(_) | Origin::Source => 1,
    }
}
