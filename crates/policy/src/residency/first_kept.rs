//! Memory of nodes in which the samples that came first stay, for three policies:
//!
//! - No cache: a window and nothing else, like torch's `DataLoader` with its `prefetch_factor`. The window may take all
//!   of a node's memory.
//! - Fill first, Monarch's placement (CCGRID 2022): a node keeps each sample that it reads while it fits. Nodes know
//!   nothing of one another. The decisions are those of [`crate::fill_first`], which the agent carries out for whole
//!   files; here each node's memory is one tier.
//! - Pinned, MinIO of "Analyzing and mitigating data stalls in DNN training" (Mohan et al., VLDB 2021), Section 4: the
//!   same, and nodes serve one another from their memories (its partitioned cache). While memory is short, no sample is
//!   therefore kept twice. With each sample used once an epoch, no choice of samples avoids more reads.

use super::kept::KeptSamples;
use super::window::{HeldMemory, NOBODY, ResidencyWindow, WindowShare};
use super::{Access, Fetch, Origin, Residency};
use crate::fill_first::{Action, CopyId, Event, FillFirst, Space, TierIndex, step};
use crate::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use crate::order;

/// The node's memory.
const MEMORY: TierIndex = TierIndex(0);

/// A cache that keeps the samples that came first.
#[derive(Clone, Debug)]
pub struct FirstKept {
    window: ResidencyWindow,
    kept: KeptSamples,
    samples: u32,
    rule: KeepingRule,
}

/// Rule for the samples that stay after their use.
#[derive(Clone, Debug)]
enum KeepingRule {
    /// No sample: each goes after its use.
    Nothing,
    /// Placement in the memory of each node.
    Placed(Vec<FillFirst>),
    /// All that fit, with an owner that serves the others.
    Owned,
}

impl FirstKept {
    /// Creates windows that reach `ahead` iterations beyond the current one, without a cache.
    pub fn nothing(cluster: Cluster, samples: u32, ahead: Iteration) -> Self {
        Self::with(KeepingRule::Nothing, cluster, samples, ahead)
    }

    /// Creates empty memories for Monarch's placement, with windows that reach `ahead` iterations beyond the current
    /// one.
    pub fn fill_first(cluster: Cluster, samples: u32, ahead: Iteration) -> Self {
        let memory = Space {
            bytes: cluster.room_bytes(),
            inodes: u64::from(samples),
        };
        let placements = (0..cluster.nodes).map(|_| FillFirst::new([memory])).collect();
        Self::with(KeepingRule::Placed(placements), cluster, samples, ahead)
    }

    /// Creates empty memories for MinIO, with windows that reach `ahead` iterations beyond the current one.
    pub fn pinned(cluster: Cluster, samples: u32, ahead: Iteration) -> Self {
        Self::with(KeepingRule::Owned, cluster, samples, ahead)
    }

    fn with(rule: KeepingRule, cluster: Cluster, samples: u32, ahead: Iteration) -> Self {
        let share = if matches!(rule, KeepingRule::Nothing) {
            WindowShare::Whole
        } else {
            WindowShare::Bounded
        };
        Self {
            window: ResidencyWindow::new(cluster, samples, ahead, share),
            kept: KeptSamples::new(cluster.nodes, samples),
            samples,
            rule,
        }
    }

    /// Gives up copies for room that the window must have, or a step could never begin: the only case in which a copy
    /// goes.
    fn give_up(&mut self, node: Node) {
        while self.window.is_over(node, self.kept.bytes(node)) {
            let Some(sample) = self.kept.next(node, self.samples, &self.window, |_| true) else {
                return;
            };
            let bytes = self.window.size(sample);
            self.kept.remove(node, sample, bytes);
            if let KeepingRule::Placed(placements) = &mut self.rule {
                let (tier, size) = (MEMORY, u64::from(bytes));
                step(&mut placements[usize::from(node)], Event::Removed { tier, size });
            }
            if self.window.owner(sample) == node {
                self.window.set_owner(sample, self.kept.holder(sample).unwrap_or(NOBODY));
            }
        }
    }

    /// Keeps a sample, if there is room and the rule says so.
    fn keep(&mut self, access: Access) {
        let Access { node, sample, .. } = access;
        let bytes = self.window.size(sample);
        let size = u64::from(bytes);
        // Copies can't have the window's share of the memory; its size is known only once sample sizes are.
        let fits = self.window.leaves(node, self.kept.bytes(node) + size);
        if fits && !self.kept.contains(node, sample) && self.admits(node, sample, size) {
            self.kept.insert(node, sample, bytes);
        }
    }

    /// Returns true if the node, which has room for the sample, is to keep it.
    fn admits(&mut self, node: Node, sample: Sample, size: u64) -> bool {
        match &mut self.rule {
            KeepingRule::Nothing => false,
            KeepingRule::Placed(placements) => {
                let placement = &mut placements[usize::from(node)];
                let copy = CopyId(u64::from(sample));
                let is_placed = matches!(step(placement, Event::Offer { copy, size, now_ms: 0 }), Action::Place { .. });
                if is_placed {
                    step(placement, Event::Published(copy));
                }
                is_placed
            }
            KeepingRule::Owned => {
                if self.window.owner(sample) == NOBODY {
                    self.window.set_owner(sample, node);
                }
                true
            }
        }
    }
}

impl Residency for FirstKept {
    fn name(&self) -> &'static str {
        match self.rule {
            KeepingRule::Nothing => "none",
            KeepingRule::Placed(_) => "fill_first",
            KeepingRule::Owned => "pinned",
        }
    }

    fn window(&self) -> Option<Iteration> {
        Some(self.window.ahead())
    }

    fn horizon(&self) -> u32 {
        1
    }

    fn begin(&mut self, epoch: EpochNumber, orders: &[order::Epoch]) {
        self.window.begin(epoch, orders[0].deal());
    }

    fn expect(&self, uses: &[Access]) {
        self.window.expect(uses);
        self.kept.expect(uses);
    }

    fn fetch(&mut self, access: Access) -> Fetch {
        if self.kept.contains(access.node, access.sample) {
            self.window.open_copy(access);
            return Fetch::From(Origin::Local);
        }
        if !self.window.open_window(access, self.kept.bytes(access.node)) {
            return Fetch::Wait;
        }
        self.give_up(access.node);
        Fetch::From(match self.window.owner(access.sample) {
            NOBODY => Origin::Source,
            owner => Origin::Peer(owner),
        })
    }

    fn arrived(&mut self, access: Access, bytes: u32) {
        self.window.arrived(access, bytes);
        self.give_up(access.node);
    }

    fn consumed(&mut self, access: Access) {
        let held = self.window.close(access);
        self.give_up(access.node);
        if held == HeldMemory::Window {
            self.keep(access);
        }
    }

    fn passed(&mut self, access: Access) {
        self.window.close(access);
        self.give_up(access.node);
    }

    fn offered(&mut self, access: Access, bytes: u32) {
        self.window.arrived(access, bytes);
        self.keep(access);
    }

    fn holds(&self, node: Node, sample: Sample) -> bool {
        self.kept.contains(node, sample)
    }

    fn held_bytes(&self, node: Node) -> u64 {
        self.kept.bytes(node) + self.window.bytes(node)
    }

    fn window_bytes(&self, node: Node) -> u64 {
        self.window.bytes(node)
    }
}
