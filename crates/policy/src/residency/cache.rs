//! Memory of nodes in which copies stay until room is needed: then the copy that is worth least goes.
//!
//! This is the common part of LRU, Belady, NoPFS and Lobster; a [`Preference`] grades the copies.

use super::copies::ClusterCopies;
use super::queue::{CopySlot, GradeQueues};
use super::{Access, Fetch, Origin, Residency};
use crate::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use crate::order::Epoch;

/// Rank of a copy for eviction: the copy of a node with the highest grade goes first.
pub type Grade = u32;

/// A copy that is to be graded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradedCopy {
    /// Node that holds the copy.
    pub node: Node,
    /// Sample that is copied.
    pub sample: Sample,
    /// True if no other node has a copy, as far as is known.
    pub last: bool,
    /// True if a use of it has just ended; false if it is graded again.
    pub just_used: bool,
    /// First step whose uses are still to come. Steps count over all epochs.
    pub from: u64,
}

/// Grades copies: the part in which one policy differs from another.
pub trait Preference: Send {
    /// The policy's name in tables and options.
    fn name(&self) -> &'static str;

    /// Epochs of order that [`begin`](Self::begin) is to be given, this one included.
    fn horizon(&self) -> u32;

    /// Grades are below this; it may change when an epoch begins.
    fn grades(&self) -> u32;

    /// Begins an epoch. Returns true if all copies are to be graded again.
    fn begin(&mut self, epoch: EpochNumber, orders: &[Epoch]) -> bool;

    /// Touches the entries of a sample: see [`Residency::expect`].
    fn glance(&self, sample: Sample) -> u32 {
        sample
    }

    /// Returns the grade of a copy between uses; `None` if it goes immediately.
    fn grade(&self, copy: GradedCopy) -> Option<Grade>;

    /// Returns true if a copy's grade depends on the copies and uses of other nodes.
    fn looks_around(&self) -> bool {
        false
    }

    /// Returns true if copies of samples that other nodes keep for all are graded as well: see
    /// [`Residency::weighs_replicas`].
    fn weighs_replicas(&self) -> bool {
        false
    }

    /// See [`Residency::serve_others`].
    fn serve_others(&mut self) {}

    /// Returns true if, among copies of one grade, the newest goes first.
    fn newest_first(&self) -> bool {
        false
    }

    /// Returns true if a copy of this grade may go for a sample that is brought in for a use in `step`.
    fn gives_way(&self, grade: Grade, step: u64) -> bool {
        let _ = (grade, step);
        true
    }
}

/// Entries that are touched one after another, before the first of them is needed.
const LOOK_AT: usize = 64;

/// A policy made of a [`Preference`].
///
/// A fetched sample stays until its use is over. A sample that is due (needed by the step in progress or the next) is
/// let in even if nothing can go for it: a memory smaller than two steps' batches is exceeded, or training would
/// stand still.
#[derive(Clone, Debug)]
pub struct Cache<P> {
    preference: P,
    window: Option<Iteration>,
    copies: ClusterCopies,
    queues: GradeQueues,
    epoch: EpochNumber,
    iterations: Iteration,
    /// Last step that is due, by node.
    due: Vec<u64>,
    /// First step in which nothing has been used yet.
    from: u64,
}

impl<P: Preference> Cache<P> {
    /// Creates empty memories of `cluster` for a dataset of `samples`. `window`: see [`Residency::window`].
    pub fn with(preference: P, cluster: Cluster, samples: u32, window: Option<Iteration>) -> Self {
        let nodes = usize::from(cluster.nodes);
        let queues = GradeQueues::new(nodes, preference.grades() as usize);
        let copies = ClusterCopies::new(cluster, samples);
        Self {
            preference,
            window,
            copies,
            queues,
            epoch: 0,
            iterations: 0,
            due: vec![0; nodes],
            from: 0,
        }
    }

    pub(super) const fn preference_mut(&mut self) -> &mut P {
        &mut self.preference
    }

    /// Ends a use of a sample; `is_replica` if another node, which this policy does not see, keeps it for all.
    fn used(&mut self, access: Access, is_replica: bool) {
        let step = self.step(access);
        self.from = self.from.max(step + 1);
        let due = &mut self.due[usize::from(access.node)];
        *due = (*due).max(step + 1);
        let ended = self.copies.end_use(access);
        if let Some(slot) = ended {
            self.copies.set_replica(slot, is_replica);
            self.settle(slot, true);
        }
        self.settle_others(access.sample, ended);
        let node = access.node;
        self.make_room(node, None, |copies| copies.excess_bytes(node));
    }

    /// Returns the step of a use, counted over all epochs.
    fn step(&self, access: Access) -> u64 {
        u64::from(access.epoch) * u64::from(self.iterations) + u64::from(access.iteration)
    }

    fn grade(&self, slot: CopySlot, just_used: bool) -> Option<Grade> {
        let (node, sample) = self.copies.what(slot);
        let last = self.preference.looks_around() && self.copies.is_last(slot);
        self.preference.grade(GradedCopy {
            node,
            sample,
            last,
            just_used,
            from: self.from,
        })
    }

    /// Queues a copy by its worth, or gives it up.
    fn settle(&mut self, slot: CopySlot, just_used: bool) {
        let (node, _) = self.copies.what(slot);
        if let Some(grade) = self.grade(slot, just_used) {
            self.copies.keep(slot);
            self.queues.push(&mut self.copies, usize::from(node), slot, grade);
        } else {
            self.copies.give_up(slot);
        }
    }

    /// Grades the other queued copies of a sample again, if the policy looks at other nodes.
    fn settle_others(&mut self, sample: Sample, settled: Option<CopySlot>) {
        if !self.preference.looks_around() {
            return;
        }
        let mut next = self.copies.first(sample);
        while let Some(slot) = next {
            next = self.copies.next(slot);
            let Some(old) = self.copies.grade(slot).filter(|_| settled != Some(slot)) else {
                continue;
            };
            if let Some(grade) = self.grade(slot, false).filter(|&grade| grade != old) {
                let (node, _) = self.copies.what(slot);
                self.queues.remove(&mut self.copies, usize::from(node), slot);
                self.queues.push(&mut self.copies, usize::from(node), slot, grade);
            }
        }
    }

    /// Gives up copies of a node until `excess` is 0. Returns true if that succeeded.
    fn make_room(&mut self, node: Node, step: Option<u64>, excess: impl Fn(&ClusterCopies) -> u64) -> bool {
        while excess(&self.copies) > 0 {
            let Some((grade, oldest, newest)) = self.queues.highest(usize::from(node)) else {
                return false;
            };
            if step.is_some_and(|step| !self.preference.gives_way(grade, step)) {
                return false;
            }
            let newest_first = self.preference.newest_first();
            let slot = if newest_first { newest } else { oldest };
            std::hint::black_box(self.copies.glance_behind(slot, newest_first));
            let (_, sample) = self.copies.what(slot);
            self.queues.remove(&mut self.copies, usize::from(node), slot);
            self.copies.give_up(slot);
            self.settle_others(sample, None);
        }
        true
    }
}

impl<P: Preference> Residency for Cache<P> {
    fn name(&self) -> &'static str {
        self.preference.name()
    }

    fn window(&self) -> Option<Iteration> {
        self.window
    }

    fn horizon(&self) -> u32 {
        self.preference.horizon()
    }

    fn begin(&mut self, epoch: EpochNumber, orders: &[Epoch]) {
        let Some(order) = orders.first() else { return };
        self.epoch = epoch;
        self.iterations = order.iterations();
        self.from = self.from.max(u64::from(epoch) * u64::from(self.iterations));
        if self.preference.begin(epoch, orders) {
            self.queues.reset(self.preference.grades() as usize);
            for slot in self.copies.unlink_all() {
                if self.copies.is_kept(slot) && !self.copies.in_use(slot) {
                    self.settle(slot, false);
                }
            }
        }
    }

    fn expect(&self, uses: &[Access]) {
        let mut seen = 0;
        for uses in uses.chunks(LOOK_AT) {
            let mut slots = [None; LOOK_AT];
            for (slot, access) in slots.iter_mut().zip(uses) {
                *slot = self.copies.first(access.sample);
                seen ^= self.preference.glance(access.sample);
            }
            for slot in slots.into_iter().flatten() {
                seen ^= self.copies.what(slot).1;
            }
        }
        std::hint::black_box(seen);
    }

    fn fetch(&mut self, access: Access) -> Fetch {
        let Access { node, sample, .. } = access;
        if let Some(slot) = self.copies.find(node, sample) {
            self.queues.remove(&mut self.copies, usize::from(node), slot);
            self.copies.begin_use(slot);
            return Fetch::From(Origin::Local);
        }
        let step = self.step(access);
        let due = step <= self.due[usize::from(node)];
        // Without a window and before any size is known, a whole dataset would seem to fit.
        if !due && self.window.is_none() && !self.copies.knows_sizes() {
            return Fetch::Wait;
        }
        let before = if due { None } else { Some(step) };
        if !self.make_room(node, before, |copies| copies.missing_bytes(node, sample)) && !due {
            return Fetch::Wait;
        }
        let origin = self.copies.peer(node, sample).map_or(Origin::Source, Origin::Peer);
        let slot = self.copies.bring(node, sample);
        self.settle_others(sample, Some(slot));
        Fetch::From(origin)
    }

    fn arrived(&mut self, access: Access, bytes: u32) {
        self.copies.arrived(access, bytes);
        self.make_room(access.node, None, |copies| copies.excess_bytes(access.node));
    }

    fn consumed(&mut self, access: Access) {
        self.used(access, false);
    }

    fn weighs_replicas(&self) -> bool {
        self.preference.weighs_replicas()
    }

    fn serve_others(&mut self) {
        self.preference.serve_others();
    }

    fn passed(&mut self, access: Access) {
        if self.preference.weighs_replicas() {
            return self.used(access, true);
        }
        let step = self.step(access);
        self.from = self.from.max(step + 1);
        let due = &mut self.due[usize::from(access.node)];
        *due = (*due).max(step + 1);
        let Some(slot) = self.copies.end_use(access) else { return };
        if self.copies.is_kept(slot) {
            self.settle(slot, true);
        } else {
            self.copies.give_up(slot);
            self.settle_others(access.sample, None);
        }
    }

    fn given_up(&mut self) -> Option<(Node, Sample)> {
        self.copies.given_up()
    }

    fn holds(&self, node: Node, sample: Sample) -> bool {
        self.copies.find(node, sample).is_some_and(|slot| self.copies.is_kept(slot))
    }

    fn held_bytes(&self, node: Node) -> u64 {
        self.copies.held_bytes(node)
    }

    fn window_bytes(&self, node: Node) -> u64 {
        self.copies.held_bytes(node) - self.copies.kept_bytes(node)
    }
}
