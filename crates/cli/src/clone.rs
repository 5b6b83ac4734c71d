//! `forebay clone`: starts a program as a clone of a job that trains on this node, or on another one (`hosts.rs`). The
//! program asks for the state
//! itself, by `forebay.clone.session`; this command asks the fork agent for the fork, tells the program which it is,
//! and holds the fork's lease until the program has ended.

mod hosts;

use std::{
    fmt::Write as _,
    io::Write as _,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use forebay_agent::{
    forks::{
        FORK_SHADOW_MAX,
        client::{Forking, jobs},
        hosts::{CloneUnderWay, RemoteJob},
        protocol::{ForkProgress, ForkScope, ForkableJob},
    },
    host::error::AgentError,
};
use forebay_contract::env;
use forebay_settings::{environment::Environment, roles, text, user_error::UserError};
use serde_json::{Map, Value, json};

use crate::{
    args::{CloneArgs, CloneCommand},
    print,
    progress::WorkProgress,
    run::{
        child::{self, Ended, Launch},
        program::Program,
    },
};

/// Interval between two questions for a clone's progress.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Stages of each rank of a clone: it waits, its state is taken, it has loaded it.
const STAGES: u64 = 3;

const USAGE: &str = "forebay clone JOB [OPTIONS] -- PROGRAM [ARGS...]";

/// Lists jobs, or runs a program as a clone; gives the exit status.
///
/// # Errors
/// Bad input, or no such job. Nothing has run then.
pub fn clone(args: &CloneArgs, environment: &Environment) -> Result<u8, UserError> {
    match (&args.command, &args.job) {
        (Some(CloneCommand::Serve { job, listen, ticket }), _) => hosts::serve(job, listen.as_deref(), ticket.as_deref(), environment),
        (Some(CloneCommand::Ls { json }), _) => Ok(print(&list(*json, &roles::forks_dir(environment)?)?)),
        (None, Some(job)) => run(job, args, environment),
        (None, None) => Err(UserError::bad_input(format_args!(
            "no job was given: {USAGE}; forebay clone ls lists what trains here"
        ))),
    }
}

fn run(job: &str, args: &CloneArgs, environment: &Environment) -> Result<u8, UserError> {
    let at = when(&args.at)?;
    let changes = changes(&args.set)?;
    let shadow = args.verify.as_deref().map(shadow).transpose()?;
    let name = args
        .program
        .first()
        .ok_or_else(|| UserError::bad_input(format_args!("no program was given: {USAGE}")))?;
    let program = Program::find(name, environment)?;
    let (dir, remote) = match hosts::begin(job, args, (at, shadow), environment)? {
        Some((dir, remote)) => (dir, Some(remote)),
        None => (roles::forks_dir(environment)?, None),
    };
    let shadow = if remote.is_some() { Some(0) } else { shadow };
    let guest = remote.as_ref().map(RemoteJob::name);
    let scope = if args.group.is_some() {
        ForkScope::Arriving
    } else {
        ForkScope::All
    };
    let forking = match Forking::begin(&dir, guest.as_deref().unwrap_or(job), at, shadow, scope) {
        Ok(forking) => forking,
        Err(AgentError::Refused(refusal)) => return Err(UserError::bad_input(refusal.why)),
        Err(AgentError::Io { .. }) => {
            return Err(UserError::bad_input(format_args!(
                "no job '{job}' that can be forked trains on this node; none does yet: a job can be forked once it has called forebay.clone.session(...)"
            )));
        }
        Err(error) => return Err(UserError::bad_input(error)),
    };
    let (lies, secret) = (dir.to_string_lossy(), forking.secret.to_string_lossy());
    let clone =
        json!({ "dir": lies, "job": job, "at": at, "fork": forking.fork, "secret": secret, "set": changes, "shadow": forking.shadow });
    let launch = Launch {
        path: &program.path,
        words: &args.program,
        environment: &[(env::CLONE, clone.to_string().into())],
    };
    let asking = Mutex::new(&forking);
    let look = || asking.lock().unwrap_or_else(PoisonError::into_inner).outcome();
    let has_ended = AtomicBool::new(false);
    let (ended, is_answered) = thread::scope(|scope| {
        let (runs, ended) = mpsc::channel();
        let watching = scope.spawn(move || watch(look, job, at, &ended));
        if let Some(remote) = &remote {
            scope.spawn(|| remote.transfer(&CloneUnderWay::new(&asking, &has_ended)));
        }
        let ended = launch.run();
        has_ended.store(true, Relaxed);
        drop::<mpsc::Sender<()>>(runs);
        (ended, watching.join().unwrap_or(false))
    });
    let ended = ended?;
    // What goes wrong in between the program has said itself.
    if is_answered && let Ok(ForkProgress { asked: false, .. }) = forking.outcome() {
        let line = never_asked(&name.to_string_lossy(), ended, job);
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    drop(forking);
    Ok(child::end_as(ended))
}

/// Returns the message for a program that never asked for the state. It explains clones only if the program
/// succeeded: a program that failed has given its own reason.
fn never_asked(name: &str, ended: Ended, job: &str) -> String {
    match ended {
        Ended::Status(0) => {
            format!(
                "forebay: {name} ended without asking for the state of {job}: a clone is a program that calls forebay.clone.session(...)\n"
            )
        }
        Ended::Status(status) => format!("forebay: {name} ended with status {status} before it asked for the state of {job}\n"),
        Ended::Signal(number) => format!(
            "forebay: {name} was ended by {} before it asked for the state of {job}\n",
            child::signal_name(number)
        ),
    }
}

/// Shows how far the clone is, until all of its ranks have loaded their states, it has failed, or its program has
/// ended. Whether the agent answered as long as it was asked: an answer that comes too late would be taken for that
/// to the next question.
fn watch(look: impl Fn() -> Result<ForkProgress, AgentError>, job: &str, at: Option<u64>, ended: &Receiver<()>) -> bool {
    let mut shown: Option<(WorkProgress, u64)> = None;
    while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        let Ok(outcome) = look() else { return false };
        // From then on the program trains, perhaps under shadow verification, and has the terminal for itself.
        let is_loaded = outcome.ranks > 0 && outcome.loaded == outcome.ranks;
        if outcome.is_over || is_loaded {
            return true;
        }
        // Its program imports what it needs.
        if outcome.ranks == 0 {
            continue;
        }
        let (done, now) = stage(&outcome, job, at);
        let (progress, before) = shown.get_or_insert_with(|| (WorkProgress::new("cloning", u64::from(outcome.ranks) * STAGES), 0));
        progress.advance(done.saturating_sub(*before));
        *before = done;
        progress.note(&now);
    }
    true
}

/// Returns the number of stages that all ranks have completed together, and the name of the present stage.
fn stage(outcome: &ForkProgress, job: &str, at: Option<u64>) -> (u64, String) {
    let ForkProgress {
        ranks,
        here,
        taken,
        loaded,
        ..
    } = *outcome;
    let done = u64::from(here) + if taken { u64::from(ranks) } else { 0 } + u64::from(loaded);
    let now = if here < ranks {
        format!("{here} of {ranks} ranks of the clone are ready")
    } else if !taken {
        at.map_or_else(
            || format!("waiting for the next step of {job}"),
            |step| format!("waiting for step {step} of {job}"),
        )
    } else {
        format!("{loaded} of {ranks} ranks have loaded their states")
    };
    (done, now)
}

fn when(text: &str) -> Result<Option<u64>, UserError> {
    match text.parse() {
        _ if text == "next" => Ok(None),
        // Such numbers are exact everywhere.
        Ok(step) if step < 1 << 53 => Ok(Some(step)),
        _ => Err(UserError::bad_input(format_args!(
            "--at {text}: write next, or the number of a step, such as --at 1200"
        ))),
    }
}

/// Returns the number of steps for which `--verify` compares clone and parent after loading; 0 for `digest`.
fn shadow(text: &str) -> Result<u32, UserError> {
    let steps = text.strip_prefix("shadow:").map(str::parse);
    match steps {
        None if text == "digest" => Ok(0),
        Some(Ok(steps)) if (1..=FORK_SHADOW_MAX).contains(&steps) => Ok(steps),
        _ => Err(UserError::bad_input(format_args!(
            "--verify {text}: write digest, or shadow:N for a comparison after N more steps of both, 1 to {FORK_SHADOW_MAX}, such as --verify shadow:3"
        ))),
    }
}

/// Parses the changes to the clone. The clone itself refuses names that its optimizer does not know.
fn changes(set: &[String]) -> Result<Map<String, Value>, UserError> {
    let mut changes = Map::new();
    for text in set {
        let refuse = |why: &str| UserError::bad_input(format_args!("--set {text}: {why}"));
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| refuse("write NAME=VALUE, such as lr=0.01"))?;
        let value = match name {
            "seed" => value
                .parse::<u32>()
                .map(Value::from)
                .map_err(|_| refuse("a seed is a whole number below 2^32"))?,
            _ => match value.parse::<f64>() {
                Ok(number) if number.is_finite() && (name != "lr" || number >= 0.0) => json!(number),
                Ok(_) if name == "lr" => return Err(refuse("a learning rate is a number that is not negative")),
                _ => return Err(refuse("the value has to be a number")),
            },
        };
        if changes.insert(name.to_owned(), value).is_some() {
            return Err(refuse("it is set twice"));
        }
    }
    Ok(changes)
}

fn list(json: bool, dir: &Path) -> Result<String, UserError> {
    let jobs = match jobs(dir) {
        Ok(jobs) => jobs,
        // Nobody is there to be asked: the agent ends with its last job.
        Err(AgentError::Io { .. }) => Vec::new(),
        Err(error) => return Err(UserError::bad_input(error)),
    };
    let mut lines = String::new();
    for job in &jobs {
        if json {
            let _ = writeln!(lines, "{}", serde_json::to_string(job).unwrap_or_default());
        } else {
            lines.push_str(&line_of(job));
        }
    }
    if lines.is_empty() && !json {
        lines.push_str("no job that can be forked trains on this node\n");
    }
    Ok(lines)
}

fn line_of(job: &ForkableJob) -> String {
    let ranks = if job.ranks_here == job.ranks {
        text::counted(u64::from(job.ranks), "rank", "ranks")
    } else {
        format!("{} of {} ranks", job.ranks_here, job.ranks)
    };
    let step = job
        .step
        .map_or_else(|| "no step yet".into(), |step| format!("step {}", text::count(step)));
    let clones = text::counted(job.clones, "clone", "clones");
    format!("{}  {ranks}, {step}, {} of state, {clones}\n", job.job, text::bytes(job.bytes))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn each_stage_of_a_clone_is_named() {
        let mut outcome = ForkProgress {
            ranks: 2,
            here: 1,
            ..ForkProgress::default()
        };
        assert_eq!(stage(&outcome, "trunk", None), (1, "1 of 2 ranks of the clone are ready".into()));
        outcome.here = 2;
        assert_eq!(stage(&outcome, "trunk", None), (2, "waiting for the next step of trunk".into()));
        assert_eq!(stage(&outcome, "trunk", Some(1200)), (2, "waiting for step 1200 of trunk".into()));
        outcome.taken = true;
        outcome.loaded = 1;
        assert_eq!(stage(&outcome, "trunk", None), (5, "1 of 2 ranks have loaded their states".into()));
    }

    #[test]
    fn a_program_that_failed_is_not_told_what_a_clone_is() {
        for (ended, line) in [
            (
                Ended::Status(0),
                "python ended without asking for the state of trunk: a clone is a program that calls forebay.clone.session(...)",
            ),
            (
                Ended::Status(1),
                "python ended with status 1 before it asked for the state of trunk",
            ),
            (
                Ended::Signal(15),
                "python was ended by SIGTERM before it asked for the state of trunk",
            ),
        ] {
            assert_eq!(never_asked("python", ended, "trunk"), format!("forebay: {line}\n"));
        }
    }

    /// Returns `watch`'s result for these answers of the agent, and the number of questions.
    fn watched(answers: &[ForkProgress]) -> (bool, usize) {
        let (_runs, ended) = mpsc::channel();
        let asked = Cell::new(0);
        let look = || {
            let at = asked.replace(asked.get() + 1);
            let answer = answers.get(at).cloned();
            answer.ok_or_else(|| AgentError::Protocol("it closed the connection".into()))
        };
        let is_answered = watch(look, "trunk", None, &ended);
        (is_answered, asked.get())
    }

    #[test]
    fn a_clone_is_watched_until_it_has_loaded_or_failed() {
        let waits = ForkProgress {
            asked: true,
            ranks: 2,
            here: 1,
            ..ForkProgress::default()
        };
        let failed = ForkProgress {
            is_over: true,
            ..waits.clone()
        };
        let loaded = ForkProgress {
            here: 2,
            taken: true,
            loaded: 2,
            ..waits.clone()
        };
        assert_eq!(watched(&[ForkProgress::default(), waits.clone(), failed, waits.clone()]), (true, 3));
        assert_eq!(watched(&[loaded.clone(), loaded]), (true, 1), "it may be on probation");
        assert_eq!(
            watched(&[waits]),
            (false, 2),
            "nothing more is asked of an agent that has not answered"
        );
    }

    #[test]
    fn nobody_is_asked_once_the_program_has_ended() {
        let (runs, ended) = mpsc::channel();
        drop(runs);
        assert!(watch(|| Err(AgentError::Protocol("asked".into())), "trunk", None, &ended));
    }

    #[test]
    fn numbers_are_read_and_nonsense_is_refused() {
        assert_eq!(
            (when("next").unwrap(), when("0").unwrap(), when("12").unwrap()),
            (None, Some(0), Some(12))
        );
        for text in ["", "Next", "-1", "1.5", "9007199254740992", "step 3"] {
            assert!(when(text).unwrap_err().to_string().contains("--at 1200"), "{text}");
        }
        assert_eq!((shadow("digest").unwrap(), shadow("shadow:3").unwrap()), (0, 3));
        for text in ["", "shadow", "shadow:0", "shadow:-1", "shadow:1001", "shadow:x", "digests"] {
            assert!(
                shadow(text).unwrap_err().to_string().contains("such as --verify shadow:3"),
                "{text}"
            );
        }
        let texts = ["lr=1e-2", "seed=7", "weight_decay=-1"].map(String::from);
        assert_eq!(
            Value::from(changes(&texts).unwrap()),
            json!({ "lr": 0.01, "seed": 7, "weight_decay": -1.0 })
        );
        for (texts, why) in [
            (vec!["lr"], "NAME=VALUE"),
            (vec!["=1"], "NAME=VALUE"),
            (vec!["lr=fast"], "has to be a number"),
            (vec!["lr=-1"], "not negative"),
            (vec!["lr=nan"], "not negative"),
            (vec!["x=inf"], "has to be a number"),
            (vec!["seed=1.5"], "whole number below 2^32"),
            (vec!["seed=-1"], "whole number below 2^32"),
            (vec!["lr=1", "lr=2"], "set twice"),
        ] {
            let texts: Vec<_> = texts.into_iter().map(String::from).collect();
            let line = changes(&texts).unwrap_err().to_string();
            assert!(line.contains(why) && line.contains("--set"), "{line}");
        }
    }
}
