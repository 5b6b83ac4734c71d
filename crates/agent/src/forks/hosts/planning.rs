//! Parts of states that a host of a clone pulls, and from whom.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
};

use forebay_state::{Manifest, StateHeader, StateStream, StateTransfer, shard};

use super::{
    Ticket,
    message::{ForkObject, HostNote, RankView},
    pulling::ObjectPart,
    sharing::received_id,
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

/// Ranks of a clone at one of its hosts, and the other hosts.
#[derive(Debug, Default)]
pub(super) struct HostShare {
    /// Ranks at this host, in their order.
    pub(super) ranks: Vec<u32>,
    /// Hosts of the clone, ordered by their ranks; none if this is the only one.
    pub(super) hosts: Vec<HostNote>,
    /// Number of this host among them.
    pub(super) here: usize,
}

impl HostShare {
    /// Returns the number of the clone's host that pulls the shard of a rank from the job: the one with the same rank.
    fn puller(&self, rank: u32) -> usize {
        self.hosts.iter().position(|host| host.ranks.contains(&rank)).unwrap_or(self.here)
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
    /// Plans the pulls of a host of a clone. Of replicated entries each shard comes from its rank's host to the host of
    /// the clone that has the same rank, and from there to the others, all in the order of the stream; own entries come
    /// from their rank's host.
    pub(super) fn of(number: u64, states: &CapturedStates, share: &HostShare, hosts: usize) -> Self {
        let mut queues = vec![VecDeque::new(); hosts + share.hosts.len()];
        let mut of = 0;
        for (rank, CapturedState { host, view, manifest, .. }) in states {
            let transfer = StateTransfer::of(manifest);
            let part = shard(transfer.replicated_bytes, u64::from(*rank), states.len() as u64);
            let id = |object: ForkObject| object.id(number, *rank);
            let parts = ObjectPart::all(id(ForkObject::Shard), view.shard, 0, StateStream::Replicated, part.start);
            let puller = share.puller(*rank);
            if puller == share.here {
                queues[*host].extend(parts);
            } else {
                let gathered = |part: ObjectPart| ObjectPart {
                    id: received_id(number, &part),
                    offset: 0,
                    ..part
                };
                queues[hosts + puller].extend(parts.map(gathered));
            }
            if share.ranks.contains(rank) {
                queues[*host].extend(ObjectPart::all(id(ForkObject::Own), view.own, of, StateStream::Own, 0));
                of += 1;
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
        let share = HostShare {
            ranks: vec![0, 1],
            ..HostShare::default()
        };
        assert_eq!(bytes(&PullPlan::of(7, &states(), &share, 2)), [(5 << 19, 1 << 20); 2]);
    }

    #[test]
    fn of_two_hosts_each_pulls_one_shard_from_the_job_and_the_other_from_the_other() {
        for here in 0..2 {
            let share = HostShare {
                ranks: vec![here as u32],
                hosts: vec![note(&[0]), note(&[1])],
                here,
            };
            let mut expected = [(0, 0); 4];
            expected[here] = (5 << 19, 1 << 20);
            expected[2 + 1 - here] = (5 << 19, 0);
            assert_eq!(bytes(&PullPlan::of(7, &states(), &share, 2)), expected);
        }
    }
}
