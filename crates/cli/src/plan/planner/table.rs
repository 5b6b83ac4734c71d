//! The answer as text.

use forebay_settings::text::{rate_text, size_text, time_text};
use std::fmt::Write as _;

use super::{
    PlanAnswer, carry_out,
    compare::{PlanRow, Sweep},
};
use forebay_settings::text;

/// Heads of the columns of [`row`], after the label.
pub const HEADS: [&str; 9] = [
    "source/S",
    "over bound",
    "peers/S",
    "epoch",
    "over ideal",
    "stalled",
    "imbalanced",
    "p99 step",
    "ready",
];

/// Returns the cells of a row. The simulated dataset was smaller than the user's by `factor`; epochs are shown longer
/// by it.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn row(row: &PlanRow, factor: u32) -> [String; 9] {
    let (warm, data, bound) = (&row.warm, row.data_bytes() as f64, row.bound_bytes());
    let over_bound = if bound == 0 {
        "-".into()
    } else {
        format!("{:.3}", warm.reads.source_bytes as f64 / bound as f64)
    };
    let samples: u64 = warm.reads.samples_by_origin.iter().sum();
    [
        format!("{:.3}", warm.reads.source_bytes as f64 / data.max(1.0)),
        over_bound,
        format!("{:.3}", warm.reads.peer_bytes as f64 / data.max(1.0)),
        time_text(warm.seconds * f64::from(factor)),
        format!("{:.3}", row.over_ideal()),
        format!("{:.1} %", 100.0 * warm.waits.stalled_seconds / warm.seconds.max(1e-9)),
        text::percent(warm.waits.imbalanced.into(), warm.iterations.into()),
        time_text(warm.waits.step_p99_s),
        text::percent(warm.reads.samples_ready, samples),
    ]
}

/// All of it.
pub fn text(answer: &PlanAnswer) -> String {
    let mut out = String::new();
    for line in facts(answer) {
        let _ = writeln!(out, "{line}");
    }
    for (title, rows) in [
        ("policy", &answer.comparison.policies),
        ("schedule", &answer.comparison.schedules),
        ("loader", &answer.comparison.loaders),
    ] {
        let lines = rows.iter().map(|each| (each.label.clone(), row(each, answer.factor)));
        table(&mut out, title, lines);
    }
    for sweep in &answer.comparison.sweeps {
        sweep_table(&mut out, sweep, answer.factor);
    }
    let _ = writeln!(out, "\n{}", answer.advice);
    let lines = carry_out::lines(answer);
    if !lines.is_empty() {
        let file = &answer.input.file;
        let _ = write!(
            out,
            "\nTo carry it out, append these lines to {file}, and give DataLoader(plan=\"{file}\"):\n\n{lines}"
        );
    }
    out
}

/// Source bytes over S, and epoch time: a line for each value, a column for each policy.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn sweep_table(out: &mut String, sweep: &Sweep, factor: u32) {
    out.push('\n');
    let labels = sweep
        .points
        .first()
        .map(|(_, rows)| rows)
        .into_iter()
        .flatten()
        .map(|row| row.label.clone());
    lines_of_cells(out, &format!("what if {}: source/S, epoch", sweep.key), labels);
    for (value, rows) in &sweep.points {
        let cells = rows.iter().map(|row| {
            let share = row.warm.reads.source_bytes as f64 / (row.data_bytes() as f64).max(1.0);
            format!("{share:.3}, {}", time_text(row.warm.seconds * f64::from(factor)))
        });
        lines_of_cells(out, &point(sweep, *value), cells);
    }
}

fn lines_of_cells(out: &mut String, first: &str, cells: impl Iterator<Item = String>) {
    let mut line = format!("{first:<38}");
    for cell in cells {
        let _ = write!(line, "  {cell:<20}");
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// The value of a sweep's number, with its unit.
pub fn point(sweep: &Sweep, value: f64) -> String {
    if sweep.key == "cluster.cache" {
        format!("{value} % of S")
    } else {
        value.to_string()
    }
}

/// Describes the simulated scenario, line by line.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn facts(answer: &PlanAnswer) -> Vec<String> {
    let whole = &answer.input.scenario;
    let data = super::compare::data_bytes(whole) as f64;
    let all_cache = f64::from(whole.machines.nodes) * whole.machines.cache_bytes as f64;
    let mut lines = vec![format!(
        "{} of {} on {}, batches of {}, {} a step; caches hold {:.1} % of S = {}; source {}",
        text::counted(whole.dataset.samples.into(), "sample", "samples"),
        size_text(data / f64::from(whole.dataset.samples.max(1))),
        gpus(whole.machines.nodes.into(), whole.machines.gpus.into()),
        whole.job.batch,
        time_text(whole.job.step_s),
        100.0 * all_cache / data.max(1.0),
        size_text(data),
        rate_text(whole.source.bytes_per_s),
    )];
    if !answer.input.assumed.is_empty() {
        lines.push(format!("assumed, since the file does not say: {}", answer.input.assumed.join(", ")));
    }
    if answer.factor > 1 {
        lines.push(format!(
            "scaled down: one in {} samples, in as much less cache ({} steps an epoch instead of {}); a window weighs more so. \
             --samples all simulates the whole",
            text::count(answer.factor.into()),
            text::count(answer.steps().into()),
            text::count(whole.order().map_or(0, |order| order.deal.iterations()).into()),
        ));
    }
    lines.push(format!(
        "figures are of the last of {} epochs; S: all samples' bytes; over bound: source bytes over S less all caches; over ideal: epoch time \
         over the least possible",
        whole.job.epochs
    ));
    lines
}

fn gpus(nodes: u64, gpus: u64) -> String {
    let each = text::counted(gpus, "GPU", "GPUs");
    if nodes == 1 {
        format!("1 node with {each}")
    } else {
        format!("{nodes} nodes with {each} each")
    }
}

fn table(out: &mut String, title: &str, lines: impl Iterator<Item = (String, [String; 9])>) {
    let lines: Vec<(String, [String; 9])> = lines.collect();
    let width = lines.iter().map(|(label, _)| label.len()).chain([title.len()]).max().unwrap_or(0);
    let _ = write!(out, "\n{title:<width$}");
    for head in HEADS {
        let _ = write!(out, "  {head:>10}");
    }
    out.push('\n');
    for (label, cells) in lines {
        let _ = write!(out, "{label:<width$}");
        for cell in cells {
            let _ = write!(out, "  {cell:>10}");
        }
        out.push('\n');
    }
}
