//! The page about a run.

use std::{ffi::OsStr, path::Path, time::Duration};

use forebay_contract::Counter;
use forebay_policy::{bounds, ids::Cluster};

use super::{
    first_step, forks, loaders,
    recorded::{Exit, Recorded},
};
use crate::{
    page::{
        Page,
        plots::{self, Frame, LIMIT, PlotLine, RGBColor, SERIES},
    },
    run::{
        beside,
        child::signal_name,
        summary,
        timeline::{Epochs, Moment, Timeline},
    },
};
use forebay_settings::text;

/// Steps that the course of a run is shown in.
const STEPS: u32 = 120;
/// More epochs than these are not pointed out in a plot.
const MARKS_MAX: usize = 30;
/// A tier's size is shown where so much of it was used; else it would make a flat line of what was.
const QUOTA_SHOWN_FROM: f64 = 0.2;
/// The line that is not a tier's.
const THE_SOURCE: &str = "the source";

/// The page; `file` is the record's.
pub fn html(run: &Recorded, file: &Path) -> String {
    let mut page = Page::new("Forebay run", &lead(run), facts(run, file));
    possible(&mut page, run);
    first_step::section(&mut page, run.first_step.as_ref());
    epochs(&mut page, run);
    if run.timeline.moments.len() > 1 && run.timeline.end_s() > 0.0 {
        course(&mut page, run);
    } else {
        page.section(
            "Over time",
            "The record has no times: it was written by an earlier version, or the run was not watched.",
        );
    }
    reasons(&mut page, run);
    loaders::section(&mut page, &run.loaders);
    forks::section(&mut page, &run.forks);
    page.end()
}

/// Returns the most important result, in a sentence or two.
pub fn lead(run: &Recorded) -> String {
    let derived = &run.derived;
    if derived.source_opens == 0 {
        let others = beside::clauses(&run.loaders, &run.forks);
        return if others.is_empty() {
            "Nothing was opened for reading under a source: there was nothing to serve.".into()
        } else {
            format!(
                "The program itself opened nothing for reading under a source; {}.",
                others.join("; ")
            )
        };
    }
    let answered = format!(
        "Local tiers answered {} of {} ({}).",
        text::count(derived.tier_opens),
        text::counted(derived.source_opens, "open", "opens"),
        text::percent(derived.tier_opens, derived.source_opens)
    );
    let missing = derived.tier_opens_at_most - derived.tier_opens.min(derived.tier_opens_at_most);
    let possible = match (derived.tier_opens_at_most, missing) {
        (0, _) => "No file was opened twice, so no more was possible; the next run finds the copies.".into(),
        (_, 0) => "No more was possible: the others were the first opens of their files.".into(),
        (most, missing) => format!("At most {} were possible, {} more.", text::count(most), text::count(missing)),
    };
    format!("{answered} {possible}")
}

fn facts(run: &Recorded, file: &Path) -> Vec<String> {
    let how = match run.exit {
        Exit::Code(0) => String::new(),
        Exit::Code(code) => format!(", exit status {code}"),
        Exit::Signal(number) => format!(", ended by {}", signal_name(number)),
    };
    let processes = text::counted(run.of(Counter::Processes), "process", "processes");
    let mut facts = vec![
        format!("command: {}", text::command_line(run.command.iter().map(OsStr::new), 400)),
        format!(
            "{} on {}, {}{how}, {processes} covered",
            run.started,
            run.host,
            duration(run.seconds)
        ),
    ];
    facts.extend(
        run.sources
            .iter()
            .map(|source| format!("source: {} ({})", source.dir, source.file_system)),
    );
    facts.extend(
        run.tiers
            .iter()
            .map(|tier| format!("tier: {}, up to {} ({})", tier.dir, text::bytes(tier.quota_bytes), tier.why)),
    );
    facts.push(format!("freshness: {}", run.settings.freshness.value));
    facts.extend(
        run.not_covered
            .iter()
            .map(|program| format!("not covered: {}: {}", program.program, program.why)),
    );
    if let Some((median, p99)) = run.derived.source_open_median_s.zip(run.derived.source_open_p99_s) {
        facts.push(format!("to open a file at the source took: {}", text::median_and_p99(median, p99)));
    }
    if run.agent.is_none() {
        facts.push("the agent was gone before the program's end; from then on the source was read".into());
    }
    facts.push(format!("record: {}, written by forebay {}", text::of_path(file), run.forebay));
    facts
}

fn possible(page: &mut Page, run: &Recorded) {
    page.section(
        "The most that was possible",
        "A tier can answer any open but the first of a file, unless an earlier run has left the copy. Bytes are sizes of the files that were opened, \
         however much of them was read.",
    );
    let derived = &run.derived;
    let mut rows = vec![(
        "opens that tiers answered (source opens saved)".to_owned(),
        [
            text::count(derived.tier_opens),
            text::count(derived.tier_opens_at_most),
            text::percent(derived.tier_opens, derived.tier_opens_at_most),
        ],
    )];
    if let Some((epoch, least)) = bytes_bound(run) {
        rows.push((
            format!("bytes from the source in epoch {}", epoch.last),
            [
                text::bytes(epoch.from_source_bytes),
                format!("{} at least", text::bytes(least)),
                if least == 0 && epoch.from_source_bytes > 0 {
                    "-".into()
                } else {
                    text::percent(least.max(1), epoch.from_source_bytes.max(1))
                },
            ],
        ));
    }
    page.table(["this run", "possible", "reached"], rows);
    if let Some((epoch, least)) = bytes_bound(run).filter(|(_, least)| *least > 0) {
        let all = bytes_of(epoch);
        page.words(&format!(
            "The files of an epoch take {}, and the tiers hold {} at most: the rest comes from the source, whatever the policy.",
            text::bytes(all),
            text::bytes(all - least)
        ));
    }
}

/// The last whole epoch that is alone in its row, and the fewest bytes that any policy can read from the source in
/// one like it.
fn bytes_bound(run: &Recorded) -> Option<(&Epochs, u64)> {
    let epoch = run
        .epochs
        .iter()
        .rev()
        .find(|epoch| epoch.whole && epoch.first > 1 && epoch.count() == 1)?;
    let cluster = Cluster {
        nodes: 1,
        gpus: 1,
        cache_bytes: run.tiers.iter().map(|tier| tier.quota_bytes).fold(0, u64::saturating_add),
        reserved_bytes: 0,
    };
    Some((epoch, bounds::source_bytes(bytes_of(epoch), cluster)))
}

/// Sizes of the files that were opened in an epoch.
fn bytes_of(epoch: &Epochs) -> u64 {
    epoch.from_source_bytes + epoch.tiers.iter().map(|tier| tier.bytes).sum::<u64>()
}

fn epochs(page: &mut Page, run: &Recorded) {
    let files = match run.files.one_in {
        0 | 1 => text::count(run.files.opened),
        many => format!("about {} (counted: one in {many})", text::count(run.files.opened)),
    };
    let words = if run.files.opened == 0 {
        "None were found: the program itself opened no file under a source.".to_owned()
    } else if run.epochs.is_empty() {
        format!(
            "None were found. The n-th open of a file belongs to the n-th epoch, so there are epochs where nearly all files are opened equally often; of the {files} \
             files of this run {:.0} % were.",
            100.0 * run.files.even_share
        )
    } else {
        format!(
            "The n-th open of a file belongs to the n-th epoch; an epoch ends when as many opens have been made as there are files, here {files}. Where the run \
             was not looked at in that moment, figures are read off the line between two looks."
        )
    };
    page.section("Epochs", &words);
    if run.epochs.is_empty() {
        return;
    }
    let tiers = run.tiers.iter().map(|tier| format!("from {}", tier.dir));
    let heads = ["time", "opens"].map(String::from).into_iter().chain(tiers);
    let heads = heads.chain(["from the source", "files of these"].map(String::from));
    page.table(heads, run.epochs.iter().map(|epoch| (epoch_name(epoch), epoch_cells(epoch))));
    let names: Vec<String> = run
        .epochs
        .iter()
        .enumerate()
        .map(|(nth, epoch)| bar_name(nth, run.epochs.len(), epoch))
        .collect();
    let shown = series(run);
    let colours: Vec<RGBColor> = shown.iter().map(|(_, colour)| *colour).collect();
    page.legend(shown.iter().map(|(name, colour)| (name.as_str(), *colour)));
    let each = |value: &dyn Fn(&Epochs) -> Vec<u64>| -> Vec<Vec<f64>> {
        let a_epoch = |epoch: &Epochs| value(epoch).iter().map(|part| *part as f64 / epoch.count() as f64).collect();
        run.epochs.iter().map(a_epoch).collect()
    };
    let opens = each(&|epoch| epoch.tiers.iter().map(|tier| tier.opens).chain([epoch.from_source_opens]).collect());
    let times: Vec<Vec<f64>> = run
        .epochs
        .iter()
        .map(|epoch| vec![(epoch.end_s - epoch.begin_s) / epoch.count() as f64])
        .collect();
    let unit = Unit::of_seconds(times.iter().flatten().copied().fold(0.0, f64::max));
    let times: Vec<Vec<f64>> = times
        .iter()
        .map(|stack| stack.iter().map(|time| time / unit.size).collect())
        .collect();
    page.figures(&[
        plots::bars(&Frame::new("epoch", "opens (number)"), &names, &opens, &colours),
        plots::bars(&Frame::new("epoch", &format!("time ({})", unit.name)), &names, &times, &[LIMIT]),
    ]);
}

fn epoch_name(epoch: &Epochs) -> String {
    let end = if epoch.whole { "" } else { ", not ended" };
    if epoch.count() == 1 {
        format!("{}{end}", epoch.first)
    } else {
        format!("{} to {}{end}, each", epoch.first, epoch.last)
    }
}

/// Many names would run into each other.
fn bar_name(nth: usize, all: usize, epoch: &Epochs) -> String {
    if nth.is_multiple_of(all.div_ceil(12)) {
        epoch.first.to_string()
    } else {
        String::new()
    }
}

fn epoch_cells(epoch: &Epochs) -> Vec<String> {
    let each = |number: u64| (number as f64 / epoch.count() as f64).round() as u64;
    let mut cells = vec![
        duration((epoch.end_s - epoch.begin_s) / epoch.count() as f64),
        text::count(each(epoch.source_opens)),
    ];
    cells.extend(epoch.tiers.iter().map(|tier| text::count(each(tier.opens))));
    cells.push(text::count(each(epoch.from_source_opens)));
    cells.push(text::bytes(each(epoch.from_source_bytes)));
    cells
}

/// Returns the names and colours of the series: the tiers, then the source.
fn series(run: &Recorded) -> Vec<(String, RGBColor)> {
    let names = run.tiers.iter().map(|tier| tier.dir.clone()).chain([THE_SOURCE.to_owned()]);
    names.zip(SERIES.into_iter().cycle()).collect()
}

/// Plots over time.
fn course(page: &mut Page, run: &Recorded) {
    let timeline = &run.timeline;
    let time = Unit::of_seconds(timeline.end_s());
    let whole: Vec<f64> = run
        .epochs
        .iter()
        .filter(|epoch| epoch.whole)
        .map(|epoch| epoch.end_s / time.size)
        .collect();
    let marks: &[f64] = if whole.len() > MARKS_MAX { &[] } else { &whole };
    let marked = if marks.is_empty() {
        ""
    } else {
        " Upright lines stand at the ends of epochs."
    };
    let across = format!("time since the program's start ({})", time.name);
    page.section(
        "Throughput",
        &format!("Opens for reading under the sources, and the sizes of the files that these opened, by where they were answered.{marked}"),
    );
    let shown = series(run);
    page.legend(shown.iter().map(|(name, colour)| (name.as_str(), *colour)));
    let bytes = rates(run, &time, |moment| {
        moment
            .tiers
            .iter()
            .map(|tier| tier.bytes)
            .chain([moment.from_source_bytes])
            .collect()
    });
    let opens = rates(run, &time, |moment| {
        moment
            .tiers
            .iter()
            .map(|tier| tier.opens)
            .chain([moment.from_source_opens()])
            .collect()
    });
    let unit = Unit::of_bytes(stacked_most(&bytes));
    page.figures(&[
        plots::areas(
            &Frame::new(&across, &format!("files opened ({}/s)", unit.name)),
            &unit.scaled(bytes),
            marks,
        ),
        plots::areas(&Frame::new(&across, "opens (1/s)"), &opens, marks),
    ]);

    page.section("Cache fill and source operations saved", &fill_words(run));
    let (fill, unit) = fill(run, &time);
    let saved = [
        cumulative(timeline, &time, "all opens under the sources", LIMIT, |moment| moment.source_opens),
        cumulative(timeline, &time, "answered by a tier: saved", SERIES[0], |moment| {
            moment.tiers.iter().map(|tier| tier.opens).sum()
        }),
    ];
    page.legend(fill.iter().chain(&saved).map(|line| (line.name.as_str(), line.colour)));
    page.figures(&[
        plots::lines(&Frame::new(&across, &format!("copies in the tier ({})", unit.name)), &fill, marks),
        plots::lines(&Frame::new(&across, "opens so far (number)"), &saved, marks),
    ]);
}

/// Rates a second of counts that grow, for each tier and the source.
fn rates(run: &Recorded, time: &Unit, counts: impl Fn(&Moment) -> Vec<u64>) -> Vec<PlotLine> {
    let step = run.timeline.end_s() / f64::from(STEPS);
    let seen: Vec<Vec<u64>> = (0..=STEPS).map(|nth| counts(&run.timeline.at(f64::from(nth) * step))).collect();
    let rate = |at: usize, before: &[u64], after: &[u64]| {
        let grown = after.get(at).unwrap_or(&0).saturating_sub(*before.get(at).unwrap_or(&0));
        grown as f64 / step
    };
    let points = |at: usize| {
        let each = seen.iter().zip(seen.iter().skip(1)).zip(0..STEPS);
        each.map(|((before, after), nth)| ((f64::from(nth) + 0.5) * step / time.size, rate(at, before, after)))
            .collect()
    };
    let lines = series(run).into_iter().enumerate();
    lines
        .map(|(at, (name, colour))| PlotLine {
            name,
            colour,
            points: points(at),
        })
        .collect()
}

fn stacked_most(lines: &[PlotLine]) -> f64 {
    let places = lines.first().map_or(0, |line| line.points.len());
    let sum = |at: usize| {
        lines
            .iter()
            .filter_map(|line| line.points.get(at))
            .map(|point| point.1)
            .sum::<f64>()
    };
    (0..places).map(sum).fold(0.0, f64::max)
}

fn cumulative(timeline: &Timeline, time: &Unit, name: &str, colour: RGBColor, value: impl Fn(&Moment) -> u64) -> PlotLine {
    PlotLine {
        name: name.into(),
        colour,
        points: timeline
            .moments
            .iter()
            .map(|moment| (moment.seconds / time.size, value(moment) as f64))
            .collect(),
    }
}

fn fill_words(run: &Recorded) -> String {
    let copied = run.agent.as_ref().map_or_else(String::new, |agent| {
        let files = text::counted(agent.files.files_copied, "file", "files");
        format!(" This run copied {files}, {}.", text::bytes(agent.files.bytes_copied))
    });
    format!("First plot: bytes of copies in each tier, those of other runs with them.{copied} Second plot: what the source was spared.")
}

/// Bytes in each tier, and the sizes of those that were used to a good part; and their unit.
fn fill(run: &Recorded, time: &Unit) -> (Vec<PlotLine>, Unit) {
    let mut lines = Vec::new();
    for ((at, tier), (name, colour)) in run.tiers.iter().enumerate().zip(series(run)) {
        let name = format!("copies in {name}");
        let line = cumulative(&run.timeline, time, &name, colour, |moment| {
            moment.tiers.get(at).map_or(0, |tier| tier.used_bytes)
        });
        let most = line.points.iter().map(|point| point.1).fold(0.0, f64::max);
        let quota = tier.quota_bytes as f64;
        let end = run.timeline.end_s() / time.size;
        lines.push(line);
        if most >= QUOTA_SHOWN_FROM * quota {
            lines.push(PlotLine {
                name: format!("size of {}", tier.dir),
                colour: LIMIT,
                points: vec![(0.0, quota), (end, quota)],
            });
        }
    }
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
    let unit = Unit::of_bytes(most);
    (unit.scaled(lines), unit)
}

/// Why opens and listings were not answered by tiers, and files not copied, or listings not kept.
fn reasons(page: &mut Page, run: &Recorded) {
    page.section(
        "Not from a tier, and why",
        "The first open of each file is not counted here. What was copied in this run serves the next one.",
    );
    let rows = summary::why_not(|counter| run.of(counter), run.agent.as_ref());
    if rows.is_empty() {
        page.words("There was nothing to name.");
        return;
    }
    page.table(["times"], rows.into_iter().map(|(number, why)| (why, [text::count(number)])));
}

fn duration(seconds: f64) -> String {
    text::duration(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}

/// A unit in which the numbers of an axis are short.
struct Unit {
    name: &'static str,
    size: f64,
}

impl Unit {
    fn of_seconds(most: f64) -> Self {
        let (name, size) = match most {
            most if most >= 3.0 * 3600.0 => ("h", 3600.0),
            most if most >= 300.0 => ("min", 60.0),
            most if most >= 1.0 => ("s", 1.0),
            _ => ("ms", 1e-3),
        };
        Self { name, size }
    }

    fn of_bytes(most: f64) -> Self {
        let names = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = Self {
            name: "PiB",
            size: 1024_f64.powi(5),
        };
        for (name, power) in names.into_iter().zip(0..) {
            let size = 1024_f64.powi(power);
            if most < 1024.0 * size {
                unit = Self { name, size };
                break;
            }
        }
        unit
    }

    fn scaled(&self, mut lines: Vec<PlotLine>) -> Vec<PlotLine> {
        for point in lines.iter_mut().flat_map(|line| &mut line.points) {
            point.1 /= self.size;
        }
        lines
    }
}
