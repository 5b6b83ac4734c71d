//! Directories that are served: the named ones, or every network file system; each under every name that a program
//! may use for it, since the preload library compares paths as they are spelled.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use forebay_agent::tiering::protocol::SourceSetting;
use forebay_contract::run::{ROOT_BYTES_MAX, ROOTS_MAX};

use crate::{
    config::{Setting, SettingOrigin},
    environment::Environment,
    mounts::{FsKind, Mount, Mounts, reach},
    user_error::UserError,
};

/// Directory entries looked at for links to a source.
const ENTRIES_MAX: usize = 1000;

/// A directory that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceDir {
    /// Its path without links.
    pub dir: PathBuf,
    /// Type of its file system.
    pub fs_type: String,
    /// The file system is shared over a network.
    pub is_network: bool,
    /// Device number.
    pub dev: u64,
}

/// All that is served.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The directories.
    pub found: Vec<SourceDir>,
    /// Every spelling of them.
    pub spellings: Vec<SourceSetting>,
    /// Directories that are not served, with the reason.
    pub notes: Vec<String>,
}

impl Sources {
    /// Returns the named sources, or every network file system. `words` is the program's command line.
    ///
    /// # Errors
    /// A source that does not exist, is not a directory, is `/`, or has too long a name.
    pub fn find(wish: &Setting<Vec<PathBuf>>, words: &[OsString], environment: &Environment, mounts: &Mounts) -> Result<Self, UserError> {
        let mut sources = Self::default();
        if wish.value.is_empty() {
            sources.take_network(mounts);
        } else {
            for dir in &wish.value {
                sources.take_named(dir, &wish.origin, environment, mounts)?;
            }
        }
        if !sources.found.is_empty() {
            sources.take_links(words, environment);
        }
        Ok(sources)
    }

    fn take_network(&mut self, mounts: &Mounts) {
        for mount in mounts.iter().filter(|mount| mount.kind() == FsKind::Network) {
            if mount.point == Path::new("/") {
                // All there is would be a source, tiers too. Whoever wants some of it names it.
                self.notes.push(format!(
                    "the root file system is {}: name what is to be served by --source DIR",
                    mount.fs_type
                ));
                continue;
            }
            // The device is the mount's, which asks nobody: a file system that hangs and that the program does not
            // use does no harm.
            self.take(&mount.point, mount.dev, mount);
        }
    }

    fn take_named(&mut self, dir: &Path, origin: &SettingOrigin, environment: &Environment, mounts: &Mounts) -> Result<(), UserError> {
        let refuse = |why: &str| UserError::bad_input(format_args!("{origin}: {} {why}", dir.display()));
        let meta = fs::metadata(dir).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => refuse("does not exist; check its spelling, and whether it is mounted"),
            _ => refuse(&format!("can't be used: {error}; name a directory that can be read")),
        })?;
        if !meta.is_dir() {
            return Err(refuse("is not a directory; name the directory that holds the files"));
        }
        let real = dir
            .canonicalize()
            .map_err(|error| refuse(&format!("can't be used: {error}; name a directory that can be read")))?;
        if real == Path::new("/") {
            return Err(refuse("is the root of everything; name a directory below it"));
        }
        if [dir, &real].iter().any(|path| path.as_os_str().len() > ROOT_BYTES_MAX) {
            return Err(refuse(&format!(
                "is longer than {ROOT_BYTES_MAX} bytes; use a shorter name, such as a link"
            )));
        }
        let nowhere = Mount {
            point: "/".into(),
            root: "/".into(),
            dev: meta.dev(),
            fs_type: "unknown".into(),
            source: OsString::new(),
            read_only: false,
            options: String::new(),
        };
        self.take(&real, meta.dev(), mounts.of(&real).unwrap_or(&nowhere));
        self.spell(dir, meta.dev());
        // The shell's name of the current directory, where that is another.
        if let (Some(logical), Some(here)) = (environment.absolute("PWD"), &environment.directory)
            && let Ok(below) = dir.strip_prefix(here)
        {
            let named = if below.as_os_str().is_empty() {
                logical
            } else {
                logical.join(below)
            };
            if fs::metadata(&named).is_ok_and(|other| (other.dev(), other.ino()) == (meta.dev(), meta.ino())) {
                self.spell(&named, meta.dev());
            }
        }
        // File systems that are mounted below it have device numbers of their own.
        for mount in mounts.iter().filter(|mount| mount.point != real && mount.point.starts_with(&real)) {
            if matches!(mount.kind(), FsKind::Network | FsKind::Local) {
                self.spell(&mount.point, mount.dev);
            }
        }
        Ok(())
    }

    fn take(&mut self, dir: &Path, dev: u64, mount: &Mount) {
        let source = SourceDir {
            dir: dir.to_owned(),
            fs_type: mount.fs_type.clone(),
            is_network: mount.kind() == FsKind::Network,
            dev,
        };
        if !self.found.contains(&source) {
            self.found.push(source);
            self.spell(dir, dev);
        }
    }

    /// Links that lead to a source, among what the program may name: words of its command line, the current
    /// directory, what lies in it, in the home directory and in the root directory.
    fn take_links(&mut self, words: &[OsString], environment: &Environment) {
        let places: Vec<PathBuf> = self.found.iter().map(|source| source.dir.clone()).collect();
        let mut names: Vec<PathBuf> = words
            .iter()
            .flat_map(|word| paths_in(word))
            .map(|path| environment.make_absolute(&path))
            .collect();
        names.extend(environment.absolute("PWD"));
        let folders = [environment.directory.clone(), environment.home(), Some(PathBuf::from("/"))];
        for folder in folders.into_iter().flatten() {
            // What is on a source itself needs no looking, and may hang.
            if reach(&folder, &places).is_none() {
                names.extend(links_in(&folder));
            }
        }
        for name in names.iter().filter(|name| name.is_absolute()) {
            let Some((at, spelled)) = reach(name, &places) else { continue };
            if let Some(source) = self.found.get(at) {
                self.spell(&spelled, source.dev);
            }
        }
    }

    fn spell(&mut self, path: &Path, dev: u64) {
        if self.spellings.iter().any(|known| known.path == path) {
            return;
        }
        if path.as_os_str().len() > ROOT_BYTES_MAX || self.spellings.len() == ROOTS_MAX {
            self.notes
                .push(format!("{} is not served: too many sources, or too long a name", path.display()));
        } else {
            self.spellings.push(SourceSetting {
                path: path.to_owned(),
                dev,
            });
        }
    }
}

/// Paths that a word of a command line may mean: itself, and what follows `=` in it.
pub fn paths_in(word: &OsStr) -> Vec<PathBuf> {
    let bytes = word.as_bytes();
    let after = bytes.iter().position(|byte| *byte == b'=').and_then(|at| bytes.get(at + 1..));
    let pieces = [Some(bytes).filter(|bytes| bytes.first() != Some(&b'-')), after];
    pieces
        .into_iter()
        .flatten()
        .filter(|piece| !piece.is_empty())
        .map(|piece| PathBuf::from(OsStr::from_bytes(piece)))
        .collect()
}

fn links_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let entries = entries.take(ENTRIES_MAX).filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn spelled(sources: &Sources) -> Vec<PathBuf> {
        sources.spellings.iter().map(|spelling| spelling.path.clone()).collect()
    }

    #[test]
    fn network_file_systems_are_found_with_the_links_that_lead_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        let text = format!(
            "1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:77 / {} rw - nfs4 server:/ rw\n",
            at("nfs").display()
        );
        let mounts = Mounts::parse(text.as_bytes());
        for (target, link) in [("nfs/data", "data"), ("nfs", "in_home"), ("elsewhere", "other")] {
            symlink(at(target), at(link)).unwrap();
        }
        let mut environment = Environment::of([("HOME", "/nonexistent")]);
        environment.directory = Some(at(""));
        let words = ["--data=data/train", "x", "other/y"].map(OsString::from);
        let none = Setting::new(Vec::new(), SettingOrigin::Default);
        let sources = Sources::find(&none, &words, &environment, &mounts).unwrap();
        assert_eq!(
            sources.found.iter().map(|source| source.dir.clone()).collect::<Vec<_>>(),
            [at("nfs")]
        );
        let mut all = spelled(&sources);
        all.sort();
        assert_eq!(all, [at("data"), at("in_home"), at("nfs")]);
        assert!(sources.spellings.iter().all(|spelling| spelling.dev == rustix::fs::makedev(0, 77)));
    }

    #[test]
    fn a_root_on_the_network_is_not_taken() {
        let mounts = Mounts::parse(b"1 0 0:1 / / rw - nfs4 server:/root rw\n");
        let none = Setting::new(Vec::new(), SettingOrigin::Default);
        let sources = Sources::find(&none, &[], &Environment::default(), &mounts).unwrap();
        assert!(sources.found.is_empty() && sources.notes.len() == 1);
    }

    #[test]
    fn a_named_source_is_known_by_all_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        let link = dir.path().canonicalize().unwrap().join("link");
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        let wish = Setting::new(vec![link.clone()], SettingOrigin::Flag("--source"));
        let sources = Sources::find(&wish, &[], &Environment::default(), &Mounts::read()).unwrap();
        assert_eq!(spelled(&sources), [real, link]);
    }
}
