//! Places where the nodes of a job leave small values for each other, by name, before they can speak to each other.
//!
//! Any launcher has a directory that all nodes see, such as a home directory: [`Directory`]. A launcher's own store of
//! keys and values is another place.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use zeroize::Zeroizing;

/// Begin of the names of our directories.
const PREFIX: &str = "forebay-peers-";
/// Age from which a directory is an earlier job's. Nodes meet within minutes.
const STALE_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// A place that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The directory, or a file in it, can't be used.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// Operation that failed.
        operation: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Another user could have written there, or could read it.
    #[error("{} is not private to this user: remove it, or set FOREBAY_PEERS_DIR to another directory", .0.display())]
    NotPrivate(PathBuf),
    /// The job's store does not answer.
    #[error("{place} failed: {reason}; set FOREBAY_PEERS_DIR to a directory that all nodes see")]
    Store {
        /// The store.
        place: String,
        /// Reason.
        reason: String,
    },
}

/// A place for values of all nodes.
pub trait Exchange: Send + Sync {
    /// Returns for each name whether there is a value.
    ///
    /// # Errors
    /// [`ExchangeError`].
    fn are_there(&self, names: &[String]) -> Result<Vec<bool>, ExchangeError>;

    /// Returns a value, at most its first `bytes_max` bytes; `None` if there is none.
    ///
    /// # Errors
    /// [`ExchangeError`].
    fn get(&self, name: &str, bytes_max: u64) -> Result<Option<Zeroizing<Vec<u8>>>, ExchangeError>;

    /// Sets a value. No other node sees a part of it.
    ///
    /// # Errors
    /// [`ExchangeError`].
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ExchangeError>;

    /// Removes the values of an earlier job: those of these names, or all.
    ///
    /// # Errors
    /// [`ExchangeError`].
    fn clear(&self, names: &[String]) -> Result<(), ExchangeError>;

    /// Removes values of these names, or the whole place, once no node looks any more. What can't be removed stays.
    fn end(&self, names: &[String]);

    /// Returns the place of a value, for messages.
    fn describe(&self, name: Option<&str>) -> String;
}

/// A directory of this user that all nodes see, with a file for each value.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Returns the directory of a job in `dir`. Makes nothing.
    pub fn of_job(dir: &Path, key: &str) -> Self {
        Self(dir.join(format!("{PREFIX}{key}")))
    }

    /// Removes the directories of earlier jobs whose first node was killed before it could.
    pub fn remove_stale(dir: &Path) {
        let is_stale = |entry: &fs::DirEntry| {
            let is_named = entry.file_name().to_string_lossy().starts_with(PREFIX);
            let found = entry
                .metadata()
                .ok()
                .filter(|found| is_named && found.is_dir() && is_private(found));
            let changed = found.and_then(|found| found.modified().ok());
            changed.is_some_and(|changed| SystemTime::now().duration_since(changed).is_ok_and(|age| age > STALE_AFTER))
        };
        for entry in fs::read_dir(dir).into_iter().flatten().flatten().filter(is_stale) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }

    fn names(&self) -> Result<Vec<String>, ExchangeError> {
        // A network file system may remember that a name was missing, but asks again when the directory is listed.
        match fs::read_dir(&self.0) {
            Ok(entries) => Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(failed("list", &self.0)(error)),
        }
    }

    /// Makes the directory unless it is there.
    fn make(&self) -> Result<(), ExchangeError> {
        let dir = &self.0;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(failed("make", dir))?;
        let found = fs::symlink_metadata(dir).map_err(failed("look at", dir))?;
        let is_ours = found.is_dir() && is_private(&found);
        is_ours.then_some(()).ok_or_else(|| ExchangeError::NotPrivate(dir.clone()))
    }
}

impl Exchange for Directory {
    fn are_there(&self, names: &[String]) -> Result<Vec<bool>, ExchangeError> {
        let found: HashSet<String> = self.names()?.into_iter().collect();
        Ok(names.iter().map(|name| found.contains(name)).collect())
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Option<Zeroizing<Vec<u8>>>, ExchangeError> {
        let path = self.0.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", &path)(error)),
        };
        let found = file.metadata().map_err(failed("look at", &path))?;
        if !is_private(&found) {
            return Err(ExchangeError::NotPrivate(path));
        }
        let mut bytes = Zeroizing::new(Vec::new());
        file.take(bytes_max).read_to_end(&mut bytes).map_err(failed("read", &path))?;
        Ok(Some(bytes))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ExchangeError> {
        self.make()?;
        let path = self.0.join(name);
        let part = self.0.join(format!("{name}.part.{}", std::process::id()));
        // Nobody has put anything else there, such as a link.
        let _ = fs::remove_file(&part);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_all()?;
                fs::rename(&part, &path)
            });
        written.map_err(failed("write", &path))
    }

    fn clear(&self, _: &[String]) -> Result<(), ExchangeError> {
        // Another node may be writing a part now.
        for name in self.names()?.iter().filter(|name| !name.contains(".part.")) {
            let path = self.0.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &path)(error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn end(&self, _: &[String]) {
        let _ = fs::remove_dir_all(&self.0);
    }

    fn describe(&self, name: Option<&str>) -> String {
        name.map_or_else(|| self.0.clone(), |name| self.0.join(name)).display().to_string()
    }
}

/// Returns true if a file or directory is ours and nobody else has any right to it.
fn is_private(found: &fs::Metadata) -> bool {
    const OTHERS: u32 = 0o077;
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & OTHERS == 0
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ExchangeError {
    let path = path.to_owned();
    move |source| ExchangeError::Io { operation, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn s7_a_directory_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = Directory::of_job(dir.path(), "k");
        fs::create_dir(&place.0).unwrap();
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o755)).unwrap();
        let error = place.put("node.0", b"").unwrap_err();
        assert!(matches!(error, ExchangeError::NotPrivate(_)), "{error}");
    }

    #[test]
    fn s7_a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = Directory::of_job(dir.path(), "k");
        place.put("node.1", b"value").unwrap();
        assert_eq!(place.get("node.1", 3).unwrap().unwrap().as_slice(), b"val");
        fs::set_permissions(place.0.join("node.1"), fs::Permissions::from_mode(0o644)).unwrap();
        let error = place.get("node.1", 3).unwrap_err();
        assert!(matches!(error, ExchangeError::NotPrivate(_)), "{error}");
    }

    #[test]
    fn s7_what_a_killed_job_has_left_is_removed_by_a_later_one() {
        let dir = tempfile::tempdir().unwrap();
        let put = |key: &str, age: Duration| {
            let place = Directory::of_job(dir.path(), key);
            place.put("table", b"secret").unwrap();
            let now = SystemTime::now();
            File::open(&place.0).unwrap().set_modified(now - age).unwrap();
            place.0
        };
        let (old, new) = (
            put("old", STALE_AFTER + Duration::from_secs(60)),
            put("new", Duration::from_secs(60)),
        );
        let others = dir.path().join("other");
        fs::rename(put("other", STALE_AFTER * 2), &others).unwrap();
        Directory::remove_stale(dir.path());
        assert_eq!((old.exists(), new.exists(), others.exists()), (false, true, true));
    }
}
