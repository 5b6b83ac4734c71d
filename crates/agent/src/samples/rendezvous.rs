//! Rendezvous of a loader's ranks: collects them, and compares their settings. A plain state machine without I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::homes::Homes;
use super::protocol::{Alike, LoaderResponse, Settings};

use crate::host::role::Peer;
use crate::samples::limits::{LOADER_FAILED_KEPT_S, LOADER_NAME_BYTES_MAX, LOADER_RANKS_MAX};

/// Actions for the service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RendezvousAction {
    /// Send a response.
    Tell { to: Peer, tell: LoaderResponse },
    /// All ranks of the node have come with equal settings: begin. On failure the service calls [`Rendezvous::fail`].
    Begin { loader: String },
    /// A rank of a loader that has begun is gone.
    Gone { loader: String, local_rank: usize },
    /// The last rank of a loader is gone.
    End { loader: String },
}

/// Ranks of a loader on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalRanks {
    /// Number of ranks.
    pub(crate) count: u32,
    /// Rank in the whole job of local rank 0, if those of the others follow it one by one.
    pub(crate) first: Option<u32>,
}

#[derive(Debug)]
struct Loader {
    /// Settings of the rank that came first, and its number.
    alike: Alike,
    first: u32,
    /// Connection and rank in the whole job, by local rank.
    ranks: Vec<Option<(Peer, u32)>>,
    /// Processors of each rank's NUMA node.
    processors: Vec<Vec<u32>>,
    has_begun: bool,
    failed: Option<LoaderFailure>,
}

/// Reason why a loader failed. Ranks that come late are told it too.
#[derive(Debug)]
struct LoaderFailure {
    why: String,
    at_s: f64,
    told: BTreeSet<u32>,
}

/// All loaders of this node.
#[derive(Debug, Default)]
pub(crate) struct Rendezvous {
    loaders: BTreeMap<String, Loader>,
    roles: HashMap<Peer, (String, usize)>,
}

impl Rendezvous {
    /// Registers a rank of a loader.
    pub(crate) fn register(&mut self, peer: Peer, settings: &Settings, now_s: f64) -> Vec<RendezvousAction> {
        let Settings {
            loader,
            rank,
            local_rank,
            local_ranks,
            processors,
            alike,
        } = settings;
        if let Err(why) = self.can_register(peer, settings) {
            return vec![refused(peer, why)];
        }
        let known = self.loaders.entry(loader.clone()).or_insert_with(|| Loader {
            alike: alike.clone(),
            first: *rank,
            ranks: vec![None; *local_ranks as usize],
            processors: vec![Vec::new(); *local_ranks as usize],
            has_begun: false,
            failed: None,
        });
        if let Some(failure) = &mut known.failed {
            failure.told.insert(*local_rank);
            let why = failure.why.clone();
            self.forget_failures(now_s);
            return vec![refused(peer, why)];
        }
        if let Some((what, theirs, ours)) = known.alike.difference(alike) {
            let first = known.first;
            let why = format!("rank {first} and rank {rank} of {loader} disagree on {what}: {theirs} and {ours}; give all ranks the same");
            let mut effects = vec![refused(peer, why.clone())];
            effects.extend(self.fail(loader, &why, now_s, Some(*local_rank)));
            return effects;
        }
        known.ranks[*local_rank as usize] = Some((peer, *rank));
        known.processors[*local_rank as usize].clone_from(processors);
        self.roles.insert(peer, (loader.clone(), *local_rank as usize));
        if known.ranks.iter().all(Option::is_some) {
            known.has_begun = true;
            return vec![RendezvousAction::Begin { loader: loader.clone() }];
        }
        Vec::new()
    }

    fn can_register(&self, peer: Peer, settings: &Settings) -> Result<(), String> {
        let Settings {
            loader,
            local_rank,
            local_ranks,
            ..
        } = settings;
        if loader.is_empty() || loader.len() > LOADER_NAME_BYTES_MAX {
            return Err(format!(
                "a loader's name has 1 to {LOADER_NAME_BYTES_MAX} bytes, and this one {}",
                loader.len()
            ));
        }
        if local_rank >= local_ranks || *local_ranks > LOADER_RANKS_MAX {
            return Err(format!(
                "local rank {local_rank} of {local_ranks}: there can be 1 to {LOADER_RANKS_MAX} ranks on a node, counted from 0"
            ));
        }
        if self.roles.contains_key(&peer) {
            return Err("this connection is taken".into());
        }
        let Some(known) = self.loaders.get(loader) else { return Ok(()) };
        // A rank that is gone does not come back: the others were told that it is gone, and its request ring is not
        // reused.
        let is_taken = known.has_begun || known.ranks.get(*local_rank as usize).is_none_or(Option::is_some);
        if known.failed.is_none() && (known.ranks.len() != *local_ranks as usize || is_taken) {
            return Err(format!(
                "a loader {loader} is here already, with {} ranks on this node, and local rank {local_rank} of {local_ranks} is not among the missing ones; \
                 wait until its job has ended",
                known.ranks.len()
            ));
        }
        Ok(())
    }

    /// Fails a loader: all of its ranks are told the reason.
    pub(crate) fn fail(&mut self, loader: &str, why: &str, now_s: f64, told: Option<u32>) -> Vec<RendezvousAction> {
        let Some(known) = self.loaders.get_mut(loader) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        let mut failure = LoaderFailure {
            why: why.to_owned(),
            at_s: now_s,
            told: told.into_iter().collect(),
        };
        for (local_rank, place) in (0..).zip(&mut known.ranks) {
            if let Some((peer, _)) = place.take() {
                self.roles.remove(&peer);
                failure.told.insert(local_rank);
                effects.push(refused(peer, why.to_owned()));
            }
        }
        if known.has_begun {
            effects.push(RendezvousAction::End { loader: loader.to_owned() });
        }
        known.has_begun = false;
        known.failed = Some(failure);
        self.forget_failures(now_s);
        effects
    }

    /// Removes a connection.
    pub(crate) fn gone(&mut self, peer: Peer) -> Vec<RendezvousAction> {
        let Some((loader, local_rank)) = self.roles.remove(&peer) else {
            return Vec::new();
        };
        let Some(known) = self.loaders.get_mut(&loader) else {
            return Vec::new();
        };
        let Some((_, rank)) = known.ranks[local_rank].take() else {
            return Vec::new();
        };
        let left: Vec<Peer> = known.ranks.iter().flatten().map(|(peer, _)| *peer).collect();
        let has_begun = known.has_begun;
        if left.is_empty() {
            self.loaders.remove(&loader);
            return if has_begun {
                vec![RendezvousAction::End { loader }]
            } else {
                Vec::new()
            };
        }
        if !has_begun {
            return Vec::new();
        }
        let tell = LoaderResponse::RankGone { rank };
        let told = left.into_iter().map(|to| RendezvousAction::Tell { to, tell: tell.clone() });
        let mut effects: Vec<RendezvousAction> = told.collect();
        effects.push(RendezvousAction::Gone { loader, local_rank });
        effects
    }

    /// Returns the settings that the ranks of a loader share.
    pub(crate) fn alike(&self, loader: &str) -> Option<&Alike> {
        self.loaders.get(loader).map(|known| &known.alike)
    }

    /// The connections of a loader's ranks, by local rank.
    pub(crate) fn peers(&self, loader: &str) -> Vec<Peer> {
        let known = self.loaders.get(loader);
        known
            .into_iter()
            .flat_map(|known| &known.ranks)
            .flatten()
            .map(|(peer, _)| *peer)
            .collect()
    }

    /// Returns the NUMA nodes that a loader's ranks stay on.
    pub(crate) fn homes(&self, loader: &str) -> Homes {
        Homes::of(self.loaders.get(loader).map_or_else(Vec::new, |known| known.processors.clone()))
    }

    /// Returns the ranks of a loader on this node.
    pub(crate) fn ranks(&self, loader: &str) -> LocalRanks {
        let known = self.loaders.get(loader);
        let ranks: Vec<u32> = known
            .into_iter()
            .flat_map(|known| &known.ranks)
            .flatten()
            .map(|(_, rank)| *rank)
            .collect();
        let is_row = ranks.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        LocalRanks {
            count: ranks.len() as u32,
            first: ranks.first().copied().filter(|_| is_row),
        }
    }

    /// Returns the loader of a connection, and its local rank.
    pub(crate) fn role_of(&self, peer: Peer) -> Option<(&str, usize)> {
        self.roles.get(&peer).map(|(loader, local_rank)| (loader.as_str(), *local_rank))
    }

    /// Forgets failures that all ranks were told of, or that are old: the name may be used again.
    pub(crate) fn forget_failures(&mut self, now_s: f64) {
        self.loaders.retain(|_, known| {
            let is_over = |failure: &LoaderFailure| failure.told.len() >= known.ranks.len() || now_s - failure.at_s > LOADER_FAILED_KEPT_S;
            !known.failed.as_ref().is_some_and(is_over)
        });
    }
}

fn refused(to: Peer, why: String) -> RendezvousAction {
    let tell = LoaderResponse::Refused(why.into());
    RendezvousAction::Tell { to, tell }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use forebay_policy::residency::PolicyName;

    use super::super::protocol::{self, CacheRoom, DiskSetting, EpochDeal, ThreadSettings};
    use super::*;
    use crate::host::refusal::Refusal;

    pub(in super::super) fn alike() -> Alike {
        Alike {
            dataset: "abc".into(),
            deal: EpochDeal {
                samples: 100,
                batch: 4,
                world: 4,
                sampler_drop_last: false,
                drop_last: false,
            },
            extents: 100,
            seed: 0,
            window: 4,
            ahead: 4,
            background_fill: false,
            room: CacheRoom {
                window_bytes: 1 << 20,
                memory_bytes: 1 << 20,
                disks: vec![DiskSetting {
                    dir: PathBuf::from("/scratch"),
                    bytes: 1 << 30,
                }],
            },
            reads_max: 16,
            hedge_budget: 0.01,
            threads: ThreadSettings {
                tau: 0.05,
                steps: 1,
                profile: Vec::new(),
            },
            ..protocol::tests::alike()
        }
    }

    #[test]
    fn ranks_of_a_node_are_a_row_or_have_no_first() {
        for (numbers, first) in [([4, 5, 6], Some(4)), ([4, 6, 5], None), ([0, 2, 4], None)] {
            let mut all = Rendezvous::default();
            for (peer, number) in (10..).zip(numbers) {
                let settings = Settings {
                    rank: number,
                    ..rank(peer as u32 - 10)
                };
                all.register(peer, &settings, 0.0);
            }
            assert_eq!(all.ranks("train"), LocalRanks { count: 3, first }, "{numbers:?}");
        }
    }

    fn rank(local_rank: u32) -> Settings {
        Settings {
            loader: "train".into(),
            rank: local_rank,
            local_rank,
            local_ranks: 3,
            processors: Vec::new(),
            alike: alike(),
        }
    }

    fn why(effects: &[RendezvousAction]) -> Vec<(Peer, &str)> {
        let refusal = |effect: &RendezvousAction| {
            matches!(
                effect,
                RendezvousAction::Tell {
                    tell: LoaderResponse::Refused(_),
                    ..
                }
            )
        };
        assert!(effects.iter().all(refusal), "{effects:?}");
        effects
            .iter()
            .filter_map(|effect| match effect {
                RendezvousAction::Tell {
                    to,
                    tell: LoaderResponse::Refused(Refusal { why, .. }),
                } => Some((*to, why.as_str())),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_loader_begins_when_all_ranks_of_the_node_have_come() {
        let mut all = Rendezvous::default();
        assert_eq!(all.register(11, &rank(1), 0.0), []);
        assert_eq!(all.register(12, &rank(2), 0.0), []);
        let begin = RendezvousAction::Begin { loader: "train".into() };
        assert_eq!(all.register(10, &rank(0), 0.0), [begin]);
        assert_eq!(all.peers("train"), [10, 11, 12]);
        assert_eq!((all.role_of(11), all.alike("train")), (Some(("train", 1)), Some(&alike())));
        let gone = |to| RendezvousAction::Tell {
            to,
            tell: LoaderResponse::RankGone { rank: 1 },
        };
        let effects = all.gone(11);
        let last = RendezvousAction::Gone {
            loader: "train".into(),
            local_rank: 1,
        };
        assert_eq!(effects, [gone(10), gone(12), last]);
        assert_eq!(why(&all.register(13, &rank(1), 0.0)).len(), 1, "nobody takes its place");
        all.gone(10);
        assert_eq!(all.gone(12), [RendezvousAction::End { loader: "train".into() }]);
        assert_eq!((all.gone(12), all.peers("train")), (vec![], vec![]));
    }

    /// A change of a setting, and what ranks are told of it.
    type Change = (fn(&mut Alike), &'static str);

    #[test]
    fn ranks_that_disagree_are_all_told_the_same_and_so_is_one_that_comes_late() {
        let changes: [Change; 10] = [
            (|alike| alike.seed = 7, "the seed: 0 and 7"),
            (|alike| alike.deal.batch = 8, "the batch size: 4 and 8"),
            (
                |alike| alike.dataset = "xyz".into(),
                "the dataset (by the digest of its listing): abc and xyz",
            ),
            (|alike| alike.deal.samples = 99, "the number of samples: 100 and 99"),
            (|alike| alike.policy = PolicyName::Lru, "policy: \"forebay\" and \"lru\""),
            (|alike| alike.deal.drop_last = true, "drop_last: False and True"),
            (
                |alike| alike.room.memory_bytes = 3 << 29,
                r#"cache: ["ram=1 MiB", "/scratch=1 GiB"] and ["ram=1.5 GiB", "/scratch=1 GiB"]"#,
            ),
            (
                |alike| {
                    alike.room.memory_bytes += 1;
                    alike.room.disks.clear();
                },
                r#"cache: ["ram=1 MiB", "/scratch=1 GiB"] and ["ram=1 MiB"]"#,
            ),
            (
                |alike| alike.room.memory_bytes += 1,
                r#"cache: ["ram=1048576 bytes", "/scratch=1073741824 bytes"] and ["ram=1048577 bytes", "/scratch=1073741824 bytes"]"#,
            ),
            (|alike| alike.window = 8, "batches read ahead (by prefetch_factor): 4 and 8"),
        ];
        for (change, what) in changes {
            let mut other = alike();
            change(&mut other);
            let mut all = Rendezvous::default();
            all.register(10, &rank(0), 0.0);
            let effects = all.register(
                11,
                &Settings {
                    alike: other.clone(),
                    ..rank(1)
                },
                0.0,
            );
            let line = format!("rank 0 and rank 1 of train disagree on {what}; give all ranks the same");
            assert_eq!(why(&effects), [(11, line.as_str()), (10, line.as_str())]);
            assert_eq!(why(&all.register(12, &rank(2), 1.0)), [(12, line.as_str())]);
            // The failure is over, and they may try again.
            assert_eq!(all.register(13, &rank(0), 2.0), []);
        }
    }

    #[test]
    fn a_failure_that_nobody_asks_for_is_forgotten() {
        let mut all = Rendezvous::default();
        all.register(10, &rank(0), 0.0);
        assert_eq!(why(&all.fail("train", "no memory", 0.0, None)), [(10, "no memory")]);
        all.forget_failures(LOADER_FAILED_KEPT_S - 1.0);
        assert_eq!(why(&all.register(11, &rank(1), 1.0)), [(11, "no memory")]);
        all.forget_failures(LOADER_FAILED_KEPT_S + 1.0);
        assert_eq!(all.register(12, &rank(1), 100.0), []);
    }

    #[test]
    fn one_that_fails_after_it_has_begun_ends() {
        let mut all = Rendezvous::default();
        for (peer, local_rank) in (10..).zip(0..3) {
            all.register(peer, &rank(local_rank), 0.0);
        }
        let effects = all.fail("train", "no memory", 0.0, None);
        assert_eq!(why(&effects[..3]).len(), 3);
        assert_eq!(effects[3..], [RendezvousAction::End { loader: "train".into() }]);
        assert_eq!(all.gone(10), []);
    }

    #[test]
    fn a_name_that_is_taken_and_a_rank_that_can_not_be_are_refused_and_nobody_else_is() {
        let mut all = Rendezvous::default();
        all.register(10, &rank(0), 0.0);
        let wrong = [
            rank(0),
            rank(3),
            Settings { local_ranks: 2, ..rank(1) },
            Settings {
                loader: String::new(),
                ..rank(1)
            },
            Settings {
                local_ranks: LOADER_RANKS_MAX + 1,
                ..rank(1)
            },
        ];
        for (peer, settings) in (20..).zip(wrong) {
            let effects = all.register(peer, &settings, 0.0);
            assert_eq!(why(&effects).iter().map(|(to, _)| *to).collect::<Vec<_>>(), [peer]);
        }
        assert_eq!(all.register(10, &rank(1), 0.0).len(), 1, "a connection is one rank");
        assert_eq!(all.register(11, &rank(1), 0.0), []);
        // A rank that leaves before all have come makes room for another.
        assert_eq!(all.gone(11), []);
        assert_eq!(all.register(12, &rank(1), 0.0), []);
    }
}
