//! Tickets: private files by which other hosts reach a job.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use forebay_peers::Secret;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

const FORM: &str = "forebay clone ticket 2";
/// Most hosts of a job in a ticket.
const HOSTS_MAX: usize = 1024;
const SECRET_BYTES: usize = 32;
/// Longest ticket in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Host of a job, where `forebay clone serve` runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TicketHost {
    /// Name or address.
    pub host: String,
    /// Port at which the states of the job's ranks are served.
    pub port: u16,
}

/// Addresses of a job on other hosts, and the secret of those who may read its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    format: String,
    /// Name of the job.
    pub job: String,
    /// Hosts of its ranks.
    pub hosts: Vec<TicketHost>,
    /// Secret in hexadecimal digits.
    secret: TicketSecret,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TicketSecret(Zeroizing<String>);

impl std::fmt::Debug for TicketSecret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TicketSecret")
    }
}

/// The right to change a ticket, until it is dropped: servers on several hosts may write the same file.
#[derive(Debug)]
pub struct TicketLock {
    /// The locked file; `None` if the file system has no locks, and the path is a directory.
    file: Option<fs::File>,
    path: PathBuf,
}

/// Longest wait for the right to change a ticket. A server holds it while it asks for the ticket's other hosts.
const LOCK_WAIT: Duration = Duration::from_secs(20);
/// Pause between two tries.
const LOCK_EVERY: Duration = Duration::from_millis(50);

impl TicketLock {
    /// Waits for the right to change a ticket, for at most 20 s.
    ///
    /// # Errors
    /// [`TicketError::Io`], or [`TicketError::Locked`].
    pub fn take(ticket: &Path) -> Result<Self, TicketError> {
        Self::take_within(ticket, LOCK_WAIT, |file| flock(file, FlockOperation::NonBlockingLockExclusive))
    }

    fn take_within(ticket: &Path, most: Duration, lock: impl Fn(&fs::File) -> Result<(), Errno>) -> Result<Self, TicketError> {
        let since = Instant::now();
        loop {
            match Self::tried(&beside(ticket, ".lock"), &lock) {
                Ok(Some(taken)) => return Ok(taken),
                Ok(None) => {}
                // As on parallel file systems that are mounted without locks.
                Err(TicketError::Io { source, .. }) if is_without_locks(&source) => {
                    if let Some(taken) = Self::made(&beside(ticket, ".lock.d"))? {
                        return Ok(taken);
                    }
                }
                Err(error) => return Err(error),
            }
            if since.elapsed() > most {
                let held = [".lock.d", ".lock"].map(|end| beside(ticket, end));
                let path = held.iter().find(|path| path.exists()).unwrap_or(&held[1]).clone();
                return Err(TicketError::Locked { path, wait: most });
            }
            thread::sleep(LOCK_EVERY);
        }
    }

    /// Tries to lock a file. Returns `None` if another server holds it.
    fn tried(path: &Path, lock: impl Fn(&fs::File) -> Result<(), Errno>) -> Result<Option<Self>, TicketError> {
        let io = |source| TicketError::Io {
            path: path.to_owned(),
            source,
        };
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(io)?;
        match lock(&file) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
            Err(error) => return Err(io(error.into())),
        }
        let held = file.metadata().map_err(io)?;
        // Whoever had the right before has removed the file.
        let is_there = fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (held.dev(), held.ino()));
        Ok(is_there.then(|| Self {
            file: Some(file),
            path: path.to_owned(),
        }))
    }

    /// Tries to make a directory, which only one server can. Returns `None` if another one has.
    fn made(path: &Path) -> Result<Option<Self>, TicketError> {
        match fs::create_dir(path) {
            Ok(()) => Ok(Some(Self {
                file: None,
                path: path.to_owned(),
            })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(source) => Err(TicketError::Io {
                path: path.to_owned(),
                source,
            }),
        }
    }
}

/// Returns whether an error of flock says that the file system has no locks.
fn is_without_locks(error: &io::Error) -> bool {
    [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK, Errno::INVAL]
        .iter()
        .any(|without| error.raw_os_error() == Some(without.raw_os_error()))
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

impl Drop for TicketLock {
    fn drop(&mut self) {
        match &self.file {
            Some(file) => {
                let _ = fs::remove_file(&self.path);
                let _ = flock(file, FlockOperation::Unlock);
            }
            None => drop(fs::remove_dir(&self.path)),
        }
    }
}

/// A ticket that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// The file can't be read or written.
    #[error("the ticket {}: {source}; `forebay clone serve JOB` writes it on the job's host, and --ticket FILE names it", path.display())]
    Io {
        /// Path of the ticket.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Another server holds the right to change it, or was killed with it.
    #[error(
        "the ticket's lock {} was held by another `forebay clone serve` for {} s: try again; if none is being started or ended, remove it",
        path.display(),
        wait.as_secs()
    )]
    Locked {
        /// Path of the lock.
        path: PathBuf,
        /// Time of the wait.
        wait: Duration,
    },
    /// Other users can read or write it, or it belongs to one of them.
    #[error("the ticket {} {why}, and whoever has it can read the job's state: {mend}", path.display())]
    NotPrivate {
        /// Path of the ticket.
        path: PathBuf,
        /// Reason.
        why: &'static str,
        /// Mend.
        mend: &'static str,
    },
    /// It is not a ticket.
    #[error("the ticket {} is invalid: {why}; use the file that `forebay clone serve JOB` wrote", path.display())]
    Invalid {
        /// Path of the ticket.
        path: PathBuf,
        /// Reason.
        why: String,
    },
}

impl Ticket {
    /// Makes a ticket with a new secret.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new(job: &str, host: TicketHost) -> io::Result<Self> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        getrandom(secret.as_mut_slice(), GetRandomFlags::empty())?;
        let digits = Zeroizing::new(hex(secret.as_slice()));
        Ok(Self {
            format: FORM.into(),
            job: job.to_owned(),
            hosts: vec![host],
            secret: TicketSecret(digits),
        })
    }

    /// Returns the ticket of a job with one more host: with the secret of the ticket that is there, if one of its hosts
    /// still serves, else a new one.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn joined(path: &Path, job: &str, host: TicketHost, serves: impl Fn(&TicketHost) -> bool + Sync) -> io::Result<Self> {
        let found = Self::read(path).ok().filter(|found| found.job == job);
        let Some(mut ticket) = found else {
            return Self::new(job, host);
        };
        ticket.hosts.retain(|other| other.host != host.host);
        // All at the same time: one that is gone is waited for.
        let serving = thread::scope(|scope| {
            let asked: Vec<_> = ticket.hosts.iter().map(|other| scope.spawn(|| serves(other))).collect();
            asked.into_iter().map(|one| one.join().unwrap_or(false)).collect::<Vec<_>>()
        });
        let mut serving = serving.into_iter();
        ticket.hosts.retain(|_| serving.next().unwrap_or(false));
        if ticket.hosts.is_empty() || ticket.hosts.len() >= HOSTS_MAX {
            return Self::new(job, host);
        }
        ticket.hosts.push(host);
        Ok(ticket)
    }

    /// Reads a ticket, which nobody else may be able to read.
    ///
    /// # Errors
    /// [`TicketError`].
    pub fn read(path: &Path) -> Result<Self, TicketError> {
        let io = |source| TicketError::Io {
            path: path.to_owned(),
            source,
        };
        let refuse = |why, mend| TicketError::NotPrivate {
            path: path.to_owned(),
            why,
            mend,
        };
        let invalid = |why: String| TicketError::Invalid {
            path: path.to_owned(),
            why,
        };
        let file = fs::File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?;
        if !found.is_file() {
            return Err(invalid("it is not a file".into()));
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(refuse("belongs to another user", "use one that you wrote"));
        }
        if found.mode() & 0o077 != 0 {
            return Err(refuse(
                "can be read or changed by other users",
                "remove it, and start `forebay clone serve` again on each host of the job, which makes a new secret",
            ));
        }
        let mut text = Zeroizing::new(String::new());
        io::Read::read_to_string(&mut io::Read::take(&file, BYTES_MAX), &mut text).map_err(io)?;
        let ticket: Self = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        if ticket.format != FORM || ticket.bytes().is_none() || ticket.hosts.is_empty() {
            return Err(invalid(format!(
                "not of the format '{FORM}': use the same version of Forebay on both hosts"
            )));
        }
        Ok(ticket)
    }

    /// Writes the ticket to a private file, in place of an earlier one.
    ///
    /// # Errors
    /// [`TicketError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), TicketError> {
        let io = |source| TicketError::Io {
            path: path.to_owned(),
            source,
        };
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(name);
        let text = Zeroizing::new(serde_json::to_vec(self).map_err(io::Error::other).map_err(io)?);
        let write = || {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            file.write_all(b"\n")?;
            fs::rename(&new, path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&new);
            io(error)
        })
    }

    /// Removes a host from the ticket in the file, and the file if no host is left. A ticket with another secret stays.
    pub fn leave(&self, path: &Path, host: &TicketHost) {
        let Ok(mut found) = Self::read(path) else { return };
        if found.job != self.job || found.secret != self.secret {
            return;
        }
        found.hosts.retain(|other| other != host);
        if found.hosts.is_empty() {
            let _ = fs::remove_file(path);
        } else {
            let _ = found.write(path);
        }
    }

    /// Returns the secret of the data plane's keys.
    ///
    /// # Panics
    /// Never: the digits were checked when the ticket was read, or made of bytes.
    pub fn secret(&self) -> Secret {
        Secret::new(self.bytes().expect("the digits were checked"))
    }

    fn bytes(&self) -> Option<[u8; SECRET_BYTES]> {
        let digits = self.secret.0.as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let pairs = digits.chunks_exact(2);
        let bytes: Option<Vec<u8>> = pairs.map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect();
        bytes?.try_into().ok().filter(|_| digits.len() == 2 * SECRET_BYTES)
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn at(host: &str) -> TicketHost {
        TicketHost {
            host: host.into(),
            port: 7,
        }
    }

    #[test]
    fn hosts_of_one_job_share_a_ticket_as_long_as_one_serves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trunk");
        let first = Ticket::joined(&path, "trunk", at("a"), |_| true).unwrap();
        first.write(&path).unwrap();
        let second = Ticket::joined(&path, "trunk", at("b"), |_| true).unwrap();
        assert_eq!((&second.secret, &second.hosts), (&first.secret, &vec![at("a"), at("b")]));
        second.write(&path).unwrap();
        let again = Ticket::joined(&path, "trunk", at("a"), |_| true).unwrap();
        assert_eq!(again.hosts, [at("b"), at("a")]);
        // Hosts of an earlier run are left out, and what they knew is worth nothing.
        let later = Ticket::joined(&path, "trunk", at("c"), |_| false).unwrap();
        assert!(later.hosts == [at("c")] && later.secret != first.secret);
        assert_ne!(Ticket::joined(&path, "twig", at("c"), |_| true).unwrap().secret, first.secret);
        second.leave(&path, &at("a"));
        assert_eq!(Ticket::read(&path).unwrap().hosts, [at("b")]);
        second.leave(&path, &at("b"));
        assert!(!path.exists());
    }

    #[test]
    fn f51_a_lock_is_waited_for_and_its_holder_is_named_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trunk");
        let first = TicketLock::take(&path).unwrap();
        let lock = |file: &fs::File| flock(file, FlockOperation::NonBlockingLockExclusive);
        let most = Duration::from_millis(200);
        let error = TicketLock::take_within(&path, most, lock).unwrap_err().to_string();
        assert!(
            error.contains("trunk.lock was held by another") && error.contains("remove it"),
            "{error}"
        );
        let waiting = thread::spawn({
            let path = path.clone();
            move || TicketLock::take(&path).map(drop)
        });
        thread::sleep(most);
        drop(first);
        waiting.join().unwrap().unwrap();
        assert!(!path.with_extension("lock").exists());
    }

    #[test]
    fn a_file_system_without_locks_has_one_holder_at_a_time_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trunk");
        for without in [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK] {
            let take = || TicketLock::take_within(&path, Duration::from_millis(100), |_| Err(without));
            let first = take().unwrap();
            let error = take().unwrap_err().to_string();
            assert!(error.contains("trunk.lock.d was held by another"), "{error}");
            drop(first);
            drop(take().unwrap());
        }
        let denied = TicketLock::take_within(&path, Duration::ZERO, |_| Err(Errno::IO)).unwrap_err();
        assert!(matches!(denied, TicketError::Io { .. }));
    }

    #[test]
    fn a_ticket_that_others_can_read_is_refused_and_its_secret_is_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trunk");
        let ticket = Ticket::new("trunk", at("node")).unwrap();
        ticket.write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Ticket::read(&path).unwrap(), ticket);
        assert!(!format!("{ticket:?}").contains(ticket.secret.0.as_str()));
        for mode in [0o640, 0o604, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = Ticket::read(&path).unwrap_err().to_string();
            assert!(
                error.contains("can be read or changed by other users") && error.contains("remove it, and start"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_ticket_of_a_later_server_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trunk");
        let (first, second) = (Ticket::new("trunk", at("a")).unwrap(), Ticket::new("trunk", at("b")).unwrap());
        first.write(&path).unwrap();
        second.write(&path).unwrap();
        first.leave(&path, &at("a"));
        assert_eq!(Ticket::read(&path).unwrap(), second);
        second.leave(&path, &at("b"));
        assert!(Ticket::read(&path).unwrap_err().to_string().contains("forebay clone serve JOB"));
    }

    #[test]
    fn other_files_are_no_tickets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trunk");
        let ticket = Ticket::new("trunk", at("a")).unwrap();
        let text = serde_json::to_string(&ticket).unwrap();
        for wrong in [
            String::new(),
            "{}".into(),
            text.replace("ticket 2", "ticket 1"),
            text.replace(ticket.secret.0.as_str(), "ab"),
        ] {
            fs::write(&path, wrong).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(Ticket::read(&path), Err(TicketError::Invalid { .. })));
        }
    }
}
