//! Figures that follow from the counters of a run.

use forebay_agent::tiering::{Counts, protocol::Status};
use forebay_contract::Counter;
use forebay_settings::text;
use serde::{Deserialize, Serialize};

/// Figures that follow from the counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Derived {
    /// Opens for reading under the sources.
    pub source_opens: u64,
    /// Opens under the sources that a tier answered.
    pub tier_opens: u64,
    /// Sizes of the files that these opened.
    pub tier_bytes: u64,
    /// Opens under the sources that the source answered.
    pub from_source_opens: u64,
    /// The most that tiers could have answered: every open but the first of each file that was copied from the source
    /// in this run, or is being copied. An upper bound, for files that were never copied had a first open, too.
    pub tier_opens_at_most: u64,
    /// `tier_opens` of `source_opens`.
    pub saved_share: f64,
    /// `tier_opens` of `tier_opens_at_most`.
    pub share_of_possible: f64,
    /// The median of what opens took that the source answered, in seconds, at most a quarter off; none, if there were
    /// none.
    #[serde(default)]
    pub source_open_median_s: Option<f64>,
    /// Their 99th percentile, likewise.
    #[serde(default)]
    pub source_open_p99_s: Option<f64>,
}

impl Derived {
    /// Derives the figures from the counters of the preload library and the status of the agent.
    pub fn from(counts: &Counts, agent: Option<&Status>) -> Self {
        let tier_opens = counts.tier_opens();
        let source_opens = counts.source_opens();
        // What is in flight may be other runs' as well.
        let first_opens = agent
            .map_or(0, |status| {
                let from_source = status.files.files_copied - status.peers.from_peers_files.min(status.files.files_copied);
                from_source + status.files_in_flight()
            })
            .min(counts.of(Counter::HandedOver));
        let at_most = source_opens.saturating_sub(first_opens).max(tier_opens);
        Self {
            source_opens,
            tier_opens,
            tier_bytes: counts.tiers.iter().map(|tier| tier.bytes).sum(),
            from_source_opens: source_opens - tier_opens,
            tier_opens_at_most: at_most,
            saved_share: text::ratio(tier_opens, source_opens),
            share_of_possible: text::ratio(tier_opens, at_most),
            source_open_median_s: counts.source_open.quantile_s(0.5),
            source_open_p99_s: counts.source_open.quantile_s(0.99),
        }
    }
}
