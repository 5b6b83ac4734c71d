//! Who plays: the order, the policy and the scheduler that a loader's settings name.

use forebay_policy::{
    ids::Cluster,
    order::{Deal, Order, Permutation},
    residency::{Belady, FillFirst, Forebay, Lobster, Lru, NoCache, Nopfs, Pinned, Residency, nopfs::Uses},
    schedule::{self, EarliestDeadline, FirstCome, NodeModel, Scheduler, Static, lobster::TAU},
};

use super::{
    machine::Speeds,
    protocol::{Alike, OrderName, PolicyName, ScheduleName},
};

/// Epochs over which NoPFS counts uses: nobody says how many training has. On one node all samples are used alike, but for those that an epoch leaves out or
/// repeats.
const TRAINING_EPOCHS: u32 = 8;

/// The order in which all ranks use samples. Where the policy does not look ahead it says only how many steps an epoch has: nobody permutes for nothing.
///
/// # Errors
/// There can be none such, in words for a person.
pub(super) fn order(alike: &Alike) -> Result<Order, String> {
    let deal = Deal::new(alike.samples, alike.world, alike.batch)
        .and_then(|deal| deal.sampler_drop_last(alike.sampler_drop_last))
        .and_then(|deal| deal.loader_drop_last(alike.drop_last))
        .map_err(|error| error.to_string())?;
    Ok(Order {
        permutation: match alike.order {
            OrderName::Torch if looks_ahead(alike.policy) => Permutation::Torch,
            OrderName::Counter if looks_ahead(alike.policy) => Permutation::Counter,
            OrderName::Torch | OrderName::Counter | OrderName::Sequential | OrderName::Unknown => Permutation::Sequential,
        },
        seed: alike.seed,
        deal,
    })
}

/// The policy, for a cluster that is this node.
///
/// # Errors
/// It looks ahead, and can't here; in words for a person.
pub(super) fn residency(alike: &Alike, order: &Order, cluster: Cluster) -> Result<Box<dyn Residency>, String> {
    if looks_ahead(alike.policy) {
        can_look_ahead(alike, cluster)?;
    }
    let (samples, window) = (alike.extents, alike.window);
    let residency: Box<dyn Residency> = match alike.policy {
        PolicyName::None => Box::new(NoCache::new(cluster, samples, window)),
        PolicyName::FillFirst => Box::new(FillFirst::new(cluster, samples, window)),
        PolicyName::Lru => Box::new(Lru::new(cluster, samples, window)),
        PolicyName::Pinned => Box::new(Pinned::new(cluster, samples, window)),
        PolicyName::Nopfs => {
            let epochs = (0..TRAINING_EPOCHS).map(|epoch| order.epoch(epoch));
            Box::new(Nopfs::new(cluster, samples, window, Uses::count(cluster, samples, epochs)))
        }
        PolicyName::Lobster => Box::new(Lobster::corrected(cluster, samples, window)),
        PolicyName::LobsterAsWritten => Box::new(Lobster::as_written(cluster, samples)),
        PolicyName::Belady => Box::new(Belady::new(cluster, samples, window)),
        PolicyName::Forebay => Box::new(Forebay::new(cluster, samples, window)),
    };
    Ok(residency)
}

/// The scheduler of so many ranks.
pub(super) fn scheduler(alike: &Alike, ranks: u32) -> Box<dyn Scheduler> {
    match alike.schedule {
        ScheduleName::FirstCome => Box::new(FirstCome::new(alike.reads_max)),
        ScheduleName::Static => Box::new(Static::new(alike.reads_max.max(ranks), ranks)),
        ScheduleName::Lobster => Box::new(schedule::Lobster::corrected(node(alike, ranks))),
        ScheduleName::LobsterAsWritten => Box::new(schedule::Lobster::as_written(node(alike, ranks))),
        ScheduleName::EarliestDeadline => Box::new(EarliestDeadline::new(alike.reads_max)),
    }
}

/// The node as Lobster's thread assignment has it, before anything was measured. Threads that decode are those of ranks, and nothing is gained by having fewer of
/// them: to the assignment they are one thread, that is as fast as all of them.
fn node(alike: &Alike, ranks: u32) -> NodeModel {
    let (load, preprocessing) = Speeds::default().models(0.0);
    NodeModel {
        threads: alike.reads_max.max(ranks) + 1,
        ranks,
        load,
        preprocessing,
        tau: TAU,
    }
}

/// Whether samples are read beyond the window: because that is wanted, or because the policy has none.
pub(super) fn reads_beyond(alike: &Alike) -> bool {
    alike.background_fill || alike.policy == PolicyName::LobsterAsWritten
}

/// Whether it asks in which order samples will be used. (`forebay` does so only where there are several nodes.)
const fn looks_ahead(policy: PolicyName) -> bool {
    matches!(
        policy,
        PolicyName::Nopfs | PolicyName::Lobster | PolicyName::LobsterAsWritten | PolicyName::Belady
    )
}

fn can_look_ahead(alike: &Alike, cluster: Cluster) -> Result<(), String> {
    let Alike {
        world, samples, extents, ..
    } = *alike;
    let why = if alike.order == OrderName::Unknown {
        "nobody knows the order of later epochs: give the loader a seed, and neither a sampler nor a shuffle of blocks".into()
    } else if world != cluster.gpus {
        format!(
            "it has to hear of all ranks, of which this node has {} and others {}",
            cluster.gpus,
            world.saturating_sub(cluster.gpus)
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
    use super::super::agreement::tests::alike;
    use super::*;

    fn cluster(gpus: u32) -> Cluster {
        Cluster {
            nodes: 1,
            gpus,
            cache_bytes: 1 << 20,
        }
    }

    #[test]
    fn each_policy_is_the_one_that_was_named() {
        let named = [
            (PolicyName::None, "none"),
            (PolicyName::FillFirst, "fill_first"),
            (PolicyName::Lru, "lru"),
            (PolicyName::Pinned, "pinned"),
            (PolicyName::Nopfs, "nopfs"),
            (PolicyName::Lobster, "lobster"),
            (PolicyName::LobsterAsWritten, "lobster_as_written"),
            (PolicyName::Belady, "belady"),
            (PolicyName::Forebay, "forebay"),
        ];
        for (policy, name) in named {
            let alike = Alike { policy, ..alike() };
            let order = order(&alike).expect("it can be");
            assert_eq!(residency(&alike, &order, cluster(alike.world)).expect("it can be").name(), name);
            assert_eq!(serde_json::to_value(policy).expect("it is a name"), name);
            assert_eq!(order.permutation == Permutation::Torch, looks_ahead(policy), "{name}");
        }
    }

    #[test]
    fn each_scheduler_is_the_one_that_was_named() {
        for (schedule, name) in [
            (ScheduleName::FirstCome, "first_come"),
            (ScheduleName::Static, "static"),
            (ScheduleName::Lobster, "lobster"),
            (ScheduleName::LobsterAsWritten, "lobster_as_written"),
            (ScheduleName::EarliestDeadline, "earliest_deadline"),
        ] {
            let alike = Alike { schedule, ..alike() };
            let scheduler = scheduler(&alike, 3);
            assert_eq!((scheduler.name(), scheduler.loading_threads()), (name, alike.reads_max));
            assert_eq!(serde_json::to_value(schedule).expect("it is a name"), name);
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
        for (alike, ranks, why) in [
            (&unknown, 4, "give the loader a seed"),
            (&belady, 3, "this node has 3 and others 1"),
            (&shared, 4, "100 samples lie in 10 extents"),
        ] {
            let order = order(alike).expect("it can be");
            let told = residency(alike, &order, cluster(ranks)).err().expect("it can't be");
            assert!(told.contains(why), "{told}");
        }
    }
}
