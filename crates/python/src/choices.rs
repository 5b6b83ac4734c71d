//! Names of the loader's policies and schedules, which `forebay_policy` declares.

use forebay_policy::{residency::PolicyName, schedule::ScheduleName};
use pyo3::prelude::*;

/// Returns the policies that a loader may choose: their names, true if the policy looks ahead, and true if only
/// memory bounds its prefetch.
#[pyfunction]
pub(crate) fn loader_policies() -> Vec<(&'static str, bool, bool)> {
    let offered = PolicyName::ALL.into_iter().filter(|policy| policy.is_for_loader());
    offered
        .map(|policy| (policy.name(), policy.looks_ahead(), policy.is_unbounded()))
        .collect()
}

/// Returns the names of the schedules that a loader may choose.
#[pyfunction]
pub(crate) fn loader_schedules() -> Vec<&'static str> {
    ScheduleName::ALL.map(ScheduleName::name).to_vec()
}
