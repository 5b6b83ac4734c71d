//! `forebay clean`: gives back all that runs have left, and touches nothing that is in use or not ours.

use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use forebay_agent::{
    host::{
        error::AgentError,
        private_dir::{is_private_dir, private_dir},
    },
    samples,
    tiering::{
        TieringConnection,
        protocol::{ControlRequest, Status},
        ram,
    },
};
use forebay_settings::{
    config::{Config, WrittenSettings},
    environment::Environment,
    mounts::Mounts,
    places, text,
    tiers::{self, used},
    user_error::UserError,
};
use forebay_store::StoreError;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, openat},
    process::geteuid,
};

use crate::args::CleanArgs;

/// Exit status if something that should have been cleaned is left.
const EXIT_INCOMPLETE: u8 = 1;
/// Longest wait for an agent to end.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// Cleans; gives what to print and the exit status.
///
/// # Errors
/// Bad input.
pub fn clean(args: &CleanArgs, environment: &Environment) -> Result<(String, u8), UserError> {
    let config = Config::resolve(&WrittenSettings::default(), environment)?;
    let mounts = Mounts::read();
    let runtime_dir = places::runtime_dir(&config, environment, &mounts).value;
    let state_dir = places::state_dir(&config, environment, &runtime_dir).value;
    let named = tiers::directories_of(&args.tier, environment)?;
    let mut report = CleanupLines::default();
    let mut dirs = named.clone();
    let agents = places::agents_in(&runtime_dir);
    for agent in &agents {
        report.stop(agent, &named, &mut dirs);
    }
    if named.is_empty() {
        dirs.extend(tiers::everywhere(&config, environment, &mounts, &state_dir));
        dirs.extend(ram::tiers_in(&runtime_dir));
    }
    let dirs = tiers::distinct(dirs);
    for dir in &dirs {
        report.remove_tier(dir);
        report.remove_loaders(dir);
    }
    for agent in &agents {
        report.remove_stale(agent);
    }
    let is_gone = |dir: &Path| !forebay_store::root_path(dir, geteuid().as_raw()).exists();
    used::forget(&state_dir, |dir| is_gone(dir) && is_gone(&samples::disk_dir(dir)));
    // What else is there: nothing, or another agent.
    let _ = fs::remove_dir(&runtime_dir);
    Ok(report.finish(&dirs, !named.is_empty()))
}

/// Takes the lock of an agent's directory as soon as no agent holds it.
fn lock_when_free(agent: &Path, deadline: Duration) -> Option<OwnedFd> {
    let begun = Instant::now();
    let dir = private_dir(agent).ok()?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = openat(&dir, "lock", flags, Mode::RUSR | Mode::WUSR).ok()?;
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() >= deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Some(lock)
}

/// A connection to an agent, if one stands. One that is just ending has no socket any more and still holds its tiers
/// and its lock, the lock to the last.
fn connect(agent: &Path) -> Option<TieringConnection> {
    let is_held = || {
        let lock = fs::File::open(agent.join("lock"));
        lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_err())
    };
    let begun = Instant::now();
    loop {
        if let Ok(connection) = TieringConnection::open(agent) {
            return Some(connection);
        }
        if !is_held() || begun.elapsed() >= END_DEADLINE {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[derive(Debug, Default)]
struct CleanupLines {
    lines: Vec<String>,
    files: u64,
    bytes: u64,
    is_incomplete: bool,
}

impl CleanupLines {
    /// Asks an agent to end if it holds one of the tiers that are meant (all, if none is named), and adds its tiers.
    fn stop(&mut self, agent: &Path, named: &[PathBuf], dirs: &mut Vec<PathBuf>) {
        let Some(mut connection) = connect(agent) else { return };
        let status = connection.status().unwrap_or_default();
        let tiers: Vec<PathBuf> = status.tiers.iter().map(|tier| tier.dir.clone()).collect();
        let is_meant = |tier: &PathBuf| named.iter().any(|dir| dir.canonicalize().is_ok_and(|dir| dir == *tier));
        if !named.is_empty() && !tiers.iter().any(is_meant) {
            return;
        }
        if named.is_empty() {
            dirs.extend(tiers);
        }
        match connection.ask(&ControlRequest::Stop) {
            // It releases its tiers before this connection. Should it take longer, the tier itself says that it
            // is in use.
            Ok(_) => {
                drop(lock_when_free(agent, END_DEADLINE));
                self.count_ram(&status);
            }
            // The tier itself says that it is in use.
            Err(AgentError::Refused { .. }) => {}
            // One that was just ending by itself closes the connection; its lock tells.
            Err(_) if lock_when_free(agent, END_DEADLINE).is_some() => {}
            Err(error) => self.lines.push(format!("an agent does not answer: {error}")),
        }
    }

    /// Counts the copies in memory, which went with their agent.
    fn count_ram(&mut self, ended: &Status) {
        for tier in ended.tiers.iter().filter(|tier| tier.ram) {
            self.files += tier.copies();
            self.bytes += tier.used_bytes;
            let copies = text::counted(tier.copies(), "copy", "copies");
            self.lines.push(format!(
                "{}: {copies} removed, {} freed",
                tier.label(),
                text::bytes(tier.used_bytes)
            ));
        }
    }

    fn remove_tier(&mut self, dir: &Path) {
        match forebay_store::clean(dir, geteuid().as_raw()) {
            Ok(report) if report.existed => {
                self.files += report.removed;
                self.bytes += report.removed_bytes;
                let files = text::counted(report.removed, "copy", "copies");
                self.lines.push(format!(
                    "{}: {files} removed, {} freed",
                    report.root.display(),
                    text::bytes(report.removed_bytes)
                ));
                if report.left > 0 {
                    self.is_incomplete = true;
                    let left = text::counted(
                        report.left,
                        "entry that is not ours was left",
                        "entries that are not ours were left",
                    );
                    self.lines
                        .push(format!("{}: {left}; look at it and remove it yourself", report.root.display()));
                }
            }
            Ok(_) => {}
            Err(StoreError::InUse { path, holder }) => {
                self.is_incomplete = true;
                let by = holder.map(|pid| format!(" by process {pid}")).unwrap_or_default();
                self.lines.push(format!(
                    "{}: in use{by}; left alone: clean again when its runs have ended",
                    path.display()
                ));
            }
            Err(error) => {
                self.is_incomplete = true;
                self.lines.push(error.to_string());
            }
        }
    }

    /// Removes what loaders have left in a directory.
    fn remove_loaders(&mut self, dir: &Path) {
        let of_loaders = samples::disk_dir(dir);
        if is_private_dir(&of_loaders) {
            self.remove_tier(&of_loaders);
            // Nothing is in it any more, or what is not ours, or in use.
            let _ = fs::remove_dir(&of_loaders);
        }
    }

    /// Removes the directory of an agent that is gone.
    fn remove_stale(&mut self, agent: &Path) {
        // Holding the lock ourselves, no other agent can start meanwhile.
        let Some(_lock) = lock_when_free(agent, Duration::ZERO) else {
            return;
        };
        if let Err(error) = fs::remove_dir_all(agent) {
            self.is_incomplete = true;
            self.lines.push(format!("{}: {error}", agent.display()));
        }
    }

    fn finish(mut self, dirs: &[PathBuf], is_named: bool) -> (String, u8) {
        if self.lines.is_empty() {
            let places = text::counted(dirs.len() as u64, "tier", "tiers");
            let more = if is_named { "" } else { "; --tier DIR names another" };
            self.lines.push(format!("nothing to clean ({places} looked at{more})"));
        }
        let status = if self.is_incomplete { EXIT_INCOMPLETE } else { 0 };
        (self.lines.join("\n") + "\n", status)
    }
}
