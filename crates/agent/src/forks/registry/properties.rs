//! Whatever is said, by whom and in whatever order: no clone is given states of two steps, none exists by halves, and
//! nothing is left when all have gone.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};

use super::*;

const PEERS: u64 = 10;

#[derive(Clone, Debug)]
enum Said {
    Register { job: bool, rank: u32, ranks: u32, rejoins: bool },
    Measured,
    Fork { job: bool, at: Option<u64>, shadow: bool },
    Take { fork: usize, rank: u32, ranks: u32 },
    RankState { forks: usize, step: u64, weight: bool },
    Withhold { fork: usize },
    Loaded,
    Repeated { fork: usize, weight: bool },
    Failed,
    Gone,
}

fn said() -> impl Strategy<Value = Said> {
    let rank = || (0..2u32, 1..3u32);
    prop_oneof![
        4 => (any::<bool>(), rank(), any::<bool>()).prop_map(|(job, (rank, ranks), rejoins)| Said::Register { job, rank, ranks, rejoins }),
        3 => Just(Said::Measured),
        3 => (any::<bool>(), prop::option::of(0..3u64), any::<bool>()).prop_map(|(job, at, shadow)| Said::Fork { job, at, shadow }),
        5 => (0..4usize, rank()).prop_map(|(fork, (rank, ranks))| Said::Take { fork, rank, ranks }),
        6 => (0..4usize, 0..2u64, any::<bool>()).prop_map(|(forks, step, weight)| Said::RankState { forks, step, weight }),
        1 => (0..4usize).prop_map(|fork| Said::Withhold { fork }),
        4 => Just(Said::Loaded),
        4 => (0..4usize, any::<bool>()).prop_map(|(fork, weight)| Said::Repeated { fork, weight }),
        1 => Just(Said::Failed),
        2 => Just(Said::Gone),
    ]
}

/// The registry, and what an onlooker knows from outside. A state is the step of which it is.
#[derive(Default)]
struct World {
    known: Registry<u64>,
    forks: Vec<u64>,
    /// Ranks of clones: their forks.
    takers: HashMap<Peer, u64>,
    loaded: BTreeSet<Peer>,
    repeated: BTreeSet<Peer>,
    /// Forks whose clones have to take steps of shadow verification.
    shadowed: BTreeSet<u64>,
    given: HashMap<u64, BTreeSet<u64>>,
    open: BTreeSet<String>,
    secrets: BTreeSet<u64>,
    wanted: BTreeSet<u64>,
    number: u64,
}

impl World {
    fn hear(&mut self, peer: Peer, said: &Said) {
        self.number += 1;
        let name = |job: &bool| if *job { "a" } else { "b" }.to_owned();
        // The newest are named, and one that nobody has asked for.
        let fork = |index: &usize| self.forks.iter().rev().nth(*index).copied().unwrap_or(0);
        let effects = match said {
            Said::Register { job, rank, ranks, rejoins } => {
                let (job, rank, ranks) = (name(job), *rank, *ranks);
                let shadow = 0;
                self.known
                    .register(peer, self.number, RankIdentity { job, rank, ranks, shadow }, *rejoins)
            }
            Said::Measured => self.known.measured(peer, 1, None),
            Said::Fork { job, at, shadow } => self
                .known
                .fork(peer, self.number, &name(job), *at, shadow.then_some(3), ForkScope::All),
            Said::Take { fork: index, rank, ranks } => {
                let number = fork(index);
                let effects = self.known.take(peer, number, *rank, *ranks);
                if !effects
                    .iter()
                    .any(|effect| matches!(effect, Effect::Tell { to, .. } if *to == peer))
                {
                    self.takers.insert(peer, number);
                }
                effects
            }
            Said::RankState { forks, step, weight } => {
                let numbers: Vec<_> = (0..=*forks).map(|index| fork(&index)).collect();
                let offer = RankState {
                    reader: 0,
                    epoch: 0,
                    step: *step,
                    replicated: Digests::from_pairs([("w", if *weight { "0" } else { "1" })]),
                    state: *step,
                };
                self.known.offer(peer, &numbers, &offer)
            }
            Said::Withhold { fork: index } => self.known.withhold(peer, &[fork(index)], "why"),
            Said::Loaded => {
                self.loaded.insert(peer);
                self.known.loaded(peer, Digests::default())
            }
            Said::Repeated { fork: index, weight } => {
                self.repeated.insert(peer);
                let digests = Digests::from_pairs([("w", if *weight { "0" } else { "1" })]);
                self.known.repeated(peer, &[fork(index)], &digests)
            }
            Said::Failed => self.known.failed(peer, "why"),
            Said::Gone => {
                let effects = self.known.gone(peer);
                self.takers.remove(&peer);
                self.loaded.remove(&peer);
                self.repeated.remove(&peer);
                effects
            }
        };
        for effect in effects {
            self.see(effect);
        }
    }

    fn see(&mut self, effect: Effect<u64>) {
        match effect {
            Effect::Open { job, secret } => assert!(self.open.insert(job) && self.secrets.insert(secret)),
            Effect::Shut { job } => assert!(self.open.remove(&job)),
            Effect::Forget { secret } => assert!(self.secrets.remove(&secret)),
            Effect::JobPage { job, secret, .. } => assert!(self.open.contains(&job) && self.secrets.contains(&secret)),
            Effect::Want { job, fork, .. } => {
                assert!(self.wanted.insert(fork) && self.wanted.len() <= 2 * FORKS_PER_JOB_MAX);
                assert!(
                    self.known.jobs[&job].looking.iter().all(|looks| *looks),
                    "a rank would be asked that does not look"
                );
            }
            Effect::Unwant { fork, .. } => assert!(self.wanted.remove(&fork)),
            Effect::Give { to, state, others, .. } => {
                let states = self.given.entry(self.takers[&to]).or_default();
                states.insert(state);
                states.extend(others);
                assert_eq!(states.len(), 1, "states of two steps");
            }
            Effect::Tell {
                tell: ForkResponse::Forking { fork, secret, shadow, .. },
                ..
            } => {
                if shadow > 0 {
                    self.shadowed.insert(fork);
                }
                assert!(self.secrets.contains(&secret));
                self.forks.push(fork);
            }
            Effect::Tell {
                to,
                tell: ForkResponse::Exists,
            } => {
                let fork = self.takers[&to];
                assert!(self.loaded.contains(&to) && self.given.contains_key(&fork));
                assert!(self.repeated.contains(&to) || !self.shadowed.contains(&fork), "on probation");
            }
            Effect::Tell {
                to,
                tell: ForkResponse::Shadow,
            } => {
                assert!(self.loaded.contains(&to) && self.shadowed.contains(&self.takers[&to]));
            }
            Effect::Awaited { fork, .. } => assert!(self.wanted.contains(&fork)),
            Effect::Tell { .. } | Effect::Leave { .. } => {}
        }
    }
}

proptest! {
    #[test]
    fn f51_nothing_is_half_and_nothing_is_left(all in vec((0..PEERS, said()), 0..120)) {
        let mut world = World::default();
        for (peer, said) in &all {
            world.hear(*peer, said);
        }
        for peer in 0..PEERS {
            world.hear(peer, &Said::Gone);
        }
        prop_assert!(world.known.jobs.is_empty() && world.known.forks.is_empty());
        prop_assert!(world.known.roles.is_empty() && world.known.secrets.is_empty());
        prop_assert!(world.open.is_empty() && world.secrets.is_empty() && world.wanted.is_empty());
    }
}
