//! Work of the threads: they read samples, over links and from the source, and preprocess them.

use forebay_policy::ids::Node;
use forebay_policy::residency::{Access, Origin};
use forebay_policy::schedule::EndedRead;

use crate::calendar::WorldEvent;
use crate::flight::SampleStage;
use crate::rank::extend;
use crate::scenario::Decoders;
use crate::world::SimulatedWorld;

impl SimulatedWorld<'_> {
    /// Processes an event of a sample.
    pub(crate) fn happen(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Send { slot } => self.send(slot),
            WorldEvent::FirstByte { slot } => self.first_byte(slot),
            WorldEvent::Sent { slot } => self.sent(slot),
            WorldEvent::Received { slot } => self.received(slot),
            WorldEvent::Arrived { slot } => self.arrived(slot),
            WorldEvent::HedgeDue { node } => self.hedge(node as usize),
            WorldEvent::Prepared { slot } => self.preprocessed(slot),
            WorldEvent::HandedOver { to, bytes } => {
                self.nodes[usize::from(to)].incoming.carry_on(self.calendar.now_s(), bytes);
            }
            WorldEvent::StepEnd => {}
        }
    }

    fn node_of(&mut self, slot: u32) -> usize {
        (self.flights.get(slot).rank / self.scenario.machines.gpus) as usize
    }

    /// Gives idle threads of a node work.
    pub(crate) fn put_to_work(&mut self, node: usize) {
        loop {
            self.ask_beyond(node);
            let state = &mut self.nodes[node];
            let is_shared = self.scenario.loader.decoders == Decoders::Pool;
            let is_full = is_shared && state.reading + state.preparing >= self.scenario.machines.threads;
            if state.reading >= state.reads_limit() || is_full {
                break;
            }
            let Some(request) = state.scheduler.pick(&state.busy) else {
                break;
            };
            self.read(node, request.ticket);
        }
        match self.scenario.loader.decoders {
            Decoders::Pool => self.prepare_in_pool(node),
            Decoders::OfRank(threads) => self.prepare_by_rank(node, threads),
            Decoders::Workers(_) => {}
        }
    }

    /// Lets the node's threads that do not load preprocess what has come.
    fn prepare_in_pool(&mut self, node: usize) {
        let limit = self.begun + u64::from(self.scenario.loader.prepared);
        loop {
            let state = &mut self.nodes[node];
            let threads = self.scenario.machines.threads.saturating_sub(state.scheduler.loading_threads());
            if state.preparing >= threads || state.reading + state.preparing >= self.scenario.machines.threads {
                break;
            }
            let Some(slot) = state.take_here(limit) else { break };
            self.prepare(node, slot);
        }
    }

    /// Lets the threads of each rank preprocess parts of its batches; `own` is their number where none move.
    fn prepare_by_rank(&mut self, node: usize, own: u32) {
        if self.scenario.preprocessing.seconds_a_sample <= 0.0 {
            return;
        }
        let limit = self.asks_until.min(self.begun + u64::from(self.scenario.loader.prepared));
        for local in 0..self.nodes[node].decoders.len() {
            let state = &mut self.nodes[node];
            let rank = state.first_rank + local as u32;
            let threads = state.scheduler.decoding().get(local).copied().unwrap_or(own);
            while let Some(step) = state.decoders[local].unqueued(limit) {
                let Some(batch) = self.orders.batch(rank, step) else { break };
                state.decoders[local].queue(batch.count() as u32, threads);
            }
            while let Some(slot) = self.nodes[node].decoders[local].work(threads) {
                self.prepare(node, slot);
            }
        }
    }

    /// Lets idle threads find samples beyond the window, if the policy has no window or background fill is on.
    fn ask_beyond(&mut self, node: usize) {
        if !self.asks_beyond {
            return;
        }
        loop {
            let state = &self.nodes[node];
            let enough = state.scheduler.waiting() >= state.reads_limit() as usize;
            if enough || state.full || state.full_beyond || !self.ask(node, true) {
                return;
            }
        }
    }

    /// Begins a read by a thread.
    fn read(&mut self, node: usize, slot: u32) {
        let now_s = self.calendar.now_s();
        let flight = self.flights.get(slot);
        if flight.stage != SampleStage::Queued {
            // It was requested again as it came within the window, and has been read since.
            self.flights.release(slot);
            return;
        }
        flight.stage = if flight.origin == Origin::Local {
            SampleStage::Here
        } else {
            SampleStage::Asked
        };
        flight.began_s = now_s;
        let flight = *flight;
        self.thread_began(node, slot);
        extend(&mut self.ranks[flight.rank as usize].batch(flight.step).read_s, now_s);
        match flight.origin {
            Origin::Local => {
                let done_s = self.nodes[node].memory.carry(now_s, flight.bytes);
                self.calendar.enter(done_s, WorldEvent::Received { slot });
            }
            Origin::Peer(_) => self
                .calendar
                .enter(now_s + self.scenario.machines.link.latency_s, WorldEvent::Send { slot }),
            Origin::Source => {
                self.request_from_source(slot);
                self.hedge_begun(node, slot);
            }
        }
    }

    /// Counts a thread, or worker process, that reads for a sample from now on.
    fn thread_began(&mut self, node: usize, slot: u32) {
        let flight = *self.flights.get(slot);
        let lane = self.lane(flight.rank, flight.step) as usize;
        self.nodes[node].reading += 1;
        self.nodes[node].busy[lane] += 1;
    }

    fn thread_ended(&mut self, node: usize, slot: u32) {
        let flight = *self.flights.get(slot);
        let lane = self.lane(flight.rank, flight.step) as usize;
        self.nodes[node].reading -= 1;
        self.nodes[node].busy[lane] -= 1;
    }

    pub(crate) fn request_from_source(&mut self, slot: u32) {
        let flight = self.flights.get(slot);
        let nth = u64::from(flight.requests) << u32::BITS | u64::from(flight.sample);
        flight.requests += 1;
        let flight = *flight;
        self.tally.requested(self.orders.place(flight.step).0);
        let place = flight.step * u64::from(self.scenario.world()) + u64::from(flight.rank);
        let first_byte_s = self.source.request(self.calendar.now_s(), place, nth);
        self.flights.hold(slot);
        self.calendar.enter(first_byte_s, WorldEvent::FirstByte { slot });
    }

    fn send(&mut self, slot: u32) {
        let flight = self.flights.get(slot);
        flight.stage = SampleStage::Coming;
        let Origin::Peer(peer) = flight.origin else { return };
        let bytes = flight.bytes;
        let sent_s = self.nodes[usize::from(peer)].outgoing.carry(self.calendar.now_s(), bytes);
        self.flights.hold(slot);
        self.calendar.enter(sent_s, WorldEvent::Sent { slot });
    }

    fn first_byte(&mut self, slot: u32) {
        let flight = self.flights.get(slot);
        let again = flight.stage != SampleStage::Asked;
        if !again {
            flight.stage = SampleStage::Coming;
        }
        let (bytes, step) = (flight.bytes, flight.step);
        self.tally.sent(self.orders.place(step).0, bytes, again);
        let sent_s = self.source.send(self.calendar.now_s(), bytes);
        self.calendar.enter(sent_s, WorldEvent::Sent { slot });
    }

    fn sent(&mut self, slot: u32) {
        let now_s = self.calendar.now_s();
        let node = self.node_of(slot);
        let flight = self.flights.get(slot);
        let received_s = self.nodes[node].incoming.carry_on(now_s, flight.bytes);
        if flight.stage == SampleStage::Coming {
            flight.stage = SampleStage::Here;
            self.calendar.enter(received_s, WorldEvent::Received { slot });
        } else {
            // A read that another try has overtaken kept its thread until now.
            self.thread_ended(node, slot);
            self.put_to_work(node);
        }
        self.flights.release(slot);
    }

    /// Ends a read. A slow rank holds the thread for longer.
    fn received(&mut self, slot: u32) {
        let flight = self.flights.get(slot);
        let slowness = self.ranks[flight.rank as usize].slowness;
        if let Decoders::Workers(_) = self.scenario.loader.decoders {
            // The process that has read the sample preprocesses it.
            let node = self.node_of(slot);
            self.prepare(node, slot);
        } else if slowness > 1.0 {
            let now_s = self.calendar.now_s();
            self.calendar
                .enter(now_s + (slowness - 1.0) * (now_s - flight.began_s), WorldEvent::Arrived { slot });
        } else {
            self.arrived(slot);
        }
    }

    fn arrived(&mut self, slot: u32) {
        let now_s = self.calendar.now_s();
        let node = self.node_of(slot);
        let flight = *self.flights.get(slot);
        let (epoch, iteration) = self.orders.place(flight.step);
        self.residency.arrived(
            Access {
                node: node as Node,
                sample: flight.sample,
                iteration,
                epoch,
            },
            flight.bytes,
        );
        self.sizes.learn(flight.sample);
        self.hedge_ended(node, slot);
        self.thread_ended(node, slot);
        let local_rank = self.nodes[node].local(flight.rank);
        let state = &mut self.nodes[node];
        if let (Some(learning), Origin::Source) = (&mut state.learning, flight.origin) {
            let read = EndedRead {
                local_rank: local_rank as u32,
                bytes: flight.bytes.into(),
                took_s: (flight.requests == 1).then_some(now_s - flight.began_s),
            };
            let others_wait = state.scheduler.waiting() > 0;
            // Including this one.
            learning.ended(now_s, read, state.reading + 1, others_wait);
        }
        let batch = self.ranks[flight.rank as usize].batch(flight.step);
        batch.here += 1;
        extend(&mut batch.read_s, now_s);
        self.tally.held(
            epoch,
            self.residency.held_bytes(node as Node),
            self.residency.window_bytes(node as Node),
        );
        let is_free = self.scenario.preprocessing.seconds_a_sample <= 0.0;
        match self.scenario.loader.decoders {
            Decoders::Pool if !is_free => self.nodes[node].add_here(flight.step, slot),
            Decoders::OfRank(_) if !is_free => {
                let local = self.nodes[node].local(flight.rank);
                if self.nodes[node].decoders[local].came(flight.step, flight.place, slot) {
                    self.prepare(node, slot);
                }
            }
            _ => self.prepared(slot),
        }
        self.put_to_work(node);
    }

    /// Begins to preprocess a sample.
    fn prepare(&mut self, node: usize, slot: u32) {
        let now_s = self.calendar.now_s();
        self.nodes[node].preparing += 1;
        let flight = *self.flights.get(slot);
        let rank = &mut self.ranks[flight.rank as usize];
        extend(&mut rank.batch(flight.step).prepared_s, now_s);
        let share = f64::from(flight.bytes) / self.sizes.mean();
        let alone_s = self.scenario.preprocessing.seconds_a_sample * share * rank.slowness;
        let takes_s = alone_s * self.scenario.preprocessing.slowdown(self.nodes[node].preparing);
        self.calendar.enter(now_s + takes_s, WorldEvent::Prepared { slot });
    }

    /// Ends the preprocessing of a sample, by whoever did it.
    fn preprocessed(&mut self, slot: u32) {
        let node = self.node_of(slot);
        self.nodes[node].preparing -= 1;
        match self.scenario.loader.decoders {
            Decoders::Pool => self.prepared(slot),
            Decoders::OfRank(_) => {
                let local = self.nodes[node].local(self.flights.get(slot).rank);
                if let Some(next) = self.nodes[node].decoders[local].prepared(slot) {
                    self.prepare(node, next);
                }
                self.prepared(slot);
            }
            Decoders::Workers(_) => return self.arrived(slot),
        }
        self.put_to_work(node);
    }

    fn prepared(&mut self, slot: u32) {
        let now_s = self.calendar.now_s();
        let flight = *self.flights.get(slot);
        let batch = self.ranks[flight.rank as usize].batch(flight.step);
        if batch.prepared_s.is_some() {
            extend(&mut batch.prepared_s, now_s);
        }
        batch.unprepared -= 1;
        if batch.is_ready() && flight.step == self.begun {
            self.ready += 1;
        }
        self.flights.end(slot);
    }

    /// Records that a first read of the source has begun.
    pub(crate) fn hedge_begun(&mut self, node: usize, slot: u32) {
        let Some(hedging) = &mut self.nodes[node].hedging else { return };
        let flight = self.flights.get(slot);
        let read = hedging.hedge.begun(self.calendar.now_s(), flight.bytes.into(), flight.deadline_s);
        flight.hedged = Some(read);
        hedging.slots.insert(read, slot);
        self.ask_again(node);
    }

    /// Records that the sample has arrived.
    pub(crate) fn hedge_ended(&mut self, node: usize, slot: u32) {
        let Some(read) = self.flights.get(slot).hedged.take() else { return };
        if let Some(hedging) = &mut self.nodes[node].hedging {
            hedging.hedge.ended(self.calendar.now_s(), read);
            hedging.slots.remove(&read);
        }
        self.hedge(node);
    }

    /// Repeats the reads that are due.
    pub(crate) fn hedge(&mut self, node: usize) {
        let now_s = self.calendar.now_s();
        while let Some(hedging) = &mut self.nodes[node].hedging {
            if hedging.asks_at_s <= now_s {
                hedging.asks_at_s = f64::INFINITY;
            }
            let Some(read) = hedging.hedge.due(now_s) else { break };
            let slot = hedging.slots[&read];
            // A read whose bytes are arriving is not made faster, but a reader of files does not know that.
            if matches!(self.flights.get(slot).stage, SampleStage::Asked | SampleStage::Coming) {
                self.thread_began(node, slot);
                self.request_from_source(slot);
            }
        }
        self.ask_again(node);
    }

    /// Enters the time at which a read may be due.
    fn ask_again(&mut self, node: usize) {
        let now_s = self.calendar.now_s();
        let Some(hedging) = &mut self.nodes[node].hedging else { return };
        let Some(next_s) = hedging.hedge.next_s().map(|next_s| next_s.max(now_s)) else {
            return;
        };
        if next_s < hedging.asks_at_s {
            hedging.asks_at_s = next_s;
            self.calendar.enter(next_s, WorldEvent::HedgeDue { node: node as u16 });
        }
    }
}
