//! Runs epochs without a clock: every sample that may be fetched arrives immediately, and steps follow each other.
//!
//! It counts the origins of an epoch's bytes; the simulator computes times. Prefetch bounded by memory alone runs as
//! far ahead as it ever could here.

use super::{Access, Fetch, Origin, Residency};
use crate::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use crate::order::{BatchPlace, Epoch, Order};

/// Traffic of an epoch's uses. Arrays are by origin: local, peer, source. A use counts in its own epoch, even if it
/// was fetched before that began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayTraffic {
    /// Samples used.
    pub samples: [u64; 3],
    /// Bytes used.
    pub bytes: [u64; 3],
    /// Bytes that nodes handed over in addition.
    pub handover_bytes: u64,
    /// Most bytes that a node held in this epoch, window and residents.
    pub held_bytes_max: u64,
    /// Most bytes that a node's window held in this epoch.
    pub window_bytes_max: u64,
}

/// A job that is replayed, epoch by epoch.
#[derive(Debug)]
pub struct Replay<F> {
    cluster: Cluster,
    order: Order,
    epochs: EpochNumber,
    bytes_of: F,
    orders: Vec<Epoch>,
    current: EpochNumber,
    ahead: Vec<StepUses>,
    /// Uses of this step, to be consumed.
    step: Vec<Access>,
    /// Traffic of this epoch and of later ones whose uses were fetched.
    traffic: Vec<ReplayTraffic>,
}

/// Uses of a node in one step, of which the first `fetched` were fetched.
#[derive(Clone, Debug, Default)]
struct StepUses {
    epoch: EpochNumber,
    iteration: Iteration,
    uses: Vec<Access>,
    fetched: usize,
}

/// Uses that are announced to a policy together: the entries that it reads for them fit the processor's nearest
/// cache.
const EXPECTED: usize = 256;

impl<F: Fn(Sample) -> u32> Replay<F> {
    /// Creates a job of `epochs` epochs with samples of the given sizes.
    ///
    /// # Panics
    /// If the cluster's ranks are not those that the order is dealt to.
    pub fn new(cluster: Cluster, order: Order, epochs: EpochNumber, bytes_of: F) -> Self {
        assert_eq!(cluster.world(), order.deal.world(), "an order is dealt to the cluster's ranks");
        let ahead = vec![StepUses::default(); usize::from(cluster.nodes)];
        Self {
            cluster,
            order,
            epochs,
            bytes_of,
            orders: Vec::new(),
            current: 0,
            ahead,
            step: Vec::new(),
            traffic: Vec::new(),
        }
    }

    /// Runs the next epoch; `None` after the last.
    ///
    /// # Panics
    /// If the policy lets a due sample wait.
    pub fn epoch(&mut self, policy: &mut dyn Residency) -> Option<ReplayTraffic> {
        if self.current == self.epochs {
            return None;
        }
        // The window reaches into the next epoch, even if the policy does not look that far.
        let ahead = (self.current + policy.horizon().max(2)).min(self.epochs);
        self.orders.drain(..usize::from(self.current > 0));
        while self.current + (self.orders.len() as EpochNumber) < ahead {
            let number = self.current + self.orders.len() as EpochNumber;
            self.orders.push(self.order.epoch(number));
        }
        self.traffic.resize(self.orders.len(), ReplayTraffic::default());
        policy.begin(self.current, &self.orders);
        for iteration in 0..self.orders[0].iterations() {
            for node in 0..self.cluster.nodes {
                self.fetch_ahead(policy, node, iteration);
            }
            self.consume(policy, iteration);
        }
        self.current += 1;
        Some(self.traffic.remove(0))
    }

    /// Fetches the samples that a node's window reaches, in order of use.
    fn fetch_ahead(&mut self, policy: &mut dyn Residency, node: Node, iteration: Iteration) {
        let iterations = u64::from(self.orders[0].iterations());
        let reach = policy.window().map(|window| u64::from(iteration) + u64::from(window));
        let mut ahead = std::mem::take(&mut self.ahead[usize::from(node)]);
        loop {
            let epochs_ahead = (ahead.epoch - self.current) as usize;
            let step = epochs_ahead as u64 * iterations + u64::from(ahead.iteration);
            if epochs_ahead >= self.orders.len() || reach.is_some_and(|reach| step > reach) {
                break;
            }
            if ahead.uses.is_empty() {
                self.list_uses(node, &mut ahead);
                ahead.uses.chunks(EXPECTED).for_each(|uses| policy.expect(uses));
            }
            while let Some(&access) = ahead.uses.get(ahead.fetched) {
                match policy.fetch(access) {
                    Fetch::Wait => break,
                    Fetch::From(origin) => self.count(policy, access, origin),
                }
                ahead.fetched += 1;
            }
            if let Some(access) = ahead.uses.get(ahead.fetched) {
                assert!(step > u64::from(iteration), "{}: what is due waits: {access:?}", policy.name());
                break;
            }
            ahead.uses.clear();
            ahead.fetched = 0;
            ahead.iteration += 1;
            if u64::from(ahead.iteration) == iterations {
                (ahead.iteration, ahead.epoch) = (0, ahead.epoch + 1);
            }
        }
        self.ahead[usize::from(node)] = ahead;
    }

    /// Lists the uses of a node in a step, in order.
    fn list_uses(&self, node: Node, ahead: &mut StepUses) {
        let StepUses { epoch, iteration, .. } = *ahead;
        let order = &self.orders[(epoch - self.current) as usize];
        let deal = order.deal();
        let first = u32::from(node) * self.cluster.gpus;
        for nth in 0..deal.batch_len(iteration) {
            let from = deal.position(BatchPlace {
                rank: first,
                iteration,
                nth,
            });
            let samples = order.samples(from..from + u64::from(self.cluster.gpus));
            ahead.uses.extend(samples.map(|(_, sample)| Access {
                node,
                sample,
                iteration,
                epoch,
            }));
        }
    }

    fn count(&mut self, policy: &mut dyn Residency, access: Access, origin: Origin) {
        let bytes = (self.bytes_of)(access.sample);
        policy.arrived(access, bytes);
        let by_origin = match origin {
            Origin::Local => 0,
            Origin::Peer(_) => 1,
            Origin::Source => 2,
        };
        let of_access = &mut self.traffic[(access.epoch - self.current) as usize];
        of_access.samples[by_origin] += 1;
        of_access.bytes[by_origin] += u64::from(bytes);
        self.note_memory(policy, access.node);
    }

    fn note_memory(&mut self, policy: &dyn Residency, node: Node) {
        let now = &mut self.traffic[0];
        now.held_bytes_max = now.held_bytes_max.max(policy.held_bytes(node));
        now.window_bytes_max = now.window_bytes_max.max(policy.window_bytes(node));
    }

    fn consume(&mut self, policy: &mut dyn Residency, iteration: Iteration) {
        let (cluster, epoch) = (self.cluster, self.current);
        let uses = self.orders[0].step(iteration);
        self.step.clear();
        self.step.extend(uses.map(|(rank, sample)| Access {
            node: cluster.node_of(rank),
            sample,
            iteration,
            epoch,
        }));
        for uses in self.step.chunks(EXPECTED) {
            policy.expect(uses);
            for &access in uses {
                policy.consumed(access);
                while let Some(handover) = policy.handover() {
                    self.traffic[0].handover_bytes += u64::from((self.bytes_of)(handover.sample));
                }
            }
        }
        (0..self.cluster.nodes).for_each(|node| self.note_memory(policy, node));
    }
}
