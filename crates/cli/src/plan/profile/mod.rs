//! `forebay profile`: measures what a plan has to know of this machine and its source, and writes it down.

pub mod preprocess;
pub mod reader;
pub mod record;
pub mod storage;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use forebay_policy::models::preprocess::Preprocessing;
use forebay_settings::{
    environment::Environment,
    mounts::Mounts,
    size::parse_size,
    text::{self, rate_text, size_text, time_text},
    user_error::UserError,
};
use record::{PreprocessRound, ProfileRecord, ReadRound};

use crate::{args::ProfileArgs, plan::planner::units::parse_rate, progress::WorkProgress};

/// More threads than this say nothing about a node.
const THREADS_MAX: u32 = 1024;
/// A round that lasts longer measures patience.
const SECONDS_MAX: f64 = 3600.0;

/// Resolved arguments.
#[derive(Debug)]
struct Wish {
    reading: reader::ReaderRequest,
    preprocessing: Option<preprocess::PreprocessRequest>,
    python: String,
    peer_bytes_per_s: Option<f64>,
    output: PathBuf,
}

impl Wish {
    fn resolve(args: &ProfileArgs, environment: &Environment) -> Result<Self, UserError> {
        let dirs: Vec<PathBuf> = args.dirs.iter().map(|dir| environment.make_absolute(dir)).collect();
        let tier = args.tier.as_ref().map(|dir| environment.make_absolute(dir));
        for dir in dirs.iter().chain(&tier) {
            let meta = fs::metadata(dir).map_err(|error| UserError::bad_input(format_args!("{}: {error}", dir.display())))?;
            if !meta.is_dir() {
                return Err(UserError::bad_input(format_args!("{} is not a directory; name one", dir.display())));
            }
        }
        let threads = threads(args.threads.as_deref())?;
        let seconds = args.seconds.unwrap_or(3.0);
        if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
            return Err(UserError::bad_input(format_args!(
                "--seconds {seconds}: more than 0 and at most {SECONDS_MAX} is allowed"
            )));
        }
        let bytes = args.bytes.as_deref().map_or(Ok(1 << 30), |bytes| parse_size("--bytes", bytes))?;
        let output = environment.make_absolute(&args.output);
        if output.exists() && !args.force {
            return Err(UserError::bad_input(format_args!(
                "{} exists; name another file by --output, or say --force",
                output.display()
            )));
        }
        let peers = args.peer_bandwidth.as_deref().map(|rate| parse_rate("--peer-bandwidth", rate));
        Ok(Self {
            preprocessing: args.preprocess.as_ref().map(|call| preprocess::PreprocessRequest {
                call: call.clone(),
                dirs: dirs.clone(),
                threads: threads.clone(),
                seconds,
            }),
            reading: reader::ReaderRequest {
                dirs,
                tier,
                threads,
                time: Duration::from_secs_f64(seconds),
                bytes,
            },
            python: args.python.clone(),
            peer_bytes_per_s: peers.transpose()?,
            output,
        })
    }
}

/// Numbers of threads, smallest first; by default powers of two up to twice the processors.
fn threads(given: Option<&str>) -> Result<Vec<u32>, UserError> {
    let Some(given) = given else {
        let most = 2 * processors();
        return Ok((0..=10).map(|power| 1 << power).filter(|threads| *threads <= most).collect());
    };
    let refuse = |word: &str| {
        UserError::bad_input(format_args!(
            "--threads {given}: invalid number of threads '{word}'; write numbers from 1 to {THREADS_MAX}, such as 1,2,4,8"
        ))
    };
    let numbers = given.split(',').map(|word| {
        let number = word.trim().parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
        number.ok_or_else(|| refuse(word))
    });
    let mut numbers = numbers.collect::<Result<Vec<u32>, UserError>>()?;
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

fn processors() -> u32 {
    thread::available_parallelism().map_or(1, |processors| processors.get() as u32)
}

/// Measures, writes the profile, and gives what is to be said of it.
///
/// # Errors
/// Bad input, and what can't be measured.
pub fn profile(args: &ProfileArgs, environment: &Environment) -> Result<String, UserError> {
    let wish = Wish::resolve(args, environment)?;
    let exe = std::env::current_exe().map_err(|error| UserError::bad_input(format_args!("/proc/self/exe: {error}; mount /proc")))?;
    let rounds = wish.reading.threads.len() as u64;
    let progress = WorkProgress::new("profile", rounds * (2 + u64::from(wish.preprocessing.is_some())));
    let mut measured = ProfileRecord {
        when: text::timestamp(SystemTime::now()),
        processors: processors(),
        load_average: load_average(),
        ..ProfileRecord::default()
    };
    if let Some(question) = &wish.preprocessing {
        preprocess::find(question, &wish.python, &progress)?;
    }
    let answer = reader::ask(&wish.reading, &exe, &progress)?;
    measured.notes = notes(&wish, &answer.source);
    measured.source = answer.source;
    measured.local = answer.local;
    if let Some(question) = &wish.preprocessing {
        measured.preprocessing = preprocess::ask(question, &wish.python, &progress)?;
        measured.preprocessing_saturates_at = saturates_at(&measured.preprocessing);
    }
    drop(progress);
    let written = record::text(&measured, &answer.found, wish.peer_bytes_per_s)?;
    fs::write(&wish.output, written)
        .map_err(|error| UserError::bad_input(format_args!("{}: {error}; name another file by --output", wish.output.display())))?;
    Ok(report(&measured, &wish.output))
}

/// Threads past which preprocessing gains nothing more; none where only one number of threads was measured.
fn saturates_at(rounds: &[PreprocessRound]) -> Option<u32> {
    let points: Vec<(u32, f64)> = rounds.iter().map(|round| (round.threads, round.samples_per_s)).collect();
    Preprocessing::fit(&points).ok().map(|model| model.threads_enough())
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Sentences that say what the figures describe and what they do not.
fn notes(wish: &Wish, source: &[ReadRound]) -> Vec<String> {
    let mounts = Mounts::read();
    let kind = |dir: &Path| mounts.of(dir).map_or_else(|| "unknown".to_owned(), |mount| mount.fs_type.clone());
    let mut notes: Vec<String> = wish
        .reading
        .dirs
        .iter()
        .map(|dir| {
            format!(
                "source: {} ({}); files were picked by chance, each read once where there are enough",
                dir.display(),
                kind(dir)
            )
        })
        .collect();
    notes.push("this machine's page cache was dropped for each file before it was read; a server's own memory can't be".into());
    notes.push(match &wish.reading.tier {
        Some(tier) => format!(
            "local: copies of such files in {} ({}), dropped from memory too",
            tier.display(),
            kind(tier)
        ),
        None => "local: copies of such files in memory".into(),
    });
    let samples: u64 = source.iter().map(|reading| reading.samples).sum();
    let again: u64 = source.iter().map(|reading| reading.again).sum();
    if again > 0 {
        notes.push(format!(
            "there were too few files: {} of {} reads were not the first",
            text::count(again),
            text::count(samples)
        ));
    }
    match source.iter().map(|reading| reading.cached).sum::<Option<u64>>() {
        Some(0) => {}
        Some(cached) => notes.push(format!(
            "{} of {} samples were in this machine's memory all the same, so the source is slower than it looks",
            text::count(cached),
            text::count(samples)
        )),
        None => notes.push("whether this machine's memory answered can't be told on this file system".into()),
    }
    notes
}

/// Returns the measurements as text for a person.
fn report(measured: &ProfileRecord, output: &Path) -> String {
    let mut out = String::new();
    for (what, readings) in [("source", &measured.source), ("local", &measured.local)] {
        let _ = writeln!(
            out,
            "{what:<9} threads       rate   samples/s    p50        p95        p98        p99"
        );
        for reading in readings {
            let [p50, p95, p98, p99] = reading.read_s.map(time_text);
            #[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
            let samples_per_s = reading.samples as f64 / reading.seconds.max(1e-9);
            let _ = writeln!(
                out,
                "{:<9} {:>7} {:>10} {:>11}    {p50:<10} {p95:<10} {p98:<10} {p99}",
                "",
                reading.threads,
                rate_text(reading.bytes_per_s()),
                text::count(samples_per_s.round() as u64),
            );
        }
    }
    if !measured.preprocessing.is_empty() {
        let _ = writeln!(out, "{:<9} threads  samples/s    CPU a sample", "prepare");
        for round in &measured.preprocessing {
            let [threads, rate, cpu] = preprocess::row(round);
            let _ = writeln!(out, "{:<9} {threads:>7} {rate:>10}    {cpu}", "");
        }
        if let Some(threads) = measured.preprocessing_saturates_at {
            let _ = writeln!(
                out,
                "          past {} preprocessing gains nothing more",
                text::counted(threads.into(), "thread", "threads")
            );
        }
    }
    for note in &measured.notes {
        let _ = writeln!(out, "note      {note}");
    }
    let read: u64 = measured.source.iter().map(|reading| reading.bytes).sum();
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let read = size_text(read as f64);
    let _ = writeln!(
        out,
        "profile   {} ({read} read from the source); fill in what is commented out, then: forebay plan {0}",
        output.display()
    );
    out
}
