//! The agent's log: the events that a person needs to explain a refusal, a fallback or a loss. Names of files never
//! appear in it.
//!
//! Each line is `UNIX-SECONDS LEVEL MESSAGE key=value ...`. Refusals, fallbacks and lost peers have the messages
//! `refused`, `fallback` and `lost`.

use std::{fmt, fs::File, path::Path, sync::Arc};

use rustix::fs::{Mode, OFlags};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatFields,
        format::{FormatEvent, Writer},
    },
    registry::LookupSpan,
};

use crate::host::{
    clock::unix_s,
    error::{AgentError, io_error},
    refusal::Refusal,
};

/// Names of the logs that are kept, the newest first.
pub const LOG_NAMES: [&str; 3] = ["agent.log", "agent.log.1", "agent.log.2"];

/// Starts a new log in an agent's directory, and keeps the two before it. From here on all `tracing` events of this
/// process go there.
pub(crate) fn start(dir: &Path) -> Result<(), AgentError> {
    for pair in LOG_NAMES.windows(2).rev() {
        if let [newer, older] = pair {
            // A log may be missing: there were fewer agents before.
            let _ = rustix::fs::rename(dir.join(newer), dir.join(older));
        }
    }
    let path = dir.join(LOG_NAMES[0]);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| io_error("open", &path)(e.into()))?;
    // Fails only if this process has a log already.
    let _ = tracing::subscriber::set_global_default(writing_to(File::from(file)));
    Ok(())
}

/// Makes the subscriber that writes a line for each event.
fn writing_to(file: File) -> impl Subscriber + Send + Sync {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .event_format(Line)
        .with_writer(Arc::new(file))
        .finish()
}

/// Handle on the log of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log;

impl Log {
    /// Writes one line.
    #[expect(clippy::unused_self, reason = "a part that logs is given the log")]
    pub(crate) fn line(self, text: &str) {
        tracing::info!("{text}");
    }
}

/// Logs a refusal. Paths in its words are left out.
pub(crate) fn refused(pid: Option<i32>, refusal: &Refusal) {
    let why = without_paths(&refusal.why);
    tracing::warn!(kind = refusal.kind.name(), pid, why, "refused");
}

/// Logs that something slower or less was done instead of what was wanted.
pub(crate) fn fallback(why: &str) {
    tracing::warn!(why, "fallback");
}

/// Logs a peer that went away, or did not listen, before it was done.
pub(crate) fn lost(pid: Option<i32>, why: &str) {
    tracing::warn!(pid, why, "lost");
}

/// Replaces absolute paths by `/...`: a refusal may quote words of a peer, and names of files are private.
fn without_paths(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut before = ' ';
    // Character that ends the path: a quotation mark if it began with one.
    let mut path_end: Option<Option<char>> = None;
    for character in text.chars() {
        match path_end {
            None if character == '/' && !before.is_alphanumeric() => {
                path_end = Some(Some(before).filter(|before| matches!(before, '\'' | '"')));
                kept.push_str("/...");
            }
            Some(Some(quote)) if character != quote => {}
            Some(None) if !matches!(character, ' ' | '\'' | '"' | ',' | ';' | '\n') => {}
            _ => {
                path_end = None;
                kept.push(character);
            }
        }
        before = character;
    }
    kept
}

/// Format of a line.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        // Events of other crates may name files.
        if !event.metadata().target().starts_with("forebay") {
            return Ok(());
        }
        write!(writer, "{} {} ", unix_s(), event.metadata().level())?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;
    use crate::host::refusal::RefusalKind;

    #[test]
    fn paths_do_not_enter_the_log() {
        let cases = [
            ("rank 1: /data/secret.bin: no such file", "rank 1: /... no such file"),
            ("'/a b' and (/c)", "'/...' and (/..."),
            ("2 of 3 ranks and/or none", "2 of 3 ranks and/or none"),
            ("/x,/y", "/...,/..."),
        ];
        for (text, expected) in cases {
            assert_eq!(without_paths(text), expected);
        }
    }

    #[test]
    fn three_logs_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..4 {
            start(dir.path()).unwrap();
            std::fs::write(dir.path().join(LOG_NAMES[0]), number.to_string()).unwrap();
        }
        let texts = LOG_NAMES.map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap());
        assert_eq!(texts, ["3", "2", "1"]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), LOG_NAMES.len());
    }
    #[test]
    fn a_refusal_a_fallback_and_a_lost_peer_are_one_line_each_with_a_reason() {
        let file = tempfile::tempfile().unwrap();
        let written = file.try_clone().unwrap();
        tracing::subscriber::with_default(writing_to(file), || {
            refused(Some(7), &Refusal::new(RefusalKind::Taken, "a job x\ntrains, see /data/name"));
            fallback("samples on disks will not serve later jobs");
            lost(None, "Broken pipe");
            tracing::warn!(target: "another_crate", "opened /data/name");
        });
        let mut text = String::new();
        let mut written = written;
        written.rewind().unwrap();
        written.read_to_string(&mut text).unwrap();
        let messages: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(
            messages,
            [
                r#"WARN refused kind="taken" pid=7 why="a job x\ntrains, see /...""#,
                r#"WARN fallback why="samples on disks will not serve later jobs""#,
                r#"WARN lost why="Broken pipe""#,
            ]
        );
    }
}
