//! Arguments of `forebay clone`.

use std::{ffi::OsString, path::PathBuf};

use clap::Subcommand;

/// `forebay clone`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    override_usage = "forebay clone JOB [OPTIONS] -- PROGRAM [ARGS...]\n       forebay clone ls [--json]\n       forebay clone serve JOB [--listen ADDRESS[:PORT]] [--ticket FILE]",
    after_help = "\
PROGRAM is the job's own; both call forebay.clone.session(...). With as many ranks it goes on bit for bit, with another number from the exact state. The job \
goes on training, its results unchanged. The exit status is the program's own. docs/fork.md has an example."
)]
pub struct CloneArgs {
    /// Other commands for clones.
    #[command(subcommand)]
    pub command: Option<CloneCommand>,
    /// The job: the name that it was given, its scheduler's id, or the name that it printed
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Step at which the state is taken: next (the job's first step after the clone is ready), or the number of a
    /// step that is yet to come
    #[arg(long, value_name = "WHEN", default_value = "next")]
    pub at: String,
    /// How the clone is checked: digest (every entry of its state), or shadow:N (and once more after N steps that
    /// both take with the same data; it goes on from there) [default: as the job's session() says, which is digest
    /// unless it says otherwise]
    #[arg(long, value_name = "HOW")]
    pub verify: Option<String>,
    /// Change in the clone, made last: seed=7, or a number of the optimizer's groups: lr=0.01 sets it, lr*=0.1
    /// multiplies it, lr[1]=0.01 sets it in one group. Given once for each change
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Host on which the job trains and is served by `forebay clone serve JOB`; the hosts of a job on several, in the
    /// ticket's order, with commas between them [default: those of the ticket, if one is named, else this host]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub from: Option<String>,
    /// File that `forebay clone serve JOB` wrote [default with --from: tickets/JOB in the state directory,
    /// ~/.local/state/forebay, which both hosts often see]
    #[arg(long, value_name = "FILE")]
    pub ticket: Option<PathBuf>,
    /// Name that the commands of one clone on several hosts share: type each on its host, with the part of the
    /// program's launcher that belongs there
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", last = true)]
    pub program: Vec<OsString>,
}

/// Other commands for clones.
#[derive(Clone, Debug, Subcommand)]
pub enum CloneCommand {
    /// Let whoever has the ticket fork a job of this host on other hosts, until the job or this command ends
    Serve {
        /// The job
        #[arg(value_name = "JOB")]
        job: String,
        /// Address of this host on which it listens, and port [default: all addresses, any port]
        #[arg(long, value_name = "ADDRESS[:PORT]")]
        listen: Option<String>,
        /// File that is written for the other hosts, readable by this user only [default: tickets/JOB in the state
        /// directory]
        #[arg(long, value_name = "FILE")]
        ticket: Option<PathBuf>,
    },
    /// List the jobs on this node that can be forked
    Ls {
        /// Print JSON lines, one a job
        #[arg(long)]
        json: bool,
    },
}
