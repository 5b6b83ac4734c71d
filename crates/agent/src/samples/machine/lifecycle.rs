//! Life of a request, of a rank or of another node: from the policy's admission over the read of its sample to its
//! release.

use std::time::Duration;

use forebay_contract::request_ring::SampleAnswer;
use forebay_policy::ids::{Node, Sample};
use forebay_policy::peers::SampleShares;
use forebay_policy::residency::Access;
use forebay_policy::schedule::ReadClass;
use forebay_store::FileVersion;

use super::flights::{ReadState, SampleRead};
use super::peers::{SharedSamples, Ticket};
use super::ranks::RequestStage;
use super::{Actions, ArenaRange, DiskIndex, DiskOperation, HERE, LoaderMachine, MachineAction, RankStep, ReadFrom, ReadOutcome, answer};

use crate::samples::limits::{LOADER_PEER_AGAIN, LOADER_PEER_BYTES_MAX, LOADER_PEER_GUESS_BYTES, LOADER_PEER_WAIT};

impl LoaderMachine {
    /// Begins a request that the policy has let in: answers it from the arena, or reads the sample.
    pub(super) fn begin_use(&mut self, rank: usize, turn: u64, class: ReadClass, now_s: f64, actions: &mut Actions) {
        let access = self.requests.access(rank, turn);
        let sample = access.sample;
        let copy = *self.storage.copies.of(sample);
        let step = self.requests.of(rank).used(turn).step;
        let expected_bytes = self.storage.copies.expected_bytes(sample);
        if let Some((place, _)) = copy.memory {
            self.requests.of_mut(rank).count_load(step, place.bytes.into(), None);
            let bytes = self.storage.copies.learn(sample, place.bytes);
            self.residency.arrived(access, bytes);
            self.figures.from_memory += 1;
            self.hand_over(rank, turn, sample, place, actions);
            return;
        }
        if let Some(flight) = copy.flight.and_then(|number| self.reads.flights.get(number)) {
            flight.waiting.push((rank, turn));
            self.requests.of_mut(rank).count_load(step, expected_bytes.into(), None);
            return;
        }
        let from = match copy.resident {
            Some((tier, bytes, version)) if tier.0 > 0 => ReadFrom::Disk {
                disk: tier.0 - 1,
                version,
                bytes,
            },
            _ => self.elsewhere(sample, None),
        };
        let origin = match from {
            ReadFrom::Disk { .. } => 0,
            ReadFrom::Peer { .. } => 1,
            ReadFrom::Source => 2,
        };
        self.requests.of_mut(rank).count_load(step, expected_bytes.into(), Some(origin));
        let mut read = SampleRead::new((sample, expected_bytes), from, (rank, Some(turn)), class, now_s);
        read.deadline_s = self.requests.of(rank).deadline_s(step, now_s);
        let number = self.reads.flights.add(read);
        self.storage.copies.of(sample).flight = Some(number);
        if from.is_peer() {
            self.reads.begin_try(number, &self.storage, now_s, actions);
            return;
        }
        self.reads.queue(number, step, &self.storage.copies, now_s);
        if class == ReadClass::Fill {
            self.reads.fills.push(number);
        }
    }

    /// Raises a background fill to demand, for this step of this rank.
    pub(super) fn hurry(&mut self, number: u32, rank: usize, step: u64, now_s: f64) {
        if let Some(flight) = self.reads.flights.get(number) {
            flight.class = ReadClass::Demand;
            flight.deadline_s = self.requests.of(rank).deadline_s(step, now_s);
        }
        self.reads.queue(number, step, &self.storage.copies, now_s);
    }

    /// Queues a rank's waiting reads again whose deadlines are earlier now.
    fn set_deadlines_again(&mut self, rank: usize, now_s: f64) {
        for number in self.reads.flights.queued_for(rank) {
            let Some(flight) = self.reads.flights.get(number) else { continue };
            let first = flight.waiting.iter().find(|(of, _)| *of == rank);
            let Some(step) = first.map(|&(_, turn)| self.requests.of(rank).used(turn).step) else {
                continue;
            };
            let deadline_s = self.requests.of(rank).deadline_s(step, now_s);
            if deadline_s < flight.deadline_s {
                flight.deadline_s = deadline_s;
                self.reads.queue(number, step, &self.storage.copies, now_s);
            }
        }
    }

    fn hand_over(&mut self, rank: usize, turn: u64, sample: Sample, place: ArenaRange, actions: &mut Actions) {
        self.storage.copies.lend(sample);
        self.requests.of_mut(rank).set_stage(turn, RequestStage::Ready);
        let ready = SampleAnswer::Ready {
            offset: place.offset,
            length: place.bytes,
        };
        actions.push(answer(rank, turn, ready));
    }

    /// Takes the result of a try of a read.
    pub(super) fn read_ended(&mut self, number: u32, outcome: ReadOutcome, now_s: f64, actions: &mut Actions) {
        let Some(flight) = self.reads.flights.get(number).filter(|flight| flight.under_way > 0) else {
            return;
        };
        flight.under_way -= 1;
        let (sample, from, rank) = (flight.sample, flight.from, flight.rank);
        let took_s = now_s - flight.times.tried_s;
        let is_done = flight.state == ReadState::Done;
        let is_last = flight.under_way == 0;
        let was_hung = flight.hung > 0;
        flight.hung -= u32::from(was_hung);
        if from.is_peer() {
            self.storage.count_unused_room(from, outcome);
            self.reads.peer_ended(outcome, now_s);
        } else {
            self.reads.rank_figures[rank].ended(took_s);
            self.reads.threads.end(rank, was_hung);
        }
        match outcome {
            ReadOutcome::Whole { place, version, left_on } => {
                self.count(from, place, left_on);
                if let ReadFrom::Disk { disk, .. } = from {
                    self.storage.disk_worked(disk, DiskOperation::Read);
                }
                if is_done {
                    // Another try was faster. A sample that an earlier job had left is claimed twice then.
                    self.storage.free(place, actions);
                    actions.extend(left_on.map(|disk| MachineAction::Release { sample, disk }));
                } else {
                    self.complete(number, place, version, left_on, now_s, actions);
                }
            }
            ReadOutcome::NoRoom { bytes } => {
                // The room that another node was to fill says nothing of the size.
                if !from.is_peer() {
                    self.storage.copies.learn(sample, bytes);
                }
                let is_for_peers = self.reads.flights.get(number).is_some_and(|flight| flight.waiting.is_empty());
                if !is_done && is_last && is_for_peers {
                    self.refuse(number, now_s, actions);
                } else if !is_done && is_last {
                    self.reads.abandon_hedge(number);
                    if let Some(flight) = self.reads.flights.get(number) {
                        flight.state = ReadState::Starved;
                    }
                    self.reads.flights.starved.push(number);
                }
            }
            ReadOutcome::Gone | ReadOutcome::DiskFault | ReadOutcome::Late if !is_done => {
                self.read_elsewhere(number, outcome, now_s, actions);
            }
            ReadOutcome::OtherSize { bytes } if !is_done => {
                self.storage.copies.learn(sample, bytes);
                let from = match from {
                    ReadFrom::Peer { .. } if bytes > LOADER_PEER_BYTES_MAX => ReadFrom::Source,
                    ReadFrom::Peer { node, guess_bytes, .. } => ReadFrom::Peer {
                        node,
                        bytes: Some(bytes),
                        guess_bytes,
                        within: LOADER_PEER_AGAIN,
                    },
                    ReadFrom::Source | ReadFrom::Disk { .. } => ReadFrom::Source,
                };
                self.read_again(number, from, now_s, actions);
            }
            ReadOutcome::Failed if !is_done && is_last => {
                let refused = self.refuse(number, now_s, actions);
                self.figures.refused_failed += refused;
            }
            ReadOutcome::Gone | ReadOutcome::DiskFault | ReadOutcome::Late | ReadOutcome::OtherSize { .. } | ReadOutcome::Failed => {}
        }
        self.reads.flights.free_if_over(number);
    }

    /// Reads a sample elsewhere that was not where it was to be read.
    fn read_elsewhere(&mut self, number: u32, outcome: ReadOutcome, now_s: f64, actions: &mut Actions) {
        let Some(flight) = self.reads.flights.get(number) else { return };
        let (sample, from) = (flight.sample, flight.from);
        let next = match (from, outcome) {
            (ReadFrom::Peer { node, .. }, ReadOutcome::Late) => self.elsewhere(sample, Some(node)),
            (ReadFrom::Disk { disk, .. }, _) => {
                if outcome == ReadOutcome::DiskFault {
                    self.storage.disk_failed(disk, DiskOperation::Read);
                }
                self.storage.is_gone(sample);
                ReadFrom::Source
            }
            (ReadFrom::Peer { node, .. }, _) => {
                let owner = self.shared.as_ref().and_then(|shared| shared.to_ask_instead_of(node, sample));
                self.read_of_peer(sample, owner, LOADER_PEER_AGAIN)
            }
            (ReadFrom::Source, _) => ReadFrom::Source,
        };
        if let (ReadFrom::Peer { .. }, ReadOutcome::Late, ReadFrom::Source, Some(shared)) = (from, outcome, next, &mut self.shared) {
            shared.read_instead(sample);
        }
        self.read_again(number, next, now_s, actions);
    }

    /// Begins a read again, from another place.
    fn read_again(&mut self, number: u32, from: ReadFrom, now_s: f64, actions: &mut Actions) {
        let Some(flight) = self.reads.flights.get(number) else { return };
        flight.from = from;
        if from.is_peer() {
            self.reads.begin_try(number, &self.storage, now_s, actions);
            return;
        }
        let step = flight
            .waiting
            .first()
            .map_or(0, |&(rank, turn)| self.requests.of(rank).used(turn).step);
        self.reads.queue(number, step, &self.storage.copies, now_s);
    }

    /// Completes a read with its first answer: all requests that wait for it get the bytes.
    fn complete(
        &mut self,
        number: u32,
        place: ArenaRange,
        version: FileVersion,
        left_on: Option<DiskIndex>,
        now_s: f64,
        actions: &mut Actions,
    ) {
        let Some(flight) = self.reads.flights.get(number) else { return };
        let (sample, is_of_source) = (flight.sample, flight.from == ReadFrom::Source && left_on.is_none());
        let tickets = std::mem::take(&mut flight.tickets);
        let waiting = self.reads.flights.end(number);
        self.reads.measure(number, u64::from(place.bytes), is_of_source, now_s);
        let bytes = self.storage.copies.learn(sample, place.bytes);
        self.storage.add(sample, place, version);
        if let Some(disk) = left_on {
            self.storage.adopt(sample, disk, place.bytes, version, actions);
        }
        // While it counts as being read, none of it is given up between one request and the next.
        for (rank, turn) in waiting {
            let access = self.requests.access(rank, turn);
            self.residency.arrived(access, bytes);
            if self.requests.of(rank).used(turn).stage == RequestStage::Dropped {
                self.requests.of_mut(rank).set_stage(turn, RequestStage::Over);
                self.consume(access, now_s, actions);
            } else {
                self.hand_over(rank, turn, sample, place, actions);
            }
        }
        if !tickets.is_empty() {
            self.serve_peers(sample, bytes, &tickets, actions);
        }
        self.storage.copies.of(sample).flight = None;
        self.storage.settle(sample, &*self.residency, now_s, actions);
    }

    /// Refuses a sample: ranks that wait for it read it themselves. Returns the number of their requests.
    fn refuse(&mut self, number: u32, now_s: f64, actions: &mut Actions) -> u64 {
        self.reads.abandon_hedge(number);
        let Some(flight) = self.reads.flights.get(number) else { return 0 };
        let sample = flight.sample;
        actions.extend(flight.tickets.drain(..).map(|ticket| MachineAction::Decline { ticket }));
        let waiting = self.reads.flights.end(number);
        // The policy needs a size, and the sample may be readable the next time: it counts with the expected size.
        let expected_bytes = self.storage.copies.expected_bytes(sample);
        let bytes = self.storage.copies.learn(sample, expected_bytes);
        let mut refused = 0;
        for (rank, turn) in waiting {
            let access = self.requests.access(rank, turn);
            self.residency.arrived(access, bytes);
            if self.requests.of(rank).used(turn).stage == RequestStage::Dropped {
                self.requests.of_mut(rank).set_stage(turn, RequestStage::Over);
            } else {
                self.requests.of_mut(rank).set_stage(turn, RequestStage::Refused);
                actions.push(answer(rank, turn, SampleAnswer::Refused));
                refused += 1;
            }
            self.consume(access, now_s, actions);
        }
        self.storage.copies.of(sample).flight = None;
        self.storage.settle(sample, &*self.residency, now_s, actions);
        refused
    }

    /// Retries samples for which the arena had no room. A sample that a rank needs now is retried once anything was
    /// freed, or else refused, so that the rank reads it itself; any other sample once its size was freed.
    pub(super) fn feed_starved(&mut self, now_s: f64, actions: &mut Actions) {
        for number in std::mem::take(&mut self.reads.flights.starved) {
            let Some(flight) = self.reads.flights.get(number) else { continue };
            let freed_bytes = self.storage.freed_bytes() - flight.freed_bytes;
            let (sample, ranks) = (flight.sample, self.requests.ranks());
            let is_needed = flight.waiting.iter().any(|&(rank, turn)| {
                let rank = &ranks[rank];
                rank.used(turn).step <= rank.oldest_step()
            });
            let wanted_bytes = u64::from(self.storage.copies.expected_bytes(sample));
            if is_needed && freed_bytes == 0 {
                self.figures.refused_no_room += self.refuse(number, now_s, actions);
                self.reads.flights.free_if_over(number);
            } else if (is_needed || freed_bytes >= wanted_bytes) && self.reads.has_free_thread() {
                self.reads.begin_try(number, &self.storage, now_s, actions);
            } else {
                self.reads.flights.starved.push(number);
            }
        }
    }

    /// Releases a request of a rank.
    pub(super) fn released(&mut self, rank: usize, low: u32, now_s: f64, actions: &mut Actions) {
        if let Some(turn) = self.requests.of(rank).turn(low) {
            self.let_go(rank, turn, now_s, actions);
        } else if let Some(sample) = self.requests.of_mut(rank).let_held_go(low) {
            self.give_back(sample, now_s, actions);
        }
    }

    /// Begins a step of a rank: see [`super::ranks::RankRequests::overtake`].
    pub(super) fn stepped(&mut self, rank: usize, step: RankStep, now_s: f64, actions: &mut Actions) {
        self.requests.of_mut(rank).stepped(step.steps, now_s);
        if self.requests.of_mut(rank).are_steps_shorter() && self.reads.scheduler.is_by_deadline() {
            self.set_deadlines_again(rank, now_s);
        }
        // Clamped as in requests.
        let iteration = step.iteration.min(self.requests.iterations().saturating_sub(1));
        let overtaken = self.requests.of_mut(rank).overtake(step.epoch, iteration);
        self.glance(overtaken.iter().map(|turn| self.requests.of(rank).used(*turn).sample));
        for turn in overtaken {
            let access = self.requests.access(rank, turn);
            self.requests.of_mut(rank).set_stage(turn, RequestStage::Over);
            self.consume(access, now_s, actions);
        }
    }

    pub(super) fn give_back(&mut self, sample: Sample, now_s: f64, actions: &mut Actions) {
        self.storage.copies.give_back(sample);
        self.storage.settle(sample, &*self.residency, now_s, actions);
    }

    fn let_go(&mut self, rank: usize, turn: u64, now_s: f64, actions: &mut Actions) {
        match self.requests.of(rank).used(turn).stage {
            RequestStage::Coming => self.requests.of_mut(rank).drop_use(turn),
            RequestStage::Ready => {
                let access = self.requests.access(rank, turn);
                self.requests.of_mut(rank).set_stage(turn, RequestStage::Over);
                self.storage.copies.give_back(access.sample);
                self.consume(access, now_s, actions);
            }
            RequestStage::Asked | RequestStage::Refused => self.requests.of_mut(rank).set_stage(turn, RequestStage::Over),
            RequestStage::Dropped | RequestStage::Over => {}
        }
    }

    /// Removes a rank: all of its requests are released.
    pub(super) fn gone(&mut self, rank: usize, now_s: f64, actions: &mut Actions) {
        self.requests.of_mut(rank).set_gone();
        for turn in self.requests.of(rank).open() {
            self.let_go(rank, turn, now_s, actions);
        }
        for sample in self.requests.of_mut(rank).let_all_held_go() {
            self.give_back(sample, now_s, actions);
        }
    }

    fn count(&mut self, from: ReadFrom, place: ArenaRange, left_on: Option<DiskIndex>) {
        let bytes = u64::from(place.bytes);
        if from.is_peer() {
            self.figures.from_peers += 1;
            self.figures.peer_bytes += bytes;
        } else if from == ReadFrom::Source && left_on.is_none() {
            self.figures.from_source += 1;
            self.figures.source_bytes += bytes;
        } else {
            self.figures.from_disk += 1;
            self.figures.disk_bytes += bytes;
            self.figures.left_by_others += u64::from(left_on.is_some());
        }
    }

    /// Begins to share samples with other nodes: what is read from now on is kept by its owner.
    pub(crate) fn share(&mut self, shares: SampleShares) {
        self.figures.nodes = u64::from(shares.others()) + 1;
        self.shared = Some(SharedSamples::new(shares, self.room_bytes));
        self.residency.serve_others();
    }

    /// Takes a request of another node: answers it from memory, or reads the sample. A sample that is neither here nor
    /// would stay is declined: the other node reads the source itself.
    pub(super) fn peer_asked(&mut self, (ticket, sample): (Ticket, Sample), from: Node, now_s: f64, actions: &mut Actions) {
        let Some(shared) = self.shared.as_ref().filter(|_| sample < self.requests.extents()) else {
            actions.push(MachineAction::Decline { ticket });
            return;
        };
        let copy = self.storage.copies.get(sample);
        if let Some((place, _)) = copy.and_then(|copy| copy.memory) {
            self.lend_to_peer(ticket, sample, actions);
            actions.push(MachineAction::Serve { ticket, place });
            return;
        }
        let resident = copy.and_then(|copy| copy.resident);
        let is_on_disk = resident.is_some_and(|(tier, ..)| tier.0 > 0);
        let to_ask = shared.to_ask_for_others(sample);
        let read = copy.and_then(|copy| copy.flight).and_then(|number| self.reads.flights.get(number));
        let comes_from_node = match &read {
            Some(read) => read.from.is_peer(),
            None => !is_on_disk && to_ask.is_some(),
        };
        if !shared.may_wait(from, comes_from_node) {
            actions.push(MachineAction::Decline { ticket });
            return;
        }
        if let Some(read) = read {
            read.tickets.push(ticket);
            return;
        }
        let expected_bytes = self.storage.copies.expected_bytes(sample);
        let would_stay = self.requests.pass().is_some() && self.storage.has_room(u64::from(expected_bytes), now_s);
        let from = match resident {
            Some((tier, bytes, version)) if tier.0 > 0 => ReadFrom::Disk {
                disk: tier.0 - 1,
                version,
                bytes,
            },
            // What comes from another group takes no room of this node's own samples.
            _ if would_stay && (to_ask.is_none() || self.keeps(sample)) => {
                to_ask.map_or(ReadFrom::Source, |(node, within)| self.read_of_peer(sample, Some(node), within))
            }
            _ => {
                actions.push(MachineAction::Decline { ticket });
                return;
            }
        };
        // Ranks of this node and other nodes share its threads, and nobody knows when the other node needs it.
        let rank = (ticket % self.requests.ranks().len() as u64) as usize;
        let step = self.requests.of(rank).oldest_step();
        let mut read = SampleRead::new((sample, expected_bytes), from, (rank, None), ReadClass::Demand, now_s);
        read.tickets.push(ticket);
        read.deadline_s = self.requests.of(rank).deadline_s(step, now_s);
        let number = self.reads.flights.add(read);
        self.storage.copies.of(sample).flight = Some(number);
        if from.is_peer() {
            self.reads.begin_try(number, &self.storage, now_s, actions);
        } else {
            self.reads.queue(number, step, &self.storage.copies, now_s);
        }
    }

    /// Ends the lending of a sample to another node.
    pub(super) fn peer_released(&mut self, ticket: Ticket, now_s: f64, actions: &mut Actions) {
        let lent = self.shared.as_mut().and_then(|shared| shared.lent.remove(&ticket));
        if let Some(sample) = lent {
            self.give_back(sample, now_s, actions);
        }
    }

    /// Gives other nodes a sample that has come, and offers it to the policy if it was read for them.
    pub(super) fn serve_peers(&mut self, sample: Sample, bytes: u32, tickets: &[Ticket], actions: &mut Actions) {
        let Some((place, _)) = self.storage.copies.get(sample).and_then(|copy| copy.memory) else {
            return;
        };
        for &ticket in tickets {
            self.lend_to_peer(ticket, sample, actions);
            actions.push(MachineAction::Serve { ticket, place });
        }
        let is_of_home = self
            .shared
            .as_ref()
            .is_some_and(|shared| shared.to_ask_for_others(sample).is_none());
        if !is_of_home && !self.keeps(sample) {
            return;
        }
        if let (Some(epoch), false) = (self.requests.pass(), self.residency.holds(HERE, sample)) {
            let iteration = self.requests.iteration();
            let access = Access {
                node: HERE,
                sample,
                iteration,
                epoch,
            };
            self.residency.offered(access, bytes);
        }
    }

    /// Returns true if this node keeps a sample beside its own.
    fn keeps(&self, sample: Sample) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|shared| shared.keeps(sample, &self.storage.copies))
    }

    fn lend_to_peer(&mut self, ticket: Ticket, sample: Sample, actions: &mut Actions) {
        let Some(shared) = &mut self.shared else {
            actions.push(MachineAction::Decline { ticket });
            return;
        };
        shared.lent.insert(ticket, sample);
        self.storage.copies.lend(sample);
        self.figures.to_peers += 1;
    }

    /// Returns the place from which to read a sample that is neither in memory nor on a disk of this node.
    pub(super) fn elsewhere(&self, sample: Sample, last: Option<Node>) -> ReadFrom {
        let node = self.shared.as_ref().and_then(|shared| shared.to_ask(sample, last));
        let within = if last.is_some() { LOADER_PEER_AGAIN } else { LOADER_PEER_WAIT };
        self.read_of_peer(sample, node, within)
    }

    /// Returns the read of a sample from another node, or from the source if there is none, or the sample is large.
    fn read_of_peer(&self, sample: Sample, node: Option<Node>, within: Duration) -> ReadFrom {
        let copies = &self.storage.copies;
        let known_bytes = copies.known_bytes(sample).filter(|bytes| *bytes > 0);
        let is_too_large = known_bytes.is_some_and(|bytes| bytes > LOADER_PEER_BYTES_MAX);
        match node.filter(|_| !is_too_large) {
            Some(node) => ReadFrom::Peer {
                node,
                bytes: known_bytes,
                guess_bytes: if copies.knows_sizes() {
                    copies.expected_bytes(sample).saturating_mul(2).clamp(1, LOADER_PEER_BYTES_MAX)
                } else {
                    LOADER_PEER_GUESS_BYTES
                },
                within,
            },
            None => ReadFrom::Source,
        }
    }
}
