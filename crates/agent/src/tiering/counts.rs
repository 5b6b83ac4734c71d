//! Counts by the preload libraries of runs, read from shared memory.

use std::collections::BTreeMap;

use forebay_contract::{Counter, Run};
use serde::{Deserialize, Serialize};

use crate::host::durations::Durations;

/// Opens that a tier answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Number of opens.
    pub opens: u64,
    /// Sizes of the files that were opened, in bytes.
    pub bytes: u64,
}

/// Counts by the preload libraries of one run or several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "NamedCounts", into = "NamedCounts")]
pub struct Counts {
    totals: Vec<u64>,
    /// Opens that each tier answered, top first.
    pub tiers: Vec<Answered>,
    /// Durations of opens that the source answered.
    pub source_open: Durations,
}

/// Form of the counts on the wire, with names: a reader of another version may have other counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct NamedCounts {
    counters: BTreeMap<String, u64>,
    tiers: Vec<Answered>,
    source_open: Durations,
}

impl Counts {
    /// Reads the counts in a run page.
    pub fn read(page: &Run<'_>, tiers: usize) -> Self {
        let answered = |tier| {
            let (opens, bytes) = page.hits(tier);
            Answered { opens, bytes }
        };
        Self {
            totals: Counter::ALL.iter().map(|counter| page.total(*counter)).collect(),
            tiers: (0..tiers).map(answered).collect(),
            source_open: Durations::new(page.source_opens_by_time()),
        }
    }

    /// Returns the counts of no run, all zero.
    pub fn none(tiers: usize) -> Self {
        Self {
            totals: vec![0; Counter::ALL.len()],
            tiers: vec![Answered::default(); tiers],
            source_open: Durations::default(),
        }
    }

    /// Adds the counts of another run of the same agent.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.totals.iter_mut().zip(&other.totals) {
            *sum += more;
        }
        for (sum, more) in self.tiers.iter_mut().zip(&other.tiers) {
            sum.opens += more.opens;
            sum.bytes += more.bytes;
        }
        self.source_open.add(&other.source_open);
    }

    /// Returns the opens that a tier answered; tier 0 is the top.
    pub fn tier(&self, at: usize) -> Answered {
        self.tiers.get(at).copied().unwrap_or_default()
    }

    /// Returns one counter.
    pub fn of(&self, counter: Counter) -> u64 {
        self.totals.get(counter as usize).copied().unwrap_or(0)
    }

    /// Returns the number of opens for reading under the sources that a tier answered.
    pub fn tier_opens(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.opens).sum()
    }

    /// Returns the number of opens for reading under the sources. A process that was killed in between may have counted
    /// only one of the two counters.
    pub fn source_opens(&self) -> u64 {
        self.of(Counter::SourceOpens).max(self.tier_opens())
    }

    /// Returns the number of opens for reading under the sources that the source answered.
    pub fn from_source_opens(&self) -> u64 {
        self.source_opens() - self.tier_opens()
    }
}

impl From<Counts> for NamedCounts {
    fn from(counts: Counts) -> Self {
        let names = Counter::ALL.iter().map(|counter| counter.name().to_owned());
        Self {
            counters: names.zip(counts.totals).collect(),
            tiers: counts.tiers,
            source_open: counts.source_open,
        }
    }
}

impl From<NamedCounts> for Counts {
    fn from(named: NamedCounts) -> Self {
        let number = |counter: &Counter| named.counters.get(counter.name()).copied().unwrap_or(0);
        Self {
            totals: Counter::ALL.iter().map(number).collect(),
            tiers: named.tiers,
            source_open: named.source_open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_another_version_are_understood_as_far_as_they_go() {
        let mut counts = Counts::none(1);
        counts.totals[Counter::SourceOpens as usize] = 7;
        counts.tiers[0].opens = 3;
        let text = serde_json::to_string(&counts).unwrap();
        assert_eq!(serde_json::from_str::<Counts>(&text).unwrap(), counts);
        let later = text.replacen("{\"counters\":{", "{\"more\":[],\"counters\":{\"of_a_later_version\":9,", 1);
        assert_eq!(serde_json::from_str::<Counts>(&later).unwrap(), counts);
        assert_eq!((counts.source_opens(), counts.tier_opens(), counts.from_source_opens()), (7, 3, 4));
    }
}
