//! Parts of states that a host of a clone pulls, and from whom.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
};

use forebay_state::{Manifest, StateHeader, StateStream, StateTransfer, shard};

use super::{
    Ticket,
    message::{ForkObject, HostNote, RankView},
    object_part::{ObjectPart, received_id},
    source_host::SourceHost,
};

/// State of a rank that its host has captured for a fork.
#[derive(Clone, Debug, Default)]
pub(super) struct CapturedState {
    /// Number of the host.
    pub(super) host: usize,
    /// Lengths of its objects there.
    pub(super) view: RankView,
    /// Header of its manifest.
    pub(super) header: StateHeader,
    /// Manifest, without digests that are not known yet.
    pub(super) manifest: Manifest,
}

/// States of all ranks of a job, captured for one fork, by rank.
pub(super) type CapturedStates = BTreeMap<u32, CapturedState>;

/// States that a host of a clone needs, and the other hosts.
#[derive(Debug)]
pub(super) struct HostShare {
    /// Ranks of the job whose states this host needs, in their order.
    pub(super) states: Vec<u32>,
    /// Hosts of the clone, ordered by their ranks; none if this is the only one.
    hosts: Vec<HostNote>,
    /// Number of this host among them.
    here: usize,
    /// True if the clone has another number of ranks than the job: each of them is dealt its part of all states.
    pub(super) is_dealt: bool,
    /// Number of the clone's host that pulls the objects of a rank from the job, by rank; none if the hosts pull the
    /// parts of all objects in turn.
    pullers: Vec<usize>,
}

impl HostShare {
    /// The only host of a clone with so many ranks, of a job with `ranks`.
    pub(super) fn alone(clone_ranks: u32, ranks: u32) -> Self {
        Self {
            states: (0..ranks).collect(),
            is_dealt: clone_ranks != ranks,
            hosts: Vec::new(),
            here: 0,
            pullers: Vec::new(),
        }
    }

    /// The host `here` of the hosts of a clone, ordered by their ranks. If the clone has as many ranks as the job, each
    /// host pulls what the ranks with the same numbers have. Else each rank is dealt its part of all states: every host
    /// needs all of them, and pulls as many parts from the job as the others.
    pub(super) fn of_several(hosts: Vec<HostNote>, here: usize, ranks: u32) -> Self {
        let is_dealt = hosts.iter().map(|host| host.ranks.len()).sum::<usize>() != ranks as usize;
        let same = |rank: u32| hosts.iter().position(|host| host.ranks.contains(&rank)).unwrap_or(here);
        let pullers = if is_dealt { Vec::new() } else { (0..ranks).map(same).collect() };
        let is_needed = |rank: &u32| is_dealt || hosts[here].ranks.contains(rank);
        Self {
            states: (0..ranks).filter(is_needed).collect(),
            is_dealt,
            hosts,
            here,
            pullers,
        }
    }

    /// Returns the number of the clone's host that pulls a part of the objects of a rank from the job. `part` is its
    /// number among the parts of all states.
    fn puller(&self, rank: u32, part: usize) -> usize {
        let in_turn = || part % self.hosts.len().max(1);
        self.pullers.get(rank as usize).copied().unwrap_or_else(in_turn)
    }

    /// Returns whether this host has rank 0 of the clone, and so has the states taken.
    pub(super) const fn leads(&self) -> bool {
        self.here == 0
    }

    /// Makes ready to ask the hosts of the clone.
    ///
    /// # Errors
    /// An address is invalid, or there is no thread.
    pub(super) fn others(&self, ticket: &Ticket) -> Result<Vec<SourceHost>, String> {
        let start = |host: &HostNote| {
            let address: SocketAddr = host.address.parse().map_err(|_| "a host of the clone has no address".to_owned())?;
            SourceHost::start(ticket, &host.address, address)
        };
        self.hosts.iter().map(start).collect()
    }
}

/// Parts that a host of a clone pulls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PullPlan {
    /// Parts by host: first the job's, then the clone's.
    pub(super) queues: Vec<VecDeque<ObjectPart>>,
}

impl PullPlan {
    /// Plans the pulls of a host of a clone. Each part of the replicated entries comes from its rank's host to one host
    /// of the clone, and from there to the others, all in the order of the stream. Own entries come in the same way to
    /// those hosts that need them. Parts with copied entries come first: a rank begins to load once it has those.
    pub(super) fn of(number: u64, states: &CapturedStates, share: &HostShare, hosts: usize) -> Self {
        let mut queues = vec![VecDeque::new(); hosts + share.hosts.len()];
        let (mut of, mut number_of_part) = (0, 0);
        for (rank, CapturedState { host, view, manifest, .. }) in states {
            let transfer = StateTransfer::of(manifest);
            let part = shard(transfer.replicated_bytes, u64::from(*rank), states.len() as u64);
            let id = |object: ForkObject| object.id(number, *rank);
            let shard = ObjectPart::all(id(ForkObject::Shard), view.shard, 0, StateStream::Replicated, part.start);
            let mut parts: Vec<_> = shard.collect();
            if share.states.contains(rank) {
                parts.extend(ObjectPart::all(id(ForkObject::Own), view.own, of, StateStream::Own, 0));
                of += 1;
            }
            let copied = transfer.copied();
            parts.sort_by_key(|part| !copied.overlap(part.stream, &(part.at..part.at + part.bytes)));
            for part in parts {
                let puller = share.puller(*rank, number_of_part);
                number_of_part += 1;
                if puller == share.here {
                    queues[*host].push_back(part);
                } else {
                    queues[hosts + puller].push_back(ObjectPart {
                        id: received_id(number, &part),
                        offset: 0,
                        ..part
                    });
                }
            }
        }
        Self { queues }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_state::{CapturedSection, EntryKind, Layout, Placement, Section};

    use super::*;

    /// States of two ranks at two hosts, with 5 MiB alike and 1 MiB for themselves.
    fn states() -> CapturedStates {
        let kind = |placement, length| EntryKind {
            placement,
            layout: Layout {
                dtype: "f".into(),
                shape: vec![length],
                strides: vec![1],
                device: "cpu".into(),
            },
            length,
        };
        let kinds = vec![kind(Placement::Replicated, 5 << 20), kind(Placement::PerRank, 1 << 20)];
        let section = Section::new(vec!["a".into(), "b".into()], kinds, vec![0, 1]).unwrap();
        let manifest = Manifest {
            sections: vec![CapturedSection::new(Arc::new(section), Vec::new()).unwrap()],
            ..Manifest::default()
        };
        let view = |rank| RankView {
            rank,
            shard: 5 << 19,
            own: 1 << 20,
            ..RankView::default()
        };
        let state = |rank: u32| {
            let captured = CapturedState {
                host: rank as usize,
                view: view(rank),
                manifest: manifest.clone(),
                ..CapturedState::default()
            };
            (rank, captured)
        };
        [0, 1].map(state).into_iter().collect()
    }

    fn note(ranks: &[u32]) -> HostNote {
        HostNote {
            ranks: ranks.to_vec(),
            ..HostNote::default()
        }
    }

    /// Returns the replicated bytes, and the own bytes, that come from each host.
    fn bytes(plan: &PullPlan) -> Vec<(u64, u64)> {
        let of = |queue: &VecDeque<ObjectPart>, stream| queue.iter().filter(|part| part.stream == stream).map(|part| part.bytes).sum();
        plan.queues
            .iter()
            .map(|queue| (of(queue, StateStream::Replicated), of(queue, StateStream::Own)))
            .collect()
    }

    #[test]
    fn one_host_pulls_each_shard_from_its_rank() {
        let share = HostShare::alone(2, 2);
        assert_eq!(bytes(&PullPlan::of(7, &states(), &share, 2)), [(5 << 19, 1 << 20); 2]);
    }

    #[test]
    fn of_two_hosts_each_pulls_one_shard_from_the_job_and_the_other_from_the_other() {
        for here in 0..2 {
            let share = HostShare::of_several(vec![note(&[0]), note(&[1])], here, 2);
            assert_eq!((share.states.clone(), share.leads()), (vec![here as u32], here == 0));
            let mut expected = [(0, 0); 4];
            expected[here] = (5 << 19, 1 << 20);
            expected[2 + 1 - here] = (5 << 19, 0);
            assert_eq!(bytes(&PullPlan::of(7, &states(), &share, 2)), expected);
        }
    }

    #[test]
    fn hosts_of_another_number_of_ranks_have_all_states_and_pull_each_part_from_the_job_once() {
        let plans: Vec<_> = (0..3)
            .map(|here| {
                let share = HostShare::of_several(vec![note(&[0, 1]), note(&[2]), note(&[3])], here, 2);
                assert_eq!(share.states, [0, 1]);
                PullPlan::of(7, &states(), &share, 2)
            })
            .collect();
        let mut from_job = BTreeMap::new();
        for (here, plan) in plans.iter().enumerate() {
            let all = plan.queues.iter().flatten();
            let mut places: Vec<_> = all.map(|part| (part.of, part.stream, part.at, part.bytes)).collect();
            assert_eq!(places.iter().map(|place| place.3).sum::<u64>(), 7 << 20);
            places.sort_unstable();
            let count = places.len();
            places.dedup();
            assert_eq!(count, places.len(), "each part once");
            for part in plan.queues[..2].iter().flatten() {
                assert_eq!(from_job.insert(received_id(7, part), here), None, "from the job once");
            }
        }
        for (here, plan) in plans.iter().enumerate() {
            assert!(plan.queues[2 + here].is_empty());
            for (other, queue) in plan.queues[2..].iter().enumerate() {
                assert!(
                    queue.iter().all(|part| from_job.get(&part.id) == Some(&other)),
                    "who has pulled it gives it"
                );
            }
        }
        assert!(
            (0..3).all(|here| from_job.values().any(|puller| *puller == here)),
            "all hosts take their share"
        );
    }
}
