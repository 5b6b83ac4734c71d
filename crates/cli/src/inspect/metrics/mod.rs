//! `forebay metrics`: what this user's agents on this node have done, in the text format of Prometheus.
//!
//! It is printed, or written into a file for the textfile collector of node_exporter. There is no port: every user of
//! a node can read one on the loopback, and who watches a cluster has a collector on each node already.

mod exposition;
mod loaders;

use std::{path::Path, thread, time::Duration};

use forebay_agent::{
    samples::status::SamplesStatus,
    tiering::{TieringConnection, Totals},
};
use forebay_settings::{
    config::{Config, WrittenSettings},
    environment::Environment,
    mounts::Mounts,
    places::{self, agents_in},
    user_error::UserError,
    write::write_whole,
};
use rustix::process::geteuid;

use crate::{args::MetricsArgs, inspect::samples_of};

/// The collector runs as another user. Nothing in the file is private: no path, no command line.
const FILE_MODE: u32 = 0o644;

/// An agent, as it is known outside.
#[derive(Debug)]
struct MeteredAgent {
    /// The name of its directory: a digest of its tiers.
    key: String,
    user_id: u32,
    totals: Totals,
}

/// The agent that serves loaders, as it is known outside.
#[derive(Debug)]
struct MeteredLoaders {
    user_id: u32,
    status: SamplesStatus,
}

/// Prints, or writes into a file, once or again and again; gives what is to be printed.
///
/// # Errors
/// A file that can't be written.
pub fn metrics(args: &MetricsArgs, environment: &Environment) -> Result<String, UserError> {
    let config = Config::resolve(&WrittenSettings::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read()).value;
    let Some(file) = args.write.as_ref().map(|file| environment.make_absolute(file)) else {
        return exposition::text(&agents(&runtime_dir), &loaders(&runtime_dir));
    };
    loop {
        let text = exposition::text(&agents(&runtime_dir), &loaders(&runtime_dir))?;
        write_whole(&file, text.as_bytes(), FILE_MODE)
            .map_err(|error| UserError::bad_input(format_args!("--write {}: {error}; name another file", file.display())))?;
        match args.every {
            Some(seconds) => thread::sleep(Duration::from_secs_f64(seconds)),
            None => return Ok(String::new()),
        }
    }
}

/// Returns the agents that answer.
fn agents(runtime_dir: &Path) -> Vec<MeteredAgent> {
    let ask = |dir: &Path| {
        Some(MeteredAgent {
            key: dir.file_name()?.to_string_lossy().into_owned(),
            user_id: geteuid().as_raw(),
            totals: TieringConnection::open(dir).and_then(|mut agent| agent.totals()).ok()?,
        })
    };
    agents_in(runtime_dir).iter().filter_map(|dir| ask(dir)).collect()
}

/// Returns the agent that serves loaders, if one answers.
fn loaders(runtime_dir: &Path) -> Vec<MeteredLoaders> {
    let metered = |status| MeteredLoaders {
        user_id: geteuid().as_raw(),
        status,
    };
    samples_of(runtime_dir).map(metered).into_iter().collect()
}
