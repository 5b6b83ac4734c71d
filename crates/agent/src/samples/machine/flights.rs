//! Samples that are being read: the requests that wait for each, and the tries.

use forebay_contract::board::Answer;
use forebay_policy::ids::Sample;
use forebay_policy::residency::Origin;
use forebay_policy::schedule::hedge::ReadId;
use forebay_policy::schedule::{Class, Request};
use forebay_store::Version;

use super::ranks::RequestStage;
use super::{Actions, ArenaRange, DiskIndex, DiskOperation, Machine, MachineAction, RankStep, ReadFrom, ReadOutcome, answer, origin_of};

/// Progress of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
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
struct SampleRead {
    sample: Sample,
    from: ReadFrom,
    state: ReadState,
    /// RankRequests and sequence number of the requests that wait for it; the first one's rank is charged for the thread.
    waiting: Vec<(usize, u64)>,
    rank: usize,
    deadline_s: f64,
    class: Class,
    /// Expected size in bytes.
    bytes: u32,
    /// Entries that the scheduler has for it: a second one if it was queued again in a higher class.
    requests: u32,
    /// Threads at work.
    under_way: u32,
    /// Threads at work that were set aside as hanging.
    hung: u32,
    tries: u32,
    /// Times in seconds at which it was queued last, begun first, and begun last.
    queued_s: f64,
    began_s: f64,
    tried_s: f64,
    hedged: Option<ReadId>,
    /// The arena's total of freed bytes when it was last tried.
    freed_bytes: u64,
}

/// Reads by slot. Slots are used again.
#[derive(Debug, Default)]
pub(super) struct SampleReads {
    slots: Vec<Option<SampleRead>>,
    free: Vec<u32>,
    starved: Vec<u32>,
    /// Bytes of the arena that were freed in all.
    freed_bytes: u64,
    /// Expected bytes of samples that are being read.
    coming_bytes: u64,
}

impl SampleReads {
    fn add(&mut self, flight: SampleRead) -> u32 {
        self.coming_bytes += u64::from(flight.bytes);
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = Some(flight);
            return number;
        }
        self.slots.push(Some(flight));
        self.slots.len() as u32 - 1
    }

    fn get(&mut self, number: u32) -> Option<&mut SampleRead> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    fn free_if_over(&mut self, number: u32) {
        let is_over = self
            .get(number)
            .is_some_and(|flight| flight.state == ReadState::Done && flight.under_way == 0 && flight.requests == 0);
        if is_over {
            self.slots[number as usize] = None;
            self.free.push(number);
        }
    }

    /// Ends a read, and returns the requests that waited for it.
    fn end(&mut self, number: u32) -> Vec<(usize, u64)> {
        let Some(flight) = self.slots.get_mut(number as usize).and_then(Option::as_mut) else {
            return Vec::new();
        };
        flight.state = ReadState::Done;
        self.coming_bytes -= u64::from(flight.bytes);
        std::mem::take(&mut flight.waiting)
    }

    /// Takes an entry back from the scheduler. Returns true if a thread is to read.
    fn picked(&mut self, number: u32) -> bool {
        let Some(flight) = self.get(number) else { return false };
        flight.requests -= 1;
        let is_wanted = flight.state == ReadState::Queued;
        self.free_if_over(number);
        is_wanted
    }

    /// Returns the requests that wait for a background fill which waits for a thread; `None` for any other read.
    pub(super) fn waiting_for_fill(&mut self, number: u32) -> Option<&[(usize, u64)]> {
        let flight = self.get(number)?;
        (flight.class == Class::Fill && flight.state == ReadState::Queued).then_some(flight.waiting.as_slice())
    }

    /// Sets aside the reads whose last try began before `before_s`, at most `room`. Returns the rank of each.
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

    /// Expected bytes of samples that are being read.
    pub(super) const fn coming_bytes(&self) -> u64 {
        self.coming_bytes
    }

    pub(super) fn room_was_freed(&mut self, place: ArenaRange) {
        self.freed_bytes += u64::from(place.bytes);
    }
}

impl Machine {
    /// Begins a request that the policy has let in: answers it from the arena, or reads the sample.
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
        let number = self.flights.add(SampleRead {
            sample,
            from,
            state: ReadState::Queued,
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

    /// Raises a background fill to demand, for this step of this rank.
    pub(super) fn hurry(&mut self, number: u32, rank: usize, step: u64, now_s: f64) {
        if let Some(flight) = self.flights.get(number) {
            flight.class = Class::Demand;
            flight.deadline_s = self.ranks[rank].deadline_s(step, now_s);
        }
        self.queue(number, step, now_s);
    }

    fn hand_over(&mut self, rank: usize, turn: u64, sample: Sample, place: ArenaRange, actions: &mut Actions) {
        self.copies.lend(sample);
        self.ranks[rank].set_stage(turn, RequestStage::Ready);
        let ready = Answer::Ready {
            offset: place.offset,
            length: place.bytes,
        };
        actions.push(answer(rank, turn, ready));
    }

    /// Adds a read to the scheduler's queue.
    fn queue(&mut self, number: u32, step: u64, now_s: f64) {
        let Some(flight) = self.flights.get(number) else { return };
        flight.state = ReadState::Queued;
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

    /// Most reads that may be under way.
    pub(super) fn reads_limit(&self) -> u32 {
        self.scheduler.loading_threads().min(self.concurrency.limit())
    }

    /// Lets free threads take the most urgent reads.
    pub(super) fn dispatch(&mut self, now_s: f64, actions: &mut Actions) {
        while self.reading < self.reads_limit() {
            let Some(request) = self.scheduler.pick(&self.busy) else { return };
            // An entry that was queued again may have been read since.
            if self.flights.picked(request.ticket) {
                self.read(request.ticket, now_s, actions);
            }
        }
    }

    /// Begins a try of a read.
    fn read(&mut self, number: u32, now_s: f64, actions: &mut Actions) {
        let freed_bytes = self.flights.freed_bytes;
        let Some(flight) = self.flights.get(number) else { return };
        flight.state = ReadState::Reading;
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
        actions.push(MachineAction::Read {
            flight: number,
            sample,
            from,
        });
    }

    /// Repeats slow reads of the source.
    pub(super) fn hedge(&mut self, now_s: f64, actions: &mut Actions) {
        while let Some(read) = self.hedge.as_mut().and_then(|hedge| hedge.due(now_s)) {
            if let Some(&number) = self.hedged.get(&read) {
                self.figures.hedged += 1;
                self.read(number, now_s, actions);
            }
        }
    }

    /// Takes the result of a try of a read.
    pub(super) fn read_ended(&mut self, number: u32, outcome: ReadOutcome, now_s: f64, actions: &mut Actions) {
        let Some(flight) = self.flights.get(number).filter(|flight| flight.under_way > 0) else {
            return;
        };
        flight.under_way -= 1;
        let (sample, from, rank) = (flight.sample, flight.from, flight.rank);
        self.rank_figures[rank].ended(now_s - flight.tried_s);
        let is_done = flight.state == ReadState::Done;
        let is_last = flight.under_way == 0;
        if flight.hung > 0 {
            flight.hung -= 1;
            self.hung -= 1;
        } else {
            self.reading -= 1;
            self.busy[rank] -= 1;
        }
        match outcome {
            ReadOutcome::Whole { place, version, left_on } => {
                self.count(from, place, left_on);
                if let ReadFrom::Disk { disk, .. } = from {
                    self.disk_faults.remove(&(disk, DiskOperation::Read));
                }
                if is_done {
                    // Another try was faster. A sample that an earlier job had left is claimed twice then.
                    actions.push(MachineAction::Free { place });
                    actions.extend(left_on.map(|disk| MachineAction::Release { sample, disk }));
                    self.flights.room_was_freed(place);
                } else {
                    self.complete(number, place, version, left_on, now_s, actions);
                }
            }
            ReadOutcome::NoRoom { bytes } => {
                self.copies.learn(sample, bytes);
                if !is_done && is_last {
                    self.abandon_hedge(number);
                    if let Some(flight) = self.flights.get(number) {
                        flight.state = ReadState::Starved;
                    }
                    self.flights.starved.push(number);
                }
            }
            ReadOutcome::Gone | ReadOutcome::DiskFault if !is_done => {
                if let (ReadOutcome::DiskFault, ReadFrom::Disk { disk, .. }) = (outcome, from) {
                    self.disk_failed(disk, DiskOperation::Read);
                }
                self.is_gone(sample);
                if let Some(flight) = self.flights.get(number) {
                    flight.from = ReadFrom::Source;
                    let step = flight.waiting.first().map_or(0, |&(rank, turn)| self.ranks[rank].used(turn).step);
                    self.queue(number, step, now_s);
                }
            }
            ReadOutcome::Failed if !is_done && is_last => {
                let refused = self.refuse(number, now_s, actions);
                self.figures.refused_failed += refused;
            }
            ReadOutcome::Gone | ReadOutcome::DiskFault | ReadOutcome::Failed => {}
        }
        self.flights.free_if_over(number);
    }

    fn count(&mut self, from: ReadFrom, place: ArenaRange, left_on: Option<DiskIndex>) {
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

    /// Completes a read with its first answer: all requests that wait for it get the bytes.
    fn complete(
        &mut self,
        number: u32,
        place: ArenaRange,
        version: Version,
        left_on: Option<DiskIndex>,
        now_s: f64,
        actions: &mut Actions,
    ) {
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
            // Including this one.
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
        // While it counts as being read, none of it is given up between one request and the next.
        for (rank, turn) in waiting {
            let access = self.access(rank, turn);
            self.residency.arrived(access, bytes);
            if self.ranks[rank].used(turn).stage == RequestStage::Dropped {
                self.ranks[rank].set_stage(turn, RequestStage::Over);
                self.consume(access, now_s, actions);
            } else {
                self.hand_over(rank, turn, sample, place, actions);
            }
        }
        self.copies.of(sample).flight = None;
        self.settle(sample, now_s, actions);
    }

    /// Refuses a sample: ranks that wait for it read it themselves. Returns the number of their requests.
    fn refuse(&mut self, number: u32, now_s: f64, actions: &mut Actions) -> u64 {
        self.abandon_hedge(number);
        let Some(flight) = self.flights.get(number) else { return 0 };
        let sample = flight.sample;
        let waiting = self.flights.end(number);
        // The policy needs a size, and the sample may be readable the next time: it counts with the expected size.
        let expected_bytes = self.copies.expected_bytes(sample);
        let bytes = self.copies.learn(sample, expected_bytes);
        let mut refused = 0;
        for (rank, turn) in waiting {
            let access = self.access(rank, turn);
            self.residency.arrived(access, bytes);
            if self.ranks[rank].used(turn).stage == RequestStage::Dropped {
                self.ranks[rank].set_stage(turn, RequestStage::Over);
            } else {
                self.ranks[rank].set_stage(turn, RequestStage::Refused);
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

    /// Retries samples for which the arena had no room. A sample that a rank needs now is retried once anything was
    /// freed, or else refused, so that the rank reads it itself; any other sample once its size was freed.
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

    /// Releases a request of a rank.
    pub(super) fn released(&mut self, rank: usize, low: u32, now_s: f64, actions: &mut Actions) {
        if let Some(turn) = self.ranks[rank].turn(low) {
            self.let_go(rank, turn, now_s, actions);
        } else if let Some(sample) = self.ranks[rank].let_held_go(low) {
            self.give_back(sample, now_s, actions);
        }
    }

    /// Begins a step of a rank: see [`super::ranks::RankRequests::overtake`].
    pub(super) fn stepped(&mut self, rank: usize, step: RankStep, now_s: f64, actions: &mut Actions) {
        self.ranks[rank].stepped(step.steps, now_s);
        // Clamped as in requests.
        let iteration = step.iteration.min(self.iterations.saturating_sub(1));
        let overtaken = self.ranks[rank].overtake(step.epoch, iteration);
        self.glance(overtaken.iter().map(|turn| self.ranks[rank].used(*turn).sample));
        for turn in overtaken {
            let access = self.access(rank, turn);
            self.ranks[rank].set_stage(turn, RequestStage::Over);
            self.consume(access, now_s, actions);
        }
    }

    fn give_back(&mut self, sample: Sample, now_s: f64, actions: &mut Actions) {
        self.copies.give_back(sample);
        self.settle(sample, now_s, actions);
    }

    fn let_go(&mut self, rank: usize, turn: u64, now_s: f64, actions: &mut Actions) {
        match self.ranks[rank].used(turn).stage {
            RequestStage::Coming => self.ranks[rank].drop_use(turn),
            RequestStage::Ready => {
                let access = self.access(rank, turn);
                self.ranks[rank].set_stage(turn, RequestStage::Over);
                self.copies.give_back(access.sample);
                self.consume(access, now_s, actions);
            }
            RequestStage::Asked | RequestStage::Refused => self.ranks[rank].set_stage(turn, RequestStage::Over),
            RequestStage::Dropped | RequestStage::Over => {}
        }
    }

    /// Removes a rank: all of its requests are released.
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
