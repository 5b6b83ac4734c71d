//! The simulated world: it processes events, and asks policy and schedulers for decisions.

use std::ops::ControlFlow;

use forebay_policy::ids::{Node, Sample};
use forebay_policy::models::StepPace;
use forebay_policy::residency::{Access, Fetch, Residency};
use forebay_policy::schedule::{ReadClass, ReadRequest, Scheduler};

use crate::calendar::{Calendar, WorldEvent};
use crate::flight::{SampleStage, SampleUnderWay, SamplesUnderWay};
use crate::ideal;
use crate::machine::Prediction;
use crate::node::{NodeState, origin_index};
use crate::orders::Orders;
use crate::rank::{RankBatch, SimulatedRank};
use crate::scenario::{Decoders, Scenario};
use crate::sizes::DrawnSizes;
use crate::source::SourceState;
use crate::tally::Tally;
use crate::{Failure, Outcome, SimulationProgress};

pub(crate) struct SimulatedWorld<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) sizes: DrawnSizes,
    pub(crate) orders: Orders,
    pub(crate) residency: Box<dyn Residency>,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) ranks: Vec<SimulatedRank>,
    pub(crate) flights: SamplesUnderWay,
    pub(crate) calendar: Calendar,
    pub(crate) source: SourceState,
    pub(crate) tally: Tally,
    prediction: Prediction,
    /// Steps begun, over all epochs: so also the number of the next one.
    pub(crate) begun: u64,
    step: StepUnderWay,
    /// True if samples beyond the window are requested as well.
    pub(crate) asks_beyond: bool,
    /// Ranks whose batch for the next step is ready.
    pub(crate) ready: u32,
    /// Steps as a node sees them that has to learn what training takes.
    pace: StepPace,
    /// Steps from this one on are not requested yet: they belong to an epoch that has not begun.
    pub(crate) asks_until: u64,
}

/// The step of all ranks that is under way, or was the last.
#[derive(Debug, Default)]
struct StepUnderWay {
    is_running: bool,
    /// Its end in seconds.
    ends_s: f64,
    batches: Vec<RankBatch>,
}

impl<'a> SimulatedWorld<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        sizes: DrawnSizes,
        orders: Orders,
        mut residency: Box<dyn Residency>,
        make_scheduler: &mut dyn FnMut() -> Box<dyn Scheduler>,
    ) -> Self {
        residency.begin(0, orders.epochs());
        let gpus = scenario.machines.gpus;
        let nodes =
            (0..u32::from(scenario.machines.nodes)).map(|node| NodeState::new(scenario, sizes.mean(), node * gpus, make_scheduler()));
        let ranks = (0..scenario.world()).map(|rank| SimulatedRank::new(rank, scenario.window_of(rank), scenario.slowness_of(rank)));
        Self {
            nodes: nodes.collect(),
            ranks: ranks.collect(),
            flights: SamplesUnderWay::default(),
            calendar: Calendar::default(),
            source: SourceState::new(scenario),
            prediction: Prediction::new(scenario, sizes.mean()),
            tally: Tally::new(scenario, orders.iterations()),
            asks_beyond: scenario.loader.background_fill || residency.window().is_none(),
            asks_until: if scenario.loader.across_epochs {
                u64::MAX
            } else {
                orders.iterations().into()
            },
            begun: 0,
            pace: StepPace::default(),
            step: StepUnderWay::default(),
            ready: 0,
            scenario,
            sizes,
            orders,
            residency,
        }
    }

    /// Processes events until the last step has ended.
    pub(crate) fn run(mut self, watch: &mut dyn FnMut(SimulationProgress) -> ControlFlow<()>) -> Result<Outcome, Failure> {
        let steps = u64::from(self.scenario.job.epochs) * u64::from(self.orders.iterations());
        self.ask_all();
        self.begin_if_ready();
        loop {
            match self.calendar.next() {
                Some(WorldEvent::StepEnd) => {
                    if watch(SimulationProgress {
                        steps: self.begun,
                        of: steps,
                    })
                    .is_break()
                    {
                        return Err(Failure::Stopped);
                    }
                    self.step_ended();
                    if self.begun == steps {
                        let (cold_s, warm_s) = ideal::seconds(self.scenario, &self.sizes, self.orders.iterations());
                        return Ok(self.tally.outcome(|epoch| if epoch == 0 { cold_s } else { warm_s }));
                    }
                    self.begin_if_ready();
                }
                Some(event) => {
                    self.happen(event);
                    self.begin_if_ready();
                }
                None => return Err(Failure::Scenario(self.scenario.stuck(self.sizes.largest()))),
            }
        }
    }

    /// Begins a step: all nodes request the samples that are within the window now.
    fn ask_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.nodes[node].full = false;
            self.nodes[node].full_beyond = false;
            if self.scenario.loader.background_fill {
                self.promote(node);
            }
            while !self.nodes[node].full && self.ask(node, false) {}
            self.assign(node);
            self.put_to_work(node);
        }
    }

    /// Assigns threads to the batches that have just come within the window.
    fn assign(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        for (local, rank) in (state.first_rank..).take(self.scenario.machines.gpus as usize).enumerate() {
            let rank = &self.ranks[rank as usize];
            // At the end of an epoch, nothing new is requested: the load is that of its last step.
            let Some(batch) = rank.latest_batch(self.begun + rank.window) else {
                continue;
            };
            state.load.samples[local] = batch.asked;
            state.load.bytes[local] = batch.asked_bytes;
            if let Decoders::OfRank(_) = self.scenario.loader.decoders {
                let bytes: u64 = batch.asked_bytes.iter().sum();
                let samples = bytes as f64 / self.sizes.mean();
                state.load.decode_s[local] = samples * self.scenario.preprocessing.seconds_a_sample * rank.slowness;
            }
        }
        state.load.sample_bytes = state.load.bytes.iter().flatten().sum();
        if let Some(learning) = &state.learning {
            // The agent does not read a sample that is in memory.
            state.load.bytes.iter_mut().for_each(|[local, ..]| *local = 0);
            state.load.train_s = self.pace.step_s();
            if state.load.train_s <= 0.0 {
                return;
            }
            learning.tell(&mut *state.scheduler);
        }
        state.scheduler.assign(&state.load);
    }

    /// Requests the nearest sample of the node, within the window or `beyond` it. Returns true if it was let in.
    pub(crate) fn ask(&mut self, node: usize, beyond: bool) -> bool {
        let (first, gpus) = (self.nodes[node].first_rank, self.scenario.machines.gpus);
        let ranks = &self.ranks[first as usize..(first + gpus) as usize];
        let unthrottled = self.residency.window().is_none();
        // Where memory is reserved for samples under way, a policy without a window uses that of each rank, as in the
        // agent.
        let is_bounded = !unthrottled || self.scenario.machines.reserved_bytes > 0;
        let window_of = |state: &SimulatedRank| if is_bounded { state.window } else { 1 };
        let eligible = ranks
            .iter()
            .zip(first..)
            .filter(|(state, _)| state.next_place().0 < self.asks_until)
            .filter(|(state, _)| beyond || state.next_place().0 < self.begun + window_of(state));
        let Some((_, rank)) = eligible.min_by_key(|(state, rank)| (state.next_place(), *rank)) else {
            return false;
        };
        let Some((step, sample)) = self.ranks[rank as usize].next_sample(&self.orders) else {
            return false;
        };
        if beyond && !self.has_room_beyond(node as Node, sample) {
            self.nodes[node].full_beyond = true;
            return false;
        }
        let (_, place) = self.ranks[rank as usize].next_place();
        let (epoch, iteration) = self.orders.place(step);
        match self.residency.fetch(Access {
            node: node as Node,
            sample,
            iteration,
            epoch,
        }) {
            Fetch::Wait if beyond => self.nodes[node].full_beyond = true,
            Fetch::Wait => self.nodes[node].full = true,
            Fetch::From(origin) => {
                let bytes = self.sizes.of(sample);
                let class = if beyond && !unthrottled {
                    ReadClass::Fill
                } else {
                    ReadClass::Demand
                };
                let flight = SampleUnderWay {
                    rank,
                    sample,
                    step,
                    place,
                    bytes,
                    origin,
                    class,
                    stage: SampleStage::Queued,
                    held: 0,
                    deadline_s: self.deadline_s(step),
                    hedged: None,
                    requests: 0,
                    began_s: 0.0,
                };
                self.asked(node, flight);
                return true;
            }
        }
        false
    }

    /// Returns true if a sample beyond the window leaves the memory that is reserved for those within it.
    fn has_room_beyond(&self, node: Node, sample: Sample) -> bool {
        let cluster = self.scenario.cluster();
        let bytes = u64::from(self.sizes.expected(sample));
        cluster.reserved_bytes == 0 || self.residency.holds(node, sample) || self.residency.held_bytes(node) + bytes <= cluster.room_bytes()
    }

    fn asked(&mut self, node: usize, flight: SampleUnderWay) {
        let SampleUnderWay {
            rank,
            sample,
            step,
            bytes,
            origin,
            class,
            ..
        } = flight;
        let slot = self.flights.add(flight);
        let expected_bytes = self.sizes.expected(sample);
        let batch = self.ranks[rank as usize].advance();
        batch.asked += 1;
        batch.asked_bytes[origin_index(origin)] += u64::from(expected_bytes);
        if class == ReadClass::Fill {
            self.flights.hold(slot);
            self.nodes[node].fills.push((step, slot));
        }
        self.tally.asked(self.orders.place(step).0, origin, bytes);
        let request = self.request(slot);
        self.nodes[node].scheduler.push(request);
    }

    /// Returns the predicted beginning of a step: no rank is assumed to be late from now on.
    fn deadline_s(&self, step: u64) -> f64 {
        let now_s = self.calendar.now_s();
        let steps_between = (step - self.begun) as f64;
        self.step.ends_s.max(now_s) + steps_between * self.scenario.job.step_s
    }

    /// Returns a scheduler's request for a sample.
    fn request(&mut self, slot: u32) -> ReadRequest {
        let now_s = self.calendar.now_s();
        let SampleUnderWay {
            rank,
            sample,
            step,
            origin,
            class,
            deadline_s,
            ..
        } = *self.flights.get(slot);
        ReadRequest {
            ticket: slot,
            local_rank: self.lane(rank, step),
            sample,
            bytes: self.sizes.expected(sample),
            origin,
            step,
            deadline_s,
            predicted_s: self.prediction.seconds(origin, self.sizes.expected(sample)),
            queued_s: now_s,
            class,
        }
    }

    /// Queue of a node's reads in which those of a rank's step wait. Worker processes take the batches of an epoch in
    /// turn.
    pub(crate) fn lane(&self, rank: u32, step: u64) -> u32 {
        let local = rank % self.scenario.machines.gpus;
        match self.scenario.loader.decoders {
            Decoders::Workers(workers) => local * workers + self.orders.place(step).1 % workers,
            Decoders::Pool | Decoders::OfRank(_) => local,
        }
    }

    /// Raises samples that were requested beyond the window, and are within it now, from background fill to demand.
    fn promote(&mut self, node: usize) {
        let fills = std::mem::take(&mut self.nodes[node].fills);
        for (step, slot) in fills {
            let flight = *self.flights.get(slot);
            if flight.stage != SampleStage::Queued {
                self.flights.release(slot);
            } else if step < self.begun + self.ranks[flight.rank as usize].window {
                // The request that waits as background fill still names the slot.
                self.flights.get(slot).class = ReadClass::Demand;
                let request = self.request(slot);
                self.nodes[node].scheduler.push(request);
            } else {
                self.nodes[node].fills.push((step, slot));
            }
        }
    }

    fn begin_if_ready(&mut self) {
        if !self.step.is_running && self.ready == self.scenario.world() {
            self.begin_step();
        }
    }

    /// Begins a step: every rank takes its batch, and trains.
    fn begin_step(&mut self) {
        let step = self.begun;
        let (epoch, iteration) = self.orders.place(step);
        self.begun += 1;
        self.pace.stepped(self.begun, self.calendar.now_s());
        self.ready = 0;
        self.step.batches.clear();
        for state in &mut self.ranks {
            self.step.batches.push(state.take_batch());
            self.ready += u32::from(state.next_batch().is_some_and(RankBatch::is_ready));
        }
        self.tally.begun((epoch, iteration), &self.step.batches);
        self.consume(step);
        self.step.is_running = true;
        self.step.ends_s = self.calendar.now_s() + self.scenario.job.step_s;
        self.calendar.enter(self.step.ends_s, WorldEvent::StepEnd);
        if iteration + 1 == self.orders.iterations() {
            self.orders.advance();
            self.residency.begin(epoch + 1, self.orders.epochs());
        }
        self.ask_all();
    }

    /// Consumes the samples of the step: they need not be held for it any longer.
    fn consume(&mut self, step: u64) {
        let (epoch, iteration) = self.orders.place(step);
        for rank in 0..self.scenario.world() {
            let node = (rank / self.scenario.machines.gpus) as Node;
            for sample in self.orders.batch(rank, step).into_iter().flatten() {
                self.residency.consumed(Access {
                    node,
                    sample,
                    iteration,
                    epoch,
                });
                while let Some(handover) = self.residency.handover() {
                    let bytes = self.sizes.of(handover.sample);
                    let sent_s = self.nodes[usize::from(handover.from)].outgoing.carry(self.calendar.now_s(), bytes);
                    self.calendar.enter(sent_s, WorldEvent::HandedOver { to: handover.to, bytes });
                    self.tally.handed_over(epoch, bytes);
                }
            }
        }
    }

    fn step_ended(&mut self) {
        self.step.is_running = false;
        self.tally.ended(self.orders.place(self.begun - 1), self.calendar.now_s());
        let here = self
            .ranks
            .iter()
            .filter_map(SimulatedRank::next_batch)
            .map(|batch| u64::from(batch.here))
            .sum();
        self.tally.found(self.orders.place(self.begun).0, here);
        if self.begun == self.asks_until {
            self.asks_until += u64::from(self.orders.iterations());
            self.ask_all();
        }
    }
}
