//! `forebay top`: the present activity of this user's agents on this node. Reads the counters of agents and preload
//! libraries; changes nothing.

mod figures;
mod loaders;
mod screen;

use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use forebay_agent::{
    host::shared::SharedFile,
    samples::status::SamplesStatus,
    tiering::{Counts, TieringConnection, protocol::Status},
};
use forebay_contract::Run;
use forebay_settings::{
    config::{Config, WrittenSettings},
    environment::Environment,
    mounts::Mounts,
    places::{self, agents_in},
    user_error::UserError,
};

use crate::{args::TopArgs, inspect::samples_of};

/// Status of the agents at one moment.
#[derive(Clone, Debug)]
pub struct AgentsSnapshot {
    /// Time of the look.
    pub at: Instant,
    /// Each agent that stands.
    pub agents: Vec<TopAgent>,
    /// Loaders of this user's jobs; `None` if no agent serves any.
    pub samples: Option<SamplesStatus>,
}

/// An agent and its runs.
#[derive(Clone, Debug)]
pub struct TopAgent {
    /// Its directory.
    pub dir: PathBuf,
    /// The agent's totals since its start.
    pub status: Status,
    /// Sums of the counters of its present runs.
    pub counts: Counts,
}

impl AgentsSnapshot {
    /// Looks now.
    pub fn now(runtime_dir: &Path) -> Self {
        Self {
            at: Instant::now(),
            agents: agents_in(runtime_dir).iter().filter_map(|dir| TopAgent::at(dir)).collect(),
            samples: samples_of(runtime_dir).filter(|samples| samples.running > 0),
        }
    }

    fn is_empty(&self) -> bool {
        self.agents.is_empty() && self.samples.is_none()
    }
}

impl TopAgent {
    /// The agent that has its directory here; `None` if none answers.
    fn at(dir: &Path) -> Option<Self> {
        let status = TieringConnection::open(dir).and_then(|mut agent| agent.status()).ok()?;
        let mut counts = Counts::none(status.tiers.len());
        for entry in dir.read_dir().into_iter().flatten().filter_map(Result::ok) {
            if !entry.file_name().to_string_lossy().starts_with("run.") {
                continue;
            }
            // A run that is just ending has no page any more.
            if let Ok(page) = SharedFile::open(&entry.path())
                && let Some(run) = Run::open(page.region())
            {
                counts.add(&Counts::read(&run, status.tiers.len()));
            }
        }
        Some(Self {
            dir: dir.to_owned(),
            status,
            counts,
        })
    }

    /// Opens under the sources that the source answered.
    pub fn from_source(&self) -> u64 {
        self.counts.from_source_opens()
    }
}

/// Shows what goes on until `q` is typed, or once.
///
/// # Errors
/// A configuration that can't be read, or no terminal to draw on.
pub fn top(args: &TopArgs, environment: &Environment) -> Result<(), UserError> {
    let config = Config::resolve(&WrittenSettings::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read()).value;
    let pause = Duration::from_secs_f64(args.interval);
    if args.once || !std::io::stdout().is_terminal() {
        let before = AgentsSnapshot::now(&runtime_dir);
        if !before.is_empty() {
            thread::sleep(pause);
        }
        let text = figures::lines(&before, &AgentsSnapshot::now(&runtime_dir)).join("\n");
        // A closed output is not an error.
        let _ = writeln!(std::io::stdout(), "{text}");
        return Ok(());
    }
    screen::run(&runtime_dir, pause)
        .map_err(|error| UserError::bad_input(format_args!("the terminal: {error}; forebay top --once prints lines")))
}
