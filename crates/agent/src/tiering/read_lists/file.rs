//! The file of a command's list, in the user's state directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use forebay_policy::read_list::{ReadEntry, ReadList};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    host::{
        error::AgentError,
        private_dir::{paths_in, private_dir},
    },
    tiering::pages::random_u64,
};

/// Version of the file. A file of another version is not read.
const SCHEMA: u32 = 1;
/// Lists that are kept: those of the commands that ran last.
const KEPT: usize = 100;
/// Largest file in bytes that is read.
const BYTES_MAX: u64 = 16 << 20;

/// Reason why a command's list can't be used.
#[derive(Debug, Error)]
pub enum ReadListError {
    /// No list is kept of the command.
    #[error("no list of what it read is kept")]
    Missing,
    /// The file can't be read.
    #[error("{}: {}; remove it", .path.display(), .why)]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        why: io::Error,
    },
    /// The file is damaged.
    #[error("{}: {}: this is not a list of files that a run has read; remove it", .path.display(), .why)]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error.
        why: serde_json::Error,
    },
    /// The file was written by a later version of Forebay.
    #[error("{}: a list of version {}, and this forebay reads version {SCHEMA}; use the forebay that wrote it", .path.display(), .schema)]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        schema: u32,
    },
}

/// Content of a file.
#[derive(Serialize, Deserialize)]
struct StoredList<'a> {
    schema: u32,
    #[serde(borrow)]
    forebay: std::borrow::Cow<'a, str>,
    entries: Vec<ReadEntry>,
}

/// Returns the path of a command's list. `key` names the command.
pub fn path_of(state_dir: &Path, key: &str) -> PathBuf {
    dir_of(state_dir).join(format!("{key}.json"))
}

fn dir_of(state_dir: &Path) -> PathBuf {
    state_dir.join("reads")
}

/// Reads the list of a command.
///
/// # Errors
/// There is none, or it can't be used.
pub fn load(state_dir: &Path, key: &str) -> Result<ReadList, ReadListError> {
    open(path_of(state_dir, key))
}

/// Reads the list in a file.
///
/// # Errors
/// There is none, or it can't be used.
pub fn open(path: PathBuf) -> Result<ReadList, ReadListError> {
    #[derive(Deserialize)]
    struct StoredVersion {
        schema: u32,
    }
    let bytes = match read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ReadListError::Missing),
        Err(why) => return Err(ReadListError::Unreadable { path, why }),
    };
    let damaged = |why| ReadListError::Damaged { path: path.clone(), why };
    let StoredVersion { schema } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if schema != SCHEMA {
        return Err(ReadListError::Newer { path, schema });
    }
    let stored: StoredList<'_> = serde_json::from_slice(&bytes).map_err(damaged)?;
    let mut list = ReadList::default();
    stored.entries.into_iter().for_each(|entry| list.add(entry));
    Ok(list)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let length = fs::symlink_metadata(path)?.len();
    if length > BYTES_MAX {
        return Err(io::Error::other("it is too long for a list"));
    }
    fs::read(path)
}

/// Adds what a run has read to the list of its command, and removes the paths that were missing.
pub(crate) fn merge(state_dir: &Path, key: &str, reads: &ReadList, gone: &[String]) -> Result<(), AgentError> {
    let mut list = load(state_dir, key).unwrap_or_default();
    for path in gone {
        list.remove(path);
    }
    list.merge(reads);
    if list.is_empty() {
        return Ok(());
    }
    let dir = dir_of(state_dir);
    private_dir(&dir)?;
    let entries: Vec<&ReadEntry> = list.in_order();
    let text = serde_json::json!({ "schema": SCHEMA, "forebay": env!("CARGO_PKG_VERSION"), "entries": entries });
    let path = path_of(state_dir, key);
    // Nodes may share the directory, and processes of two nodes may have one number.
    let partial = path.with_extension(format!("{:016x}.new", random_u64(&path)?));
    replace(&path, &partial, text.to_string().as_bytes()).map_err(crate::host::error::io_error("write", &path))?;
    forget_oldest(&dir);
    Ok(())
}

/// Writes a file of mode 0600 atomically.
fn replace(path: &Path, partial: &Path, text: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut out = fs::File::from(rustix::fs::open(partial, flags, Mode::RUSR | Mode::WUSR)?);
    io::Write::write_all(&mut out, text)
        .and_then(|()| fs::rename(partial, path))
        .inspect_err(|_| drop(fs::remove_file(partial)))
}

fn forget_oldest(dir: &Path) {
    let mut files: Vec<_> = paths_in(dir)
        .into_iter()
        .filter_map(|path| Some((fs::symlink_metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    files.sort();
    let many = files.len().saturating_sub(KEPT);
    for (_, path) in files.into_iter().take(many) {
        // Another agent may have removed it.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use forebay_policy::read_list::{ReadParts, ReadVersion};

    use super::*;

    fn reads(path: &str) -> ReadList {
        let mut list = ReadList::default();
        list.add(ReadEntry {
            path: path.into(),
            at_ms: 7,
            version: Some(ReadVersion { size: 64, changed: (1, 2) }),
            parts: ReadParts::WHOLE,
        });
        list
    }

    #[test]
    fn runs_of_a_command_are_kept_together() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(load(dir.path(), "k"), Err(ReadListError::Missing)));
        merge(dir.path(), "k", &reads("/a"), &[]).unwrap();
        merge(dir.path(), "k", &reads("/b"), &["/gone".into()]).unwrap();
        assert_eq!(load(dir.path(), "k").unwrap().files(), (2, 128));
        merge(dir.path(), "k", &ReadList::default(), &["/a".into()]).unwrap();
        assert_eq!(load(dir.path(), "k").unwrap(), reads("/b"));
    }

    #[test]
    fn damaged_and_later_lists_are_not_read_and_a_run_writes_them_anew() {
        let dir = tempfile::tempdir().unwrap();
        merge(dir.path(), "k", &reads("/a"), &[]).unwrap();
        let path = path_of(dir.path(), "k");
        let whole = fs::read(&path).unwrap();
        for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert!(matches!(load(dir.path(), "k"), Err(ReadListError::Damaged { .. })), "{cut}");
        }
        fs::write(&path, r#"{"schema":2,"entries":7}"#).unwrap();
        assert!(matches!(load(dir.path(), "k"), Err(ReadListError::Newer { schema: 2, .. })));
        merge(dir.path(), "k", &reads("/b"), &[]).unwrap();
        assert_eq!(load(dir.path(), "k").unwrap(), reads("/b"));
    }

    #[test]
    fn the_oldest_lists_go() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..=KEPT {
            merge(dir.path(), &format!("{number:03}"), &reads("/a"), &[]).unwrap();
        }
        assert_eq!(paths_in(&dir_of(dir.path())).len(), KEPT);
    }
}
