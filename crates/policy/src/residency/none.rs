//! No cache: each node has a just-in-time window and keeps nothing, like torch's `DataLoader` with its
//! `prefetch_factor`.

use super::window::{ResidencyWindow, WindowShare};
use super::{Access, Fetch, Origin, Residency};
use crate::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use crate::order;

/// A window and nothing else; the window may take all of a node's memory.
#[derive(Clone, Debug)]
pub struct NoCache {
    window: ResidencyWindow,
}

impl NoCache {
    /// Creates windows that reach `ahead` iterations beyond the current one.
    pub fn new(cluster: Cluster, samples: u32, ahead: Iteration) -> Self {
        Self {
            window: ResidencyWindow::new(cluster, samples, ahead, WindowShare::Whole),
        }
    }
}

impl Residency for NoCache {
    fn name(&self) -> &'static str {
        "none"
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
    }

    fn fetch(&mut self, access: Access) -> Fetch {
        if self.window.open_window(access, 0) {
            Fetch::From(Origin::Source)
        } else {
            Fetch::Wait
        }
    }

    fn arrived(&mut self, access: Access, bytes: u32) {
        self.window.arrived(access, bytes);
    }

    fn consumed(&mut self, access: Access) {
        self.window.close(access);
    }

    fn holds(&self, _node: Node, _sample: Sample) -> bool {
        false
    }

    fn held_bytes(&self, node: Node) -> u64 {
        self.window.bytes(node)
    }

    fn window_bytes(&self, node: Node) -> u64 {
        self.window.bytes(node)
    }
}
