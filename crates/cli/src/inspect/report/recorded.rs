//! A record of a run, read again.

use std::{collections::BTreeMap, path::Path};

use forebay_agent::tiering::protocol::Status;
use forebay_contract::Counter;
use serde::Deserialize;

use super::read;
use crate::run::{
    derived::Derived,
    first_step::FirstStep,
    forks, loaders,
    record::SCHEMA,
    timeline::{Epochs, Files, Timeline},
};
use forebay_settings::user_error::UserError;

/// Content of a run's record. Records of earlier versions hold no times.
#[derive(Clone, Debug, Deserialize)]
pub struct Recorded {
    /// The version of forebay that wrote it.
    pub forebay: String,
    /// The command line.
    pub command: Vec<String>,
    /// Key of the command, by which the list of what it has read is kept.
    #[serde(default)]
    pub command_key: Option<String>,
    /// Name of the host.
    pub host: String,
    /// Time of the run's start, in UTC.
    pub started: String,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// End of the program.
    pub exit: Exit,
    /// Settings with their origins.
    pub settings: RecordedSettings,
    /// Sources that were served.
    pub sources: Vec<RecordedSource>,
    /// From where.
    pub tiers: Vec<RecordedTier>,
    /// Counters of the preload library, by name.
    pub counters: BTreeMap<String, u64>,
    /// The agent's status at the end of the run; `None` if the agent ended earlier.
    pub agent: Option<Status>,
    /// Programs that could not be covered.
    pub not_covered: Vec<NotCovered>,
    /// Figures that follow from the counters.
    pub derived: Derived,
    /// Course of the run up to its first step.
    #[serde(default)]
    pub first_step: Option<FirstStep>,
    /// Distribution of opens over files.
    #[serde(default)]
    pub files: Files,
    /// Epochs.
    #[serde(default)]
    pub epochs: Vec<Epochs>,
    /// Counters over time.
    #[serde(default)]
    pub timeline: Timeline,
    /// Forks of its jobs.
    #[serde(default)]
    pub forks: Vec<forks::ForkEvent>,
    /// Epochs of its data loaders.
    #[serde(default)]
    pub loaders: Vec<loaders::EpochEvent>,
}

/// End of a program.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With a status.
    Code(u8),
    /// Number of the signal that ended it.
    Signal(i32),
}

/// Settings that are shown.
#[derive(Clone, Debug, Deserialize)]
pub struct RecordedSettings {
    /// For how long copies were used.
    pub freshness: RecordedSetting,
}

/// A setting.
#[derive(Clone, Debug, Deserialize)]
pub struct RecordedSetting {
    /// Its value.
    pub value: String,
}

/// A source.
#[derive(Clone, Debug, Deserialize)]
pub struct RecordedSource {
    /// Its directory.
    pub dir: String,
    /// Type of its file system.
    pub file_system: String,
}

/// A tier and what it answered.
#[derive(Clone, Debug, Deserialize)]
pub struct RecordedTier {
    /// Its directory.
    pub dir: String,
    /// Most bytes of copies.
    pub quota_bytes: u64,
    /// Why it was chosen.
    pub why: String,
    /// Opens.
    pub opens: u64,
    /// Sizes of their files in bytes.
    pub bytes: u64,
}

/// A program that ran as it would without Forebay.
#[derive(Clone, Debug, Deserialize)]
pub struct NotCovered {
    /// The program.
    pub program: String,
    /// Why.
    pub why: String,
}

impl Recorded {
    /// Reads a record.
    ///
    /// # Errors
    /// A file that can't be read, is not a record, or has a later version.
    pub fn read(file: &Path) -> Result<Self, UserError> {
        #[derive(Deserialize)]
        struct RecordedVersion {
            schema: u32,
        }
        let bytes = read(file)?;
        let refuse = |error: serde_json::Error| {
            UserError::bad_input(format_args!(
                "{}: {error}: this is not a record of a run; name a file that forebay run --record wrote",
                file.display()
            ))
        };
        let RecordedVersion { schema } = serde_json::from_slice(&bytes).map_err(refuse)?;
        if schema != SCHEMA {
            return Err(UserError::bad_input(format_args!(
                "{}: a record of version {schema}, and this forebay reads version {SCHEMA}; use the forebay that wrote it",
                file.display()
            )));
        }
        serde_json::from_slice(&bytes).map_err(refuse)
    }

    /// Returns a counter of the preload library.
    pub fn of(&self, counter: Counter) -> u64 {
        self.counters.get(counter.name()).copied().unwrap_or(0)
    }
}
