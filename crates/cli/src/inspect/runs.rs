//! `forebay runs`: the runs that are recorded, and what the next run of each command is read ahead of.

use std::{collections::HashMap, fmt::Write as _, path::Path};

use forebay_agent::tiering::read_lists::file::{ReadListError, load};
use forebay_policy::read_list::ReadList;
use forebay_settings::{
    config::{Config, WrittenSettings},
    environment::Environment,
    mounts::Mounts,
    places, text,
    user_error::UserError,
};
use serde_json::json;

use crate::{
    args::RunsArgs,
    inspect::report::recorded::{Exit, Recorded},
    run::record,
};

/// Length of a command line at which it is shortened.
const COMMAND_MAX: usize = 60;

/// Files that earlier runs of a command have read.
#[derive(Clone, Debug)]
struct KnownReads {
    files: u64,
    bytes: u64,
    directories: u64,
    /// Reason why there is no list.
    why_not: Option<String>,
}

/// Lists the recorded runs, the last one first; gives what to print.
///
/// # Errors
/// A configuration that can't be read.
pub fn runs(args: &RunsArgs, environment: &Environment) -> Result<String, UserError> {
    let config = Config::resolve(&WrittenSettings::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read()).value;
    let state_dir = places::state_dir(&config, environment, &runtime_dir).value;
    let dir = record::dir(&state_dir);
    let mut known = HashMap::new();
    let mut out = String::new();
    for file in record::list(&dir).iter().rev().take(args.number) {
        let id = file.file_stem().unwrap_or_default().to_string_lossy();
        match Recorded::read(file) {
            Ok(run) => {
                let reads = run.command_key.as_deref().map(|key| {
                    let reads: &KnownReads = known.entry(key.to_owned()).or_insert_with(|| known_reads(&state_dir, key));
                    reads.clone()
                });
                line(&mut out, args.json, &id, &run, reads.as_ref());
            }
            Err(why) if args.json => {
                let _ = writeln!(out, "{}", json!({ "run": id, "error": why.to_string() }));
            }
            Err(why) => {
                let _ = writeln!(out, "{id}\n  {why}");
            }
        }
    }
    if out.is_empty() && !args.json {
        let _ = writeln!(out, "no run is recorded in {}; forebay run -- PROGRAM records one", dir.display());
    }
    Ok(out)
}

fn known_reads(state_dir: &Path, key: &str) -> KnownReads {
    let (list, why_not) = match load(state_dir, key) {
        Ok(list) => (list, None),
        Err(ReadListError::Missing) => (ReadList::default(), None),
        Err(why) => (ReadList::default(), Some(why.to_string())),
    };
    let (files, bytes) = list.files();
    KnownReads {
        files,
        bytes,
        directories: list.directories(),
        why_not,
    }
}

fn line(out: &mut String, as_json: bool, id: &str, run: &Recorded, reads: Option<&KnownReads>) {
    if as_json {
        let known = reads
            .map(|reads| json!({ "files": reads.files, "bytes": reads.bytes, "directories": reads.directories, "error": reads.why_not }));
        let exit = match run.exit {
            Exit::Code(code) => json!({ "code": code }),
            Exit::Signal(number) => json!({ "signal": number }),
        };
        let _ = writeln!(
            out,
            "{}",
            json!({
                "run": id, "started": run.started, "seconds": run.seconds, "host": run.host, "exit": exit, "command": run.command,
                "command_key": run.command_key, "known": known,
            })
        );
        return;
    }
    let command = text::command_line(run.command.iter().map(std::ffi::OsStr::new), COMMAND_MAX);
    let took = text::duration(std::time::Duration::from_secs_f64(run.seconds.max(0.0)));
    let _ = writeln!(out, "{id}\n  {command}: {took} on {}, from {}", run.host, run.started);
    let known = match reads {
        Some(KnownReads { why_not: Some(why), .. }) => why.clone(),
        Some(reads) if reads.files + reads.directories > 0 => format!(
            "its next run is read ahead of: {}, {}; {}",
            text::counted(reads.files, "file", "files"),
            text::bytes(reads.bytes),
            text::counted(reads.directories, "directory", "directories"),
        ),
        _ => "nothing is known of what it reads".into(),
    };
    let _ = writeln!(out, "  {known}");
}
