//! A simulated world (clock, disks, links, ranks) that drives the same policies and schedulers as the runtime. It holds
//! no decision formula of its own: `forebay_policy` decides on fetches, residents and the order of reads.
//!
//! Start here: a [`Scenario`] describes a simulation; [`simulate`] runs it; an [`Outcome`] holds the results, by epoch.
//!
//! # The world
//!
//! Ranks train in step: a step begins when the batches of all ranks are ready and the step before has ended, and takes
//! the same time everywhere. As it begins, its samples count as consumed, and the nodes request those that have come
//! within the window. Each requested sample waits for one of the node's loading threads, is read from the node's
//! memory, a peer or the source, and is then preprocessed by one of the other threads, the nearest step first.
//! Memories, links in each direction and the source carry bytes first come, first served. The source admits a limited
//! number of requests a second and has a lognormal latency. A hedged read's two answers are both sent: a read of a file
//! can't be cancelled.
//!
//! All randomness comes from the seed, and the same read in the same step has the same latency under every policy.

#![forbid(unsafe_code)]

mod calendar;
mod check;
pub mod cluster;
mod decoders;
mod draw;
mod flight;
mod hedging;
mod ideal;
mod learning;
mod machine;
mod node;
mod orders;
pub mod outcome;
mod pipe;
mod rank;
mod reading;
pub mod scenario;
mod sizes;
mod source;
pub mod swarm;
mod tally;
mod world;

use std::fmt;
use std::ops::ControlFlow;

use forebay_policy::residency::Residency;
use forebay_policy::schedule::Scheduler;

use crate::orders::Orders;
use crate::world::SimulatedWorld;

pub use outcome::{EpochFigures, EpochReads, EpochWaits, Outcome, StepTimes};
pub use scenario::{
    Dataset, Decoders, Latency, Link, LoaderSettings, Machines, Preprocessing, Scenario, ScenarioError, SharedStorage, Sizes, TrainingJob,
};

/// Progress of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulationProgress {
    /// Steps that have ended, over all epochs.
    pub steps: u64,
    /// Steps in all.
    pub of: u64,
}

/// Reason for a missing outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The scenario is invalid.
    Scenario(ScenarioError),
    /// The watcher stopped it.
    Stopped,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scenario(error) => error.fmt(out),
            Self::Stopped => write!(out, "stopped"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<ScenarioError> for Failure {
    fn from(error: ScenarioError) -> Self {
        Self::Scenario(error)
    }
}

/// Runs a scenario.
///
/// # Errors
/// Those of [`simulate_with`].
pub fn simulate(scenario: &Scenario, watch: &mut dyn FnMut(SimulationProgress) -> ControlFlow<()>) -> Result<Outcome, Failure> {
    scenario.check()?;
    let node = machine::node_model(scenario, sizes::DrawnSizes::new(scenario).mean());
    simulate_with(
        scenario,
        scenario.residency(&scenario.order()?),
        &mut || scenario.scheduler(&node),
        watch,
    )
}

/// Runs a scenario with a policy and schedulers of the caller's own: `make_scheduler` is called once a node. Those of
/// the scenario are ignored. `watch` is called at the end of each step.
///
/// # Errors
/// [`Failure::Scenario`] if the scenario is invalid, or the policy finds no room for the next step;
/// [`Failure::Stopped`] if `watch` breaks.
pub fn simulate_with(
    scenario: &Scenario,
    residency: Box<dyn Residency>,
    make_scheduler: &mut dyn FnMut() -> Box<dyn Scheduler>,
    watch: &mut dyn FnMut(SimulationProgress) -> ControlFlow<()>,
) -> Result<Outcome, Failure> {
    scenario.check()?;
    // A window reaches beyond the end of an epoch.
    let orders = Orders::new(scenario.order()?, residency.horizon().max(2));
    let sizes = sizes::DrawnSizes::new(scenario);
    SimulatedWorld::new(scenario, sizes, orders, residency, make_scheduler).run(watch)
}
