//! Epochs of a run's data loaders, as their ranks tell of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name of the event log: see [`crate::run::event_log`].
pub const KIND: &str = "loaders";

/// An epoch of one rank of a loader: a line as `python/forebay/loader/_told.py` writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochEvent {
    /// Name of the loader in its job.
    pub loader: String,
    /// Number of the rank.
    pub rank: u32,
    /// Number of ranks of the job.
    pub world: u32,
    /// The epoch.
    pub epoch: u64,
    /// Time of the epoch's start, in seconds since 1970.
    pub begun_at: f64,
    /// Duration of the epoch, in seconds.
    pub seconds: f64,
    /// Samples that training had of it.
    pub samples: u64,
    /// Samples that failed and were left out.
    pub skipped: u64,
    /// For how long training waited because of the source.
    pub source_wait_s: f64,
    /// Seconds for which training waited because of decoding.
    pub decode_wait_s: f64,
    /// Seconds that the epoch would have taken with a loader that is always ready.
    pub ideal_s: f64,
    /// Bytes of its samples, where that is known.
    pub read_bytes: Option<u64>,
    /// Threads or processes that decoded.
    pub workers: u32,
    /// `training`, `source` or `decoding`.
    pub bound_by: String,
    /// The longest waits, the longest first.
    pub waits: Vec<Wait>,
    /// Length of a span of its course.
    pub span_s: f64,
    /// Seconds for which training waited because of the source, by span.
    pub source_s: Vec<f64>,
    /// Seconds for which training waited because of decoding, by span.
    pub decode_s: Vec<f64>,
    /// Figures of the node's loader agent during the epoch, by name; empty without an agent.
    pub agent: BTreeMap<String, u64>,
}

/// Training waited for a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// For how long.
    pub seconds: f64,
    /// Seconds after the epoch's beginning.
    pub at_s: f64,
    /// Main cause of the waits: `source` or `decoding`.
    pub of: String,
}

impl EpochEvent {
    /// For how long training waited in all.
    pub fn waited_s(&self) -> f64 {
        self.source_wait_s + self.decode_wait_s
    }

    /// A figure of the agent's; 0 where there was none.
    pub fn figure(&self, name: &str) -> u64 {
        self.agent.get(name).copied().unwrap_or(0)
    }

    /// Returns the number of samples from the agent that it had kept.
    pub fn cached(&self) -> u64 {
        self.figure("from_memory") + self.figure("from_disk")
    }

    /// Samples that the agent gave out.
    pub fn uses(&self) -> u64 {
        self.cached() + self.figure("from_peers") + self.figure("from_source")
    }
}

/// Epochs of loaders: what their ranks have told, by rank.
pub type LoaderEpochs<'a> = BTreeMap<(&'a str, u64), Vec<&'a EpochEvent>>;

/// Events by loader and epoch.
pub fn epochs(told: &[EpochEvent]) -> LoaderEpochs<'_> {
    let mut epochs = LoaderEpochs::new();
    for one in told {
        epochs.entry((one.loader.as_str(), one.epoch)).or_default().push(one);
    }
    for ranks in epochs.values_mut() {
        ranks.sort_by(|one, other| one.rank.cmp(&other.rank).then(one.begun_at.total_cmp(&other.begun_at)));
    }
    epochs
}

/// The rank that stands for its node: all tell the same of their agent, some a moment earlier. None where there was
/// no agent.
pub fn of_node<'a>(ranks: &[&'a EpochEvent]) -> Option<&'a EpochEvent> {
    let served = ranks.iter().copied().filter(|rank| !rank.agent.is_empty());
    served.max_by_key(|rank| rank.uses())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A line as a rank writes it.
    pub(crate) const LINE: &str = r#"{"loader": "0", "rank": 1, "world": 4, "epoch": 3, "begun_at": 1795432621.25, "seconds": 12.5, "samples": 3200, "skipped": 0,
        "source_wait_s": 8.0, "decode_wait_s": 0.5, "ideal_s": 5.0, "read_bytes": 367000, "workers": 8, "bound_by": "source",
        "waits": [{"seconds": 3.5, "at_s": 7.2, "of": "source"}], "span_s": 6.4, "source_s": [4.0, 4.0], "decode_s": [0.5],
        "agent": {"from_memory": 1000, "from_source": 3000, "source_bytes": 250000, "rank_reads": 750, "rank_queued_us": 1500000}}"#;

    #[test]
    fn lines_are_as_a_rank_writes_them() {
        let told: EpochEvent = serde_json::from_str(LINE).unwrap();
        assert_eq!(
            (told.rank, told.waited_s(), told.figure("from_source"), told.figure("hedged")),
            (1, 8.5, 3000, 0)
        );
        assert_eq!(told.waits[0].of, "source");
        // As it stands in a record.
        let text = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<EpochEvent>(&text).unwrap(), told);
    }
}
