//! Event logs of a run: its processes write a JSON line for each event to a file beside the run's page, one file for
//! each kind of event, with `python/forebay/_run_events.py`. At the run's end they go into its record.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    marker::PhantomData,
    path::{Path, PathBuf},
};

use forebay_settings::write::write_private;
use serde::de::DeserializeOwned;

/// Bytes that are read of a file at most, from its end: some ten thousand lines.
const BYTES_MAX: u64 = 4 << 20;
/// Lines that go into a record at most, the last ones.
const KEPT_MAX: usize = 1000;

/// Event log of one kind, which exists as long as the run.
#[derive(Debug)]
pub struct EventLog<Event> {
    path: PathBuf,
    event: PhantomData<fn() -> Event>,
}

impl<Event: DeserializeOwned> EventLog<Event> {
    /// Creates the log. Without it nobody reports events, which is not an error.
    pub fn beside(page: &Path, kind: &str) -> Self {
        let name = page.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let run = name.strip_prefix("run.").unwrap_or(&name);
        let path = page.with_file_name(format!("{kind}.{run}"));
        let _ = write_private(&path, b"");
        Self { path, event: PhantomData }
    }

    /// Returns all events and removes the file. Invalid lines are left out.
    pub fn take(self) -> Vec<Event> {
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| {
            let length = file.metadata()?.len();
            // What is left of the first line then can't be read, and is left out.
            file.seek(SeekFrom::Start(length.saturating_sub(BYTES_MAX)))?;
            file.take(BYTES_MAX).read_to_end(&mut bytes)
        });
        if read.is_err() {
            return Vec::new();
        }
        let lines = bytes.split(|byte| *byte == b'\n');
        let mut events: Vec<Event> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        events.drain(..events.len().saturating_sub(KEPT_MAX));
        events
    }
}

impl<Event> Drop for EventLog<Event> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn event_log(dir: &Path, lines: &[String]) -> EventLog<u32> {
        let log = EventLog::beside(&dir.join("run.12"), "numbers");
        let mut file = File::options().append(true).open(dir.join("numbers.12")).unwrap();
        for line in lines {
            writeln!(file, "{line}").unwrap();
        }
        log
    }

    #[test]
    fn lines_are_read_and_others_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let lines = ["7", "{", "", "-1", "9"].map(str::to_owned);
        assert_eq!(event_log(dir.path(), &lines).take(), [7_u32, 9]);
    }

    #[test]
    fn the_last_ones_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let lines: Vec<String> = (0..=KEPT_MAX).map(|number| number.to_string()).collect();
        let events = event_log(dir.path(), &lines).take();
        assert_eq!((events.len(), events.first()), (KEPT_MAX, Some(&1)));
    }

    #[test]
    fn of_a_long_file_the_end_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let lines = ["1".to_owned(), "x".repeat(BYTES_MAX as usize), "2".to_owned(), "3".to_owned()];
        assert_eq!(event_log(dir.path(), &lines).take(), [2_u32, 3]);
    }

    #[test]
    fn the_file_goes_with_the_run() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(event_log(dir.path(), &["1".to_owned()]).take().len(), 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let nowhere = EventLog::<u32>::beside(&dir.path().join("no/run.1"), "numbers");
        assert!(nowhere.take().is_empty());
    }
}
