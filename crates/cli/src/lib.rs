//! The command `forebay`: decides what a run does, joins the agent, runs the program, tells what it came to.
//!
//! What was typed ([`args`]) and what the environment and the configuration file say becomes a [`config::Config`] once; that and the
//! machine ([`mounts`], [`sources`], [`tiers`], [`library`], [`program`]) become a [`plan::Plan`], which [`run`] carries out and
//! [`doctor`] explains. Every refusal is one line and comes before anything runs. What must not be here: copying, sockets, shared
//! memory (the agent's crate), decisions about copies (policy).

#![deny(unsafe_code)]

pub mod agent;
pub mod args;
mod beside;
pub mod child;
pub mod clean;
pub mod clone;
pub mod config;
pub mod doctor;
pub mod elf;
pub mod environment;
pub mod exclude;
pub mod forks;
pub mod ledger;
pub mod library;
pub mod loader;
pub mod loaders;
pub mod ls;
pub mod measure;
pub mod metrics;
pub mod mounts;
pub mod page;
pub mod places;
pub mod plan;
pub mod planner;
pub mod profile;
pub mod program;
pub mod progress;
pub mod ram;
pub mod read_all;
pub mod record;
pub mod refusal;
pub mod report;
pub mod run;
pub mod show;
pub mod size;
pub mod sources;
pub mod summary;
pub mod text;
pub mod tier_order;
pub mod tiers;
pub mod timeline;
pub mod top;
pub mod used;
pub mod view;
pub mod warm;

use std::io::{Read, Write};

use args::{Command, ConfigCommand, Typed};
use environment::Environment;
use refusal::{EXIT_BAD_INPUT, Refusal};

/// Does what the command line says; gives the exit status.
pub fn main() -> u8 {
    match answer() {
        Ok(status) => status,
        Err(refusal) => {
            let _ = writeln!(std::io::stderr(), "forebay: {refusal}");
            refusal.status
        }
    }
}

fn answer() -> Result<u8, Refusal> {
    let command = match args::parse(std::env::args_os())? {
        Typed::Command(command) => *command,
        Typed::Text(text) => return Ok(print(&text)),
        Typed::Nothing(text) => {
            let _ = std::io::stderr().write_all(text.as_bytes());
            return Ok(EXIT_BAD_INPUT);
        }
    };
    let environment = Environment::current();
    match command {
        Command::Run(args) => run::run(&args, &environment).map(child::end_as),
        Command::Agent => Ok(agent::main()),
        Command::Measure => Ok(measure()),
        Command::ProfileReader => Ok(profile::reader::answer()),
        Command::Plan(args) => planner::plan(&args, &environment).map(|text| print(&text)),
        Command::Profile(args) => profile::profile(&args, &environment).map(|text| print(&text)),
        Command::Doctor(args) => doctor::doctor(&args, &environment).map(|(text, status)| print(&text).max(status)),
        Command::Clean(args) => clean::clean(&args, &environment).map(|(text, status)| print(&text).max(status)),
        Command::Ls(args) => Ok(print(&ls::ls(&args, &environment)?)),
        Command::Metrics(args) => metrics::metrics(&args, &environment).map(|text| print(&text)),
        Command::Report(args) => Ok(print(&report::report(&args, &environment)?)),
        Command::Top(args) => top::top(&args, &environment).map(|()| 0),
        Command::View(args) => view::view(&args, &environment).map(|text| print(&text)),
        Command::Warm(args) => warm::warm(&args, &environment).map(child::end_as),
        Command::ReadAll(args) => Ok(read_all::main(&args)),
        Command::Clone(args) => clone::clone(&args, &environment),
        Command::ForkAgent => Ok(print(&clone::fork_agent(&environment)?)),
        Command::LoaderAgent(args) => Ok(print(&loader::loader_agent(&args, &environment)?)),
        Command::Completion { shell } => Ok(print(&args::completion(shell))),
        Command::Man { dir } => args::write_manual(&dir).map(|()| 0),
        Command::Config(ConfigCommand::Show) => Ok(print(&show::show(&environment)?)),
    }
}

/// Prints to standard output. That nobody reads on is no fault.
fn print(text: &str) -> u8 {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "forebay: standard output: {error}");
            1
        }
        _ => 0,
    }
}

/// Reads files for `doctor`, which waits for the answer.
fn measure() -> u8 {
    let mut question = Vec::new();
    let read = std::io::stdin().read_to_end(&mut question);
    let told = read.and_then(|_| std::io::stdout().write_all(&measure::answer(&question)));
    u8::from(told.is_err())
}
