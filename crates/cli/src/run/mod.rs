//! `forebay run`: decide, join the agent, run the program, tell what was done.

pub mod beside;
pub mod child;
pub mod command_key;
pub mod derived;
pub mod elf;
pub mod event_log;
pub mod exclude;
pub mod first_step;
pub mod forks;
pub mod library;
pub mod loaders;
pub mod nodes;
pub mod plan;
pub mod program;
pub mod ram;
pub mod read_all;
pub mod record;
pub mod summary;
pub mod tier_order;
pub mod timeline;
pub mod warm;

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use forebay_agent::{
    host::{clock::boot_ns, error::AgentError},
    tiering::{Counts, JoinedRun, protocol::Status, sharing::FileSharing},
};
use forebay_contract::{Counter, env, run::ROOT_BYTES_MAX};
use forebay_settings::{
    config::{Config, WrittenSettings, is_off},
    environment::Environment,
    tiers::used,
    user_error::UserError,
};

use self::{
    child::{Ended, Launch},
    event_log::EventLog,
    first_step::{FirstStep, StartupSettings},
    library::{ASAN_OPTIONS, GLIBC_TUNABLES, LD_AUDIT, LD_PRELOAD},
    plan::Plan,
    program::{Cover, Program},
    record::Report,
    timeline::{Files, Timeline},
};
use crate::{args::RunArgs, tell, view};

/// Interval between two looks of a run that waits for its copies.
const SETTLE_POLL: Duration = Duration::from_millis(20);
/// Descriptors that have not reached the agent by then were lost on their way.
const LOST_AFTER: Duration = Duration::from_secs(15);
/// An agent that has done nothing for this long waits for a source that hangs: the run need not wait, too.
const SETTLE_IDLE_MAX: Duration = Duration::from_secs(60);

/// Runs a program; gives how it ended.
///
/// # Errors
/// Bad input, or a program that is not there. Nothing has run then.
pub fn run(args: &RunArgs, environment: &Environment) -> Result<Ended, UserError> {
    let words = &args.program;
    let name = words.first().ok_or_else(|| UserError::bad_input("no program was given"))?;
    if is_off(environment)? {
        let program = Program::find(name, environment)?;
        return Err(Launch {
            path: &program.path,
            words,
            environment: &[],
        }
        .replace());
    }
    let config = Config::resolve(&WrittenSettings::from(args), environment)?;
    let exe = std::env::current_exe().map_err(|error| UserError::bad_input(format_args!("/proc/self/exe: {error}; mount /proc")))?;
    let mut plan = Plan::make(config, words, environment, &exe)?;
    record::check(&plan)?;
    let program = Program::find(name, environment)?;
    // They stay as they are until the program has ended.
    let views = view::fill_all(&plan.config, environment)?;
    // Where Forebay can write nothing of its own, a program that gains little is not refused.
    if plan.no_tier.is_some() && plan.settle().is_err() {
        plan.idle = plan.no_tier.take();
    }
    if let Some(why) = &plan.idle {
        plan.say(format_args!("nothing to do: {why}; {} runs untouched", name.to_string_lossy()));
        let launch = Launch {
            path: &program.path,
            words,
            environment: &plan.config.peers.variables_of_options(),
        };
        return if views.is_empty() { Err(launch.replace()) } else { launch.run() };
    }
    plan.settle()?;
    ProgramRun {
        plan: &plan,
        program,
        words,
        settles: false,
        summary: summary::text,
    }
    .serve(environment, &exe)
}

/// A program that is to run, and how its run is to end.
#[derive(Debug)]
pub struct ProgramRun<'a> {
    /// Decisions made before the run.
    pub plan: &'a Plan,
    /// The program.
    pub program: Program,
    /// Its name and arguments.
    pub words: &'a [OsString],
    /// Waits at the end until no copy is in progress.
    pub settles: bool,
    /// Text at the end of the run; the path is the record's.
    pub summary: fn(&Report<'_>, Option<&Path>) -> String,
}

impl ProgramRun<'_> {
    /// Joins the agent, runs the program, and tells what it came to.
    ///
    /// # Errors
    /// When the agent refuses, or the program can't be started or covered. Nothing has run then.
    pub fn serve(mut self, environment: &Environment, exe: &Path) -> Result<Ended, UserError> {
        let plan = self.plan;
        let library = library::plain_name(&plan.library, &plan.runtime_dir.value)?;
        let audit = plan.audit_library()?;
        self.program.try_library(&library);
        let name = self.words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
        refuse_broken(&name, &self.program.cover)?;
        // A run that reads for others says nothing of a program.
        let command_key = (!self.settles).then(|| command_key::of(plan, &self.program.path, self.words, environment));
        let (mut joined, sharing) = join(plan, command_key.clone(), environment, exe)?;
        plan.say(format_args!("serving {}", plan.line()));
        plan.notes().for_each(|note| plan.say(note));
        let forks = EventLog::<forks::ForkEvent>::beside(joined.page_path(), forks::KIND);
        let loaders = EventLog::<loaders::EpochEvent>::beside(joined.page_path(), loaders::KIND);
        let set = self.variables(joined.page_path(), (&library, audit.as_deref()), environment);
        if self.program.cover != Cover::Covered {
            plan.say(format_args!("{name}: {}", self.program.cover));
        }
        let (started, clock, begun_ns) = (SystemTime::now(), Instant::now(), boot_ns());
        let launch = Launch {
            path: &self.program.path,
            words: self.words,
            environment: &set,
        };
        let (ended, mut timeline) = timeline::watch(&joined, plan.tiers.len(), clock, || launch.run());
        let ended = ended?;
        drop(sharing);
        if self.settles {
            wait_for_copies(&mut joined);
        }
        let elapsed = clock.elapsed();
        let page = joined.page();
        let (counts, files) = (Counts::read(&page, plan.tiers.len()), Files::read(&page, &mut Vec::new()));
        let first_step = FirstStep::read(&page.startup(), begun_ns, plan.tiers.len());
        let other_name = other_name(&joined);
        let (forks, loaders) = (forks.take(), loaders.take());
        let agent = leave(joined, plan, &mut timeline);
        let first_step = first_step.map(|first_step| first_step.advised(StartupSettings::of(plan, agent.as_ref())));
        let report = Report {
            plan,
            program: &self.program,
            words: self.words,
            command_key,
            ended,
            started,
            elapsed,
            counts,
            agent,
            files,
            first_step,
            other_name,
            timeline,
            forks,
            loaders,
        };
        let written = record::write(&report);
        if !plan.config.quiet.value {
            tell(&(self.summary)(&report, written.as_deref().ok()));
        }
        if let Err(why) = written {
            tell(&format!("forebay: the record was not written: {why}\n"));
        }
        Ok(ended)
    }

    /// Returns the variables that are added to the program's environment.
    fn variables(&self, page: &Path, (library, audit): (&Path, Option<&Path>), environment: &Environment) -> Vec<(&'static str, OsString)> {
        let mut set = vec![(env::RUN, page.as_os_str().to_owned())];
        set.extend(self.plan.config.peers.variables_of_options());
        // The loader of a foreign program would complain on the program's standard error.
        if self.program.cover != Cover::Foreign {
            set.push((LD_PRELOAD, library::with_library(environment, LD_PRELOAD, library)));
            if let Some(audit) = audit {
                set.push((LD_AUDIT, library::with_library(environment, LD_AUDIT, audit)));
                set.extend(library::tunables(environment).map(|tunables| (GLIBC_TUNABLES, tunables)));
            }
            set.extend(library::asan_options(environment).map(|options| (ASAN_OPTIONS, options)));
        }
        set
    }
}

/// Refuses a program in which the preload library can't work.
fn refuse_broken(name: &str, cover: &Cover) -> Result<(), UserError> {
    let Cover::Breaks(why) = cover else { return Ok(()) };
    Err(UserError::bad_input(format_args!(
        "{name}: {why}, so the preload library can't work in it; run it with {}=off",
        env::FOREBAY
    )))
}

/// Joins the agent, and begins to look for the other nodes of the job, if there are several.
fn join(
    plan: &Plan,
    command_key: Option<String>,
    environment: &Environment,
    exe: &Path,
) -> Result<(JoinedRun, Option<FileSharing>), UserError> {
    let nodes = nodes::find(&plan.config, environment, &|why| plan.say(why))?;
    let mut request = plan.request();
    request.command_key = command_key;
    request.job = nodes.as_ref().map(|nodes| nodes.job().to_owned());
    let joined = JoinedRun::begin(&request, exe).map_err(UserError::bad_input)?;
    let sharing = match nodes {
        Some(nodes) => nodes::share(nodes, &plan.config, environment, joined.agent_dir())?,
        None => None,
    };
    Ok((joined, sharing))
}

/// Returns the name of a source by which programs opened files that were not served.
fn other_name(joined: &JoinedRun) -> Option<PathBuf> {
    let mut room = [0; ROOT_BYTES_MAX];
    let page = joined.page();
    page.other_name(&mut room).map(|name| PathBuf::from(OsStr::from_bytes(name)))
}

/// Leaves the agent, and returns its last status; `None` if it is gone or silent.
fn leave(joined: JoinedRun, plan: &Plan, timeline: &mut Timeline) -> Option<Status> {
    match joined.leave() {
        Ok(status) => {
            timeline.end_with(status.tiers.iter().map(|tier| tier.used_bytes));
            forget_slow(&plan.state_dir.value, &status);
            return Some(status);
        }
        Err(error @ AgentError::Silent { .. }) => plan.say(format_args!("{error}; what it did for this run is not known")),
        Err(error) => plan.say(format_args!(
            "the agent was gone before the program's end ({error}); from then on the source was read"
        )),
    }
    None
}

/// A tier that was set aside is no more what it was measured to be.
fn forget_slow(state_dir: &Path, status: &Status) {
    let slow: Vec<&Path> = status
        .tiers
        .iter()
        .filter(|tier| tier.set_aside > 0)
        .map(|tier| &*tier.dir)
        .collect();
    if !slow.is_empty() {
        let _alone = used::lock(state_dir);
        used::forget_read_times(state_dir, |dir| slow.contains(&dir));
    }
}

/// Waits until the agent has taken all descriptors and makes no copy of their files any more. Also returns when the
/// agent is gone, or has done nothing for long.
fn wait_for_copies(joined: &mut JoinedRun) {
    child::let_signals_end_us();
    let mut last = (Instant::now(), Status::default());
    let mut quiet_since = Instant::now();
    while let Ok(status) = joined.status() {
        let sent = joined.page().total(Counter::HandedOver);
        if status.in_flight == 0 && status.files.handed_over >= sent {
            return;
        }
        let (since, before) = &last;
        if status.in_flight > 0 || status.files.handed_over != before.files.handed_over {
            quiet_since = Instant::now();
        } else if quiet_since.elapsed() > LOST_AFTER {
            return;
        }
        if (status.files.handed_over, status.files.files_copied, status.cpu_ms)
            != (before.files.handed_over, before.files.files_copied, before.cpu_ms)
        {
            last = (Instant::now(), status);
        } else if since.elapsed() > SETTLE_IDLE_MAX {
            return;
        }
        thread::sleep(SETTLE_POLL);
    }
}

impl Plan {
    fn say(&self, line: impl std::fmt::Display) {
        if !self.config.quiet.value {
            tell(&format!("forebay: {line}\n"));
        }
    }
}
