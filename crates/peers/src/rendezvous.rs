//! Nodes find each other by files in a directory that all of them see, such as a home directory: any launcher has
//! that.
//!
//! `DIR/forebay-peers-KEY/` (0700) has a file for each node (0600) with its name, its address and a random token. The
//! first node writes `table` once all files are there: the job's secret, and what it read. A node takes a table only
//! if its own token is in it, so files of an earlier job with the same key lead nobody astray. A process that can read
//! that directory belongs to the job; so another user's directory, or one that others can enter, is refused (fault S7).

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use zeroize::Zeroizing;

use crate::members::{Member, Members, MembersError};

/// Pause between two looks for other nodes.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest file of a node, and longest part of the table for a node, in bytes.
const NODE_BYTES_MAX: u64 = 4096;
/// First line of each file.
const HEAD: &str = "forebay peers 2";
/// File of the first node, with all nodes.
const TABLE: &str = "table";

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
    #[error("{} is not private to this user: remove it, or set FOREBAY_PEERS_DIR to another directory", .0.display())]
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
    /// Its ranks.
    pub ranks: u32,
}

/// All nodes of a job.
#[derive(Debug)]
pub struct Met {
    /// The nodes.
    pub members: Members,
    /// Ranks of each.
    pub ranks: Vec<u32>,
    /// The job's secret, as 64 hexadecimal digits.
    pub secret: Zeroizing<String>,
}

/// Announces this node, and waits until all have come, or until `is_unwanted`.
///
/// # Errors
/// [`RendezvousError`]: the directory can't be used or is not private, or nodes did not come within `wait`.
pub fn meet(dir: &Path, key: &str, here: &Here, wait: Duration, is_unwanted: &dyn Fn() -> bool) -> Result<Met, RendezvousError> {
    let dir = dir.join(format!("forebay-peers-{key}"));
    private(&dir)?;
    let token = random_hex()?;
    let announced = format!("{} {} {} {}\n", *token, here.ranks, here.member.address, here.member.name);
    if here.node == 0 {
        clear(&dir)?;
    }
    let deadline = Instant::now() + wait;
    loop {
        let missing = match look(&dir, here, &token, &announced) {
            Ok(Look::Met(met)) => return Ok(met),
            Ok(Look::Missing(missing)) => missing,
            // The first node, which has just come, has removed it.
            Err(RendezvousError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline || is_unwanted() {
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

/// Result of a look into the directory.
enum Look {
    Met(Met),
    /// Numbers of the nodes that have not come.
    Missing(Vec<usize>),
}

/// Looks who is there, announces this node, and reads the table, or writes it as the first node.
fn look(dir: &Path, here: &Here, token: &str, announced: &str) -> Result<Look, RendezvousError> {
    // A network file system may remember that a name was missing, but asks again when the directory is listed.
    let names: Vec<_> = fs::read_dir(dir)
        .map_err(failed("list", dir))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let is_there = |name: &str| names.iter().any(|found| found == name);
    // The first node removes what it finds when it comes.
    let own = format!("node.{}", here.node);
    if !is_there(&own) || read(&dir.join(&own), NODE_BYTES_MAX)? != file_of(announced) {
        write(dir, &own, &file_of(announced))?;
    }
    let missing: Vec<usize> = (0..usize::from(here.nodes))
        .filter(|node| !is_there(&format!("node.{node}")))
        .collect();
    if here.node == 0 && missing.is_empty() && !is_there(TABLE) {
        write_table(dir, here.nodes)?;
    }
    let met = if is_there(TABLE) { read_table(dir, here, token)? } else { None };
    Ok(met.map_or(Look::Missing(missing), Look::Met))
}

/// Removes the files of [`meet`], once no node will come any more.
pub fn leave(dir: &Path, key: &str) {
    let _ = fs::remove_dir_all(dir.join(format!("forebay-peers-{key}")));
}

/// Removes what an earlier job with the same key has left.
fn clear(dir: &Path) -> Result<(), RendezvousError> {
    for entry in fs::read_dir(dir).map_err(failed("list", dir))?.flatten() {
        let path = entry.path();
        // Another node may be writing it now.
        let is_part = path.to_string_lossy().contains(".part.");
        if is_part {
            continue;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &path)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Writes what all nodes have announced, and a new secret.
fn write_table(dir: &Path, nodes: u16) -> Result<(), RendezvousError> {
    let mut table = Zeroizing::new(format!("{}\n", *random_hex()?));
    for node in 0..nodes {
        let path = dir.join(format!("node.{node}"));
        let announced = lines_of(&path, &read(&path, NODE_BYTES_MAX)?)?;
        table.push_str(announced.lines().next().unwrap_or_default());
        table.push('\n');
    }
    write(dir, TABLE, &file_of(&table))
}

/// Reads the table. `None` if this node, with this token, is not in it.
fn read_table(dir: &Path, here: &Here, token: &str) -> Result<Option<Met>, RendezvousError> {
    let path = dir.join(TABLE);
    let text = lines_of(&path, &read(&path, NODE_BYTES_MAX * u64::from(here.nodes))?)?;
    let foreign = || RendezvousError::Foreign(path.clone());
    let mut lines = text.lines();
    let secret = Zeroizing::new(lines.next().ok_or_else(foreign)?.to_owned());
    let (mut members, mut ranks, mut is_in) = (Vec::new(), Vec::new(), false);
    for (node, line) in lines.enumerate() {
        let (announced_token, ranks_of_node, member) = parse(line).ok_or_else(foreign)?;
        is_in |= node == usize::from(here.node) && announced_token == token;
        members.push(member);
        ranks.push(ranks_of_node);
    }
    if !is_in || members.len() != usize::from(here.nodes) {
        return Ok(None);
    }
    let members = Members::new(0, members, usize::from(here.node))?;
    Ok(Some(Met { members, ranks, secret }))
}

/// Reads a line of a node: token, ranks, address and name.
fn parse(line: &str) -> Option<(&str, u32, Member)> {
    let (token, rest) = line.split_once(' ')?;
    let (ranks, rest) = rest.split_once(' ')?;
    let (address, name) = rest.split_once(' ')?;
    let member = Member {
        name: Some(name).filter(|name| !name.is_empty())?.to_owned(),
        address: address.parse::<SocketAddr>().ok()?,
    };
    Some((token, ranks.parse().ok()?, member))
}

fn file_of(lines: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(format!("{HEAD}\n{lines}").into_bytes())
}

/// Returns the lines of a file after its head.
fn lines_of(path: &Path, bytes: &[u8]) -> Result<Zeroizing<String>, RendezvousError> {
    let text = std::str::from_utf8(bytes).ok();
    let lines = text.and_then(|text| text.strip_prefix(HEAD)?.strip_prefix('\n'));
    lines
        .map(|lines| Zeroizing::new(lines.to_owned()))
        .ok_or_else(|| RendezvousError::Foreign(path.to_owned()))
}

/// Returns 32 random bytes in hexadecimal digits.
fn random_hex() -> Result<Zeroizing<String>, RendezvousError> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut *bytes))
        .map_err(failed("read", Path::new("/dev/urandom")))?;
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or_default();
    Ok(Zeroizing::new(
        bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect(),
    ))
}

fn private(dir: &Path) -> Result<(), RendezvousError> {
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Ok(()) => {}
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

/// Reads a file of ours that nobody else can read.
fn read(path: &Path, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, RendezvousError> {
    let file = File::open(path).map_err(failed("open", path))?;
    let found = file.metadata().map_err(failed("look at", path))?;
    if !is_private(&found) {
        return Err(RendezvousError::NotPrivate(path.to_owned()));
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(bytes_max).read_to_end(&mut bytes).map_err(failed("read", path))?;
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
            ranks: 2,
        }
    }

    const SOON: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(20);

    fn meets(dir: &Path, node: u16, nodes: u16, wait: Duration) -> Result<Met, RendezvousError> {
        meet(dir, "k", &here(node, nodes), wait, &|| false)
    }

    fn meet_all(dir: &Path, nodes: u16) -> Vec<Met> {
        thread::scope(|scope| {
            let meeting: Vec<_> = (0..nodes)
                .rev()
                .map(|node| scope.spawn(move || meets(dir, node, nodes, LONG).unwrap()))
                .collect();
            meeting.into_iter().map(|node| node.join().unwrap()).collect()
        })
    }

    fn check_alike(met: &[Met]) {
        for node in met {
            assert_eq!(node.members.digest(), met[0].members.digest());
            assert_eq!((&node.secret, &node.ranks), (&met[0].secret, &met[0].ranks));
            assert_eq!(node.secret.len(), 64);
        }
        let mut numbers: Vec<u16> = met.iter().map(|met| met.members.here()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..met.len() as u16).collect::<Vec<_>>());
    }

    #[test]
    fn all_nodes_get_the_same_table_and_secret() {
        let dir = tempfile::tempdir().unwrap();
        check_alike(&meet_all(dir.path(), 4));
        leave(dir.path(), "k");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_an_earlier_job_has_left_leads_nobody_astray() {
        let dir = tempfile::tempdir().unwrap();
        let before = meet_all(dir.path(), 3);
        // The first node comes last: the others find a whole table meanwhile.
        let now = thread::scope(|scope| {
            let dir = dir.path();
            let others: Vec<_> = (1..3).map(|node| scope.spawn(move || meets(dir, node, 3, LONG).unwrap())).collect();
            thread::sleep(SOON);
            let first = meets(dir, 0, 3, LONG).unwrap();
            others
                .into_iter()
                .map(|node| node.join().unwrap())
                .chain([first])
                .collect::<Vec<_>>()
        });
        check_alike(&now);
        assert_ne!(now[0].secret, before[0].secret);
    }

    #[test]
    fn who_does_not_come_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = meets(dir.path(), 0, 3, SOON).unwrap_err().to_string();
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
        let error = meets(dir.path(), 0, 1, SOON).unwrap_err();
        assert!(matches!(error, RendezvousError::NotPrivate(_)), "{error}");
    }

    #[test]
    fn s7_a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("forebay-peers-k");
        DirBuilder::new().mode(0o700).create(&place).unwrap();
        let node = place.join("node.1");
        fs::write(&node, "").unwrap();
        fs::set_permissions(&node, fs::Permissions::from_mode(0o644)).unwrap();
        let error = meets(dir.path(), 1, 2, SOON).unwrap_err();
        assert!(matches!(error, RendezvousError::NotPrivate(_)), "{error}");
    }

    #[test]
    fn a_node_of_another_version_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("forebay-peers-k/node.1");
        let error = thread::scope(|scope| {
            let first = scope.spawn(|| meets(dir.path(), 0, 2, LONG).unwrap_err());
            thread::sleep(SOON);
            write(&dir.path().join("forebay-peers-k"), "node.1", b"forebay peers 1\n").unwrap();
            first.join().unwrap()
        });
        assert!(matches!(&error, RendezvousError::Foreign(path) if *path == other), "{error}");
    }
}
