//! First samples pinned: MinIO of "Analyzing and mitigating data stalls in DNN training" (Mohan et al., VLDB 2021),
//! Section 4.
//!
//! A node keeps each sample that it uses while there is room, and then never gives one up: with each sample used once
//! an epoch, no choice of samples avoids more reads. Nodes serve one another from their memories (its partitioned
//! cache); while memory is short, no sample is therefore kept twice.

use super::kept::KeptSamples;
use super::window::{HeldMemory, NOBODY, ResidencyWindow, WindowShare};
use super::{Access, Fetch, Origin, Residency};
use crate::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use crate::order;

/// A cache that keeps the samples that came first.
#[derive(Clone, Debug)]
pub struct Pinned {
    window: ResidencyWindow,
    kept: KeptSamples,
    samples: u32,
}

impl Pinned {
    /// Creates empty memories, with windows that reach `ahead` iterations beyond the current one.
    pub fn new(cluster: Cluster, samples: u32, ahead: Iteration) -> Self {
        Self {
            window: ResidencyWindow::new(cluster, samples, ahead, WindowShare::Bounded),
            kept: KeptSamples::new(cluster.nodes, samples),
            samples,
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
            if self.window.owner(sample) == node {
                self.window.set_owner(sample, self.kept.holder(sample).unwrap_or(NOBODY));
            }
        }
    }
}

impl Residency for Pinned {
    fn name(&self) -> &'static str {
        "pinned"
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
        let Access { node, sample, .. } = access;
        let bytes = self.window.size(sample);
        let held = self.window.close(access);
        self.give_up(node);
        if held == HeldMemory::Copy || self.kept.contains(node, sample) {
            return;
        }
        if self.window.leaves(node, self.kept.bytes(node) + u64::from(bytes)) {
            self.kept.insert(node, sample, bytes);
            if self.window.owner(sample) == NOBODY {
                self.window.set_owner(sample, node);
            }
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
