//! The nodes that a server has served, so that a busy one can name them.

use std::collections::{HashMap, VecDeque};

use crate::wire::BlobId;

/// Pieces of which the last nodes that were served are remembered.
const SERVED_MAX: usize = 4096;
/// Nodes that are remembered for a piece.
const SERVED_NODES: usize = 4;

/// The nodes that were served each piece last, by object and first byte.
#[derive(Debug, Default)]
pub(crate) struct LastServed {
    nodes: HashMap<(BlobId, u64), VecDeque<u16>>,
    order: VecDeque<(BlobId, u64)>,
}

impl LastServed {
    pub(crate) fn note(&mut self, id: BlobId, offset: u64, node: u16) {
        let nodes = self.nodes.entry((id, offset)).or_insert_with(|| {
            self.order.push_back((id, offset));
            VecDeque::new()
        });
        nodes.retain(|served| *served != node);
        nodes.push_front(node);
        nodes.truncate(SERVED_NODES);
        if self.order.len() > SERVED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.nodes.remove(&oldest);
        }
    }

    /// Returns the nodes that were served a piece last, but for the one that asks.
    pub(crate) fn of(&self, id: BlobId, offset: u64, asker: u16) -> Vec<u16> {
        let nodes = self.nodes.get(&(id, offset)).into_iter().flatten();
        nodes.copied().filter(|node| *node != asker).collect()
    }
}
