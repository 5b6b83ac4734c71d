//! Messages of the loader agent's socket: one JSON value a packet, descriptors beside it. Requests for samples go
//! through the request rings.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use forebay_policy::{models::ProfiledDecoding, residency::PolicyName, schedule::ScheduleName};
use serde::{Deserialize, Serialize};

use super::{Figures, RankFigures, status::SamplesStatus};
use crate::host::{
    refusal::Refusal,
    role::{RoleRequest, RoleResponse},
    text,
};

/// Request to the loader agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum LoaderRequest {
    /// Makes this connection a rank of a loader. The first rank of a node sends a descriptor of the extents beside it.
    /// Answer, once all ranks of the node have come: [`LoaderResponse::Registered`].
    Register {
        /// Version of the protocol.
        version: u32,
        /// Rank and loader.
        settings: Box<Settings>,
        /// Variables of the rank's environment that lead to the stores of its extents.
        variables: Variables,
    },
    /// Names the other nodes of the job, whose loaders share their samples with this one from now on. Beside it come a
    /// socket that listens on this node's address, and a [`PeerTable`] in sealed memory. There is no answer.
    Share,
    /// Says why this rank's loader does not share its samples with the other nodes of the job. There is no answer.
    Alone {
        /// The reason, for a person.
        why: String,
    },
    /// Asks for the figures of this rank's loader. Answer: [`LoaderResponse::Figures`].
    Figures,
    /// Asks for the status of all loaders; no rank needs to be registered. Answer: [`LoaderResponse::Status`].
    Status {
        /// Version of the protocol.
        version: u32,
    },
}

impl RoleRequest for LoaderRequest {
    fn version(&self) -> Option<u32> {
        match self {
            Self::Register { version, .. } | Self::Status { version } => Some(*version),
            Self::Share | Self::Alone { .. } | Self::Figures => None,
        }
    }
}

/// Variables of an environment ([`forebay_objects::VARIABLES`]). Some are secrets: they stay in memory, and `Debug`
/// does not show them.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Variables(pub BTreeMap<String, String>);

impl fmt::Debug for Variables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// A rank of a loader, and its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name of the loader: all its ranks give it, and no other loader of this node.
    pub loader: String,
    /// The rank in the whole job.
    pub rank: u32,
    /// The rank among those of this node.
    pub local_rank: u32,
    /// Ranks of this node.
    pub local_ranks: u32,
    /// Processors of the rank's NUMA node, if it stays on one of several; else none.
    #[serde(default)]
    pub processors: Vec<u32>,
    /// Settings that are equal in all ranks.
    pub alike: Alike,
}

/// Settings that are equal in all ranks of a loader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alike {
    /// Digest of the dataset's contents.
    pub dataset: String,
    /// Deal of its samples to ranks.
    pub deal: EpochDeal,
    /// Number of extents that ranks ask for: one a sample, or fewer where samples share them.
    pub extents: u32,
    /// Seed of the order.
    pub seed: u64,
    /// Permutation of the dataset in each epoch.
    pub order: OrderName,
    /// Policy that chooses the samples to keep.
    pub policy: PolicyName,
    /// Order of reads.
    pub schedule: ScheduleName,
    /// Length of the prefetch window in steps.
    pub window: u32,
    /// Steps ahead that ranks send requests: the prefetch window, or more where samples beyond it are fetched.
    pub ahead: u32,
    /// True if samples beyond the window are fetched while the agent is idle and has memory for them.
    pub background_fill: bool,
    /// Most reads at once.
    pub reads_max: u32,
    /// Share of reads that may be hedged (repeated when slow), from 0.
    pub hedge_budget: f64,
    /// Division of threads.
    pub threads: ThreadSettings,
    /// Room for samples on this node.
    pub room: CacheRoom,
}

/// Division of a node's threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadSettings {
    /// Share of a step by which a rank may be late before threads move to it, and share of the longest decoding that
    /// moving threads must gain.
    pub tau: f64,
    /// Steps between two decisions.
    pub steps: u32,
    /// Measurements of a profile, with which the model of decoding starts.
    #[serde(default)]
    pub profile: Vec<ProfiledDecoding>,
}

/// Deal of a dataset's samples to the ranks of a job, in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochDeal {
    /// Number of its samples.
    pub samples: u32,
    /// Samples in a batch of one rank.
    pub batch: u32,
    /// Number of ranks of the whole job.
    pub world: u32,
    /// Value of `DistributedSampler(drop_last=...)`.
    pub sampler_drop_last: bool,
    /// Value of `DataLoader(drop_last=...)`.
    pub drop_last: bool,
}

/// Room for the samples of a loader on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheRoom {
    /// Memory that samples pass through between their fetch and their use, in bytes.
    pub window_bytes: u64,
    /// Memory for samples that stay, in bytes.
    pub memory_bytes: u64,
    /// Disks for samples that stay, the fastest first.
    pub disks: Vec<DiskSetting>,
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

/// Permutation of a dataset in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderName {
    /// The order of the dataset.
    Sequential,
    /// The permutation of `DistributedSampler`.
    Torch,
    /// A keyed bijection.
    Counter,
    /// Any other, such as that of a user's own sampler: the agent learns it from the requests of ranks.
    Unknown,
}

/// Answer of the loader agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum LoaderResponse {
    /// All ranks of the node have registered. Beside it come descriptors of the arena, of the rank's request ring, and
    /// of the doorbell.
    Registered {
        /// Length of the arena in bytes.
        arena_bytes: u64,
        /// Number of slots of the request ring.
        slots: u32,
        /// Notes for a person, as on a disk that is not usable.
        notes: Vec<String>,
    },
    /// Another rank of the loader has gone.
    RankGone {
        /// Number of the rank in the whole job.
        rank: u32,
    },
    /// Figures of the loader so far.
    Figures {
        /// Figures of all ranks of the node.
        figures: Figures,
        /// Figures of this rank.
        of_rank: RankFigures,
    },
    /// Status of all loaders.
    Status(Box<SamplesStatus>),
    /// The request is refused, or the loader has failed.
    Refused(Refusal),
}

impl From<Refusal> for LoaderResponse {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl RoleResponse for LoaderResponse {
    fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl Alike {
    /// Returns the first setting in which two ranks differ, with both values.
    pub(crate) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        // Exact sizes are shown only if the rounded ones are equal.
        let sizes: [fn(u64) -> String; 2] = [text::rounded_bytes, text::exact_bytes];
        sizes.into_iter().find_map(|size| {
            let mut pairs = named(self, size).into_iter().zip(named(other, size));
            let ((what, one), (_, another)) = pairs.find(|(one, another)| one != another)?;
            Some((what, one, another))
        })
    }
}

/// Lists a rank's settings, by the names of the data loader's arguments.
fn named(alike: &Alike, size: fn(u64) -> String) -> [(&'static str, String); 21] {
    // Destructured in full, so that a field added later is not missed here.
    let Alike {
        dataset,
        deal,
        extents,
        seed,
        order,
        policy,
        schedule,
        window,
        ahead,
        background_fill,
        reads_max,
        hedge_budget,
        threads: ThreadSettings { tau, steps, profile },
        room,
    } = alike;
    let EpochDeal {
        samples,
        batch,
        world,
        sampler_drop_last,
        drop_last,
    } = deal;
    let CacheRoom {
        window_bytes,
        memory_bytes,
        disks,
    } = room;
    let truth = |is: bool| if is { "True" } else { "False" }.to_owned();
    let order = match order {
        OrderName::Sequential => "not shuffled",
        OrderName::Torch => "shuffled",
        OrderName::Counter => "shuffled by a keyed bijection",
        OrderName::Unknown => "of its own",
    };
    let memory = (*memory_bytes > 0).then(|| format!("ram={}", size(*memory_bytes)));
    let disks = disks.iter().map(|disk| format!("{}={}", disk.dir.display(), size(disk.bytes)));
    let cache: Vec<String> = memory.into_iter().chain(disks).collect();
    [
        ("the number of samples", samples.to_string()),
        ("the dataset (by the digest of its listing)", dataset.clone()),
        ("the dataset (by the number of its extents)", extents.to_string()),
        ("the seed", seed.to_string()),
        ("the batch size", batch.to_string()),
        ("the world size", world.to_string()),
        ("the order (shuffle, sampler)", order.to_owned()),
        ("drop_last", truth(*drop_last)),
        ("drop_last of the sampler", truth(*sampler_drop_last)),
        ("policy", name(policy)),
        ("schedule", name(schedule)),
        ("background_fill", truth(*background_fill)),
        ("hedge_budget", hedge_budget.to_string()),
        ("thread_tau", tau.to_string()),
        ("thread_steps", steps.to_string()),
        ("the measurements of decoding (by plan)", format!("{profile:?}")),
        ("cache", format!("{cache:?}")),
        ("batches read ahead (by prefetch_factor)", window.to_string()),
        ("batches that are asked for ahead (by background_fill)", ahead.to_string()),
        ("the memory of samples under way", size(*window_bytes)),
        ("reads at once", reads_max.to_string()),
    ]
}

/// Returns the name that a user writes.
fn name(choice: &impl Serialize) -> String {
    serde_json::to_value(choice).unwrap_or_default().to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::to_string;

    use super::*;
    use crate::{
        host::peer_table::table_of_one,
        samples::status::{LoaderStatus, NodeStatus},
    };

    pub(crate) fn alike() -> Alike {
        Alike {
            dataset: "digest".into(),
            deal: EpochDeal {
                samples: 1,
                batch: 4,
                world: 5,
                sampler_drop_last: true,
                drop_last: false,
            },
            extents: 2,
            seed: 3,
            order: OrderName::Torch,
            policy: PolicyName::Forebay,
            schedule: ScheduleName::EarliestDeadline,
            window: 6,
            ahead: 7,
            background_fill: true,
            reads_max: 11,
            hedge_budget: 0.5,
            threads: ThreadSettings {
                tau: 0.25,
                steps: 2,
                profile: vec![ProfiledDecoding {
                    bytes: 12,
                    threads: 13,
                    seconds: 0.5,
                }],
            },
            room: CacheRoom {
                window_bytes: 8,
                memory_bytes: 9,
                disks: vec![DiskSetting {
                    dir: PathBuf::from("/disk"),
                    bytes: 10,
                }],
            },
        }
    }

    /// Returns one of each message, with all fields: `messages.rs` digests them.
    pub(crate) fn messages(refusal: Refusal) -> Vec<String> {
        let settings = Settings {
            loader: "loader".into(),
            rank: 1,
            local_rank: 2,
            local_ranks: 3,
            processors: vec![4],
            alike: alike(),
        };
        let register = LoaderRequest::Register {
            version: 0,
            settings: Box::new(settings),
            variables: Variables([("NAME".to_owned(), "value".to_owned())].into()),
        };
        let alone = LoaderRequest::Alone { why: "why".into() };
        let status = LoaderRequest::Status { version: 0 };
        let requests = [register, LoaderRequest::Share, alone, LoaderRequest::Figures, status];
        let responses = [
            LoaderResponse::Registered {
                arena_bytes: 1,
                slots: 2,
                notes: vec!["note".into()],
            },
            LoaderResponse::RankGone { rank: 1 },
            LoaderResponse::Figures {
                figures: Figures::default(),
                of_rank: RankFigures::default(),
            },
            LoaderResponse::Status(Box::new(SamplesStatus {
                loaders: vec![LoaderStatus {
                    nodes: vec![NodeStatus::default()],
                    ..LoaderStatus::default()
                }],
                ..SamplesStatus::default()
            })),
            LoaderResponse::Refused(refusal),
        ];
        let requests = requests.iter().map(|request| to_string(request).unwrap());
        requests
            .chain([to_string(&table_of_one()).unwrap()])
            .chain(responses.iter().map(|response| to_string(response).unwrap()))
            .collect()
    }

    #[test]
    fn debug_does_not_show_credentials() {
        let variables = Variables([("AWS_SECRET_ACCESS_KEY".to_owned(), "hidden".to_owned())].into());
        assert_eq!(format!("{variables:?}"), r#"{"AWS_SECRET_ACCESS_KEY"}"#);
        let sent = serde_json::to_string(&variables).unwrap();
        assert_eq!(serde_json::from_str::<Variables>(&sent).unwrap(), variables);
    }
}
