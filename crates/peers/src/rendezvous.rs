//! Nodes find each other by files in a directory that all of them see, such as a home directory: any launcher has
//! that.
//!
//! `DIR/forebay-peers-KEY/` (0700) has a file for each node with its name and address, and the job's secret (0600),
//! which node 0 makes. A process that can read that directory belongs to the job; so another user's directory, or one
//! that others can enter, is refused (fault S7).

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{
    identity::{SECRET_BYTES, Secret},
    members::{Member, Members, MembersError},
};

/// Pause between two looks for other nodes.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 4096;

/// Nodes did not find each other.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
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
    /// Somebody else could have put things there.
    #[error("{} is not private to this user: remove it, or give another --peers-dir", .0.display())]
    NotPrivate(PathBuf),
    /// Not all nodes have come.
    #[error("{missing} of {nodes} nodes did not come within {seconds} s ({first} is the first of them): do all nodes see {}?", dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
        /// Number of missing nodes.
        missing: usize,
        /// The first of them.
        first: usize,
        /// Number of nodes of the job.
        nodes: u16,
        /// Time waited, in seconds.
        seconds: u64,
    },
    /// A file was not written by this version.
    #[error("{} was not written by this version of Forebay: use one version on all nodes", .0.display())]
    Foreign(PathBuf),
    /// The nodes contradict each other.
    #[error(transparent)]
    Members(#[from] MembersError),
}

/// This node, as it announces itself.
#[derive(Clone, Debug)]
pub struct Here {
    /// Number of this node.
    pub node: u16,
    /// Number of nodes of the job.
    pub nodes: u16,
    /// Its name and address.
    pub member: Member,
}

/// Announces this node, and waits until all have come.
///
/// # Errors
/// [`RendezvousError`]: the directory can't be used or is not private, or nodes did not come within `wait`.
pub fn meet(dir: &Path, key: &str, here: &Here, wait: Duration) -> Result<(Members, Secret), RendezvousError> {
    let dir = dir.join(format!("forebay-peers-{key}"));
    private(&dir)?;
    if here.node == 0 {
        let mut secret = [0; SECRET_BYTES];
        // The same secret, where this node comes again.
        if !dir.join("secret").exists() {
            File::open("/dev/urandom")
                .and_then(|mut random| random.read_exact(&mut secret))
                .map_err(failed("read", Path::new("/dev/urandom")))?;
            write(&dir, "secret", &secret)?;
        }
    }
    let announced = format!("forebay peer 1\n{}\n{}\n", here.member.name, here.member.address);
    write(&dir, &format!("node.{}", here.node), announced.as_bytes())?;
    let deadline = Instant::now() + wait;
    loop {
        // A network file system may remember that a name was missing, but asks again when the directory is listed.
        let names: Vec<_> = fs::read_dir(&dir)
            .map_err(failed("list", &dir))?
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        let is_there = |name: String| names.iter().any(|found| found.to_str() == Some(name.as_str()));
        let missing: Vec<usize> = (0..usize::from(here.nodes))
            .filter(|node| !is_there(format!("node.{node}")))
            .collect();
        if missing.is_empty() && is_there("secret".into()) {
            return read_all(&dir, here);
        }
        if Instant::now() >= deadline {
            return Err(RendezvousError::Missing {
                missing: missing.len().max(1),
                first: missing.first().copied().unwrap_or(0),
                nodes: here.nodes,
                seconds: wait.as_secs(),
                dir,
            });
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Removes the files of [`meet`], once no node will come any more.
pub fn leave(dir: &Path, key: &str) {
    let _ = fs::remove_dir_all(dir.join(format!("forebay-peers-{key}")));
}

fn read_all(dir: &Path, here: &Here) -> Result<(Members, Secret), RendezvousError> {
    let mut members = Vec::new();
    for node in 0..here.nodes {
        let path = dir.join(format!("node.{node}"));
        let text = String::from_utf8(read(&path)?).ok();
        let member = text.as_deref().and_then(|text| {
            let mut lines = text.strip_prefix("forebay peer 1\n")?.lines();
            Some(Member {
                name: lines.next().filter(|name| !name.is_empty())?.to_owned(),
                address: lines.next()?.parse().ok()?,
            })
        });
        members.push(member.ok_or(RendezvousError::Foreign(path))?);
    }
    let path = dir.join("secret");
    let secret = read(&path)?.try_into().map_err(|_| RendezvousError::Foreign(path))?;
    Ok((Members::new(0, members, usize::from(here.node))?, Secret::new(secret)))
}

fn private(dir: &Path) -> Result<(), RendezvousError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(failed("make", dir)(source)),
    }
    let found = fs::symlink_metadata(dir).map_err(failed("look at", dir))?;
    let is_ours = found.is_dir() && is_private(&found);
    is_ours.then_some(()).ok_or_else(|| RendezvousError::NotPrivate(dir.to_owned()))
}

/// Returns true if a file or directory is ours and nobody else has any right to it.
fn is_private(found: &fs::Metadata) -> bool {
    const OTHERS: u32 = 0o077;
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & OTHERS == 0
}

/// Writes a file whole: nobody sees a part of it.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), RendezvousError> {
    let path = dir.join(name);
    let part = dir.join(format!("{name}.part.{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&part, &path)
        });
    written.map_err(failed("write", &path))
}

/// Reads a file of ours that nobody else can read.
fn read(path: &Path) -> Result<Vec<u8>, RendezvousError> {
    let file = File::open(path).map_err(failed("open", path))?;
    let found = file.metadata().map_err(failed("look at", path))?;
    if !is_private(&found) {
        return Err(RendezvousError::NotPrivate(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed("read", path))?;
    Ok(bytes)
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RendezvousError {
    let path = path.to_owned();
    move |source| RendezvousError::Io { operation, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn here(node: u16, nodes: u16) -> Here {
        Here {
            node,
            nodes,
            member: Member {
                name: format!("n{node}"),
                address: format!("10.0.0.{}:7000", node + 1).parse().unwrap(),
            },
        }
    }

    const SOON: Duration = Duration::from_millis(120);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn all_nodes_get_the_same_table_and_secret() {
        let dir = tempfile::tempdir().unwrap();
        let met: Vec<_> = thread::scope(|scope| {
            let nodes: Vec<_> = (0..4).rev().map(|node| scope.spawn(move || node)).collect();
            let nodes: Vec<u16> = nodes.into_iter().map(|node| node.join().unwrap()).collect();
            let dir = dir.path();
            let meeting: Vec<_> = nodes
                .into_iter()
                .map(|node| scope.spawn(move || meet(dir, "k", &here(node, 4), LONG).unwrap()))
                .collect();
            meeting.into_iter().map(|node| node.join().unwrap()).collect()
        });
        let digests: Vec<u64> = met.iter().map(|(members, _)| members.digest()).collect();
        assert!(digests.iter().all(|digest| *digest == digests[0]));
        let mut numbers: Vec<u16> = met.iter().map(|(members, _)| members.here()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 3]);
        leave(dir.path(), "k");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn who_does_not_come_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = meet(dir.path(), "k", &here(0, 3), SOON).unwrap_err().to_string();
        assert!(
            error.starts_with("2 of 3 nodes did not come within 0 s (1 is the first of them)"),
            "{error}"
        );
    }

    #[test]
    fn s7_a_place_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("forebay-peers-k");
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
        let error = meet(dir.path(), "k", &here(0, 1), SOON).unwrap_err();
        assert!(matches!(error, RendezvousError::NotPrivate(_)), "{error}");
    }

    #[test]
    fn s7_a_secret_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        meet(dir.path(), "k", &here(0, 1), SOON).unwrap();
        let secret = dir.path().join("forebay-peers-k/secret");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
        let error = meet(dir.path(), "k", &here(0, 1), SOON).unwrap_err();
        assert!(matches!(error, RendezvousError::NotPrivate(_)), "{error}");
    }

    #[test]
    fn a_node_of_another_version_is_named() {
        let dir = tempfile::tempdir().unwrap();
        meet(dir.path(), "k", &here(0, 1), SOON).unwrap();
        let other = dir.path().join("forebay-peers-k/node.1");
        fs::write(&other, "forebay peer 2\n").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        let error = meet(dir.path(), "k", &here(0, 2), SOON).unwrap_err();
        assert!(matches!(error, RendezvousError::Foreign(_)), "{error}");
    }
}
