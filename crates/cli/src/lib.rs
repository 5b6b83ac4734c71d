//! The command `forebay`: decides what a run does, joins the agent, runs the program, tells what it came to.
//!
//! Options ([`args`]), environment and configuration file become a [`config::Config`] once; that and the machine
//! ([`mounts`], [`sources`], [`tiers`], [`library`], [`program`]) become a [`plan::Plan`], which [`run`] carries out
//! and [`doctor`] explains. Every refusal is one line and comes before anything runs. Not allowed here: copying,
//! sockets, shared memory (the agent's crate), decisions about copies (policy).

#![deny(unsafe_code)]

pub mod agent;
pub mod args;
pub mod clone;
pub mod inspect;
pub mod page;
pub mod plan;
pub mod progress;
pub mod run;
pub mod view;

use std::io::{Read, Write};

use args::{Command, ConfigCommand, Typed};
use forebay_settings::{
    environment::Environment,
    user_error::{EXIT_BAD_INPUT, UserError},
};
use inspect::{clean, doctor, ls, measure, metrics, report, runs, show, top};
use plan::{planner, profile};
use run::{child, read_all, warm};

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

fn answer() -> Result<u8, UserError> {
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
        Command::Agent { detached } => Ok(agent::main(detached)),
        Command::Measure => Ok(measure()),
        Command::ProfileReader => Ok(profile::reader::answer()),
        Command::Plan(args) => planner::plan(&args, &environment).map(|text| print(&text)),
        Command::Profile(args) => profile::profile(&args, &environment).map(|text| print(&text)),
        Command::Doctor(args) => doctor::doctor(&args, &environment).map(|(text, status)| print(&text).max(status)),
        Command::Clean(args) => clean::clean(&args, &environment).map(|(text, status)| print(&text).max(status)),
        Command::Ls(args) => Ok(print(&ls::ls(&args, &environment)?)),
        Command::Metrics(args) => metrics::metrics(&args, &environment).map(|text| print(&text)),
        Command::Report(args) => Ok(print(&report::report(&args, &environment)?)),
        Command::Runs(args) => Ok(print(&runs::runs(&args, &environment)?)),
        Command::Top(args) => top::top(&args, &environment).map(|()| 0),
        Command::View(args) => view::view(&args, &environment).map(|text| print(&text)),
        Command::Warm(args) => warm::warm(&args, &environment).map(child::end_as),
        Command::ReadAll(args) => Ok(read_all::main(&args)),
        Command::Clone(args) => clone::clone(&args, &environment),
        Command::Completion { shell } => Ok(print(&args::completion(shell))),
        Command::Man { dir } => args::write_manual(&dir).map(|()| 0),
        Command::Config(ConfigCommand::Show) => Ok(print(&show::show(&environment)?)),
    }
}

/// Prints to standard output. A closed pipe is not an error.
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

/// Writes to standard error in one piece, so that the lines of several processes do not mix. A closed standard error
/// is not an error.
fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Reads files for `doctor`, which waits for the answer.
fn measure() -> u8 {
    let mut question = Vec::new();
    let read = std::io::stdin().read_to_end(&mut question);
    let told = read.and_then(|_| std::io::stdout().write_all(&measure::answer(&question)));
    u8::from(told.is_err())
}
