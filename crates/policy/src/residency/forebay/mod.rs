//! Forebay's own policy. The samples that a cluster keeps between epochs are chosen once for all nodes, and then left
//! alone.
//!
//! - While memory is short (N * C < S), each sample is kept by one node at most, its *owner*: any choice of samples
//!   avoids the same bytes. A read costs r + b / B, for b bytes at B bytes a second and r a request; by byte that
//!   falls with size, so the smallest are kept.
//! - The first node to read a sample owns it, while there is room. A full node swaps a larger sample for it, but only
//!   one that was already consumed in this epoch: its next use is as far away as that of the new sample, so nothing
//!   is lost. A swap against a sample that is still to be used would cost a read of it. A node whose own reads will
//!   not fill its memory takes samples for which others have no room.
//! - When there is room (N * C > S), nodes keep replicas of the samples that they use next themselves. Replicas may
//!   go at any time; the owner's copy stays.
//! - The rotating variant also changes owners: the node that consumes a sample and is the next one to use it becomes
//!   its owner. In exchange it gives up a sample that it does not use next, if the node that is relieved will read
//!   enough to fill its room again. That saves peers' bytes, at the price of more requests to the source, since the
//!   smallest no longer all stay.
//!
//! Sizes are learned as samples are first read. Each decision takes a few memory accesses a sample.

mod outlook;
mod replicas;
mod spare;

use self::outlook::{EpochPart, Outlook};
use self::replicas::Replicas;
use self::spare::{Spare, class_of};
use super::given_up::GivenUp;
use super::window::{NOBODY, ResidencyWindow, WindowShare};
use super::{Access, Fetch, Handover, Origin, Residency};
use crate::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use crate::order;

/// Factor by which a node's expected reads in the rest of an epoch must exceed the room that a swap leaves open.
const REFILL: f64 = 2.0;

/// The policy: one owner for each sample, and replicas in the remaining room.
#[derive(Clone, Debug)]
pub struct Forebay {
    cluster: Cluster,
    rotating: bool,
    window: ResidencyWindow,
    /// Bytes that each node keeps as owner.
    owned_bytes: Vec<u64>,
    owned: u32,
    spare: Spare,
    replicas: Replicas,
    outlook: Outlook,
    epoch: EpochNumber,
    /// Uses to come in this epoch of samples that had no owner when it began.
    misses_left: u32,
    handover: Option<Handover>,
    given_up: GivenUp,
    /// Node that was last asked to take a sample over, and number of samples for which no node will be asked.
    taker: Node,
    refusals: Node,
    /// Position of the search for an owned sample to give up, after all else failed.
    hand: Sample,
}

impl Forebay {
    /// Creates empty memories, with windows that reach `ahead` iterations beyond the current one.
    pub fn new(cluster: Cluster, samples: u32, ahead: Iteration) -> Self {
        Self {
            cluster,
            rotating: false,
            window: ResidencyWindow::new(cluster, samples, ahead, WindowShare::Bounded),
            owned_bytes: vec![0; usize::from(cluster.nodes)],
            owned: 0,
            spare: Spare::new(cluster.nodes),
            replicas: Replicas::new(cluster.nodes, samples),
            outlook: Outlook::default(),
            epoch: 0,
            misses_left: 0,
            handover: None,
            given_up: GivenUp::default(),
            taker: 0,
            refusals: 0,
            hand: 0,
        }
    }

    /// Creates the rotating variant, whose owners change to the node that uses a sample next.
    pub fn rotating(cluster: Cluster, samples: u32, ahead: Iteration) -> Self {
        Self {
            rotating: true,
            ..Self::new(cluster, samples, ahead)
        }
    }

    /// Most bytes that the window of a node takes, unless a step needs more.
    pub const fn window_limit_bytes(&self) -> u64 {
        self.window.limit_bytes()
    }

    fn kept_bytes(&self, node: Node) -> u64 {
        self.owned_bytes[usize::from(node)] + self.replicas.bytes(node)
    }

    /// Bytes that the node could own in addition; replicas do not count, since they may go.
    fn room(&self, node: Node) -> u64 {
        self.window.kept_limit_bytes().saturating_sub(self.owned_bytes[usize::from(node)])
    }

    /// Bytes that the node is expected to read from the source in the rest of this epoch.
    fn expected_misses(&self) -> f64 {
        f64::from(self.misses_left) / f64::from(self.cluster.nodes) * self.window.mean_bytes()
    }

    /// Bytes of room that the node's own reads will not fill.
    fn surplus(&self, node: Node) -> f64 {
        self.room(node) as f64 - self.expected_misses()
    }

    /// Returns true if the node's reads in the rest of this epoch will fill its room, plus `more` bytes.
    fn refills(&self, node: Node, more: u64) -> bool {
        REFILL * (self.room(node) + more) as f64 <= self.expected_misses()
    }

    /// Returns true if the next uses are worth knowing: always for the rotating variant, else if there will be room
    /// for replicas.
    fn looks_ahead(&self) -> bool {
        let any_surplus = || (0..self.cluster.nodes).any(|node| self.surplus(node) > self.window.mean_bytes());
        self.cluster.nodes > 1 && (self.rotating || self.outlook.is_known() || (self.window.known() > 0 && any_surplus()))
    }

    fn own(&mut self, node: Node, sample: Sample) {
        debug_assert_eq!(self.window.owner(sample), NOBODY);
        self.window.set_owner(sample, node);
        self.owned_bytes[usize::from(node)] += u64::from(self.window.size(sample));
        self.owned += 1;
    }

    /// Gives up the owner's copy. A replica takes its place, if there is one.
    fn disown(&mut self, sample: Sample) {
        let bytes = self.window.size(sample);
        let node = self.window.set_owner(sample, NOBODY);
        self.owned_bytes[usize::from(node)] -= u64::from(bytes);
        self.owned -= 1;
        self.given_up.note(node, sample);
        if let Some(heir) = self.replicas.holder(sample) {
            self.replicas.remove(heir, sample, bytes, &self.outlook);
            self.own(heir, sample);
        }
    }

    fn drop_replica(&mut self, node: Node, sample: Sample) {
        self.replicas.remove(node, sample, self.window.size(sample), &self.outlook);
        self.given_up.note(node, sample);
    }

    /// Gives up replicas of the node until `bytes` fit beside the copies that it keeps; given a part of the next
    /// epoch, only replicas used after it. Returns true if they fit.
    fn make_room(&mut self, node: Node, bytes: u32, part: Option<EpochPart>) -> bool {
        let bytes = u64::from(bytes);
        if bytes > self.room(node) {
            return false;
        }
        while !self.window.leaves(node, self.kept_bytes(node) + bytes) {
            let mut found = self.replicas.worst(node, part, &self.window, &self.outlook);
            if found.is_none() && part.is_none() {
                found = self.replicas.any(node, &self.window);
            }
            let Some(sample) = found else { return false };
            self.drop_replica(node, sample);
        }
        true
    }

    /// Returns a sample that the node owns, that was consumed in this epoch, and that may go for one of `bytes`: a
    /// larger one, or any that leaves enough room if the node itself uses the new one next.
    fn swappable(&mut self, node: Node, bytes: u32, wanted: bool) -> Option<Sample> {
        loop {
            let (sample, class) = self.spare.largest(node)?;
            if !wanted && class <= class_of(bytes) {
                return None;
            }
            if self.window.owner(sample) != node || self.window.in_use(sample) {
                self.pop_spare(node);
                continue;
            }
            let freed = self.window.size(sample);
            let fits = u64::from(bytes) <= self.room(node) + u64::from(freed);
            if !fits || (freed > bytes && !self.refills(node, u64::from(freed - bytes))) {
                return None;
            }
            self.pop_spare(node);
            return Some(sample);
        }
    }

    fn pop_spare(&mut self, node: Node) {
        let next = self.spare.pop(node);
        std::hint::black_box(next.iter().fold(0, |bits, &sample| bits ^ self.window.size(sample)));
    }

    /// Finds an owner for a consumed sample that has none, if it is worth its room.
    fn adopt(&mut self, node: Node, sample: Sample) {
        let bytes = self.window.size(sample);
        if self.make_room(node, bytes, None) {
            self.own(node, sample);
            return;
        }
        let wanted = self.rotating && self.outlook.next(node, sample).is_some();
        if let Some(victim) = self.swappable(node, bytes, wanted) {
            self.disown(victim);
            if self.make_room(node, bytes, None) {
                self.own(node, sample);
            }
        } else if let Some(to) = self.taker(bytes) {
            self.own(to, sample);
            self.handover = Some(Handover { sample, from: node, to });
        }
    }

    /// Returns a node with room for `bytes` that its own reads will not fill. After all nodes were asked without
    /// success, the same number of samples goes without asking.
    fn taker(&mut self, bytes: u32) -> Option<Node> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return None;
        }
        for _ in 0..self.cluster.nodes {
            self.taker = (self.taker + 1) % self.cluster.nodes;
            if self.surplus(self.taker) >= f64::from(bytes) && self.make_room(self.taker, bytes, None) {
                return Some(self.taker);
            }
        }
        self.refusals = self.cluster.nodes;
        None
    }

    /// Decides on a replica for a node that has consumed a sample of another owner.
    fn replicate(&mut self, node: Node, owner: Node, sample: Sample, foreseen: bool) {
        let bytes = self.window.size(sample);
        let next = self.outlook.next(node, sample);
        // Another use of it may be under way, from the owner's copy.
        let rotating = self.rotating && !self.window.in_use(sample);
        if self.replicas.contains(node, sample) {
            self.replicas.used(node, sample, foreseen, next);
            if rotating && next.is_some() {
                self.drop_replica(node, sample);
                self.rotate(node, owner, sample);
            }
            return;
        }
        let free = self.window.leaves(node, self.kept_bytes(node) + u64::from(bytes));
        let fits = self.surplus(node) >= f64::from(bytes);
        if next.is_none() {
            if fits && free {
                self.replicas.insert(node, sample, bytes, None);
            }
        } else if !rotating {
            if fits && self.make_room(node, bytes, next) {
                self.replicas.insert(node, sample, bytes, next);
            }
        } else if free || (fits && self.make_room(node, bytes, next)) {
            self.rotate(node, owner, sample);
        } else if self.refills(owner, u64::from(bytes))
            && let Some(victim) = self.swappable(node, bytes, true)
        {
            self.disown(victim);
            if self.make_room(node, bytes, None) {
                self.rotate(node, owner, sample);
            }
        }
    }

    /// Changes the owner of a sample. The old owner keeps its copy as a replica, if that takes no needed room.
    fn rotate(&mut self, to: Node, from: Node, sample: Sample) {
        let bytes = self.window.size(sample);
        self.window.set_owner(sample, to);
        self.owned_bytes[usize::from(to)] += u64::from(bytes);
        self.owned_bytes[usize::from(from)] -= u64::from(bytes);
        if self.surplus(from) >= f64::from(bytes) {
            self.replicas.insert(from, sample, bytes, None);
        }
    }

    /// Decides on a copy of a sample that a node has just used, or read for another.
    fn keep(&mut self, access: Access) {
        let Access { node, sample, .. } = access;
        let foreseen = self.outlook.used(node, sample);
        match self.window.owner(sample) {
            NOBODY => {
                self.misses_left = self.misses_left.saturating_sub(1);
                self.adopt(node, sample);
            }
            owner if owner == node => {}
            owner => self.replicate(node, owner, sample, foreseen),
        }
        let owner = self.window.owner(sample);
        // In an epoch without misses nothing is swapped; and a sample used in the next epoch already waits for a
        // later use.
        if owner != NOBODY && self.misses_left > 0 && access.epoch == self.epoch {
            let stays = self.rotating && self.outlook.next(owner, sample).is_some();
            if !stays {
                self.spare.push(owner, sample, self.window.size(sample));
            }
        }
    }

    /// Makes room for a step that is due: from replicas, then from consumed samples, and at last from any sample that
    /// is not in use.
    fn give_up(&mut self, node: Node) {
        while self.window.is_over(node, self.kept_bytes(node)) {
            let replica = self.replicas.worst(node, None, &self.window, &self.outlook);
            if let Some(sample) = replica.or_else(|| self.replicas.any(node, &self.window)) {
                self.drop_replica(node, sample);
            } else if let Some((sample, _)) = self.spare.largest(node) {
                self.pop_spare(node);
                if self.window.owner(sample) == node && !self.window.in_use(sample) {
                    self.disown(sample);
                }
            } else if let Some(sample) = self.any_owned(node) {
                self.disown(sample);
            } else {
                return;
            }
        }
    }

    fn any_owned(&mut self, node: Node) -> Option<Sample> {
        for _ in 0..self.window.samples() {
            let sample = self.hand;
            self.hand = if sample + 1 < self.window.samples() { sample + 1 } else { 0 };
            if self.window.owner(sample) == node && !self.window.in_use(sample) {
                return Some(sample);
            }
        }
        None
    }
}

impl Residency for Forebay {
    fn name(&self) -> &'static str {
        if self.rotating { "forebay_rotating" } else { "forebay" }
    }

    fn window(&self) -> Option<Iteration> {
        Some(self.window.ahead())
    }

    fn horizon(&self) -> u32 {
        2
    }

    fn begin(&mut self, epoch: EpochNumber, orders: &[order::Epoch]) {
        self.epoch = epoch;
        self.window.begin(epoch, orders[0].deal());
        self.misses_left = self.window.samples() - self.owned;
        self.spare.clear();
        self.replicas.begin();
        if self.looks_ahead() {
            let replicas = &mut self.replicas;
            let seen = |sample, node, part, used_now| replicas.foresee(node, sample, part, used_now);
            self.outlook.begin(self.cluster, self.window.samples(), orders.get(1), seen);
        }
    }

    fn expect(&self, uses: &[Access]) {
        self.window.expect(uses);
        self.replicas.expect(uses);
        self.outlook.expect(uses);
    }

    fn fetch(&mut self, access: Access) -> Fetch {
        let Access { node, sample, .. } = access;
        let owner = self.window.owner(sample);
        if owner == node || self.replicas.contains(node, sample) {
            self.window.open_copy(access);
            return Fetch::From(Origin::Local);
        }
        if !self.window.open_window(access, self.kept_bytes(node)) {
            return Fetch::Wait;
        }
        self.give_up(node);
        Fetch::From(if owner == NOBODY { Origin::Source } else { Origin::Peer(owner) })
    }

    fn arrived(&mut self, access: Access, bytes: u32) {
        self.window.arrived(access, bytes);
        self.give_up(access.node);
    }

    fn consumed(&mut self, access: Access) {
        self.window.close(access);
        self.give_up(access.node);
        self.keep(access);
    }

    fn passed(&mut self, access: Access) {
        self.window.close(access);
        self.give_up(access.node);
        if self.window.owner(access.sample) == NOBODY {
            self.misses_left = self.misses_left.saturating_sub(1);
        }
    }

    fn offered(&mut self, access: Access, bytes: u32) {
        self.window.arrived(access, bytes);
        self.keep(access);
    }

    fn handover(&mut self) -> Option<Handover> {
        self.handover.take()
    }

    fn given_up(&mut self) -> Option<(Node, Sample)> {
        self.given_up.take()
    }

    fn holds(&self, node: Node, sample: Sample) -> bool {
        self.window.owner(sample) == node || self.replicas.contains(node, sample)
    }

    fn held_bytes(&self, node: Node) -> u64 {
        self.kept_bytes(node) + self.window.bytes(node)
    }

    fn window_bytes(&self, node: Node) -> u64 {
        self.window.bytes(node)
    }
}
