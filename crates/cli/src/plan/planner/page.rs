//! The answer as a page.

use forebay_settings::text;
use forebay_sim::StepTimes;

use super::{
    PlanAnswer,
    compare::{PlanRow, Sweep},
    table,
};
use crate::page::{
    Page,
    plots::{self, Frame, LIMIT, PlotLine, SERIES, Spread},
};

/// The page.
pub fn html(answer: &PlanAnswer) -> String {
    let mut page = Page::new("Forebay plan", &answer.advice, table::facts(answer));
    let comparison = &answer.comparison;
    for (title, words, rows) in [
        (
            "Policies",
            "Which samples stay in memory; all with the same schedule.",
            &comparison.policies,
        ),
        (
            "Schedules",
            "Which read comes next; all with the same policy.",
            &comparison.schedules,
        ),
        (
            "Whole loaders",
            "A policy and a schedule that go together, as the Lobster paper compares them; models of these loaders, not the programs themselves.",
            &comparison.loaders,
        ),
    ] {
        page.section(title, words);
        rows_table(&mut page, rows.iter().map(|row| (row.label.clone(), row)), answer.factor);
    }
    what_if(&mut page, answer);
    imbalance(&mut page, &comparison.loaders);
    breakdown(&mut page, &comparison.loaders);
    reuse(&mut page, answer);
    threads(&mut page, answer);
    page.end()
}

fn rows_table<'a>(page: &mut Page, rows: impl Iterator<Item = (String, &'a PlanRow)>, factor: u32) {
    page.table(table::HEADS, rows.map(|(label, row)| (label, table::row(row, factor))));
}

/// Sweeps: source bytes and epoch time.
fn what_if(page: &mut Page, answer: &PlanAnswer) {
    page.section("What if", "");
    for sweep in &answer.comparison.sweeps {
        let (title, x_label) = match sweep.key {
            "cluster.cache" => ("Cache size", "caches of all nodes (% of the data)"),
            "cluster.nodes" => ("Nodes", "nodes, each with the same cache"),
            _ => ("Window", "window (steps read ahead)"),
        };
        page.part(title);
        let mut source = lines_of(sweep, percent_from_source);
        if sweep.key == "cluster.cache" {
            source.push(bound_line(sweep));
        }
        let time = lines_of(sweep, |row| row.warm.seconds * f64::from(answer.factor));
        let whole = Frame {
            y_end: Some(
                source
                    .iter()
                    .flat_map(|line| &line.points)
                    .fold(105.0, |most, point| point.1.max(most)),
            ),
            ..Frame::new(x_label, "read from the source (% of the data)")
        };
        page.legend(source.iter().map(|line| (line.name.as_str(), line.colour)));
        page.figures(&[
            plots::lines(&whole, &source, &[]),
            plots::lines(&Frame::new(x_label, "epoch time (s)"), &time, &[]),
        ]);
        let rows = sweep.points.iter().flat_map(|(value, rows)| {
            rows.iter()
                .map(|row| (format!("{}: {}", table::point(sweep, *value), row.label), row))
        });
        page.details("Figures", |page| rows_table(page, rows, answer.factor));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a plot has fewer digits")]
fn percent_from_source(row: &PlanRow) -> f64 {
    100.0 * row.warm.reads.source_bytes as f64 / (row.data_bytes() as f64).max(1.0)
}

/// A line for each label of the sweep's rows.
fn lines_of(sweep: &Sweep, value: impl Fn(&PlanRow) -> f64) -> Vec<PlotLine> {
    let labels = sweep
        .points
        .first()
        .map(|(_, rows)| rows)
        .into_iter()
        .flatten()
        .map(|row| &row.label);
    labels
        .zip(SERIES.into_iter().cycle())
        .map(|(label, colour)| PlotLine {
            name: label.clone(),
            colour,
            points: sweep
                .points
                .iter()
                .filter_map(|(at, rows)| Some((*at, value(rows.iter().find(|row| row.label == *label)?))))
                .collect(),
        })
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "a plot has fewer digits")]
fn bound_line(sweep: &Sweep) -> PlotLine {
    let bound = |row: &PlanRow| 100.0 * row.bound_bytes() as f64 / (row.data_bytes() as f64).max(1.0);
    PlotLine {
        name: "bound (no policy reads less)".into(),
        colour: LIMIT,
        points: sweep
            .points
            .iter()
            .filter_map(|(at, rows)| Some((*at, bound(rows.first()?))))
            .collect(),
    }
}

/// The paper's Figure 8.
fn imbalance(page: &mut Page, loaders: &[PlanRow]) {
    page.section(
        "Imbalance and step time",
        "First plot: steps in which some GPUs had to wait for their own batch more than 5 % of a step longer than \
         others (imbalanced), and in which all waited alike (stalled). Second plot: time of a step: the box from the 25th to the 75th percentile, \
         the median in it, whiskers from the 1st to the 99th. As the Lobster paper's Figure 8.",
    );
    let names: Vec<String> = loaders.iter().map(|row| row.label.clone()).collect();
    let share = |steps: u32, row: &PlanRow| 100.0 * f64::from(steps) / f64::from(row.warm.iterations.max(1));
    let stacks: Vec<Vec<f64>> = loaders
        .iter()
        .map(|row| vec![share(row.warm.waits.imbalanced, row), share(row.warm.waits.stalled, row)])
        .collect();
    let spreads: Vec<Spread> = loaders.iter().map(|row| spread(&row.outcome.step_times_s)).collect();
    page.legend(["imbalanced", "stalled"].into_iter().zip(SERIES));
    let steps = Frame {
        y_end: Some(105.0),
        ..Frame::new("loader", "steps (%)")
    };
    page.figures(&[
        plots::bars(&steps, &names, &stacks, &SERIES),
        plots::boxes(&Frame::new("loader", "time of a step (ms)"), &names, &spreads),
    ]);
}

/// In milliseconds.
fn spread(times_s: &[f32]) -> Spread {
    let mut sorted: Vec<f64> = times_s.iter().map(|time| f64::from(*time) * 1e3).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    [1, 25, 50, 75, 99].map(|percent| {
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(0.0)
    })
}

/// The paper's Figure 3, for the loader with most imbalance and for the last one, ours.
fn breakdown(page: &mut Page, loaders: &[PlanRow]) {
    page.section(
        "Steps by GPU",
        "What each GPU does in the first eight, the middle eight and the last eight steps of the last epoch: it waits for \
         its own batch, then for the slowest GPU's, then trains. Shown are the GPU of the first node that waits longest for its own batches, the \
         one that waits least, and one of the second node, if there is one. As the Lobster paper's Figure 3.",
    );
    page.legend(
        ["waits for its own batch", "waits for other GPUs", "trains"]
            .into_iter()
            .zip(SERIES),
    );
    let (ours, others) = match loaders.split_last() {
        Some((ours, others)) => (Some(ours), others),
        None => (None, loaders),
    };
    let shown: Vec<&PlanRow> = others
        .iter()
        .max_by_key(|row| row.warm.waits.imbalanced)
        .into_iter()
        .chain(ours)
        .collect();
    let longest = shown
        .iter()
        .flat_map(|row| parts(&row.outcome.steps))
        .flat_map(|(_, _, parts)| [parts.iter().sum::<f64>()]);
    let y_end = longest.fold(0.0, f64::max) * 1.05;
    for row in shown {
        page.part(&row.label);
        let ranks = ranks_shown(row);
        let svgs: Vec<String> = ranks.iter().map(|rank| steps_of(row, *rank, y_end)).collect();
        page.figures(&svgs);
    }
}

/// Rank, iteration and milliseconds of waiting for its own batch, waiting for others, training.
fn parts(steps: &[StepTimes]) -> impl Iterator<Item = (u32, u32, Vec<f64>)> + '_ {
    steps.iter().map(|step| {
        let slowest = steps
            .iter()
            .filter(|other| other.iteration == step.iteration)
            .map(|other| other.late_s)
            .fold(0.0, f64::max);
        let parts = [step.late_s, slowest - step.late_s, step.train_s].map(|seconds| seconds * 1e3);
        (step.rank, step.iteration, parts.to_vec())
    })
}

/// Returns the ranks to draw: on the first node the GPUs that wait longest and least for their own batches, and the
/// second node's first GPU, if there is one.
fn ranks_shown(row: &PlanRow) -> Vec<u32> {
    let gpus = row.scenario.machines.gpus;
    let mut waits = vec![0.0; gpus as usize];
    for step in &row.outcome.steps {
        if let Some(wait) = waits.get_mut(step.rank as usize) {
            *wait += step.late_s;
        }
    }
    let mut first: Vec<u32> = (0..gpus).collect();
    let wait = |rank: &u32| waits.get(*rank as usize).copied().unwrap_or(0.0);
    first.sort_by(|a, b| wait(b).total_cmp(&wait(a)));
    let mut ranks: Vec<u32> = first
        .first()
        .into_iter()
        .chain(first.get(1..).and_then(<[u32]>::last))
        .copied()
        .collect();
    if row.scenario.machines.nodes > 1 {
        ranks.push(gpus);
    }
    ranks
}

fn steps_of(row: &PlanRow, rank: u32, y_end: f64) -> String {
    let (node, gpu) = (rank / row.scenario.machines.gpus, rank % row.scenario.machines.gpus);
    let stacks: Vec<(u32, Vec<f64>)> = parts(&row.outcome.steps)
        .filter(|(of, ..)| *of == rank)
        .map(|(_, iteration, parts)| (iteration, parts))
        .collect();
    // Twenty-four numbers would run into each other.
    let names: Vec<String> = stacks
        .iter()
        .enumerate()
        .map(|(at, (iteration, _))| if at % 4 == 0 { iteration.to_string() } else { String::new() })
        .collect();
    let stacks: Vec<Vec<f64>> = stacks.into_iter().map(|(_, parts)| parts).collect();
    let frame = Frame {
        size: (380, 260),
        y_end: Some(y_end),
        ..Frame::new(&format!("step (node {node}, GPU {gpu})"), "time (ms)")
    };
    plots::bars(&frame, &names, &stacks, &SERIES)
}

/// The paper's Figure 4.
fn reuse(page: &mut Page, answer: &PlanAnswer) {
    let reuse = &answer.reuse;
    let words = format!(
        "Steps between two uses of a sample at the first node, over three epochs; the line stands at an epoch's end. \
         {:.0} % of the uses come at least an epoch's length after the one before. As the Lobster paper's Figure 4.",
        100.0 * reuse.share_from(reuse.epoch_steps)
    );
    page.section("Reuse distances", &words);
    let all: u64 = reuse.counts.iter().sum();
    let used = reuse.counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    #[expect(clippy::cast_precision_loss, reason = "a plot has fewer digits")]
    let heights: Vec<f64> = reuse
        .counts
        .iter()
        .take(used)
        .map(|count| 100.0 * *count as f64 / all.max(1) as f64)
        .collect();
    let frame = Frame::new("reuse distance (steps)", "uses (%)");
    page.figures(&[plots::histogram(
        &frame,
        f64::from(reuse.bin_steps),
        &heights,
        Some(f64::from(reuse.epoch_steps)),
    )]);
}

/// The paper's Figure 6: as measured, or as the file has it.
fn threads(page: &mut Page, answer: &PlanAnswer) {
    let preprocessing = &answer.input.scenario.preprocessing;
    let measured = answer
        .input
        .measured
        .as_ref()
        .map(|measured| &measured.preprocessing)
        .filter(|rounds| !rounds.is_empty());
    let (words, points): (&str, Vec<(f64, f64)>) = if let Some(rounds) = measured {
        (
            "as forebay profile measured it",
            rounds.iter().map(|round| (f64::from(round.threads), round.samples_per_s)).collect(),
        )
    } else if preprocessing.seconds_a_sample > 0.0 {
        let rate = |threads: u32| f64::from(threads) / (preprocessing.seconds_a_sample * preprocessing.slowdown(threads));
        let most = answer.input.scenario.machines.threads;
        (
            "as the file describes it",
            (1..=most).map(|threads| (f64::from(threads), rate(threads))).collect(),
        )
    } else {
        return;
    };
    let words = format!(
        "Throughput of a node, {words}; the line stands at {}, past which it no longer gains. As the Lobster paper's Figure 6.",
        text::counted(u64::from(preprocessing.saturates_at), "thread", "threads")
    );
    page.section("Preprocessing by threads", &words);
    let line = PlotLine {
        name: "throughput".into(),
        colour: SERIES[0],
        points,
    };
    let frame = Frame::new("preprocessing threads", "throughput (samples/s)");
    page.figures(&[plots::lines(&frame, &[line], &[f64::from(preprocessing.saturates_at)])]);
}
