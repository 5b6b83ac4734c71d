//! What is said on the loader agent's socket: one JSON value a packet, descriptors beside it. All else is said on boards.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use forebay_policy::{residency::PolicyName, schedule::ScheduleName};
use serde::{Deserialize, Serialize};

use super::{Figures, RankFigures};

/// Raised whenever what follows changes. Boards and extents have a version of their own.
pub(crate) const VERSION: u32 = 2;

/// What is said to the loader agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// From now on this connection is a rank of a loader. From the first rank of a node, a descriptor of the extents comes along, and how the stores are reached
    /// in which they lie. Answer, when all ranks of the node have come: [`Tell::Registered`].
    Register {
        /// [`VERSION`].
        version: u32,
        /// Who, and what for.
        settings: Box<Settings>,
        /// Of the rank's environment, where extents are of objects.
        variables: Variables,
    },
    /// What was done for this rank's loader. Answer: [`Tell::Figures`].
    Figures,
}

/// Variables of an environment ([`forebay_objects::VARIABLES`]), some of which are secrets. They are kept in memory only, and never shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Variables(pub BTreeMap<String, String>);

impl fmt::Debug for Variables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// A rank of a loader, and what it wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The loader's name: the same in all ranks, and no other loader's on this node.
    pub loader: String,
    /// The rank in the whole job.
    pub rank: u32,
    /// The rank among those of this node.
    pub local_rank: u32,
    /// Ranks of this node.
    pub local_ranks: u32,
    /// What all ranks must want alike.
    pub alike: Alike,
}

/// What all ranks of a loader must want alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alike {
    /// A digest of what the dataset consists of.
    pub dataset: String,
    /// Samples of it.
    pub samples: u32,
    /// Extents that samples lie in: as many, or fewer where samples share them. These are what ranks ask for.
    pub extents: u32,
    /// The order's seed.
    pub seed: u64,
    /// Samples of a batch of one rank.
    pub batch: u32,
    /// Ranks of the whole job.
    pub world: u32,
    /// How the dataset is permuted in each epoch.
    pub order: OrderName,
    /// As `DistributedSampler(drop_last=...)` has it.
    pub sampler_drop_last: bool,
    /// As `DataLoader(drop_last=...)` has it.
    pub drop_last: bool,
    /// Which samples stay.
    pub policy: PolicyName,
    /// Which read comes next.
    pub schedule: ScheduleName,
    /// Steps ahead that samples are fetched.
    pub window: u32,
    /// Steps ahead that ranks ask for them: as many, or more where something is to be fetched beyond the window.
    pub ahead: u32,
    /// Whether samples beyond the window are fetched, when nothing else is to be done and there is memory for them.
    pub background_fill: bool,
    /// Memory that samples pass through between their fetch and their use, in bytes.
    pub window_bytes: u64,
    /// Memory for samples that stay, in bytes.
    pub memory_bytes: u64,
    /// Disks for samples that stay, the fastest first.
    pub disks: Vec<DiskSetting>,
    /// Most reads at once.
    pub reads_max: u32,
    /// Share of reads that may be made again where they take long; 0: none.
    pub hedge_budget: f64,
}

/// Part of a disk, for samples that stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSetting {
    /// An existing directory on a local file system.
    pub dir: PathBuf,
    /// Most bytes there.
    pub bytes: u64,
}

/// How a dataset is permuted in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderName {
    /// Not at all.
    Sequential,
    /// As `DistributedSampler` permutes.
    Torch,
    /// By a keyed bijection.
    Counter,
    /// In another way, such as by a sampler of the user's own: the agent knows of it only what ranks ask for.
    Unknown,
}

/// What the loader agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum Tell {
    /// All ranks of the node are here. With this come descriptors of the arena, of the rank's board, and of the doorbell.
    Registered {
        /// Length of the arena.
        arena_bytes: u64,
        /// Slots of the board.
        slots: u32,
        /// What there is to say of it, for a person: of a disk that can't be used.
        notes: Vec<String>,
    },
    /// A rank of the same loader is gone.
    RankGone {
        /// In the whole job.
        rank: u32,
    },
    /// What was done so far.
    Figures {
        /// For all ranks of the node.
        figures: Figures,
        /// For this one.
        of_rank: RankFigures,
    },
    /// No, or no more.
    Refused {
        /// Why, in words for a person.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_to_a_store_is_not_shown() {
        let variables = Variables([("AWS_SECRET_ACCESS_KEY".to_owned(), "hidden".to_owned())].into());
        assert_eq!(format!("{variables:?}"), r#"{"AWS_SECRET_ACCESS_KEY"}"#);
        let sent = serde_json::to_string(&variables).unwrap();
        assert_eq!(serde_json::from_str::<Variables>(&sent).unwrap(), variables);
    }
}
