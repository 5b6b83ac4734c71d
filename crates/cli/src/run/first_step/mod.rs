//! Time to the first step of a run: its phases, by the files that programs opened in them.
//!
//! The start lasts until the first open under a source, imports and weights from the first to the last file of their
//! kind. A loader or a session says when the first step can begin; of an unmodified program that is not known.

mod advice;

use std::{fmt::Write as _, time::Duration};

use forebay_agent::tiering::Answered;
use forebay_contract::{FileKind, Startup};
use forebay_settings::text;
use serde::{Deserialize, Serialize};

pub use advice::{CopiesLeft, StartupSettings};

/// Shortest time without a file of imports or weights after which programs are past their start, in nanoseconds.
const QUIET_NS: u64 = 10_000_000_000;

/// Ends counting for programs that have not said that their first step has come. That is so once they have opened data,
/// and no file of imports or weights for as long again as it had taken until then, at least ten seconds.
pub fn end_startup(startup: &Startup<'_>, begun_ns: u64, now_ns: u64) {
    let Some((first_data, _)) = startup.opened(FileKind::Data).filter(|_| !startup.is_over()) else {
        return;
    };
    let opened = [FileKind::Import, FileKind::Weights]
        .into_iter()
        .filter_map(|kind| startup.opened(kind));
    let last = opened
        .map(|(_, last)| last)
        .chain(startup.weights_read())
        .fold(first_data, u64::max);
    if now_ns.saturating_sub(last) >= last.saturating_sub(begun_ns).max(QUIET_NS) {
        startup.end(now_ns);
    }
}

/// Part of a run before its first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseName {
    /// Time before the first open under a source.
    Start,
    /// From the first to the last file of code.
    Imports,
    /// From the first open of a file of weights to the last one's last byte.
    Weights,
    /// From the first to the last file of settings.
    Settings,
    /// From the request for the first batch, or the first file of data, to the first step.
    FirstBatch,
}

impl PhaseName {
    /// Returns the name for a person.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Imports => "imports",
            Self::Weights => "weights",
            Self::Settings => "settings",
            Self::FirstBatch => "first batch",
        }
    }
}

/// A phase, with the files of its kind that were opened before the first step. Times are seconds since the program's
/// start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Name of the phase.
    pub name: PhaseName,
    /// Begin of the phase.
    pub begin_s: f64,
    /// End of the phase; `None` if it is not known.
    pub end_s: Option<f64>,
    /// Opens that the source answered.
    pub source: Answered,
    /// Opens that each tier answered, top first.
    pub tiers: Vec<Answered>,
    /// Seconds that opens waited for the source, the sum over all processes.
    pub waited_s: f64,
}

impl Phase {
    /// Returns the duration in seconds; `None` if the end is not known.
    pub fn seconds(&self) -> Option<f64> {
        self.end_s.map(|end| (end - self.begin_s).max(0.0))
    }

    /// Returns the opens that tiers answered.
    pub fn from_tiers(&self) -> Answered {
        self.tiers.iter().fold(Answered::default(), |sum, tier| Answered {
            opens: sum.opens + tier.opens,
            bytes: sum.bytes + tier.bytes,
        })
    }

    /// Returns the number of opens.
    pub fn opens(&self) -> u64 {
        self.source.opens + self.from_tiers().opens
    }
}

/// Course of a run up to its first step. Times are seconds since the program's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FirstStep {
    /// Time of the first batch that a loader handed out; `None` if no loader told of one.
    pub batch_s: Option<f64>,
    /// Time at which the last process that told of a batch had its first one.
    pub last_batch_s: Option<f64>,
    /// Number of processes that told of a batch.
    pub processes: u64,
    /// Time of the first step boundary of a session: the end of the first step.
    pub step_end_s: Option<f64>,
    /// Phases; those of which nothing was seen are left out.
    pub phases: Vec<Phase>,
    /// Sentence on what would have made the time shorter.
    pub advice: Option<String>,
}

impl FirstStep {
    /// Reads the course of a run whose program began at `begun_ns`; `None` if nothing of it was seen.
    pub fn read(startup: &Startup<'_>, begun_ns: u64, tiers: usize) -> Option<Self> {
        let seconds = |ns: u64| ns.saturating_sub(begun_ns) as f64 / 1e9;
        let (batches, step) = (startup.batches(), startup.step());
        let end = batches.map(|batches| batches.first).or(step);
        let files = |name, begin: u64, until: Option<u64>, kind| {
            let (source, waited_ns) = startup.from_source(kind);
            let answered = |files: forebay_contract::startup::OpenedFiles| Answered {
                opens: files.opens,
                bytes: files.bytes,
            };
            Phase {
                name,
                begin_s: seconds(begin),
                end_s: until.map(|until| seconds(until.max(begin))),
                source: answered(source),
                tiers: (0..tiers).map(|tier| answered(startup.from_tier(kind, tier))).collect(),
                waited_s: waited_ns as f64 / 1e9,
            }
        };
        let mut phases = Vec::new();
        let kinds = [
            (PhaseName::Imports, FileKind::Import),
            (PhaseName::Weights, FileKind::Weights),
            (PhaseName::Settings, FileKind::Settings),
        ];
        for (name, kind) in kinds {
            if let Some((first, last)) = startup.opened(kind) {
                let read = startup.weights_read().filter(|_| kind == FileKind::Weights).unwrap_or(last);
                let last = last.max(read);
                phases.push(files(name, first, Some(end.map_or(last, |end| last.min(end))), kind));
            }
        }
        let first_data = startup.opened(FileKind::Data).map(|(first, _)| first);
        let loaded = phases.iter().filter_map(|phase| phase.end_s).fold(0.0, f64::max);
        // A session tells of a step's end alone: what is neither code nor weights then belongs to that step.
        let asked = batches.map(|batches| batches.asked).or(first_data);
        let asked = asked.or_else(|| step.map(|step| step.min(begun_ns + (loaded * 1e9) as u64)));
        if let Some(asked) = asked {
            phases.push(files(PhaseName::FirstBatch, asked, end, FileKind::Data));
        }
        let opened = FileKind::ALL.iter().filter_map(|kind| startup.opened(*kind));
        let first = opened.map(|(first, _)| first).chain(asked).min()?;
        let start = Phase {
            name: PhaseName::Start,
            begin_s: 0.0,
            end_s: Some(seconds(first)),
            source: Answered::default(),
            tiers: vec![Answered::default(); tiers],
            waited_s: 0.0,
        };
        phases.insert(0, start);
        Some(Self {
            batch_s: batches.map(|batches| seconds(batches.first)),
            last_batch_s: batches.map(|batches| seconds(batches.last)),
            processes: batches.map_or(0, |batches| batches.processes),
            step_end_s: step.map(seconds),
            phases,
            advice: None,
        })
    }

    /// Returns a phase.
    pub fn phase(&self, name: PhaseName) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// Returns how long it took, or why that is not known.
    pub fn headline(&self) -> String {
        let mut said = match (self.batch_s, self.step_end_s) {
            (Some(batch), _) => format!("{} to the first batch of a loader", duration(batch)),
            (None, Some(step)) => format!("{} to the end of the first step, as its session tells", duration(step)),
            (None, None) => match self.phase(PhaseName::FirstBatch) {
                Some(data) => format!(
                    "not told by the program; the first file of data was opened after {}",
                    duration(data.begin_s)
                ),
                None => "not told by the program, and no file of data was opened".to_owned(),
            },
        };
        if let Some(last) = self.last_batch_s.filter(|_| self.processes > 1) {
            let _ = write!(
                said,
                " ({} to that of the last of {} processes)",
                duration(last),
                text::count(self.processes)
            );
        }
        if let (Some(_), Some(step)) = (self.batch_s, self.step_end_s) {
            let _ = write!(said, ", {} to the end of the first step", duration(step));
        }
        said
    }

    /// Writes the part of a run's summary.
    pub fn write(&self, out: &mut String) {
        let _ = writeln!(out, "  {:<21}{}", "first step:", self.headline());
        let is_told = self.batch_s.or(self.step_end_s).is_some();
        let is_loading = [PhaseName::Imports, PhaseName::Weights]
            .iter()
            .any(|name| self.phase(*name).is_some());
        if !is_told && !is_loading {
            return;
        }
        for phase in self.phases.iter().filter(|phase| phase.name != PhaseName::Settings) {
            let took = phase.seconds().map_or_else(
                || format!("from {} on", duration(phase.begin_s)),
                |seconds| format!("{}, from {}", duration(seconds), duration(phase.begin_s)),
            );
            let _ = writeln!(out, "  {:<21}{took}{}", format!("- {}:", phase.name.text()), files_text(phase));
        }
        if let Some(advice) = &self.advice {
            let _ = writeln!(out, "  {:<21}{advice}", "- sooner:");
        }
    }
}

/// Describes the files of a phase, if there are any.
fn files_text(phase: &Phase) -> String {
    if phase.opens() == 0 {
        return String::new();
    }
    let opens = text::counted(phase.opens(), "open", "opens");
    let mut said = format!("; {opens}: {} from the source", text::bytes(phase.source.bytes));
    if phase.waited_s > 0.0 {
        let _ = write!(said, " (opens waited {})", text::time_text(phase.waited_s));
    }
    let _ = write!(said, ", {} from tiers", text::bytes(phase.from_tiers().bytes));
    said
}

fn duration(seconds: f64) -> String {
    text::duration(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}

#[cfg(test)]
mod tests;
