//! The part of `forebay profile` that reads, in a process of its own: one that waits for a source that hangs can't be
//! ended, and must not be the one that a person looks at.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    record::{FoundFiles, ReadRound},
    storage::{Bounds, Stock},
};
use crate::progress::WorkProgress;
use forebay_settings::user_error::UserError;

/// A source that is silent for so long beyond the time of a round is hung, or as good as.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between two updates of the progress bar.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Request to the reading process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReaderRequest {
    /// The source's directories.
    pub dirs: Vec<PathBuf>,
    /// The local tier; none: memory.
    pub tier: Option<PathBuf>,
    /// Numbers of threads, a round each.
    pub threads: Vec<u32>,
    /// Time of a round.
    pub time: Duration,
    /// Bytes of a round.
    pub bytes: u64,
}

/// Answer of the reading process, one a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum ReaderLine {
    Found { files: u64, bytes: u64, complete: bool },
    Source(ReadRound),
    Local(ReadRound),
    Refused(String),
}

/// Results of reading.
#[derive(Clone, Debug)]
pub struct ReaderAnswer {
    /// The data set, as far as it was looked at.
    pub found: FoundFiles,
    /// Results by number of threads.
    pub source: Vec<ReadRound>,
    /// Results by number of threads.
    pub local: Vec<ReadRound>,
}

/// Reads in another process (`COMMAND profile-reader`).
///
/// # Errors
/// What can't be read, and a source that does not answer.
pub fn ask(question: &ReaderRequest, command: &Path, progress: &WorkProgress) -> Result<ReaderAnswer, UserError> {
    let failed = |error: &dyn std::fmt::Display| UserError::bad_input(format_args!("the reading process: {error}"));
    let mut process = Command::new(command)
        .arg("profile-reader")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    let lines = converse(&mut process, question).map_err(|error| failed(&error))?;
    let answer = listen(&lines, question, progress);
    if answer.is_err() {
        // It goes when the source answers. Waiting for it would be waiting for the source.
        let _ = process.kill();
    } else {
        let _ = process.wait();
    }
    answer
}

fn converse(process: &mut Child, question: &ReaderRequest) -> std::io::Result<Receiver<ReaderLine>> {
    let words = serde_json::to_vec(question)?;
    if let Some(mut stdin) = process.stdin.take() {
        stdin.write_all(&words)?;
    }
    let stdout = process.stdout.take();
    let (tell, lines) = channel();
    thread::Builder::new().name("profile".into()).spawn(move || {
        let told = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
        for line in told.map_while(Result::ok) {
            if let Ok(line) = serde_json::from_str(&line)
                && tell.send(line).is_err()
            {
                break;
            }
        }
    })?;
    Ok(lines)
}

fn listen(lines: &Receiver<ReaderLine>, question: &ReaderRequest, progress: &WorkProgress) -> Result<ReaderAnswer, UserError> {
    let mut answer = ReaderAnswer {
        found: FoundFiles {
            files: 0,
            bytes: 0,
            complete: false,
        },
        source: Vec::new(),
        local: Vec::new(),
    };
    let rounds = question.threads.len();
    progress.note("looking for files");
    let mut heard = Instant::now();
    while answer.source.len() < rounds || answer.local.len() < rounds {
        let line = match lines.recv_timeout(LOOK_EVERY) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) if heard.elapsed() < question.time + PATIENCE => {
                progress.refresh();
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {
                let first = question.dirs.first().map_or_else(String::new, |dir| dir.display().to_string());
                let seconds = (question.time + PATIENCE).as_secs();
                return Err(UserError::bad_input(format_args!("{first} did not answer within {seconds} s")));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(UserError::bad_input("the measurement broke off")),
        };
        heard = Instant::now();
        match line {
            ReaderLine::Found { files, bytes, complete } => {
                answer.found = FoundFiles { files, bytes, complete };
                progress.note("reading the source");
            }
            ReaderLine::Source(reading) => {
                answer.source.push(reading);
                progress.advance(1);
                progress.refresh();
            }
            ReaderLine::Local(reading) => {
                answer.local.push(reading);
                progress.advance(1);
                progress.note("reading locally");
            }
            ReaderLine::Refused(why) => return Err(UserError::bad_input(why)),
        }
    }
    Ok(answer)
}

/// The other side of it: a [`ReaderRequest`] comes as JSON, and what it came to goes back line by line.
pub fn answer() -> u8 {
    let mut question = Vec::new();
    let read = std::io::stdin().read_to_end(&mut question).map_err(|error| error.to_string());
    let question = read.and_then(|_| serde_json::from_slice(&question).map_err(|error| error.to_string()));
    let outcome = question.and_then(|question: ReaderRequest| rounds(&question));
    let refused = outcome.err();
    if let Some(why) = &refused {
        tell(&ReaderLine::Refused(why.clone()));
    }
    u8::from(refused.is_some())
}

fn tell(line: &ReaderLine) {
    let mut words = serde_json::to_vec(line).unwrap_or_default();
    words.push(b'\n');
    let mut out = std::io::stdout().lock();
    // A closed output is not an error.
    let _ = out.write_all(&words).and_then(|()| out.flush());
}

fn rounds(question: &ReaderRequest) -> Result<(), String> {
    let (mut stock, found) = Stock::find(&question.dirs);
    let FoundFiles { files, bytes, complete } = found;
    tell(&ReaderLine::Found { files, bytes, complete });
    if stock.is_empty() {
        let dirs: Vec<String> = question.dirs.iter().map(|dir| dir.display().to_string()).collect();
        return Err(format!("there is no file to read below {}", dirs.join(", ")));
    }
    let bounds = Bounds {
        time: question.time,
        bytes: question.bytes,
    };
    let mut local = stock.local(question.tier.as_deref()).map_err(|error| match &question.tier {
        Some(tier) => format!("{}: copies can't be made: {error}", tier.display()),
        None => format!("copies in memory can't be made: {error}"),
    })?;
    for (round, &threads) in question.threads.iter().enumerate() {
        let left = question.threads.len() - round;
        let reading = stock.read(threads, bounds, left).map_err(|error| error.to_string())?;
        tell(&ReaderLine::Source(reading));
    }
    for &threads in &question.threads {
        let reading = local.read(threads, bounds, 1).map_err(|error| error.to_string())?;
        tell(&ReaderLine::Local(reading));
    }
    Ok(())
}
