//! The most that could be gained: the same files read from a source and from a tier, both cold, for a few seconds at
//! most.

use std::{
    collections::VecDeque,
    fs,
    io::{self, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{Advice, Mode, OFlags, fadvise, fsync, open, unlink};
use serde::{Deserialize, Serialize};

/// Longest search for files.
const SEARCH_MAX: Duration = Duration::from_secs(2);
/// Most directory entries that a search looks at.
const ENTRIES_MAX: usize = 5000;
/// Files that are read,
const FILES_MAX: usize = 64;
/// of each so many bytes at most,
const FILE_BYTES_MAX: usize = 16 << 20;
/// so many of all,
const BYTES_MAX: usize = 192 << 20;
/// for so long.
const READ_MAX: Duration = Duration::from_secs(3);
/// A source that has not answered by then is hung, or as good as.
const DEADLINE: Duration = Duration::from_secs(10);
const PIECE_BYTES: usize = 256 << 10;

/// Request for a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlacesToCompare {
    /// Directories to look for files in, best first: the first one that has files is read.
    pub places: Vec<PathBuf>,
    /// The tier's directory.
    pub tier: PathBuf,
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct PlaceReadTimes {
    /// Files that were read.
    pub files: u64,
    /// Their bytes, as far as they were read.
    pub bytes: u64,
    /// Opening and reading them on the source.
    pub source: Duration,
    /// Opening and reading copies of them on the tier.
    pub tier: Duration,
}

impl PlaceReadTimes {
    /// Returns the time that the source takes, as a multiple of the tier's.
    pub fn ratio(&self) -> f64 {
        self.source.as_secs_f64() / self.tier.as_secs_f64().max(1e-6)
    }

    /// Returns the largest possible speedup of a job that waits for data for this share of its time.
    pub fn speed_up(&self, waiting: f64) -> f64 {
        1.0 / (1.0 - waiting + waiting / self.ratio().max(1.0))
    }
}

/// Measures in a process of its own (`COMMAND measure`): one that waits for a source that hangs can't be ended, and
/// must not be us.
///
/// # Errors
/// In words, why nothing could be measured.
pub fn measure(comparison: &PlacesToCompare, command: &Path) -> Result<PlaceReadTimes, String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let question = serde_json::to_vec(comparison).map_err(|error| words(&error))?;
    let mut process = Command::new(command)
        .arg("measure")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| words(&error))?;
    let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
    let (done, result) = channel();
    let converse = move || {
        let mut answer = Vec::new();
        let asked = stdin.is_some_and(|mut stdin| stdin.write_all(&question).is_ok());
        let told = stdout.is_some_and(|mut stdout| stdout.read_to_end(&mut answer).is_ok());
        let _ = done.send(if asked && told { answer } else { Vec::new() });
    };
    thread::Builder::new()
        .name("measure".into())
        .spawn(converse)
        .map_err(|error| words(&error))?;
    let Ok(answer) = result.recv_timeout(DEADLINE) else {
        // It goes when the source answers. Waiting for it would be waiting for the source.
        let _ = process.kill();
        let first = comparison.places.first().cloned().unwrap_or_default();
        return Err(format!("{} did not answer within {} s", first.display(), DEADLINE.as_secs()));
    };
    let _ = process.wait();
    serde_json::from_slice(&answer).unwrap_or_else(|_| Err("the measurement broke off".into()))
}

/// The other side of it: a [`PlacesToCompare`] comes as JSON, and what it came to goes back.
pub fn answer(question: &[u8]) -> Vec<u8> {
    let result = match serde_json::from_slice::<PlacesToCompare>(question) {
        Ok(comparison) => compare(&comparison.places, &comparison.tier),
        Err(error) => Err(error.to_string()),
    };
    serde_json::to_vec(&result).unwrap_or_default()
}

fn compare(places: &[PathBuf], tier: &Path) -> Result<PlaceReadTimes, String> {
    let begun = Instant::now();
    let files = places.iter().map(|place| sample(place, begun)).find(|files| !files.is_empty());
    let files = files.ok_or("no file to read was found below the sources")?;
    let mut measured = PlaceReadTimes::default();
    let begun = Instant::now();
    for file in &files {
        // What can't be read (rights) says nothing about speed.
        let Ok((bytes, time)) = read_cold(file) else { continue };
        let copy = ProbeFile::write(tier, &bytes).map_err(|error| format!("{} could not be written: {error}", tier.display()))?;
        measured.tier += copy
            .read_cold()
            .map_err(|error| format!("{} could not be read: {error}", tier.display()))?;
        measured.source += time;
        measured.files += 1;
        measured.bytes += bytes.len() as u64;
        if measured.bytes >= BYTES_MAX as u64 || begun.elapsed() > READ_MAX {
            break;
        }
    }
    if measured.files == 0 {
        Err("none of the files below the sources can be read".into())
    } else {
        Ok(measured)
    }
}

/// Some files below `place`, from all over it.
fn sample(place: &Path, begun: Instant) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = VecDeque::from([place.to_owned()]);
    let mut seen = 0;
    while let Some(folder) = folders.pop_front() {
        let entries = fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
        for entry in entries {
            seen += 1;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push_back(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
            if seen >= ENTRIES_MAX || begun.elapsed() > SEARCH_MAX {
                folders.clear();
                break;
            }
        }
    }
    let step = files.len().div_ceil(FILES_MAX).max(1);
    files.into_iter().step_by(step).collect()
}

/// The file's bytes (the first of them), and the time that opening and reading took. `rustix`, so that inside a run
/// no copy answers.
fn read_cold(path: &Path) -> io::Result<(Vec<u8>, Duration)> {
    let begun = Instant::now();
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let opening = begun.elapsed();
    forget_pages(&file);
    let begun = Instant::now();
    let bytes = read_all(&file)?;
    Ok((bytes, opening + begun.elapsed()))
}

/// Without it the figure is one of this machine's memory. A file system may not honour it.
fn forget_pages(file: &OwnedFd) {
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

fn read_all(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    while bytes.len() < FILE_BYTES_MAX {
        match rustix::io::retry_on_intr(|| rustix::io::read(file, &mut piece[..]))? {
            0 => break,
            read => bytes.extend_from_slice(piece.get(..read).unwrap_or_default()),
        }
    }
    Ok(bytes)
}

/// A file on the tier that has no name, so that nothing can be left behind.
pub(crate) struct ProbeFile(OwnedFd);

impl ProbeFile {
    pub(crate) fn write(dir: &Path, bytes: &[u8]) -> io::Result<Self> {
        let mode = Mode::RUSR | Mode::WUSR;
        let file = open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode).or_else(|_| {
            let path = dir.join(format!(".forebay-doctor-{}", std::process::id()));
            let file = open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC, mode)?;
            unlink(&path).map(|()| file)
        })?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
            rest = rest.get(written..).unwrap_or_default();
        }
        // Pages that are not written yet can't be forgotten.
        fsync(&file)?;
        forget_pages(&file);
        Ok(Self(file))
    }

    pub(crate) fn into_file(self) -> OwnedFd {
        self.0
    }

    pub(crate) fn read_cold(&self) -> io::Result<Duration> {
        let begun = Instant::now();
        let again = open(
            format!("/proc/self/fd/{}", self.0.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        read_all(&again)?;
        Ok(begun.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_measured_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (source, tier) = (dir.path().join("source/sub"), dir.path().join("tier"));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir(&tier).unwrap();
        for number in 0..100 {
            fs::write(source.join(number.to_string()), [1; 1000]).unwrap();
        }
        assert_eq!(sample(&dir.path().join("source"), Instant::now()).len(), 50);
        // A slow disk ends it earlier.
        let measured = compare(&[dir.path().join("missing"), dir.path().join("source")], &tier).unwrap();
        assert!((1..=50).contains(&measured.files));
        assert_eq!(measured.bytes, measured.files * 1000);
        assert_eq!(fs::read_dir(&tier).unwrap().count(), 0);
        assert!(compare(std::slice::from_ref(&tier), &tier).unwrap_err().contains("no file"));
    }

    #[test]
    fn the_gain_is_bounded_by_the_time_that_a_job_waits() {
        let measured = PlaceReadTimes {
            files: 1,
            bytes: 1,
            source: Duration::from_secs(10),
            tier: Duration::from_secs(1),
        };
        assert!((measured.speed_up(1.0) - 10.0).abs() < 1e-9);
        assert!((measured.speed_up(0.5) - 1.818).abs() < 1e-3);
        assert!((measured.speed_up(0.0) - 1.0).abs() < 1e-9);
    }
}
