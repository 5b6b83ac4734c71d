//! Who plays: the policies and schedulers that a scenario names.

use forebay_policy::order::Order;
use forebay_policy::residency::nopfs::Uses;
use forebay_policy::residency::{Belady, FillFirst, Forebay, Lobster, Lru, NoCache, Nopfs, Pinned, Residency};
use forebay_policy::schedule::lobster::NodeModel;
use forebay_policy::schedule::{self, EarliestDeadline, FirstCome, Scheduler, Static};

use crate::scenario::{Policy, Scenario, Schedule};

/// Epochs of the training that NoPFS counts uses over: the Lobster paper's.
const TRAINING_EPOCHS: u32 = 50;

/// The policy that a scenario names; `order` is that of [`Scenario::order`].
pub fn residency(scenario: &Scenario, order: &Order) -> Box<dyn Residency> {
    let (cluster, samples, window) = (scenario.cluster(), scenario.dataset.samples, scenario.widest_window());
    match scenario.policy {
        Policy::None => Box::new(NoCache::new(cluster, samples, window)),
        Policy::FillFirst => Box::new(FillFirst::new(cluster, samples, window)),
        Policy::Lru => Box::new(Lru::new(cluster, samples, window)),
        Policy::Pinned => Box::new(Pinned::new(cluster, samples, window)),
        Policy::Nopfs => {
            let epochs = (0..TRAINING_EPOCHS.max(scenario.epochs)).map(|epoch| order.epoch(epoch));
            Box::new(Nopfs::new(cluster, samples, window, Uses::count(cluster, samples, epochs)))
        }
        Policy::LobsterAsWritten => Box::new(Lobster::as_written(cluster, samples)),
        Policy::Lobster => Box::new(Lobster::corrected(cluster, samples, window)),
        Policy::Belady => Box::new(Belady::looking(cluster, samples, window, scenario.horizon)),
        Policy::Forebay => Box::new(Forebay::new(cluster, samples, window)),
        Policy::ForebayRotating => Box::new(Forebay::rotating(cluster, samples, window)),
    }
}

/// A scheduler of one node, as a scenario names it.
pub(crate) fn scheduler(scenario: &Scenario, node: &NodeModel) -> Box<dyn Scheduler> {
    let threads = scenario.loading_threads;
    match scenario.schedule {
        Schedule::FirstCome => Box::new(FirstCome::new(threads)),
        Schedule::Static => Box::new(Static::new(threads, scenario.gpus)),
        Schedule::LobsterAsWritten => Box::new(schedule::Lobster::as_written(node.clone())),
        Schedule::Lobster => Box::new(schedule::Lobster::corrected(node.clone())),
        Schedule::EarliestDeadline => Box::new(EarliestDeadline::new(threads)),
    }
}
