//! Contents of a view: the *manifest*, written in one piece when the view is complete, and the *journal*, which grows
//! while it is fetched. Both are JSON lines.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    sync::{Mutex, PoisonError},
};

use rustix::{
    fs::{self, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::{
    Error,
    disk::{self, Dir},
    store::Object,
};

const FORMAT: &str = "forebay view 1";
const MANIFEST: &str = "manifest";
const JOURNAL: &str = "journal";

/// A file of a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    /// Path below the view.
    pub(crate) path: String,
    /// Version of the object; size and time follow.
    pub(crate) etag: String,
    pub(crate) size: u64,
    pub(crate) modified_ms: i64,
    /// XXH3-128 checksum of the bytes.
    pub(crate) checksum: String,
}

impl FileRecord {
    /// Returns whether it is of the listed version.
    pub(crate) fn is_of(&self, object: &Object) -> bool {
        (&*self.etag, self.size, self.modified_ms) == (&*object.etag, object.size, object.modified_ms)
    }
}

/// Returns the name under which a version is staged. It depends on all that tells versions apart, and contains no path.
pub(crate) fn staged_name(path: &str, object: &Object) -> String {
    let version = format!("{path}\0{}\0{}\0{}", object.etag, object.size, object.modified_ms);
    format!("{:032x}", XxHash3_128::oneshot(version.as_bytes()))
}

/// Contents of a complete view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ViewManifest {
    pub(crate) url: String,
    pub(crate) records: BTreeMap<String, FileRecord>,
    /// Directories that have an object of their own.
    pub(crate) directories: BTreeSet<String>,
}

/// First line of both files.
#[derive(Serialize, Deserialize)]
struct RecordHead {
    format: String,
    url: String,
    /// Number of lines that follow; not known for a journal.
    files: u64,
    /// Boot in which a journal was written: files of another boot may not have reached the disk.
    boot: Option<String>,
    directories: BTreeSet<String>,
}

impl ViewManifest {
    /// Reads the manifest, if there is one.
    ///
    /// # Errors
    /// [`Error::Input`]: it is damaged, or of another version of Forebay.
    pub(crate) fn read(state: &Dir) -> Result<Option<Self>, Error> {
        let Some((head, records, is_whole)) = read(state, MANIFEST)? else {
            return Ok(None);
        };
        if !is_whole || records.len() as u64 != head.files {
            return Err(damaged(state));
        }
        Ok(Some(Self {
            url: head.url,
            records: records.into_iter().map(|record| (record.path.clone(), record)).collect(),
            directories: head.directories,
        }))
    }

    /// Returns the address in the manifest, if there is one.
    pub(crate) fn url(state: &Dir) -> Result<Option<String>, Error> {
        let Some(file) = open(state, MANIFEST)? else { return Ok(None) };
        let mut line = String::new();
        let read = BufReader::new(file).read_line(&mut line);
        read.map_err(|error| Error::disk(&state.path.join(MANIFEST), "read", error))?;
        head(&line).map(|head| Some(head.url)).ok_or_else(|| damaged(state))
    }

    /// Replaces the old manifest, once the new one is on the disk.
    pub(crate) fn write(&self, state: &Dir) -> Result<(), Error> {
        const NEW: &str = "manifest.new";
        let failed = |error: io::Error| Error::disk(&state.path.join(NEW), "write", error);
        let mut out = BufWriter::new(disk::create(state, NEW)?);
        let head = RecordHead {
            format: FORMAT.into(),
            url: self.url.clone(),
            files: self.records.len() as u64,
            boot: None,
            directories: self.directories.clone(),
        };
        line(&head).and_then(|line| out.write_all(&line)).map_err(failed)?;
        for record in self.records.values() {
            line(record).and_then(|line| out.write_all(&line)).map_err(failed)?;
        }
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        state
            .rename(NEW, state, MANIFEST)
            .map_err(|errno| state.error(MANIFEST, "write", errno))?;
        state.sync()
    }

    /// Removes the manifest.
    pub(crate) fn remove(state: &Dir) -> Result<(), Error> {
        state.remove(MANIFEST)
    }
}

/// List of staged files, by their staged names.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Mutex<File>,
}

impl Journal {
    /// Reads the journal of an earlier attempt. Returns besides whether it is of this boot.
    pub(crate) fn read(state: &Dir) -> Result<(BTreeMap<String, FileRecord>, bool), Error> {
        let Some((head, records, _)) = read(state, JOURNAL)? else {
            return Ok((BTreeMap::new(), true));
        };
        let is_of_this_boot = head.boot.is_some() && head.boot == boot();
        let named = records.into_iter().map(|record| (name_of(&record), record)).collect();
        Ok((named, is_of_this_boot))
    }

    /// Replaces the journal by a new one with these records.
    pub(crate) fn begin(state: &Dir, url: &str, records: &[FileRecord]) -> Result<Self, Error> {
        const NEW: &str = "journal.new";
        let failed = |error: io::Error| Error::disk(&state.path.join(NEW), "write", error);
        let mut file = disk::create(state, NEW)?;
        let head = RecordHead {
            format: FORMAT.into(),
            url: url.to_owned(),
            files: 0,
            boot: boot(),
            directories: BTreeSet::new(),
        };
        let mut text = line(&head).map_err(failed)?;
        for record in records {
            text.extend(line(record).map_err(failed)?);
        }
        file.write_all(&text).map_err(failed)?;
        state
            .rename(NEW, state, JOURNAL)
            .map_err(|errno| state.error(JOURNAL, "write", errno))?;
        Ok(Self { file: Mutex::new(file) })
    }

    /// Records a version that is staged.
    pub(crate) fn add(&self, record: &FileRecord) -> io::Result<()> {
        let line = line(record)?;
        // One write, so that only the last line can be incomplete.
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }

    pub(crate) fn remove(state: &Dir) -> Result<(), Error> {
        state.remove(JOURNAL)
    }
}

fn name_of(record: &FileRecord) -> String {
    let object = Object {
        key: Ok(String::new()),
        etag: record.etag.clone(),
        size: record.size,
        modified_ms: record.modified_ms,
    };
    staged_name(&record.path, &object)
}

/// Returns this boot, if the kernel reports it.
fn boot() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

fn head(line: &str) -> Option<RecordHead> {
    serde_json::from_str(line).ok().filter(|head: &RecordHead| head.format == FORMAT)
}

fn open(state: &Dir, name: &str) -> Result<Option<File>, Error> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match fs::openat(&state.fd, name, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(File::from(fd))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(state.error(name, "open", errno)),
    }
}

/// Returns the head, the records up to the first invalid one, and whether the file ended there.
fn read(state: &Dir, name: &str) -> Result<Option<(RecordHead, Vec<FileRecord>, bool)>, Error> {
    let Some(file) = open(state, name)? else { return Ok(None) };
    let mut lines = BufReader::new(file).lines();
    let first = lines.next().transpose().ok().flatten().unwrap_or_default();
    let Some(head) = head(&first) else {
        // A journal may end before its first line is complete.
        return if name == JOURNAL { Ok(None) } else { Err(damaged(state)) };
    };
    let mut records = Vec::new();
    for line in lines {
        let Some(record) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else {
            return Ok(Some((head, records, false)));
        };
        records.push(record);
    }
    Ok(Some((head, records, true)))
}

fn damaged(state: &Dir) -> Error {
    Error::Input(format!(
        "{} is damaged, or of another version: remove the view and fetch it again",
        state.path.join(MANIFEST).display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &str) -> FileRecord {
        FileRecord {
            path: path.into(),
            etag: "e".into(),
            size: 1,
            modified_ms: -5,
            checksum: "0".repeat(32),
        }
    }

    #[test]
    fn manifests_come_back_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let state = Dir::named(place.path()).unwrap();
        assert_eq!(ViewManifest::read(&state).unwrap(), None);
        let records = ["a\nb", "ü/\"c\""].map(|path| (path.to_owned(), record(path)));
        let written = ViewManifest {
            url: "s3://b/p".into(),
            records: records.into_iter().collect(),
            directories: BTreeSet::from(["d/e".to_owned()]),
        };
        written.write(&state).unwrap();
        assert_eq!(ViewManifest::read(&state).unwrap(), Some(written));
        assert_eq!(ViewManifest::url(&state).unwrap().as_deref(), Some("s3://b/p"));
        let path = place.path().join(MANIFEST);
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in [
            &text[..text.len() - 9],
            text.lines().next().unwrap(),
            "",
            "{}",
            &text.replace("view 1", "view 2"),
        ] {
            std::fs::write(&path, damaged).unwrap();
            assert!(
                ViewManifest::read(&state).unwrap_err().to_string().contains("is damaged"),
                "{damaged}"
            );
        }
    }

    #[test]
    fn a_journal_gives_what_was_noted_before_it_was_torn() {
        let place = tempfile::tempdir().unwrap();
        let state = Dir::named(place.path()).unwrap();
        assert_eq!(Journal::read(&state).unwrap(), (BTreeMap::new(), true));
        let journal = Journal::begin(&state, "s3://b", &[record("kept")]).unwrap();
        journal.add(&record("added")).unwrap();
        drop(journal);
        let paths = || {
            let (records, is_of_this_boot) = Journal::read(&state).unwrap();
            let mut paths: Vec<String> = records.into_values().map(|record| record.path).collect();
            paths.sort();
            (paths, is_of_this_boot)
        };
        assert_eq!(paths(), (vec!["added".to_owned(), "kept".to_owned()], true));
        let path = place.path().join(JOURNAL);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert_eq!(paths(), (vec!["kept".to_owned()], true));
        let other = text.replacen(&boot().unwrap().trim().chars().take(8).collect::<String>(), "00000000", 1);
        std::fs::write(&path, other).unwrap();
        assert!(!paths().1, "of another boot");
    }

    #[test]
    fn versions_are_staged_under_names_of_their_own() {
        let object = |etag: &str, size| Object {
            key: Ok("k".into()),
            etag: etag.into(),
            size,
            modified_ms: 0,
        };
        let names = [
            staged_name("a", &object("e", 1)),
            staged_name("b", &object("e", 1)),
            staged_name("a", &object("f", 1)),
            staged_name("a", &object("e", 2)),
            staged_name("../a", &object("e", 1)),
        ];
        assert!(
            names
                .iter()
                .all(|name| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
        );
        let different: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
    }
}
