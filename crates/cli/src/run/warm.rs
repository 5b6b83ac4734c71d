//! `forebay warm`: a run whose program reads the files that a job will want, and that ends when their copies are
//! made.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use forebay_agent::tiering::read_lists::file::{self, ReadListError};
use forebay_contract::Counter;
use forebay_settings::{
    config::{Config, WrittenSettings, is_off},
    environment::Environment,
    text,
    user_error::UserError,
};
use rustix::process::geteuid;

use crate::{
    args::WarmArgs,
    inspect::report::{self, recorded::Recorded},
    run::{
        ProgramRun,
        child::Ended,
        plan::Plan,
        program::{Cover, Program},
        record::{self, Report},
    },
};

/// Warms; gives how the reading ended.
///
/// # Errors
/// Bad input: a path that is not there or lies under no source, or whatever `run` refuses. Nothing was read then.
pub fn warm(args: &WarmArgs, environment: &Environment) -> Result<Ended, UserError> {
    if is_off(environment)? {
        return Err(UserError::bad_input("FOREBAY=off is set, so nothing can be copied; unset it"));
    }
    let exe = std::env::current_exe().map_err(|error| UserError::bad_input(format_args!("/proc/self/exe: {error}; mount /proc")))?;
    let paths: Vec<PathBuf> = args.paths.iter().map(|path| environment.make_absolute(path)).collect();
    let from = args.from.as_deref().map(|run| KnownRun::find(run, environment)).transpose()?;
    let mut plan = Plan::make(Config::resolve(&WrittenSettings::from(args), environment)?, &[], environment, &exe)?;
    record::check(&plan)?;
    if !plan.sources.found.is_empty() {
        paths.iter().try_for_each(|path| check(path, &plan))?;
    }
    if let Some(why) = plan.idle.as_ref().or(plan.no_tier.as_ref()) {
        return Err(UserError::bad_input(why));
    }
    let list = from.map(|run| run.list(&plan)).transpose()?;
    plan.settle()?;
    let mut words: Vec<OsString> = vec!["forebay".into(), "read-all".into(), format!("--threads={}", args.threads).into()];
    if plan.config.quiet.value {
        words.push("--quiet".into());
    }
    for tier in &plan.tiers {
        words.extend([
            "--copies".into(),
            forebay_store::root_path(&tier.setting.dir, geteuid().as_raw()).into(),
        ]);
    }
    if let Some(list) = list {
        words.extend(["--list".into(), list.into()]);
    }
    words.push("--".into());
    words.extend(paths.iter().map(OsString::from));
    let program = Program {
        path: exe.clone(),
        image: exe.clone(),
        cover: Cover::Covered,
    };
    ProgramRun {
        plan: &plan,
        program,
        words: &words,
        settles: true,
        summary,
    }
    .serve(environment, &exe)
}

/// A recorded run, whose command's list is read.
struct KnownRun {
    /// The run as it was named.
    name: String,
    run: Recorded,
}

impl KnownRun {
    fn find(run: &Path, environment: &Environment) -> Result<Self, UserError> {
        Ok(Self {
            name: run.display().to_string(),
            run: Recorded::read(&report::find(Some(run), environment)?)?,
        })
    }

    /// Returns the file of the list of the run's command.
    fn list(&self, plan: &Plan) -> Result<PathBuf, UserError> {
        let Self { name, run } = self;
        let refuse = |why: String| UserError::bad_input(format_args!("--from {name}: {why}"));
        let key = run
            .command_key
            .as_deref()
            .ok_or_else(|| refuse("its record does not tell what it has read; record another run of the command".into()))?;
        let state_dir = &plan.state_dir.value;
        let list = file::load(state_dir, key).map_err(|why| match why {
            ReadListError::Missing => refuse(format!(
                "no list of what its command has read is in {} (it ran on {}); run the command here once, or name directories",
                state_dir.display(),
                run.host
            )),
            why => refuse(why.to_string()),
        })?;
        let is_here = |path: &str| {
            plan.sources
                .spellings
                .iter()
                .any(|source| Path::new(path).starts_with(&source.path))
        };
        if !list.in_order().iter().any(|entry| is_here(&entry.path)) {
            let sources = run.sources.iter().map(|source| source.dir.as_str()).collect::<Vec<_>>().join(", ");
            return Err(refuse(format!(
                "nothing that it has read lies under a source here: it ran on {} over {sources}; --source DIR names one",
                run.host
            )));
        }
        Ok(file::path_of(state_dir, key))
    }
}

/// Refuses directories that lie under no source: reading them would fill no tier.
fn check(path: &Path, plan: &Plan) -> Result<(), UserError> {
    let refuse = |why: &str| UserError::bad_input(format_args!("{} {why}", path.display()));
    fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refuse("does not exist; check its spelling, and whether it is mounted"),
        _ => refuse(&format!("can't be used: {error}")),
    })?;
    if plan.sources.spellings.iter().any(|source| path.starts_with(&source.path)) {
        return Ok(());
    }
    let found = plan.sources.found.iter().map(|source| source.dir.display().to_string());
    let served = found.collect::<Vec<_>>().join(", ");
    Err(refuse(&format!("lies under no source ({served}); --source DIR names one")))
}

/// Returns the result of the warming as text.
fn summary(report: &Report<'_>, _record: Option<&Path>) -> String {
    let derived = report.derived();
    let status = report.agent.clone().unwrap_or_default();
    let mut parts = vec![
        format!(
            "{} ({}) copied",
            text::counted(status.files.files_copied, "file", "files"),
            text::bytes(status.files.bytes_copied)
        ),
        format!("{} cached before", text::count(derived.tier_opens)),
    ];
    let no_room = report.counts.of(Counter::NoRoom);
    let mut left = status.skipped.not_copied.clone();
    if no_room > 0 {
        *left.entry("no room in the tiers".into()).or_default() += no_room;
    }
    parts.extend(
        left.iter()
            .map(|(why, number)| format!("{} not copied: {}", text::count(*number), text::why_not_copied(why))),
    );
    format!("forebay: warm: {}, after {}\n", parts.join(", "), text::duration(report.elapsed))
}
