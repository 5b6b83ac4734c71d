//! The record of a run: everything that is known of it, as JSON, for programs to read.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use forebay_agent::{
    host::private_dir::private_dir_all,
    tiering::{Counts, protocol::Status},
};
use forebay_contract::Counter;
use forebay_settings::{
    config::{Config, freshness_text},
    text::timestamp,
    user_error::UserError,
    write::{is_stream, write_private},
};
use serde_json::{Value, json};

use crate::run::{
    child::Ended,
    derived::Derived,
    exclude,
    first_step::FirstStep,
    forks, loaders,
    plan::Plan,
    program::Program,
    timeline::{Files, Timeline, epochs},
};

/// Version of the record. It changes when a key changes its meaning or goes; new keys do not change it.
pub const SCHEMA: u32 = 1;
/// Records kept in the state directory.
const KEPT: usize = 100;

/// A run that has ended.
#[derive(Debug)]
pub struct Report<'a> {
    /// Decisions made before the run.
    pub plan: &'a Plan,
    /// The program.
    pub program: &'a Program,
    /// Its command line.
    pub words: &'a [OsString],
    /// Key of the command, by which the list of what it has read is kept; `None` if there is none.
    pub command_key: Option<String>,
    /// End of the program.
    pub ended: Ended,
    /// Time of the run's start.
    pub started: SystemTime,
    /// Duration of the run.
    pub elapsed: Duration,
    /// Counters of the preload library.
    pub counts: Counts,
    /// The agent's status at the end of the run; `None` if the agent ended earlier.
    pub agent: Option<Status>,
    /// A name of a source by which programs opened files that were not served.
    pub other_name: Option<PathBuf>,
    /// Distribution of opens over files.
    pub files: Files,
    /// Course of the run up to its first step; `None` if nothing is known of it.
    pub first_step: Option<FirstStep>,
    /// Counters over time.
    pub timeline: Timeline,
    /// Forks of its jobs.
    pub forks: Vec<forks::ForkEvent>,
    /// Epochs of its data loaders.
    pub loaders: Vec<loaders::EpochEvent>,
}

impl Report<'_> {
    /// Returns the figures that follow from the counters.
    pub fn derived(&self) -> Derived {
        Derived::from(&self.counts, self.agent.as_ref())
    }

    fn json(&self) -> Value {
        let exit = match self.ended {
            Ended::Status(code) => json!({ "code": code }),
            Ended::Signal(number) => json!({ "signal": number }),
        };
        let counters: BTreeMap<_, _> = Counter::ALL
            .iter()
            .map(|counter| (counter.name(), self.counts.of(*counter)))
            .collect();
        let tiers = self.plan.tiers.iter().zip(&self.counts.tiers).map(|(tier, answered)| {
            json!({
                "dir": tier.setting.dir.to_string_lossy(), "ram": tier.setting.ram, "quota_bytes": tier.setting.bytes, "file_system": tier.fs_type,
                "why": tier.why, "opens": answered.opens, "bytes": answered.bytes,
            })
        });
        let not_covered = self
            .program
            .cover
            .why_not()
            .map(|why| json!({ "program": self.program.image.to_string_lossy(), "why": why }));
        json!({
            "schema": SCHEMA,
            "forebay": env!("CARGO_PKG_VERSION"),
            "command": self.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
            "command_key": self.command_key,
            "program": self.program.path.to_string_lossy(),
            "host": host(),
            "started": timestamp(self.started),
            "ended": timestamp(self.started + self.elapsed),
            "seconds": self.elapsed.as_secs_f64(),
            "exit": exit,
            "settings": settings(&self.plan.config),
            "sources": self.plan.sources.found.iter().map(|source| json!({
                "dir": source.dir.to_string_lossy(), "file_system": source.fs_type,
            })).collect::<Vec<_>>(),
            "spellings": self.plan.sources.spellings.iter().map(|spelling| spelling.path.to_string_lossy()).collect::<Vec<_>>(),
            "tiers": tiers.collect::<Vec<_>>(),
            "counters": counters,
            "agent": self.agent,
            "not_covered": not_covered.into_iter().collect::<Vec<_>>(),
            "derived": self.derived(),
            "other_name": self.other_name.as_ref().map(|name| name.to_string_lossy()),
            "first_step": self.first_step,
            "files": self.files,
            "epochs": epochs::find(&self.timeline, &self.files),
            "timeline": self.timeline,
            "forks": self.forks,
            "loaders": self.loaders,
        })
    }
}

/// Each setting with its value and origin.
pub fn settings(config: &Config) -> Value {
    let paths = |dirs: &[PathBuf]| dirs.iter().map(|dir| dir.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
    let tiers: Vec<_> = config
        .tiers
        .value
        .iter()
        .map(|tier| format!("{}={}B", tier.dir.display(), tier.bytes))
        .collect();
    let peers = &config.peers;
    json!({
        "source": { "value": paths(&config.sources.value), "origin": config.sources.origin.to_string() },
        "tier": { "value": tiers, "origin": config.tiers.origin.to_string() },
        "view": {
            "value": config.views.value.iter().map(ToString::to_string).collect::<Vec<_>>(), "origin": config.views.origin.to_string(),
        },
        "ram": { "value": config.ram.value.map(|bytes| format!("{bytes}B")), "origin": config.ram.origin.to_string() },
        "tier_order": { "value": config.tier_order.value.text(), "origin": config.tier_order.origin.to_string() },
        "policy": { "value": config.policy.value.to_string(), "origin": config.policy.origin.to_string() },
        "prefetch": { "value": config.prefetch.value.text(), "origin": config.prefetch.origin.to_string() },
        "exclude": { "value": exclude::texts(&config.excludes.value), "origin": config.excludes.origin.to_string() },
        "freshness": { "value": freshness_text(config.freshness.value), "origin": config.freshness.origin.to_string() },
        "keep": { "value": config.keep.value, "origin": config.keep.origin.to_string() },
        "libraries": { "value": config.libraries.value, "origin": config.libraries.origin.to_string() },
        "record": { "value": path(&config.record.value), "origin": config.record.origin.to_string() },
        "quiet": { "value": config.quiet.value, "origin": config.quiet.origin.to_string() },
        "peers.nodes": { "value": peers.nodes.value.to_string(), "origin": peers.nodes.origin.to_string() },
        "peers.dir": { "value": path(&peers.dir.value), "origin": peers.dir.origin.to_string() },
        "peers.interface": { "value": peers.interface.value, "origin": peers.interface.origin.to_string() },
        "peers.group": { "value": peers.group_max.value, "origin": peers.group_max.origin.to_string() },
        "peers.secret": { "value": peers.secret.value.text(), "origin": peers.secret.origin.to_string() },
        "runtime_dir": { "value": path(&config.own_paths.runtime.value), "origin": config.own_paths.runtime.origin.to_string() },
        "state_dir": { "value": path(&config.own_paths.state.value), "origin": config.own_paths.state.origin.to_string() },
    })
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Checks before anything runs that a requested record can be written.
///
/// # Errors
/// When it could not.
pub fn check(plan: &Plan) -> Result<(), UserError> {
    let setting = &plan.config.record;
    let Some(file) = &setting.value else { return Ok(()) };
    let refuse = |why: &str| UserError::bad_input(format_args!("{}: {} {why}", setting.origin, file.display()));
    let dir = file.parent().unwrap_or(Path::new("/"));
    if file.is_dir() {
        return Err(refuse("is a directory; name a file"));
    }
    if !dir.is_dir() {
        return Err(refuse(&format!(
            "can't be written: there is no directory {}; mkdir -p {0}",
            dir.display()
        )));
    }
    let place = if is_stream(file) { file.as_path() } else { dir };
    let access = rustix::fs::Access::WRITE_OK;
    rustix::fs::accessat(rustix::fs::CWD, place, access, rustix::fs::AtFlags::EACCESS)
        .map_err(|errno| refuse(&format!("can't be written: {}; name another file", io::Error::from(errno))))
}

/// Writes the record of a run and gives where it is.
///
/// # Errors
/// In words; the run itself is not touched by that.
pub fn write(report: &Report<'_>) -> Result<PathBuf, String> {
    let mut text = serde_json::to_vec_pretty(&report.json()).map_err(|error| error.to_string())?;
    text.push(b'\n');
    if let Some(file) = &report.plan.config.record.value {
        write_private(file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
        return Ok(file.clone());
    }
    let dir = dir(&report.plan.state_dir.value);
    private_dir_all(&dir).map_err(|error| error.to_string())?;
    // Names sort by time. The host is in them since homes are shared.
    let time = timestamp(report.started).replace([':', '-'], "");
    let file = dir.join(format!("{time}-{}-{}.json", host(), std::process::id()));
    write_private(&file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
    forget_oldest(&dir);
    Ok(file)
}

/// Returns the directory of records whose place nobody named.
pub fn dir(state_dir: &Path) -> PathBuf {
    state_dir.join("runs")
}

/// The records in a directory, oldest first.
pub fn list(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    files
}

fn forget_oldest(dir: &Path) {
    let files = list(dir);
    let many = files.len().saturating_sub(KEPT);
    for file in files.iter().take(many) {
        // Another run may have done it.
        let _ = fs::remove_file(file);
    }
}
