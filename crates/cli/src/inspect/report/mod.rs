//! `forebay report`: a page about a run, from its record and nothing else.
//!
//! [`recorded`] reads a record as [`crate::run::record`] writes it; [`page`] shows it, [`first_step`] the way to the
//! first step, [`forks`] what was forked, and [`loaders`] what data loaders did.

pub mod first_step;
pub mod forks;
pub mod loaders;
pub mod page;
pub mod recorded;

use std::{
    io,
    path::{Path, PathBuf},
};

use forebay_settings::{
    config::{Config, WrittenSettings},
    environment::Environment,
    mounts::Mounts,
    places,
    user_error::UserError,
    write::write_private,
};
use recorded::Recorded;

use crate::{args::ReportArgs, run::record};

/// Writes the page; gives what is to be printed.
///
/// # Errors
/// A run that is missing, a file that is not a record, or a page that can't be written.
pub fn report(args: &ReportArgs, environment: &Environment) -> Result<String, UserError> {
    let file = find(args.run.as_deref(), environment)?;
    let run = Recorded::read(&file)?;
    let page = environment.make_absolute(&args.output);
    let html = page::html(&run, &file);
    // The command line and the paths of a run are its user's own, as in the record.
    write_private(&page, html.as_bytes())
        .map_err(|error| UserError::bad_input(format_args!("--output {}: {error}; name another file", page.display())))?;
    Ok(format!("{}\n{}\n", page::lead(&run), page.display()))
}

/// Returns the record that is meant: a file, a run's id, or the last run.
///
/// # Errors
/// There is no such run.
pub fn find(run: Option<&Path>, environment: &Environment) -> Result<PathBuf, UserError> {
    if let Some(file) = run.map(|run| environment.make_absolute(run)).filter(|file| file.is_file()) {
        return Ok(file);
    }
    let config = Config::resolve(&WrittenSettings::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read()).value;
    let dir = record::dir(&places::state_dir(&config, environment, &runtime_dir).value);
    let records = record::list(&dir);
    let last = records.last();
    let Some(run) = run else {
        return last.cloned().ok_or_else(|| {
            UserError::bad_input(format_args!(
                "no run is recorded in {}; forebay run -- PROGRAM records one, or name a file that --record wrote",
                dir.display()
            ))
        });
    };
    let named = records.iter().find(|file| file.file_stem() == Some(run.as_os_str()));
    named.cloned().ok_or_else(|| {
        let known = last
            .and_then(|file| file.file_stem())
            .map_or_else(String::new, |id| format!(" (the last run there is {})", id.to_string_lossy()));
        UserError::bad_input(format_args!(
            "{}: there is no such file, and no run of that id in {}{known}",
            run.display(),
            dir.display()
        ))
    })
}

/// Reads a file that a person has named, like [`std::fs::read`].
fn read(file: &Path) -> Result<Vec<u8>, UserError> {
    const RECORD_BYTES_MAX: u64 = 16 << 20;
    let too_long = || io::Error::other("it is too long for a record");
    std::fs::metadata(file)
        .and_then(|meta| {
            if meta.len() > RECORD_BYTES_MAX {
                Err(too_long())
            } else {
                std::fs::read(file)
            }
        })
        .map_err(|error| UserError::bad_input(format_args!("{}: {error}; name the record of a run", file.display())))
}
