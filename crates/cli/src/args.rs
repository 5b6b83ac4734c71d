//! Exactly what was typed. What it means is decided in `config.rs`.

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::refusal::Refusal;

/// Serves an unmodified program's data from local disk instead of a slow shared file system.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    disable_help_subcommand = true,
    args_override_self = true,
    after_help = "\
FOREBAY=off in the environment runs every program untouched. `forebay COMMAND --help` explains a command."
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program, its files served from local tiers
    Run(RunArgs),
    /// Say what would be covered, what would be chosen and why, and the most that could be gained
    Doctor(DoctorArgs),
    /// Remove copies and what else runs have left on this machine
    Clean(CleanArgs),
    /// The configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// The agent itself; its settings come on standard input
    #[command(hide = true)]
    Agent,
    /// The part of `doctor` that reads files; what to read comes on standard input
    #[command(hide = true)]
    Measure,
}

/// What is common to `run` and `doctor`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Choices {
    /// A directory whose files are to be served [default: every network file system]
    #[arg(long, value_name = "DIR")]
    pub source: Vec<PathBuf>,
    /// A local directory for copies and the most bytes to keep there, such as /scratch=200G; more than one: fastest first
    /// [default: the scheduler's scratch, else the largest local disk]
    #[arg(long, value_name = "DIR=SIZE")]
    pub tier: Vec<OsString>,
    /// For how long a copy may be used before the source is asked again: ttl=SECONDS, immutable or on_open [default: ttl=60]
    #[arg(long, value_name = "HOW")]
    pub freshness: Option<OsString>,
}

/// `forebay run`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    override_usage = "forebay run [OPTIONS] [--] PROGRAM [ARGS...]",
    after_help = "\
Everything after the program's name is the program's. The exit status is the program's own; 2 means that the command was \
refused and nothing ran."
)]
pub struct RunArgs {
    /// Sources, tiers, freshness.
    #[command(flatten)]
    pub choices: Choices,
    /// Keep the agent after the last run, so that the next one finds it warm
    #[arg(long)]
    pub keep: bool,
    /// Where to write the run's record (JSON) [default: in the state directory]
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Say nothing unless something is wrong
    #[arg(long, short)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub program: Vec<OsString>,
}

/// `forebay doctor`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_override_self = true, override_usage = "forebay doctor [OPTIONS] [--] [PROGRAM [ARGS...]]")]
pub struct DoctorArgs {
    /// Sources, tiers, freshness.
    #[command(flatten)]
    pub choices: Choices,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A program to look at, with its arguments; it is not run
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    pub program: Vec<OsString>,
}

/// `forebay clean`.
#[derive(Clone, Debug, clap::Args)]
pub struct CleanArgs {
    /// The tier to remove [default: every one that is configured or would be chosen]
    #[arg(long, value_name = "DIR")]
    pub tier: Vec<OsString>,
}

/// `forebay config`.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print each setting, its value and where that comes from
    Show,
}

/// What the words of a command line come to.
#[derive(Debug)]
pub enum Typed {
    /// A command.
    Command(Command),
    /// Help or version was asked for: to be printed, and that is all.
    Text(String),
    /// Nothing was typed: help, and bad input.
    Nothing(String),
}

/// Reads a command line, its first word being the command's own name.
///
/// # Errors
/// One line that names what is wrong and the mend.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Typed, Refusal> {
    match Args::try_parse_from(words) {
        Ok(args) => Ok(Typed::Command(args.command)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Typed::Text(error.to_string())),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Ok(Typed::Nothing(error.to_string())),
            _ => Err(Refusal::bad_input(one_line(&error))),
        },
    }
}

fn one_line(error: &clap::Error) -> String {
    let context = |kind| error.get(kind).map(first_value).unwrap_or_default();
    let hint = |kind| match context(kind) {
        similar if similar.is_empty() => String::new(),
        similar => format!("; did you mean {similar}?"),
    };
    let argument = context(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            format!(
                "there is no option {argument}{} (forebay COMMAND --help lists them)",
                hint(ContextKind::SuggestedArg)
            )
        }
        ErrorKind::UnknownArgument => format!("'{argument}' is one word too many here (see forebay COMMAND --help)"),
        ErrorKind::InvalidSubcommand => {
            let command = context(ContextKind::InvalidSubcommand);
            let mend = match hint(ContextKind::SuggestedSubcommand) {
                hint if hint.is_empty() => format!(" (run, doctor, clean or config); to run a program: forebay run -- {command}"),
                hint => hint,
            };
            format!("there is no command '{command}'{mend}")
        }
        ErrorKind::MissingRequiredArgument => "no program was given: forebay run [OPTIONS] -- PROGRAM [ARGS...]".into(),
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_empty() => {
            let (name, value) = argument.split_once(' ').unwrap_or((&argument, "VALUE"));
            format!("{name} needs a value: {name} {value}")
        }
        ErrorKind::TooManyValues => format!("{argument} takes no value"),
        // What else clap has to say begins with one line, too.
        _ => error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ")
            .to_owned(),
    }
}

fn first_value(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(all) => all.first().cloned().unwrap_or_default(),
        other => other.to_string(),
    }
}
