//! The lines of a plan file by which a data loader carries the plan out: `DataLoader(plan="plan.toml")` reads them.

use std::fmt::Write as _;

use forebay_policy::{residency::PolicyName, schedule::ScheduleName};

use super::{PlanAnswer, advice::chosen, keys::RUN};

/// Returns the lines to paste: the policy and schedule that the advice names, and the cache and reads that were
/// simulated. Nothing without rows.
pub fn lines(answer: &PlanAnswer) -> String {
    let Some((policy, schedule)) = chosen(&answer.comparison) else {
        return String::new();
    };
    let policy = policy.scenario.loader.policy;
    let policy = if policy.is_for_loader() { policy } else { PolicyName::Forebay };
    let loader = &schedule.scenario.loader;
    let machines = &answer.input.scenario.machines;
    let mut out = format!("[{RUN}]\n");
    let _ = writeln!(out, "policy = \"{}\"", policy.name());
    let _ = writeln!(out, "schedule = \"{}\"", schedule_of(loader.schedule).name());
    let _ = writeln!(out, "hedge_budget = {:?}", loader.hedge_budget);
    let _ = writeln!(out, "background_fill = {}", loader.background_fill);
    let _ = writeln!(out, "reads = {}", machines.loading_threads);
    let _ = writeln!(out, "cache = [\"ram={}B\"]", machines.cache_bytes);
    out
}

/// Returns the loader's schedule for a simulated one. Simulated threads preprocess for all ranks of a node; those of
/// the loader belong to ranks, and move with `forebay`.
const fn schedule_of(simulated: ScheduleName) -> ScheduleName {
    match simulated {
        ScheduleName::EarliestDeadline => ScheduleName::Forebay,
        other => other,
    }
}
