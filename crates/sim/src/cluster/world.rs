//! The clock of a simulated job: samples are requested, asked of other nodes or the source, and used step by step.

use forebay_policy::ids::{Node, Sample};
use forebay_policy::order::Epoch;
use forebay_policy::peers::{FetchStep, Health, PeerAnswer, PeerFetch};

use super::network::{Network, Reaction};
use super::node::{ClusterEvent, ClusterNode, ComingSample, SampleTry, SampleWaiter};
use super::outcome::{ClusterRequests, quantile};
use super::{CONNECT_WITHIN_S, ClusterEpoch, ClusterFault, ClusterJob, ClusterOutcome, OWNER_WITHIN_S, SUBSTITUTE_WITHIN_S};
use crate::calendar::Calendar;
use crate::draw::{Draw, Purpose};
use crate::pipe::Pipe;

/// Spread of the source's latency.
const SOURCE_SIGMA: f64 = 0.5;

pub(super) struct ClusterWorld {
    job: ClusterJob,
    orders: Vec<Epoch>,
    nodes: Vec<ClusterNode>,
    network: Network,
    source: ClusterSource,
    calendar: Calendar<ClusterEvent>,
    numbers: u64,
    /// Samples that ranks lack, by step in turn.
    missing: Vec<u64>,
    steps: ClusterSteps,
    outcome: ClusterOutcome,
    requests: ClusterRequests,
}

/// The source of all nodes.
#[derive(Debug)]
struct ClusterSource {
    pipe: Pipe,
    draw: Draw,
    reads: u64,
    /// Bytes that were read, by epoch.
    bytes: Vec<u64>,
}

/// The steps of all ranks.
#[derive(Debug, Default)]
struct ClusterSteps {
    /// Number of steps begun.
    begun: u64,
    is_running: bool,
    /// End of the last step in seconds.
    ended_s: f64,
    /// Beginning of the epoch in seconds.
    epoch_began_s: f64,
    /// Waits of ranks in this epoch in seconds.
    waits_s: Vec<f64>,
    /// Times of this epoch's steps in seconds.
    took_s: Vec<f64>,
}

impl ClusterWorld {
    pub(super) fn new(job: ClusterJob) -> Self {
        let shares = job.shares();
        let is_warm = job.fault == ClusterFault::WarmRestart;
        let slots = job.window as usize + 1;
        let nodes = (0..job.nodes).map(|node| ClusterNode::new(shares.seen_by(node), slots));
        let mut nodes: Vec<ClusterNode> = nodes.collect();
        if is_warm {
            for sample in 0..job.samples() {
                nodes[usize::from(shares.of(sample))].kept.insert(sample);
            }
        }
        let first = u32::from(is_warm);
        Self {
            orders: (first..first + job.epochs).map(|epoch| job.order().epoch(epoch)).collect(),
            nodes,
            network: Network::new(job),
            source: ClusterSource {
                pipe: Pipe::new(job.source_bytes_per_s),
                draw: Draw::new(job.seed, Purpose::Latency),
                reads: 0,
                bytes: vec![0; job.epochs as usize],
            },
            calendar: Calendar::default(),
            numbers: 0,
            missing: vec![0; slots],
            steps: ClusterSteps::default(),
            outcome: ClusterOutcome::default(),
            requests: ClusterRequests::default(),
            job,
        }
    }

    pub(super) fn run(mut self) -> ClusterOutcome {
        for step in 0..u64::from(self.job.window) {
            self.want_step(step);
        }
        self.begin_if_ready();
        while let Some(event) = self.calendar.next() {
            match event {
                ClusterEvent::StepEnd => self.step_ended(),
                ClusterEvent::Read { node, sample } => self.arrived(node, sample, None),
                ClusterEvent::Reached(asked) => self.reached(asked),
                ClusterEvent::Probe { node, asked } => self.probe(node, asked),
                ClusterEvent::NotCleared { node, asked } => self.not_cleared(node, asked),
                event => self.answered(event),
            }
            self.begin_if_ready();
            if self.outcome.epochs.len() == self.orders.len() {
                break;
            }
        }
        let epochs = std::mem::take(&mut self.outcome.epochs).into_iter().zip(self.source.bytes);
        ClusterOutcome {
            epochs: epochs.map(|(epoch, source_bytes)| ClusterEpoch { source_bytes, ..epoch }).collect(),
            requests: ClusterRequests {
                handshakes: self.network.handshakes,
                ..self.requests
            },
            connections_max: self.network.connections_max(),
            ..self.outcome
        }
    }

    fn slot(&self, step: u64) -> usize {
        (step % (u64::from(self.job.window) + 1)) as usize
    }

    /// Returns the epoch, by its place in the run, of a step; `None` after the last.
    fn epoch_of(&self, step: u64) -> Option<usize> {
        Some((step / u64::from(self.job.steps)) as usize).filter(|epoch| *epoch < self.orders.len())
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Requests the samples of all ranks for a step.
    fn want_step(&mut self, step: u64) {
        let Some(epoch) = self.epoch_of(step) else { return };
        let iteration = (step % u64::from(self.job.steps)) as u32;
        let (now_s, slot) = (self.calendar.now_s(), self.slot(step));
        let uses: Vec<(u32, Sample)> = self.orders[epoch].step(iteration).collect();
        for (rank, sample) in uses {
            let node = rank as Node;
            let state = &mut self.nodes[usize::from(node)];
            if state.kept.contains(&sample) {
                continue;
            }
            self.missing[slot] += 1;
            let waiter = SampleWaiter::Rank { step, since_s: now_s };
            match state.coming.get_mut(&sample) {
                Some(coming) => coming.waiters.push(waiter),
                None => self.begin(node, sample, waiter),
            }
        }
    }

    fn begin(&mut self, node: Node, sample: Sample, waiter: SampleWaiter) {
        let is_of_rank = matches!(waiter, SampleWaiter::Rank { .. });
        let coming = ComingSample::new(node, waiter);
        self.nodes[usize::from(node)].coming.insert(sample, coming);
        // What another node has asked for is asked of another group only: no node waits for one that waits for it.
        let to_ask = self.nodes[usize::from(node)].shares.to_ask_for_others(sample);
        // The rank of an agent that has ended reads for itself.
        match to_ask {
            _ if self.network.has_ended(node) => self.read_source(node, sample),
            _ if is_of_rank => self.ask_after(node, sample, None),
            Some(owner) => {
                self.requests.wanted += 1;
                let is_keeper = self.nodes[usize::from(node)].shares.is_keeper(sample);
                self.ask(node, sample, owner, if is_keeper { OWNER_WITHIN_S } else { SUBSTITUTE_WITHIN_S });
            }
            None => self.read_source(node, sample),
        }
    }

    /// Asks the node that follows `last`, or reads the source if there is none.
    fn ask_after(&mut self, node: Node, sample: Sample, last: Option<Node>) {
        let state = &mut self.nodes[usize::from(node)];
        let mut nodes = state.shares.to_ask(sample);
        let next = match last {
            Some(last) => nodes.find(|node| *node == last).and_then(|_| nodes.next()),
            None => nodes.next(),
        };
        drop(nodes);
        let Some(coming) = state.coming.get_mut(&sample) else { return };
        let Some(asked) = next else {
            coming.was_late = last.is_some() || state.shares.is_substitute(sample);
            return self.read_source(node, sample);
        };
        self.requests.wanted += u64::from(last.is_none());
        let within_s = if last.is_none() { OWNER_WITHIN_S } else { SUBSTITUTE_WITHIN_S };
        self.ask(node, sample, asked, within_s);
    }

    /// Asks a node for a sample.
    fn ask(&mut self, node: Node, sample: Sample, asked: Node, within_s: f64) {
        let now_s = self.calendar.now_s();
        let state = &mut self.nodes[usize::from(node)];
        let Some(coming) = state.coming.get_mut(&sample) else { return };
        let mut fetch = PeerFetch::new(&[asked], now_s + within_s);
        (coming.asked, coming.deadline_s) = (asked, now_s + within_s);
        let step = fetch.begin(now_s, |node| state.is_suspected(node, now_s));
        self.nodes[usize::from(node)]
            .coming
            .entry(sample)
            .and_modify(|coming| coming.fetch = Some(fetch));
        self.follow(node, sample, step);
    }

    /// Does what a fetch says.
    fn follow(&mut self, node: Node, sample: Sample, step: FetchStep) {
        let (number, now_s) = (self.next_number(), self.calendar.now_s());
        let Some(coming) = self.nodes[usize::from(node)].coming.get_mut(&sample) else {
            return;
        };
        (coming.number, coming.sent_s) = (number, now_s);
        let (asked, is_absent) = (coming.asked, coming.is_absent);
        let request = SampleTry { node, sample, number };
        match step {
            FetchStep::Ask(_) => self.send(request, asked),
            FetchStep::Later(at_s) => self.calendar.enter(at_s, ClusterEvent::Again(request)),
            FetchStep::Source if is_absent => match self.nodes[usize::from(node)].shares.to_ask_instead_of(asked, sample) {
                Some(owner) => self.ask(node, sample, owner, SUBSTITUTE_WITHIN_S),
                // What a node lacks, the source has.
                None => self.read_source(node, sample),
            },
            FetchStep::Source => self.ask_after(node, sample, Some(asked)),
            FetchStep::Wait | FetchStep::Done => {}
        }
    }

    fn send(&mut self, request: SampleTry, asked: Node) {
        let SampleTry { node, sample, .. } = request;
        let now_s = self.calendar.now_s();
        let deadline_s = self.deadline_s(node, sample);
        self.requests.sent += 1;
        match self.network.reaction(node, asked, now_s) {
            Reaction::Taken => {
                let way_s = self.network.connect(node, asked);
                self.calendar.enter(now_s + way_s, ClusterEvent::Reached(request));
            }
            Reaction::Refused => {
                let back_s = now_s + 2.0 * self.network.latency_s(node, asked);
                self.calendar.enter(back_s, ClusterEvent::NotConnected(request));
            }
            Reaction::Silent if self.network.is_connected(node, asked) => {
                let at_s = self.noticed_s(request, asked);
                self.calendar.enter(at_s, ClusterEvent::Late(request));
            }
            Reaction::Silent => {
                let at_s = (now_s + CONNECT_WITHIN_S).min(deadline_s);
                self.calendar.enter(at_s, ClusterEvent::NotConnected(request));
            }
        }
    }

    /// Returns when a node finds that one which it has asked is silent: after the time in which that should have
    /// answered, it tries to connect.
    fn noticed_s(&self, request: SampleTry, asked: Node) -> f64 {
        let now_s = self.calendar.now_s();
        let left_s = self.deadline_s(request.node, request.sample) - now_s;
        let usual_s = |health: &Health| health.first_byte_s(left_s.min(CONNECT_WITHIN_S));
        let health = self.nodes[usize::from(request.node)].health.get(&asked);
        let patience_s = health.map_or_else(|| usual_s(&Health::default()), usual_s);
        now_s + (patience_s + CONNECT_WITHIN_S).min(left_s).max(0.0)
    }

    fn deadline_s(&self, node: Node, sample: Sample) -> f64 {
        self.nodes[usize::from(node)]
            .coming
            .get(&sample)
            .map_or(0.0, |coming| coming.deadline_s)
    }

    /// Returns the node that a request is sent to, if the asker still waits for its answer.
    fn asked_by(&self, request: SampleTry) -> Option<Node> {
        let coming = self.nodes[usize::from(request.node)].coming.get(&request.sample)?;
        (coming.number == request.number).then_some(coming.asked)
    }

    /// Takes a request at the node that is asked.
    fn reached(&mut self, request: SampleTry) {
        let Some(asked) = self.asked_by(request) else { return };
        let SampleTry { node, sample, .. } = request;
        let (now_s, deadline_s) = (self.calendar.now_s(), self.deadline_s(node, sample));
        let back_s = now_s + self.network.latency_s(node, asked);
        if self.network.reaction(node, asked, now_s) != Reaction::Taken {
            let at_s = self.noticed_s(request, asked);
            return self.calendar.enter(at_s, ClusterEvent::Late(request));
        }
        if !self.network.agree(node, asked) {
            return self.calendar.enter(back_s, ClusterEvent::OtherMembers(request));
        }
        let has_room = self.has_room(asked);
        let state = &mut self.nodes[usize::from(asked)];
        if state.kept.contains(&sample) {
            return self.serve(asked, request);
        }
        let coming = state.coming.get_mut(&sample);
        let comes_from_node = match &coming {
            Some(coming) => !coming.is_read,
            None => state.shares.to_ask_for_others(sample).is_some(),
        };
        if !state.shares.may_wait(node, comes_from_node) || (coming.is_none() && !has_room) {
            return self.calendar.enter(back_s, ClusterEvent::Declined(request));
        }
        match coming {
            Some(coming) => coming.waiters.push(SampleWaiter::Peer(request)),
            None => self.begin(asked, sample, SampleWaiter::Peer(request)),
        }
        self.calendar.enter(deadline_s.max(now_s), ClusterEvent::Late(request));
    }

    fn has_room(&self, node: Node) -> bool {
        let kept_bytes = self.nodes[usize::from(node)].kept.len() as u64 * u64::from(self.job.sample_bytes);
        kept_bytes + u64::from(self.job.sample_bytes) <= self.job.room_bytes()
    }

    /// Sends a sample to the node that asked for it.
    fn serve(&mut self, from: Node, request: SampleTry) {
        let now_s = self.calendar.now_s();
        let left_s = self.deadline_s(request.node, request.sample) - now_s;
        if self.network.backlog_s(from, now_s) > left_s {
            let back_s = now_s + self.network.latency_s(from, request.node);
            return self.calendar.enter(back_s, ClusterEvent::Busy(request));
        }
        let came_s = self.network.send(from, request.node, self.job.sample_bytes, now_s);
        self.calendar.enter(came_s, ClusterEvent::Came(request));
    }

    /// Takes an answer, or the lack of one.
    fn answered(&mut self, event: ClusterEvent) {
        let (request, answer) = match event {
            ClusterEvent::Came(request) => (
                request,
                PeerAnswer::Whole {
                    bytes: self.job.sample_bytes.into(),
                },
            ),
            ClusterEvent::Declined(request) => (request, PeerAnswer::Absent),
            ClusterEvent::Busy(request) => (request, PeerAnswer::Busy { holders: Vec::new() }),
            ClusterEvent::OtherMembers(request) | ClusterEvent::Late(request) | ClusterEvent::NotConnected(request) => {
                (request, PeerAnswer::Failed)
            }
            ClusterEvent::Again(request) => return self.again(request),
            _ => return,
        };
        let Some(asked) = self.asked_by(request) else { return };
        let SampleTry { node, sample, .. } = request;
        let now_s = self.calendar.now_s();
        self.requests.other_members += u64::from(matches!(event, ClusterEvent::OtherMembers(_)));
        if matches!(event, ClusterEvent::Late(_) | ClusterEvent::NotConnected(_)) {
            self.requests.failed += 1;
            self.nodes[usize::from(node)].reach.get_mut().silent(asked, now_s);
            self.suspect(node, asked);
        } else if matches!(event, ClusterEvent::OtherMembers(_)) {
            self.nodes[usize::from(node)].reach.get_mut().answered();
            self.suspect(node, asked);
        } else {
            let state = &mut self.nodes[usize::from(node)];
            let sent_s = state.coming.get(&sample).map_or(now_s, |coming| coming.sent_s);
            state.was_answered(asked, now_s - sent_s);
        }
        let state = &mut self.nodes[usize::from(node)];
        let Some(coming) = state.coming.get_mut(&sample) else { return };
        coming.is_absent = answer == PeerAnswer::Absent;
        let Some(mut fetch) = coming.fetch.take() else { return };
        let step = fetch.answered(asked, &answer, now_s, |node| state.is_suspected(node, now_s));
        if step == FetchStep::Done {
            self.requests.came += 1;
            return self.arrived(node, sample, Some(asked));
        }
        self.nodes[usize::from(node)]
            .coming
            .entry(sample)
            .and_modify(|coming| coming.fetch = Some(fetch));
        self.follow(node, sample, step);
    }

    /// Suspects a node, and probes it until it answers.
    fn suspect(&mut self, node: Node, asked: Node) {
        let now_s = self.calendar.now_s();
        let health = self.nodes[usize::from(node)].health.entry(asked).or_default();
        let was_suspected = health.is_suspected();
        health.silent(now_s);
        if !was_suspected {
            self.network.disconnect(node, asked);
            self.calendar.enter(now_s, ClusterEvent::Probe { node, asked });
        }
    }

    fn probe(&mut self, node: Node, asked: Node) {
        let now_s = self.calendar.now_s();
        let health = self.nodes[usize::from(node)].health.get(&asked);
        if !health.is_some_and(Health::is_suspected) {
            return;
        }
        self.requests.probes += 1;
        match self.network.reaction(node, asked, now_s) {
            Reaction::Taken if !self.network.agree(node, asked) => self.not_cleared(node, asked),
            Reaction::Taken => {
                self.network.connect(node, asked);
                let state = &mut self.nodes[usize::from(node)];
                state.reach.get_mut().answered();
                state.health.entry(asked).and_modify(Health::cleared);
            }
            Reaction::Refused => self.not_cleared(node, asked),
            Reaction::Silent => self
                .calendar
                .enter(now_s + CONNECT_WITHIN_S, ClusterEvent::NotCleared { node, asked }),
        }
    }

    fn not_cleared(&mut self, node: Node, asked: Node) {
        let Some(health) = self.nodes[usize::from(node)].health.get_mut(&asked) else {
            return;
        };
        health.not_cleared(self.calendar.now_s());
        if let Some(at_s) = health.probe_at_s() {
            self.calendar.enter(at_s, ClusterEvent::Probe { node, asked });
        }
    }

    fn again(&mut self, request: SampleTry) {
        if self.asked_by(request).is_none() {
            return;
        }
        let (now_s, state) = (self.calendar.now_s(), &mut self.nodes[usize::from(request.node)]);
        let Some(mut fetch) = state.coming.get_mut(&request.sample).and_then(|coming| coming.fetch.take()) else {
            return;
        };
        let step = fetch.again(now_s, |node| state.is_suspected(node, now_s));
        state.coming.entry(request.sample).and_modify(|coming| coming.fetch = Some(fetch));
        self.follow(request.node, request.sample, step);
    }

    fn read_source(&mut self, node: Node, sample: Sample) {
        let (now_s, bytes) = (self.calendar.now_s(), self.job.sample_bytes);
        if let Some(coming) = self.nodes[usize::from(node)].coming.get_mut(&sample) {
            coming.is_read = true;
        }
        let is_owner = self.nodes[usize::from(node)].shares.is_owner(sample);
        self.requests.left_to_source += u64::from(!is_owner);
        self.source.reads += 1;
        let latency_s = self
            .source
            .draw
            .lognormal(self.job.source_latency_s, SOURCE_SIGMA, self.source.reads, 0);
        let left_s = self.source.pipe.carry(now_s, bytes) + latency_s;
        let came_s = self.network.receive(node, bytes, left_s);
        let epoch = self.epoch_of(self.steps.begun.saturating_sub(1)).unwrap_or(0);
        self.source.bytes[epoch] += u64::from(bytes);
        self.outcome.source_read_max_s = self.outcome.source_read_max_s.max(came_s - now_s);
        self.calendar.enter(came_s, ClusterEvent::Read { node, sample });
    }

    /// Gives a sample that has come to all that wait for it, and keeps it where it belongs.
    fn arrived(&mut self, node: Node, sample: Sample, from: Option<Node>) {
        let now_s = self.calendar.now_s();
        let state = &mut self.nodes[usize::from(node)];
        let Some(coming) = state.coming.remove(&sample) else { return };
        let is_for_peers = coming.waiters.iter().any(|waiter| matches!(waiter, SampleWaiter::Peer(_)));
        let takes_over = from.is_none() && (is_for_peers || (coming.was_late && state.shares.is_substitute(sample)));
        let keeps = takes_over || state.shares.keeps(sample, self.job.room_bytes(), self.job.dataset_bytes() as f64);
        if keeps && !self.network.has_ended(node) && self.has_room(node) {
            self.nodes[usize::from(node)].kept.insert(sample);
        }
        for waiter in coming.waiters {
            match waiter {
                SampleWaiter::Rank { step, since_s } => {
                    let slot = self.slot(step);
                    self.missing[slot] -= 1;
                    let ready_s = &mut self.nodes[usize::from(node)].ready_s[slot];
                    *ready_s = ready_s.max(now_s);
                    self.outcome.oldest_s = self.outcome.oldest_s.max(now_s - since_s);
                }
                SampleWaiter::Peer(request) => {
                    if self.asked_by(request) == Some(node) && self.network.reaction(request.node, node, now_s) == Reaction::Taken {
                        self.serve(node, request);
                    }
                }
            }
        }
    }

    /// Begins the next step once all ranks have their batches.
    fn begin_if_ready(&mut self) {
        let slot = self.slot(self.steps.begun);
        let Some(epoch) = self
            .epoch_of(self.steps.begun)
            .filter(|_| !self.steps.is_running && self.missing[slot] == 0)
        else {
            return;
        };
        let now_s = self.calendar.now_s();
        for node in &mut self.nodes {
            self.steps.waits_s.push((node.ready_s[slot] - self.steps.ended_s).max(0.0));
            node.ready_s[slot] = 0.0;
        }
        if self.steps.begun.is_multiple_of(u64::from(self.job.steps)) {
            self.steps.epoch_began_s = self.steps.ended_s;
            if epoch == 1 {
                for node in self.network.begin_fault(self.job, now_s) {
                    if self.network.has_ended(node) {
                        self.nodes[usize::from(node)].kept.clear();
                    }
                }
            }
        }
        self.steps.is_running = true;
        self.calendar.enter(now_s + self.job.step_s, ClusterEvent::StepEnd);
        self.steps.begun += 1;
        self.want_step(self.steps.begun - 1 + u64::from(self.job.window));
    }

    fn step_ended(&mut self) {
        let now_s = self.calendar.now_s();
        self.steps.is_running = false;
        self.steps.took_s.push(now_s - self.steps.ended_s);
        self.steps.ended_s = now_s;
        if self.steps.begun.is_multiple_of(u64::from(self.job.steps)) {
            let mut waits_s = std::mem::take(&mut self.steps.waits_s);
            self.outcome.epochs.push(ClusterEpoch {
                seconds: now_s - self.steps.epoch_began_s,
                source_bytes: 0,
                wait_p99_s: quantile(&mut waits_s, 0.99),
                wait_max_s: waits_s.last().copied().unwrap_or(0.0),
                step_p99_s: quantile(&mut std::mem::take(&mut self.steps.took_s), 0.99),
            });
        }
    }
}
