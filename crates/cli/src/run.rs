//! `forebay run`: decide, join the agent, run the program, tell what was done.

use std::{
    ffi::OsString,
    io::Write,
    path::Path,
    time::{Instant, SystemTime},
};

use forebay_agent::JoinedRun;
use forebay_contract::env;

use crate::{
    args::RunArgs,
    child::{Ended, Launch},
    config::{Config, Flags, is_off},
    environment::Environment,
    library::{self, LD_PRELOAD},
    plan::Plan,
    program::{Cover, Program},
    record::{self, Report},
    refusal::Refusal,
    summary::{self, Counts},
};

/// Runs a program; gives how it ended.
///
/// # Errors
/// Bad input, or a program that is not there. Nothing has run then.
pub fn run(args: &RunArgs, environment: &Environment) -> Result<Ended, Refusal> {
    let words = &args.program;
    let name = words.first().ok_or_else(|| Refusal::bad_input("no program was given"))?;
    if is_off(environment)? {
        let program = Program::find(name, environment)?;
        return Err(Launch {
            path: &program.path,
            words,
            environment: &[],
        }
        .replace());
    }
    let config = Config::resolve(&Flags::from(args), environment)?;
    let exe = std::env::current_exe().map_err(|error| Refusal::bad_input(format_args!("/proc/self/exe: {error}; mount /proc")))?;
    let plan = Plan::make(config, words, environment, &exe)?;
    record::check(&plan)?;
    let mut program = Program::find(name, environment)?;
    if let Some(why) = &plan.idle {
        plan.say(format_args!("nothing to do: {why}; {} runs untouched", name.to_string_lossy()));
        return Err(Launch {
            path: &program.path,
            words,
            environment: &[],
        }
        .replace());
    }
    plan.settle()?;
    let library = library::plain_name(&plan.library, &plan.runtime_dir.value)?;
    program.try_library(&library);
    if let Cover::Breaks(why) = &program.cover {
        let line = format!(
            "{}: {why}, so the preload library can't work in it; run it with {}=off",
            name.to_string_lossy(),
            env::FOREBAY
        );
        return Err(Refusal::bad_input(line));
    }
    serve(&plan, &program, &library, words, environment, &exe)
}

fn serve(
    plan: &Plan,
    program: &Program,
    library: &Path,
    words: &[OsString],
    environment: &Environment,
    exe: &Path,
) -> Result<Ended, Refusal> {
    let mut joined = JoinedRun::begin(&plan.request(), exe).map_err(Refusal::bad_input)?;
    plan.say(format_args!("serving {}", plan.line()));
    for note in plan.tiers.iter().filter_map(|tier| tier.note.as_ref()).chain(&plan.sources.notes) {
        plan.say(note);
    }
    let mut set = vec![(env::RUN, joined.page_path().as_os_str().to_owned())];
    match program.cover {
        // Its loader would complain on the program's standard error.
        Cover::Foreign => {}
        _ => set.push((LD_PRELOAD, library::with_library(environment, library))),
    }
    if program.cover != Cover::Covered {
        plan.say(format_args!(
            "{}: {}",
            words.first().map(|word| word.to_string_lossy()).unwrap_or_default(),
            program.cover
        ));
    }
    let (started, clock) = (SystemTime::now(), Instant::now());
    let ended = Launch {
        path: &program.path,
        words,
        environment: &set,
    }
    .run()?;
    let elapsed = clock.elapsed();
    let counts = Counts::read(&joined.page(), plan.tiers.len());
    let agent = joined.status().and_then(|_| joined.leave());
    if let Err(error) = &agent {
        plan.say(format_args!(
            "the agent was gone before the program's end ({error}); from then on the source was read"
        ));
    }
    let report = Report {
        plan,
        program,
        words,
        ended,
        started,
        elapsed,
        counts,
        agent: agent.ok(),
    };
    let written = record::write(&report);
    if !plan.config.quiet.value {
        tell(&summary::text(&report, written.as_deref().ok()));
    }
    if let Err(why) = written {
        tell(&format!("forebay: the record was not written: {why}\n"));
    }
    Ok(ended)
}

impl Plan {
    fn say(&self, line: impl std::fmt::Display) {
        if !self.config.quiet.value {
            tell(&format!("forebay: {line}\n"));
        }
    }
}

/// In one piece, so that lines of several runs do not mix. That nobody reads it is no fault.
fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
