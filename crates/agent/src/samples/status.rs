//! Status of the samples role: what `forebay top` shows, and `forebay metrics` counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Figures;
use crate::host::durations::Durations;

/// Status of the samples role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplesStatus {
    /// Number of running loaders.
    pub running: u64,
    /// Running loaders, at most [`LOADERS_SHOWN_MAX`](super::limits::LOADERS_SHOWN_MAX).
    pub loaders: Vec<LoaderStatus>,
    /// Totals of all loaders since the role's start, also of those that have ended.
    pub totals: SampleTotals,
}

/// Status of a running loader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderStatus {
    /// Name of the loader in its job.
    pub name: String,
    /// Connected ranks of this node.
    pub ranks: u32,
    /// Length of its shared memory in bytes.
    pub arena_bytes: u64,
    /// Totals since its beginning.
    pub totals: SampleTotals,
    /// Reason why it shares no samples with the other nodes of its job, for a person.
    pub alone: Option<String>,
    /// Other nodes that were asked, the most useful first, at most
    /// [`NODES_SHOWN_MAX`](super::limits::NODES_SHOWN_MAX).
    pub nodes: Vec<NodeStatus>,
}

/// Totals of one loader or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleTotals {
    /// Figures of the loader; those of several are sums of counts.
    pub figures: Figures,
    /// Traffic with other nodes.
    pub peers: PeerTotals,
}

/// Traffic with other nodes, beside what [`Figures`] count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerTotals {
    /// Requests to other nodes that brought nothing, by reason.
    pub not_received: BTreeMap<String, u64>,
    /// Bytes that were asked for a second time since an answer took long.
    pub hedged_bytes: u64,
    /// Bytes that were sent to other nodes.
    pub sent_bytes: u64,
    /// Requests of other nodes that this one did not fulfil, by reason.
    pub not_sent: BTreeMap<String, u64>,
    /// Times from a request to the arrival of its sample.
    pub took: Durations,
}

/// Another node, as it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Name of its host.
    pub name: String,
    /// Samples that came from it.
    pub samples: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Requests that brought nothing, by reason.
    pub not_received: BTreeMap<String, u64>,
    /// Times from a request to the arrival of its sample.
    pub took: Durations,
}

impl SampleTotals {
    /// Adds the totals of another loader.
    pub(crate) fn add(&mut self, other: &Self) {
        self.figures.add(&other.figures);
        let PeerTotals {
            not_received,
            hedged_bytes,
            sent_bytes,
            not_sent,
            took,
        } = &other.peers;
        add_all(&mut self.peers.not_received, not_received);
        self.peers.hedged_bytes += hedged_bytes;
        self.peers.sent_bytes += sent_bytes;
        add_all(&mut self.peers.not_sent, not_sent);
        self.peers.took.add(took);
    }
}

/// Adds counts to those of the same reasons.
pub(crate) fn add_all(sums: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (why, number) in more {
        *sums.entry(why.clone()).or_default() += number;
    }
}

/// Returns counts by reason.
pub(crate) fn by_reason<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts.map(|(why, number)| (why.to_owned(), number)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_loaders_are_sums_of_counts() {
        let totals = |number: u64| SampleTotals {
            figures: Figures {
                from_peers: number,
                to_peers: 1,
                nodes: 4,
                ..Figures::default()
            },
            peers: PeerTotals {
                not_received: by_reason([("busy", number), ("absent", 1)]),
                sent_bytes: number,
                ..PeerTotals::default()
            },
        };
        let mut sum = totals(3);
        sum.add(&totals(4));
        assert_eq!((sum.figures.from_peers, sum.figures.to_peers, sum.peers.sent_bytes), (7, 2, 7));
        assert_eq!(sum.figures.nodes, 4, "a number of nodes is not a count");
        assert_eq!(sum.peers.not_received, by_reason([("busy", 7), ("absent", 2)]));
    }
}
