//! The answer as JSON.

use forebay_sim::EpochFigures;
use serde_json::{Value, json};

use super::{PlanAnswer, compare::PlanRow};

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// All of it. Units stand last in names; figures are of the scaled dataset, if it was scaled.
pub fn json(answer: &PlanAnswer) -> Value {
    let rows = |rows: &[PlanRow]| rows.iter().map(row).collect::<Vec<Value>>();
    let comparison = &answer.comparison;
    json!({
        "schema": SCHEMA,
        "scaled_down_by": answer.factor,
        "assumed": answer.input.assumed,
        "policies": rows(&comparison.policies),
        "schedules": rows(&comparison.schedules),
        "loaders": rows(&comparison.loaders),
        "sweeps": comparison.sweeps.iter().map(|sweep| json!({
            "key": sweep.key,
            "unit": if sweep.key == "cluster.cache" { "percent_of_data_in_all_caches" } else { "count" },
            "points": sweep.points.iter().map(|(value, of)| json!({ "value": value, "rows": rows(of) })).collect::<Vec<Value>>(),
        })).collect::<Vec<Value>>(),
        "reuse": {
            "bin_steps": answer.reuse.bin_steps,
            "epoch_steps": answer.reuse.epoch_steps,
            "counts": answer.reuse.counts,
        },
        "advice": answer.advice,
    })
}

fn row(row: &PlanRow) -> Value {
    let scenario = &row.scenario;
    json!({
        "label": row.label,
        "policy": scenario.loader.policy.name(),
        "schedule": scenario.loader.schedule.name(),
        "hedge_budget": scenario.loader.hedge_budget,
        "background_fill": scenario.loader.background_fill,
        "nodes": scenario.machines.nodes,
        "cache_bytes": scenario.machines.cache_bytes,
        "window_steps": scenario.loader.window,
        "data_bytes": row.data_bytes(),
        "source_bytes_bound": row.bound_bytes(),
        "cold": epoch(&row.cold),
        "warm": epoch(&row.warm),
    })
}

fn epoch(figures: &EpochFigures) -> Value {
    json!({
        "iterations": figures.iterations,
        "seconds": figures.seconds,
        "ideal_seconds": figures.ideal_seconds,
        "source_bytes": figures.reads.source_bytes,
        "source_requests": figures.reads.source_requests,
        "hedged_bytes": figures.reads.hedged_bytes,
        "local_bytes": figures.reads.local_bytes,
        "peer_bytes": figures.reads.peer_bytes,
        "samples_by_origin": { "local": figures.reads.samples_by_origin[0], "peer": figures.reads.samples_by_origin[1], "source": figures.reads.samples_by_origin[2] },
        "samples_ready": figures.reads.samples_ready,
        "stalled_seconds": figures.waits.stalled_seconds,
        "stalled_iterations": figures.waits.stalled,
        "imbalanced_iterations": figures.waits.imbalanced,
        "step_p50_s": figures.waits.step_p50_s,
        "step_p99_s": figures.waits.step_p99_s,
        "gpu_use": figures.gpu_use,
        "held_bytes_max": figures.held_bytes_max,
        "window_bytes_max": figures.window_bytes_max,
    })
}
