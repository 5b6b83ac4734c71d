//! Measuring a Python callable: `python -m forebay.preprocess` runs it in worker processes and tells line by line.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::record::PreprocessRound;
use crate::progress::WorkProgress;
use forebay_settings::{text, user_error::UserError};

/// Interval between two updates of the progress bar.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Request to the interpreter.
#[derive(Clone, Debug, Serialize)]
pub struct PreprocessRequest {
    /// `module:function`; it is given the bytes of a sample.
    pub call: String,
    /// Files of samples.
    pub dirs: Vec<PathBuf>,
    /// Numbers of workers, a round each.
    pub threads: Vec<u32>,
    /// Time of a round in seconds.
    pub seconds: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PreprocessLine {
    Found(String),
    Round(PreprocessRound),
    Refused(String),
}

/// Checks that the interpreter finds the callable, before anything is measured.
///
/// # Errors
/// As [`ask`], but for what shows only when it runs.
pub fn find(question: &PreprocessRequest, python: &str, progress: &WorkProgress) -> Result<(), UserError> {
    let question = PreprocessRequest {
        threads: Vec::new(),
        ..question.clone()
    };
    ask(&question, python, progress).map(drop)
}

/// Runs the callable in the interpreter.
///
/// # Errors
/// An interpreter that can't be started or has no package `forebay`, a callable that is not there, or that raises.
pub fn ask(question: &PreprocessRequest, python: &str, progress: &WorkProgress) -> Result<Vec<PreprocessRound>, UserError> {
    let refuse = |why: &dyn std::fmt::Display| UserError::bad_input(format_args!("--python {python}: {why}"));
    let words = serde_json::to_vec(question).map_err(|error| refuse(&error))?;
    let mut process = Command::new(python)
        .args(["-m", "forebay.preprocess"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| refuse(&format_args!("{error}; name the interpreter that runs your training")))?;
    if let Some(mut stdin) = process.stdin.take() {
        // One that ends before it has read everything says why on its other side.
        let _ = stdin.write_all(&words);
    }
    progress.note("starting workers");
    let (lines, errors) = listen(&mut process).map_err(|error| refuse(&error))?;
    let mut is_found = false;
    let mut rounds = Vec::new();
    loop {
        match lines.recv_timeout(LOOK_EVERY) {
            Ok(PreprocessLine::Found(call)) => is_found = call == question.call,
            Ok(PreprocessLine::Round(round)) => {
                rounds.push(round);
                progress.advance(1);
                progress.note("preprocessing");
            }
            Ok(PreprocessLine::Refused(why)) => {
                let _ = process.wait();
                return Err(UserError::bad_input(format_args!("--preprocess {}: {why}", question.call)));
            }
            Err(RecvTimeoutError::Timeout) => progress.refresh(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let _ = process.wait();
    if is_found && rounds.len() == question.threads.len() {
        return Ok(rounds);
    }
    let said = errors.recv_timeout(Duration::from_secs(5)).unwrap_or_default();
    let last = said
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("it ended without a word")
        .trim();
    let mend = if last.contains("No module named") && last.contains("forebay") {
        "; install forebay there, or name another interpreter by --python"
    } else {
        ""
    };
    Err(refuse(&format_args!("{last}{mend}")))
}

fn listen(process: &mut Child) -> std::io::Result<(Receiver<PreprocessLine>, Receiver<String>)> {
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let (tell, lines) = channel();
    thread::Builder::new().name("rounds".into()).spawn(move || {
        let told = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
        for line in told.map_while(Result::ok) {
            // A callable may print what it likes.
            if let Ok(line) = serde_json::from_str(&line)
                && tell.send(line).is_err()
            {
                break;
            }
        }
    })?;
    let (tell, errors) = channel();
    thread::Builder::new().name("errors".into()).spawn(move || {
        let mut said = Vec::new();
        let _ = stderr.map(|mut stderr| stderr.read_to_end(&mut said));
        let _ = tell.send(String::from_utf8_lossy(&said).into_owned());
    })?;
    Ok((lines, errors))
}

/// Returns a round's result as a row of the table.
pub fn row(round: &PreprocessRound) -> [String; 3] {
    [
        round.threads.to_string(),
        text::count(round.samples_per_s.round() as u64),
        forebay_settings::text::time_text(round.cpu_s),
    ]
}
