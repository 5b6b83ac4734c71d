//! Monarch's placement (CCGRID 2022): a node keeps each sample that it reads while it fits, and nothing is ever
//! evicted. Nodes know nothing of one another. The decisions are those of [`crate::fill_first`], which the agent
//! carries out for whole files; here each node's memory is one tier.

use super::kept::KeptSamples;
use super::window::{HeldMemory, ResidencyWindow, WindowShare};
use super::{Access, Fetch, Origin, Residency};
use crate::fill_first::{self as placement, Action, CopyId, Event, Space, TierIndex};
use crate::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use crate::order;

/// The node's memory.
const MEMORY: TierIndex = TierIndex(0);

/// Monarch's placement over the memories of nodes.
#[derive(Clone, Debug)]
pub struct FillFirst {
    window: ResidencyWindow,
    kept: KeptSamples,
    samples: u32,
    placements: Vec<placement::FillFirst>,
}

impl FillFirst {
    /// Creates empty memories, with windows that reach `ahead` iterations beyond the current one.
    pub fn new(cluster: Cluster, samples: u32, ahead: Iteration) -> Self {
        let memory = Space {
            bytes: cluster.cache_bytes,
            inodes: u64::from(samples),
        };
        Self {
            window: ResidencyWindow::new(cluster, samples, ahead, WindowShare::Bounded),
            kept: KeptSamples::new(cluster.nodes, samples),
            samples,
            placements: (0..cluster.nodes).map(|_| placement::FillFirst::new([memory])).collect(),
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
            let gone = Event::Removed {
                tier: MEMORY,
                size: u64::from(bytes),
            };
            placement::step(&mut self.placements[usize::from(node)], gone);
        }
    }
}

impl Residency for FillFirst {
    fn name(&self) -> &'static str {
        "fill_first"
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
        Fetch::From(Origin::Source)
    }

    fn arrived(&mut self, access: Access, bytes: u32) {
        self.window.arrived(access, bytes);
        self.give_up(access.node);
    }

    fn consumed(&mut self, access: Access) {
        let Access { node, sample, .. } = access;
        let bytes = self.window.size(sample);
        let held = self.window.close(access);
        self.give_up(node);
        if held == HeldMemory::Copy || self.kept.contains(node, sample) {
            return;
        }
        let size = u64::from(bytes);
        // Copies can't have the window's share of the memory; its size is known only once sample sizes are.
        if !self.window.leaves(node, self.kept.bytes(node) + size) {
            return;
        }
        let placement = &mut self.placements[usize::from(node)];
        let copy = CopyId(u64::from(sample));
        if let Action::Place { .. } = placement::step(placement, Event::Offer { copy, size, now_ms: 0 }) {
            placement::step(placement, Event::Published { copy });
            self.kept.insert(node, sample, bytes);
        }
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
