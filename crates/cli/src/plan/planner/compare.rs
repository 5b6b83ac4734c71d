//! Simulations that answer a question: policies, schedules, whole loaders and sweeps, each a scenario of its own.

use std::{
    ops::ControlFlow,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use forebay_policy::bounds;
use forebay_policy::residency::PolicyName;
use forebay_policy::schedule::ScheduleName;
use forebay_sim::{EpochFigures, Failure, LoaderSettings, Outcome, Scenario, ScenarioError, simulate};

use super::input::Input;
use crate::progress::WorkProgress;

/// Interval between two updates of the progress bar.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Parts of a simulation that progress tells apart.
const PARTS: u64 = 100;
/// Caches of all nodes together that the sweep looks at, in per cent of the data.
const CACHE_PERCENT: [u32; 5] = [10, 25, 50, 75, 110];
/// Windows that the sweep looks at, in steps.
const WINDOWS: [u32; 5] = [1, 2, 4, 8, 16];
/// Policies of the cache sweep.
const SWEPT: [PolicyName; 4] = [PolicyName::Forebay, PolicyName::Lobster, PolicyName::Nopfs, PolicyName::Lru];

/// One row: what was simulated, and the figures of its last epoch.
#[derive(Clone, Debug)]
pub struct PlanRow {
    /// Name that distinguishes the row in its table.
    pub label: String,
    /// Result of the simulation.
    pub scenario: Scenario,
    /// The first epoch, in which nothing is cached yet.
    pub cold: EpochFigures,
    /// The last one.
    pub warm: EpochFigures,
    /// Everything else that was seen.
    pub outcome: Outcome,
}

impl PlanRow {
    /// Bytes that the last epoch's steps use: S, and what a sampler repeats to fill the last steps.
    pub fn data_bytes(&self) -> u64 {
        self.warm.reads.local_bytes + self.warm.reads.peer_bytes + self.warm.reads.source_bytes - self.warm.reads.hedged_bytes
    }

    /// The fewest bytes that any policy reads from the source in a warm epoch.
    pub fn bound_bytes(&self) -> u64 {
        bounds::source_bytes(self.data_bytes(), self.scenario.cluster())
    }

    /// Epoch time over the least possible.
    pub fn over_ideal(&self) -> f64 {
        self.warm.seconds / self.warm.ideal_seconds.max(1e-9)
    }
}

/// Rows that differ in one number.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The number's key in a plan file.
    pub key: &'static str,
    /// The number's values, with the rows of each.
    pub points: Vec<(f64, Vec<PlanRow>)>,
}

/// Everything that was simulated.
#[derive(Clone, Debug)]
pub struct PlanComparison {
    /// Policies, with the default schedule.
    pub policies: Vec<PlanRow>,
    /// Schedules, with the default policy.
    pub schedules: Vec<PlanRow>,
    /// Whole loaders: a policy and a schedule that go together.
    pub loaders: Vec<PlanRow>,
    /// Results for other values of one setting: the cache, the number of nodes or the window.
    pub sweeps: Vec<Sweep>,
}

/// Simulates all that a report shows.
///
/// # Errors
/// What the simulator would not take.
pub fn compare(input: &Input, base: &Scenario) -> Result<PlanComparison, ScenarioError> {
    let mut jobs = Vec::new();
    let mut group = |label: String, scenario: Scenario| jobs.push((label, scenario));
    for policy in PolicyName::ALL {
        group(policy.name().into(), with(base, |loader| loader.policy = policy));
    }
    let schedules = schedules(input, base);
    let loaders = loaders(input, base);
    let counts = (PolicyName::ALL.len(), schedules.len(), loaders.len());
    jobs.extend(schedules);
    jobs.extend(loaders);
    let sweeps = sweeps(base);
    jobs.extend(
        sweeps
            .iter()
            .flat_map(|(_, points)| points.iter().flat_map(|(_, rows)| rows.clone())),
    );
    let mut rows = all(jobs)?.into_iter();
    let mut take = |count| rows.by_ref().take(count).collect::<Vec<PlanRow>>();
    Ok(PlanComparison {
        policies: take(counts.0),
        schedules: take(counts.1),
        loaders: take(counts.2),
        sweeps: sweeps
            .into_iter()
            .map(|(key, points)| Sweep {
                key,
                points: points.into_iter().map(|(value, rows)| (value, take(rows.len()))).collect(),
            })
            .collect(),
    })
}

type LabeledScenario = (String, Scenario);

/// Returns a scenario with other settings of the loader.
fn with(base: &Scenario, change: impl FnOnce(&mut LoaderSettings)) -> Scenario {
    let mut scenario = base.clone();
    change(&mut scenario.loader);
    scenario
}

fn schedules(input: &Input, base: &Scenario) -> Vec<LabeledScenario> {
    // Simulated threads preprocess for all ranks, so none moves: Forebay's would be the earliest deadline again. DALI
    // is among the loaders.
    let mut rows: Vec<LabeledScenario> = ScheduleName::ALL
        .into_iter()
        .filter(|schedule| !matches!(schedule, ScheduleName::Forebay | ScheduleName::DaliLike))
        .map(|schedule| (schedule.name().into(), with(base, |loader| loader.schedule = schedule)))
        .collect();
    let hedged = with(base, |loader| loader.hedge_budget = input.hedge);
    rows.insert(1, ("earliest_deadline, hedged".into(), hedged));
    let unfilled = with(base, |loader| loader.background_fill = false);
    rows.insert(2, ("earliest_deadline, no fill".into(), unfilled));
    rows
}

/// The loaders that the Lobster paper compares, as near as policies and schedules come to them, and ours. What
/// PyTorch and DALI keep is what the page cache does: the most recently used.
fn loaders(input: &Input, base: &Scenario) -> Vec<LabeledScenario> {
    /// Batches that both prepare ahead unless told otherwise.
    const AHEAD: u32 = 2;
    /// Loading threads of DALI for each GPU, by the paper.
    const DALI_THREADS: u32 = 3;
    let of = |policy, schedule| with(base, |loader| (loader.policy, loader.schedule) = (policy, schedule));
    let pytorch = with(&of(PolicyName::Lru, ScheduleName::Static), |loader| {
        loader.window = vec![AHEAD];
        loader.background_fill = false;
    });
    let mut dali = with(&pytorch, |loader| loader.schedule = ScheduleName::FirstCome);
    dali.machines.loading_threads = (DALI_THREADS * base.machines.gpus).min(base.machines.threads - 1);
    let ours = with(&of(PolicyName::Forebay, ScheduleName::EarliestDeadline), |loader| {
        loader.hedge_budget = input.hedge;
    });
    vec![
        ("PyTorch".into(), pytorch),
        ("DALI".into(), dali),
        ("NoPFS".into(), of(PolicyName::Nopfs, ScheduleName::Static)),
        ("Lobster".into(), of(PolicyName::Lobster, ScheduleName::Lobster)),
        ("Forebay".into(), ours),
    ]
}

type Points = Vec<(f64, Vec<LabeledScenario>)>;

fn sweeps(base: &Scenario) -> Vec<(&'static str, Points)> {
    let data = data_bytes(base);
    let cache = CACHE_PERCENT.into_iter().map(|percent| {
        let cache_bytes = (data * u64::from(percent) / 100 / u64::from(base.machines.nodes)).max(1);
        let rows = SWEPT.into_iter().map(|policy| {
            let mut scenario = with(base, |loader| loader.policy = policy);
            scenario.machines.cache_bytes = cache_bytes;
            (policy.name().to_owned(), scenario)
        });
        (f64::from(percent), rows.collect())
    });
    let doubled = (0..)
        .map(|power| 1_u16 << power)
        .take_while(|nodes| *nodes <= base.machines.nodes.saturating_mul(2).max(4));
    let mut counts: Vec<u16> = doubled.chain([base.machines.nodes]).collect();
    counts.sort_unstable();
    counts.dedup();
    let nodes = counts.into_iter().filter(|nodes| fits(base, *nodes)).map(|nodes| {
        let rows = [PolicyName::Forebay, PolicyName::Lobster].map(|policy| {
            let mut scenario = with(base, |loader| loader.policy = policy);
            scenario.machines.nodes = nodes;
            (policy.name().to_owned(), scenario)
        });
        (f64::from(nodes), rows.to_vec())
    });
    let window = WINDOWS.into_iter().map(|steps| {
        let scenario = with(base, |loader| loader.window = vec![steps]);
        (f64::from(steps), vec![(base.loader.policy.name().to_owned(), scenario)])
    });
    vec![
        ("cluster.cache", cache.collect()),
        ("cluster.nodes", nodes.collect()),
        ("loader.window", window.collect()),
    ]
}

/// Returns whether each rank of this number of nodes has a few steps an epoch.
fn fits(base: &Scenario, nodes: u16) -> bool {
    const STEPS_MIN: u64 = 8;
    u64::from(base.dataset.samples) >= u64::from(nodes) * u64::from(base.machines.gpus) * u64::from(base.job.batch) * STEPS_MIN
}

/// Bytes of all samples, as expected.
pub fn data_bytes(scenario: &Scenario) -> u64 {
    use forebay_sim::Sizes;
    match &scenario.dataset.sizes {
        Sizes::Equal(mean) | Sizes::Lognormal { mean, .. } => u64::from(*mean) * u64::from(scenario.dataset.samples),
        Sizes::Listed(sizes) => sizes.iter().map(|bytes| u64::from(*bytes)).sum(),
    }
}

/// Simulates all of these at once, as many as there are processors.
fn all(jobs: Vec<LabeledScenario>) -> Result<Vec<PlanRow>, ScenarioError> {
    let progress = WorkProgress::new("simulating", jobs.len() as u64 * PARTS);
    let (next, broken) = (AtomicUsize::new(0), AtomicBool::new(false));
    let workers = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(jobs.len());
    let mut outcomes: Vec<Option<Outcome>> = vec![None; jobs.len()];
    thread::scope(|scope| {
        let (tell, told) = channel();
        for _ in 0..workers {
            let (tell, next, broken, jobs, progress) = (tell.clone(), &next, &broken, &jobs, &progress);
            scope.spawn(move || {
                while let Some((at, (_, scenario))) = jobs.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    if tell.send((at, one(scenario, progress, broken))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        let mut refused = None;
        loop {
            match told.recv_timeout(LOOK_EVERY) {
                Ok((at, Ok(outcome))) => {
                    if let Some(slot) = outcomes.get_mut(at) {
                        *slot = Some(outcome);
                    }
                }
                Ok((_, Err(failure))) => {
                    // The others come to nothing.
                    broken.store(true, Ordering::Relaxed);
                    if let Failure::Scenario(error) = failure {
                        refused.get_or_insert(error);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return refused.map_or(Ok(()), Err),
            }
            progress.refresh();
        }
    })?;
    let rows = jobs.into_iter().zip(outcomes).filter_map(|((label, scenario), outcome)| {
        let outcome = outcome?;
        let (cold, warm) = (outcome.epochs.first()?.clone(), outcome.epochs.last()?.clone());
        Some(PlanRow {
            label,
            scenario,
            cold,
            warm,
            outcome,
        })
    });
    Ok(rows.collect())
}

/// Simulates one, unless another has failed meanwhile.
fn one(scenario: &Scenario, progress: &WorkProgress, broken: &AtomicBool) -> Result<Outcome, Failure> {
    let mut parts = 0;
    let mut watch = |now: forebay_sim::SimulationProgress| {
        let reached = now.steps * PARTS / now.of.max(1);
        progress.advance(reached - parts);
        parts = reached;
        if broken.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    simulate(scenario, &mut watch)
}
