//! Sentence on what would have made the time to the first step shorter: about the phase that took longest.

use forebay_agent::tiering::protocol::Status;
use forebay_settings::{config::PrefetchMode, text};

use crate::run::plan::Plan;

use super::{FirstStep, Phase, PhaseName, duration};

/// Settings and results of a run on which the sentence depends.
#[derive(Clone, Copy, Debug)]
pub struct StartupSettings {
    /// True if copies answer the loads of shared libraries.
    pub has_libraries: bool,
    /// True if large files are read ahead of the programs that read them first.
    pub reads_ahead: bool,
    /// Copies that the next run finds.
    pub left: CopiesLeft,
    /// Bytes that the tiers hold at most.
    pub tier_bytes: u64,
}

/// Copies that a run leaves for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiesLeft {
    /// The run made no copy.
    Missing,
    /// The copies end with the agent: they are in memory.
    InMemory,
    /// The copies stay on a disk, or with an agent that is kept.
    Kept,
}

impl StartupSettings {
    /// Reads the settings of a run, and the last status of its agent.
    pub fn of(plan: &Plan, agent: Option<&Status>) -> Self {
        let tiers = plan.tiers.iter().map(|tier| &tier.setting);
        let left = if !agent.is_some_and(has_copied) {
            CopiesLeft::Missing
        } else if plan.config.keep.value || tiers.clone().any(|tier| !tier.ram) {
            CopiesLeft::Kept
        } else {
            CopiesLeft::InMemory
        };
        Self {
            has_libraries: plan.config.libraries.value,
            reads_ahead: matches!(plan.config.prefetch.value, PrefetchMode::Auto | PrefetchMode::File),
            left,
            tier_bytes: tiers.map(|tier| tier.bytes).fold(0, u64::saturating_add),
        }
    }
}

/// Returns true if a run made or confirmed a copy, or is making one.
const fn has_copied(status: &Status) -> bool {
    status.files.files_copied + status.files.files_confirmed + status.prefetch.prefetched_files + status.files_in_flight() > 0
}

impl FirstStep {
    /// Returns the course with the sentence.
    #[must_use]
    pub fn advised(self, settings: StartupSettings) -> Self {
        let advice = self.sentence(settings);
        Self { advice, ..self }
    }

    fn sentence(&self, settings: StartupSettings) -> Option<String> {
        let timed = self.phases.iter().filter(|phase| phase.name != PhaseName::Settings);
        let timed = timed.filter_map(|phase| Some((phase, phase.seconds()?)));
        let (phase, seconds) = timed.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let took = format!("{} took longest, {}", phase.name.text(), duration(seconds));
        Some(match phase.name {
            _ if phase.opens() > 0 && phase.source.opens == 0 => {
                format!("{took}, and copies answered all opens of its files: {}", rest(phase))
            }
            PhaseName::Start => format!("{took}, before anything was opened under a source: no copy makes it shorter"),
            PhaseName::Imports => format!("{took}: {}", imports(phase, settings)),
            PhaseName::Weights => format!("{took}: {}", weights(phase, settings)),
            PhaseName::FirstBatch if phase.opens() == 0 => {
                format!(
                    "{took}, and the program itself opened no data: DataLoader(cache=\"DIR=SIZE\") on a disk keeps samples for the next job"
                )
            }
            PhaseName::FirstBatch | PhaseName::Settings => format!("{took}: {}", data(settings)),
        })
    }
}

fn imports(phase: &Phase, settings: StartupSettings) -> String {
    let seen = format!(
        "the source answered {} of {}",
        text::count(phase.source.opens),
        text::counted(phase.opens(), "open", "opens")
    );
    if settings.has_libraries {
        format!("{seen}; {}", next_run(settings))
    } else {
        format!("{seen}; --libraries copies shared libraries, too, and {}", next_run(settings))
    }
}

fn weights(phase: &Phase, settings: StartupSettings) -> String {
    let bytes = text::bytes(phase.source.bytes);
    if phase.source.bytes > settings.tier_bytes {
        return format!("{bytes} came from the source, more than the tiers hold; a larger --tier keeps them for the next run");
    }
    if settings.reads_ahead {
        format!("{bytes} came from the source; {}", next_run(settings))
    } else {
        format!(
            "{bytes} came from the source; --prefetch auto reads them in parallel, and {}",
            next_run(settings)
        )
    }
}

fn data(settings: StartupSettings) -> String {
    format!("its files came from the source; {}", next_run(settings))
}

/// Says what is left of a phase whose files came from copies.
fn rest(phase: &Phase) -> String {
    let own = "the rest is the program's own time, and its questions to the source about names";
    if phase.waited_s > 0.0 {
        format!(
            "opens of missing files waited {} at the source, and {own}",
            text::time_text(phase.waited_s)
        )
    } else {
        own.to_owned()
    }
}

/// Says from where the next run has its files.
const fn next_run(settings: StartupSettings) -> &'static str {
    match settings.left {
        CopiesLeft::Missing => "no copy was made, so the next run takes as long: see the reasons below",
        CopiesLeft::InMemory => {
            "a --tier on a disk, or --keep, leaves the copies for the next run; forebay warm --from RUN makes them ahead of a job"
        }
        CopiesLeft::Kept => "the next run finds copies here; forebay warm --from RUN makes them on another node ahead of a job",
    }
}
