//! Builds the order, the policy and the scheduler that a loader's settings name.

use forebay_policy::{
    ids::{Cluster, Node, Rank},
    models::{LearnedDecoding, LearnedReads},
    order::{Deal, Order, Permutation},
    peers::SampleShares,
    residency::{PolicyInput, Residency, future::EPOCHS_AHEAD},
    schedule::{NodeModel, ScheduleName, Scheduler},
};

use crate::host::peer_table::PeerTable;

use super::protocol::{Alike, EpochDeal, OrderName};

/// Epochs over which NoPFS counts uses: the loader does not know the length of the training. On a node that has all
/// ranks, all samples are used alike, except for those that an epoch leaves out or repeats.
const TRAINING_EPOCHS: u32 = 8;

/// Returns the order in which all ranks use samples. For a policy that does not look ahead only its number of steps
/// matters, so nothing is permuted.
///
/// # Errors
/// Message for a person, if ranks and batches leave no step.
pub(super) fn order(alike: &Alike) -> Result<Order, String> {
    let deal = Deal::new(alike.deal.samples, alike.deal.world, alike.deal.batch)
        .and_then(|deal| deal.sampler_drop_last(alike.deal.sampler_drop_last))
        .and_then(|deal| deal.loader_drop_last(alike.deal.drop_last))
        .map_err(|error| error.to_string())?;
    Ok(Order {
        permutation: if alike.policy.looks_ahead() {
            permutation(alike.order)
        } else {
            Permutation::Sequential
        },
        seed: alike.seed,
        deal,
    })
}

const fn permutation(order: OrderName) -> Permutation {
    match order {
        OrderName::Torch => Permutation::Torch,
        OrderName::Counter => Permutation::Counter,
        OrderName::Sequential | OrderName::Unknown => Permutation::Sequential,
    }
}

/// Builds the policy, for a cluster that is this node. `first_rank` is the job's number of the node's first rank, if
/// the others follow it.
///
/// # Errors
/// Message for a person, if the policy needs to look ahead and can't.
pub(super) fn residency(alike: &Alike, order: &Order, cluster: Cluster, first_rank: Option<Rank>) -> Result<Box<dyn Residency>, String> {
    if alike.policy.looks_ahead() {
        can_look_ahead(alike, cluster, first_rank)?;
    }
    Ok(alike.policy.build(PolicyInput {
        cluster,
        ranks_before: first_rank.unwrap_or(0),
        samples: alike.extents,
        window: alike.window,
        order,
        training_epochs: TRAINING_EPOCHS,
        epochs_ahead: EPOCHS_AHEAD,
    }))
}

/// Returns the owners of samples among the nodes of a job: by the first epoch if all nodes know its order, else by
/// hash.
///
/// # Errors
/// Message for a person, if ranks and batches leave no step.
pub(super) fn shares(alike: &Alike, local_ranks: u32, peers: &PeerTable) -> Result<SampleShares, String> {
    let nodes = peers.nodes.len() as Node;
    let cluster = Cluster {
        nodes,
        gpus: local_ranks,
        cache_bytes: 0,
        reserved_bytes: 0,
    };
    let groups = peers.groups();
    let is_known = alike.order != OrderName::Unknown && alike.deal.samples == alike.extents;
    if !(is_known && peers.is_even && cluster.world() == alike.deal.world) {
        return Ok(SampleShares::by_hash(groups, peers.here));
    }
    let order = Order {
        permutation: permutation(alike.order),
        ..order(alike)?
    };
    Ok(SampleShares::by_first_use(&order.epoch(0), cluster, groups, peers.here))
}

/// Builds the model of the ranks' decoding, with what a profile knows of it.
pub(super) fn learned(alike: &Alike, ranks: u32) -> LearnedDecoding {
    let mut learned = LearnedDecoding::new(ranks as usize);
    learned.start_from(&alike.threads.profile);
    learned
}

/// Builds the scheduler of `ranks`.
pub(super) fn scheduler(alike: &Alike, ranks: u32) -> Box<dyn Scheduler> {
    // Each rank has a thread of its own.
    let is_static = alike.schedule == ScheduleName::Static;
    let threads = if is_static { alike.reads_max.max(ranks) } else { alike.reads_max };
    alike.schedule.build(threads, ranks, || node(alike, ranks))
}

/// Returns the node as a thread assignment sees it, before anything was measured. One thread stands for decoding, until
/// all ranks have said how many they have.
fn node(alike: &Alike, ranks: u32) -> NodeModel {
    let (load, preprocessing) = LearnedReads::default().models(None, alike.reads_max);
    NodeModel {
        threads: alike.reads_max.max(ranks) + 1,
        ranks,
        load,
        preprocessing,
        tau: alike.threads.tau,
    }
}

/// Returns true if samples are read beyond the window: as background fill, or because the policy has no window.
pub(super) fn reads_beyond(alike: &Alike) -> bool {
    alike.background_fill || alike.policy.is_unbounded()
}

fn can_look_ahead(alike: &Alike, cluster: Cluster, first_rank: Option<Rank>) -> Result<(), String> {
    let (EpochDeal { world, samples, .. }, extents) = (alike.deal, alike.extents);
    let is_in_job = first_rank
        .and_then(|first| first.checked_add(cluster.gpus))
        .is_some_and(|end| end <= world);
    let why = if alike.order == OrderName::Unknown {
        "nobody knows the order of later epochs: give the loader a seed, and neither a sampler nor a shuffle of blocks".into()
    } else if !is_in_job {
        format!(
            "the numbers of the {} ranks of this node do not follow one another within the job's {world}: start the job with consecutive ranks on each node",
            cluster.gpus
        )
    } else if samples != extents {
        format!("{samples} samples lie in {extents} extents: each has to have its own")
    } else {
        return Ok(());
    };
    Err(format!("the policy looks ahead, and {why}; or take the policy forebay"))
}

#[cfg(test)]
mod tests {
    use forebay_policy::residency::PolicyName;

    use super::super::rendezvous::tests::alike;
    use super::*;

    fn cluster(gpus: u32) -> Cluster {
        Cluster {
            nodes: 1,
            gpus,
            cache_bytes: 1 << 20,
            reserved_bytes: 0,
        }
    }

    #[test]
    fn each_policy_and_schedule_has_one_name_everywhere() {
        for policy in PolicyName::ALL {
            let alike = Alike { policy, ..alike() };
            let order = order(&alike).expect("valid settings");
            let built = residency(&alike, &order, cluster(alike.deal.world), Some(0)).expect("valid settings");
            assert_eq!(built.name(), policy.name());
            assert_eq!(serde_json::to_value(policy).expect("serialises"), policy.name());
            assert_eq!(order.permutation == Permutation::Torch, policy.looks_ahead(), "{}", policy.name());
        }
        for schedule in ScheduleName::ALL {
            let alike = Alike { schedule, ..alike() };
            let scheduler = scheduler(&alike, 3);
            let threads = if schedule == ScheduleName::DaliLike { 3 } else { alike.reads_max };
            assert_eq!((scheduler.name(), scheduler.loading_threads()), (schedule.name(), threads));
            assert_eq!(serde_json::to_value(schedule).expect("serialises"), schedule.name());
        }
    }

    #[test]
    fn a_policy_that_looks_ahead_is_refused_where_there_is_nothing_to_see() {
        let belady = Alike {
            policy: PolicyName::Belady,
            ..alike()
        };
        let unknown = Alike {
            order: OrderName::Unknown,
            ..belady.clone()
        };
        let shared = Alike {
            extents: 10,
            ..belady.clone()
        };
        for (alike, ranks, first_rank, why) in [
            (&unknown, 4, Some(0), "give the loader a seed"),
            (
                &belady,
                2,
                None,
                "the numbers of the 2 ranks of this node do not follow one another within the job's 4",
            ),
            (&belady, 2, Some(3), "the numbers of the 2 ranks of this node do not follow"),
            (&shared, 4, Some(0), "100 samples lie in 10 extents"),
        ] {
            let order = order(alike).expect("it can be");
            let told = residency(alike, &order, cluster(ranks), first_rank).err().expect("it can't be");
            assert!(told.contains(why), "{told}");
        }
        let order = order(&belady).expect("it can be");
        assert!(residency(&belady, &order, cluster(2), Some(2)).is_ok(), "a node among others");
    }
}
