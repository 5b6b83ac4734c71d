//! The nodes that a server has served, so that a busy one can name them.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use crate::{limits::JUST_SERVED, wire::BlobId};

/// Pieces of which the last nodes that were served are remembered.
const SERVED_MAX: usize = 4096;
/// Nodes that are remembered for a piece.
const SERVED_NODES: usize = 4;

/// The nodes that were served a piece last, the last one first.
#[derive(Debug)]
struct ServedPiece {
    nodes: VecDeque<u16>,
    at: Instant,
}

/// The nodes that were served each piece last, by object and first byte.
#[derive(Debug, Default)]
pub(crate) struct LastServed {
    nodes: HashMap<(BlobId, u64), ServedPiece>,
    order: VecDeque<(BlobId, u64)>,
}

impl LastServed {
    pub(crate) fn note(&mut self, id: BlobId, offset: u64, node: u16) {
        let served = self.nodes.entry((id, offset)).or_insert_with(|| {
            self.order.push_back((id, offset));
            ServedPiece {
                nodes: VecDeque::new(),
                at: Instant::now(),
            }
        });
        served.at = Instant::now();
        let nodes = &mut served.nodes;
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
        let nodes = self.nodes.get(&(id, offset)).into_iter().flat_map(|served| &served.nodes);
        nodes.copied().filter(|node| *node != asker).collect()
    }

    /// Returns true if a piece was served a moment ago: its bytes may still be on their way.
    pub(crate) fn is_on_its_way(&self, id: BlobId, offset: u64) -> bool {
        self.nodes
            .get(&(id, offset))
            .is_some_and(|served| served.at.elapsed() < JUST_SERVED)
    }
}
