//! Exactly what was typed. What it means is decided in `config.rs`.

mod clone;
mod flags;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{
    CommandFactory, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use forebay_settings::user_error::UserError;

pub use clone::{CloneArgs, CloneCommand};

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
    /// Command to carry out.
    #[command(subcommand)]
    pub command: Command,
}

/// Command to carry out.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program, its files served from local tiers
    Run(RunArgs),
    /// Say what would be covered, what would be chosen and why, and the most that could be gained
    Doctor(DoctorArgs),
    /// Measure a source, a tier and preprocessing on this machine, for `forebay plan`
    Profile(ProfileArgs),
    /// Say what caching and scheduling would give a job: simulate it by policy, schedule, cache, nodes and window
    Plan(PlanArgs),
    /// Remove all copies, and end an agent that was kept; records of runs stay
    Clean(CleanArgs),
    /// Show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// List what is cached: by source directory, or each file; and what loaders keep
    Ls(LsArgs),
    /// Print what the agents have done as metrics for Prometheus, or write them into a file for its node_exporter
    Metrics(MetricsArgs),
    /// Write a page about a run: epochs, throughput by tier, cache fill, what was saved and what was not, and why
    Report(ReportArgs),
    /// List the recorded runs, and what is read ahead of the next run of each command
    Runs(RunsArgs),
    /// Show what goes on: opens and bytes by tier, copies in flight, opens that no tier answered; samples of loaders
    Top(TopArgs),
    /// Fetch what an object store holds into a local directory, or bring it up to date
    View(ViewArgs),
    /// Copy directories to the tiers ahead of a job
    Warm(WarmArgs),
    /// Start a program as a clone of a training job, from the job's state as it is (experimental)
    Clone(CloneArgs),
    /// Print the completion script of a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    Man {
        /// Directory for the pages, such as ~/.local/share/man/man1
        dir: PathBuf,
    },
    /// The reading part of `warm`, run as a program with the preload library
    #[command(hide = true)]
    ReadAll(ReadAllArgs),
    /// The agent itself; its settings come on standard input
    #[command(hide = true)]
    Agent {
        /// Start it as a process of its own, without a parent that could wait for it
        #[arg(long)]
        detached: bool,
    },
    /// The part of `doctor` that reads files; what to read comes on standard input
    #[command(hide = true)]
    Measure,
    /// The part of `profile` that reads files; what to read comes on standard input
    #[command(hide = true)]
    ProfileReader,
}

/// Options that `run`, `warm` and `doctor` share.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Choices {
    /// A directory whose files are to be served [default: every network file system]
    #[arg(long, value_name = "DIR")]
    pub source: Vec<PathBuf>,
    /// A local directory for copies and the most bytes to keep there, such as /scratch=200G; of several the first is
    /// filled first [default: the scheduler's scratch, else the largest local disk]
    #[arg(long, value_name = "DIR=SIZE")]
    pub tier: Vec<OsString>,
    /// Order in which the tiers are used: given, or speed (the fastest first, by what was measured; memory stays
    /// above) [default: given]
    #[arg(long, value_name = "HOW")]
    pub tier_order: Option<OsString>,
    /// The most bytes of copies to keep in memory, above all other tiers, such as 16G; they go when the last run ends
    /// [default: none]
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<OsString>,
    /// Policy for full tiers: fill_first (keep all copies), lru or lru=SECONDS (remove copies of directories that
    /// were not used for so long) [default: fill_first]
    #[arg(long, value_name = "HOW")]
    pub policy: Option<OsString>,
    /// Reading ahead of programs: auto (what earlier runs of the command have read, and a large file as far as there is
    /// evidence that the program reads on), follow (nothing), file (each large file as a whole once it is opened), or
    /// idle (files beside those that a program has opened, while the source is idle) [default: auto]
    #[arg(long, value_name = "HOW")]
    pub prefetch: Option<OsString>,
    /// Files that are never copied nor answered from a copy, such as '*.mdb' or 'logs/**': a name at any depth; with
    /// a slash in it, a path below the source, or an absolute one [default: none]
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<OsString>,
    /// For how long a copy may be used before the source is asked again: ttl=SECONDS, immutable or on_open [default:
    /// ttl=60]
    #[arg(long, value_name = "HOW")]
    pub freshness: Option<OsString>,
}

/// Options of `run` and `warm` for jobs of several nodes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PeerChoices {
    /// Nodes that share their files: auto (those that the launcher names), off, or the hosts of all nodes, such as
    /// node1,node2. With this option the program starts once all nodes have met, and is refused if they do not
    /// [default: auto, and the program runs even if nodes do not meet]
    #[arg(long, value_name = "HOW")]
    pub peers: Option<OsString>,
    /// Interface by which this node reaches the others: its name, an address, or a network such as 10.1.0.0/16
    /// [default: the one that leads to the first node]
    #[arg(long, value_name = "NAME")]
    pub peers_interface: Option<OsString>,
}

/// `forebay run`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    override_usage = "forebay run [OPTIONS] [--] PROGRAM [ARGS...]",
    after_help = "\
Everything after the program's name is the program's. The exit status is the program's own. Where nothing ran it is 2, the command \
was refused; 126, the program can't be executed; or 127, it was not found: a line that begins with `forebay:` says why."
)]
pub struct RunArgs {
    /// Sources, tiers, freshness.
    #[command(flatten)]
    pub choices: Choices,
    /// Other nodes of the job.
    #[command(flatten)]
    pub peers: PeerChoices,
    /// Before the program starts, fetch what lies below s3://BUCKET/PREFIX (or gs://, az://) into a local directory;
    /// what is there already is only compared
    #[arg(long, value_name = "s3://BUCKET/PREFIX=DIR")]
    pub view: Vec<OsString>,
    /// Keep the agent after the last run, until `forebay clean`, so that the next run finds it warm
    #[arg(long)]
    pub keep: bool,
    /// Serve shared libraries, too, such as Python's extension modules: they are copied whole (glibc 2.35 or later)
    #[arg(long)]
    pub libraries: bool,
    /// File for the run's record (JSON) [default: in the state directory]
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
    /// Print where the logs of the agents are, and nothing else
    #[arg(long, conflicts_with_all = ["json", "program"])]
    pub logs: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A program to look at, with its arguments; it is not run
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    pub program: Vec<OsString>,
}

/// `forebay profile`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "\
The function is given the bytes of one file; what it returns is thrown away. It runs in worker processes of the interpreter that \
--python names, in which the package forebay has to be installed."
)]
pub struct ProfileArgs {
    /// Directories of the source with samples to read
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<PathBuf>,
    /// A local directory to measure as the tier [default: memory]
    #[arg(long, value_name = "DIR")]
    pub tier: Option<PathBuf>,
    /// Numbers of threads, such as 1,2,4,8 [default: powers of two up to twice the processors]
    #[arg(long, value_name = "LIST")]
    pub threads: Option<String>,
    /// Longest time of each round; there is one a place and number of threads [default: 3]
    #[arg(long, value_name = "NUMBER")]
    pub seconds: Option<f64>,
    /// Most bytes that a round reads [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub bytes: Option<String>,
    /// Rate at which a node reads from other nodes, such as '100 Gbit/s': it is written down, not measured
    #[arg(long, value_name = "RATE")]
    pub peer_bandwidth: Option<String>,
    /// A Python function that prepares a sample, to be measured by number of workers
    #[arg(long, value_name = "MODULE:FUNCTION")]
    pub preprocess: Option<String>,
    /// The interpreter that runs it
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: String,
    /// The profile to write
    #[arg(long, short, value_name = "FILE", default_value = "forebay-profile.toml")]
    pub output: PathBuf,
    /// Write over a profile that exists
    #[arg(long)]
    pub force: bool,
}

/// `forebay plan`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "\
FILE is a profile that `forebay profile` wrote, or a short TOML file; docs/planning.md lists its keys. A large dataset is scaled down, and \
the answer says so."
)]
pub struct PlanArgs {
    /// A plan file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Lay a value over the file's, such as --set cluster.nodes=8
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Simulate about this many samples of a larger dataset; all: the whole of it
    #[arg(long, value_name = "NUMBER", default_value = "60000")]
    pub samples: String,
}

/// `forebay clean`.
#[derive(Clone, Debug, clap::Args)]
pub struct CleanArgs {
    /// The tier to remove [default: every one that is configured, would be chosen, or was used on this host]
    #[arg(long, value_name = "DIR")]
    pub tier: Vec<OsString>,
}

/// `forebay ls`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct LsArgs {
    /// List the files, each with its copy
    #[arg(long, short)]
    pub long: bool,
    /// Print JSON lines, one a file
    #[arg(long)]
    pub json: bool,
    /// A tier to look into [default: every one that is configured or was used on this host]
    #[arg(long, value_name = "DIR")]
    pub tier: Vec<OsString>,
    /// Only what lies below these source directories
    #[arg(value_name = "SOURCE")]
    pub below: Vec<PathBuf>,
}

/// `forebay metrics`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "\
The textfile collector of node_exporter reads files whose names end in .prom. The file is replaced in one step and can be read by everybody: it holds \
no path and no command line. docs/guides.md names each metric; docs/grafana.json is a board for Grafana."
)]
pub struct MetricsArgs {
    /// Write them into this file
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Write the file again every so many seconds, until it is ended
    #[arg(long, value_name = "SECONDS", requires = "write", value_parser = interval)]
    pub every: Option<f64>,
}

/// `forebay report`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "\
A run's id is the name of its record without .json; records are in the directory `runs` of the state directory, which `forebay config show` \
names. The page is one file that fetches nothing."
)]
pub struct ReportArgs {
    /// The run: its record, or its id [default: the last run]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// The page to write
    #[arg(long, short, value_name = "FILE", default_value = "forebay-report.html")]
    pub output: PathBuf,
}

/// `forebay runs`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct RunsArgs {
    /// Most runs, the last ones
    #[arg(long, short, value_name = "N", default_value_t = 20)]
    pub number: usize,
    /// Print JSON lines, one a run
    #[arg(long)]
    pub json: bool,
}

/// `forebay top`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct TopArgs {
    /// Print the figures once and end, as where the output is not a terminal
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks
    #[arg(long, short = 'n', value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("write seconds between 0.1 and 3600".into()),
    }
}

/// `forebay view`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    override_usage = "forebay view [OPTIONS] s3://BUCKET/PREFIX DIR\n       forebay view --remove DIR",
    after_help = "\
Programs see a new directory when all of it is there, and a changed object when all changed ones are; objects that are gone are removed \
then. Credentials, region and endpoint come from where other tools have them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, \
~/.aws, a container's or a machine's role; AWS_REGION; AWS_ENDPOINT_URL. gs://BUCKET/PREFIX is fetched with those of gcloud, \
az://CONTAINER/PREFIX with AZURE_STORAGE_ACCOUNT and its key or identity. Nothing is ever written to the store. The exit status is 1 where \
fetching ended early: the same command goes on from there."
)]
pub struct ViewArgs {
    /// The most bytes that the directory may have, such as 200G [default: as many as leave 5 % of the disk free]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<OsString>,
    /// Read what was fetched before, too, and fetch again what is no longer as it came
    #[arg(long)]
    pub verify: bool,
    /// Remove what was fetched into this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["url", "dir", "size", "verify"])]
    pub remove: Option<PathBuf>,
    /// Say nothing unless something is wrong
    #[arg(long, short)]
    pub quiet: bool,
    /// Objects to fetch, from S3 (s3://), Google (gs://) or Azure (az://)
    #[arg(value_name = "s3://BUCKET/PREFIX", required_unless_present = "remove")]
    pub url: Option<String>,
    /// A directory on a local disk, to be made, in one that is there
    #[arg(value_name = "DIRECTORY", required_unless_present = "remove")]
    pub dir: Option<PathBuf>,
}

/// `forebay warm`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "\
What is cached already is not read again; files that don't fit are left out and counted. Files are read once, by several threads, and \
copied meanwhile."
)]
pub struct WarmArgs {
    /// Sources, tiers, freshness.
    #[command(flatten)]
    pub choices: Choices,
    /// Other nodes of the job.
    #[command(flatten)]
    pub peers: PeerChoices,
    /// Keep the agent, so that the job finds it warm
    #[arg(long)]
    pub keep: bool,
    /// Threads that read
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Say nothing unless something is wrong
    #[arg(long, short)]
    pub quiet: bool,
    /// Read what the command of this run has read in all its runs: the run's record, or its id
    #[arg(long, value_name = "RUN")]
    pub from: Option<PathBuf>,
    /// Directories or files under a source
    #[arg(value_name = "PATH", required_unless_present = "from")]
    pub paths: Vec<PathBuf>,
}

/// `forebay read-all`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReadAllArgs {
    /// Threads that read
    #[arg(long)]
    pub threads: u16,
    /// Show no progress
    #[arg(long)]
    pub quiet: bool,
    /// Directory of copies: files that open from there are not read
    #[arg(long, value_name = "DIR")]
    pub copies: Vec<PathBuf>,
    /// List of what a command has read, which is read first
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,
    /// Files and directories to read
    pub paths: Vec<PathBuf>,
}

/// `forebay config`.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print each setting, its value and where that comes from
    Show,
}

/// Result of parsing a command line.
#[derive(Debug)]
pub enum Typed {
    /// A command.
    Command(Box<Command>),
    /// Help or version was asked for: to be printed, and that is all.
    Text(String),
    /// Nothing was typed: help, and bad input.
    Nothing(String),
}

/// Reads a command line, its first word being the command's own name.
///
/// # Errors
/// One line that names what is wrong and the mend.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Typed, UserError> {
    let words: Vec<OsString> = words.into_iter().collect();
    match Args::try_parse_from(&words) {
        Ok(args) => Ok(Typed::Command(Box::new(args.command))),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Typed::Text(error.to_string())),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Ok(Typed::Nothing(error.to_string())),
            _ => Err(UserError::bad_input(one_line(&error, &help_of(&words)))),
        },
    }
}

/// The command without the parts that only the command itself runs; completion would offer these.
fn for_people() -> clap::Command {
    let all = Args::command();
    clap::Command::new("forebay")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .after_help(all.get_after_help().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .subcommands(all.get_subcommands().filter(|part| !part.is_hide_set()).cloned())
}

/// The completion script of a shell.
pub fn completion(shell: clap_complete::Shell) -> String {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut for_people(), "forebay", &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Writes the manual pages into a directory: `forebay.1`, and one for each of its commands.
///
/// # Errors
/// A directory that is not there or can't be written.
pub fn write_manual(dir: &Path) -> Result<(), UserError> {
    clap_mangen::generate_to(for_people(), dir)
        .map_err(|error| UserError::bad_input(format_args!("{}: {error}; name a directory that you can write", dir.display())))
}

/// Returns the command line that prints the help for the words that were typed.
fn help_of(words: &[OsString]) -> String {
    match words.get(1).and_then(|word| word.to_str()) {
        Some(name) if for_people().find_subcommand(name).is_some() => format!("forebay {name} --help"),
        _ => "forebay --help".into(),
    }
}

fn one_line(error: &clap::Error, help: &str) -> String {
    let context = |kind| error.get(kind).map(first_value).unwrap_or_default();
    let hint = |kind| match context(kind) {
        similar if similar.is_empty() => String::new(),
        similar => format!("; did you mean {similar}?"),
    };
    let argument = context(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            format!(
                "there is no option {argument}{} ({help} lists them)",
                hint(ContextKind::SuggestedArg)
            )
        }
        ErrorKind::UnknownArgument => format!("'{argument}' is one word too many here (see {help})"),
        ErrorKind::InvalidSubcommand => {
            let command = context(ContextKind::InvalidSubcommand);
            let mend = match hint(ContextKind::SuggestedSubcommand) {
                hint if hint.is_empty() => format!(" (forebay --help lists them); to run a program: forebay run -- {command}"),
                hint => hint,
            };
            format!("there is no command '{command}'{mend}")
        }
        ErrorKind::MissingRequiredArgument if argument.contains("--write") => {
            "--every SECONDS says how often a file is written; name it by --write FILE".into()
        }
        ErrorKind::MissingRequiredArgument if argument.contains("<DIR>") => {
            "no directory was given: forebay profile [OPTIONS] DIR...".into()
        }
        ErrorKind::MissingRequiredArgument if argument.contains("<FILE>") => "no file was given: forebay plan [OPTIONS] FILE".into(),
        ErrorKind::MissingRequiredArgument if argument.contains("PROGRAM") => {
            "no program was given: forebay run [OPTIONS] -- PROGRAM [ARGS...]".into()
        }
        ErrorKind::MissingRequiredArgument => {
            let name = argument.trim_matches(['<', '>', '.']);
            format!("{name} is missing (see {help})")
        }
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_empty() => {
            let (name, value) = argument.split_once(' ').unwrap_or((&argument, "VALUE"));
            format!("{name} needs a value: {name} {value}")
        }
        ErrorKind::InvalidValue => {
            let allowed = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(all)) => format!("; write one of {}", all.join(", ")),
                _ => String::new(),
            };
            format!("'{}' is not a valid {argument}{allowed}", context(ContextKind::InvalidValue))
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
