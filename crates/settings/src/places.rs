//! Our own directories: for sockets and shared memory, and for what outlives a boot.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use forebay_agent::host::{
    error::AgentError,
    private_dir::{paths_in, private_dir_all},
};
use forebay_contract::env;
use rustix::{
    fs::{Access, AtFlags, CWD, accessat, statvfs},
    process::geteuid,
};

use crate::{
    config::{Config, Setting, SettingOrigin},
    environment::Environment,
    mounts::{FsKind, Mounts, kind_of},
    user_error::UserError,
};

/// The address of a socket has 108 bytes: this is left of them beside `/KEY/control.sock`.
const RUNTIME_DIR_BYTES_MAX: usize = 77;
/// Some containers have a `/dev/shm` of 64 MiB, which the index of a large data set does not fit into.
const SHARED_MEMORY_BYTES_MIN: u64 = 128 << 20;

/// Returns the directory for sockets and shared memory: the configured one, else one in `/dev/shm`, else in the
/// user's runtime directory, else in `/tmp`.
pub fn runtime_dir(config: &Config, environment: &Environment, mounts: &Mounts) -> Setting<PathBuf> {
    let chosen = &config.own_paths.runtime;
    if let Some(dir) = &chosen.value {
        return Setting::new(dir.clone(), chosen.origin.clone());
    }
    // Not the name of a tier: `--tier /dev/shm=SIZE` must not meet the sockets.
    let own = format!("forebay-run-{}", geteuid().as_raw());
    let shared = Path::new("/dev/shm");
    let value = if holds_shared_memory(shared, mounts) {
        shared.join(own)
    } else if let Some(dir) = environment.absolute("XDG_RUNTIME_DIR").filter(|dir| is_writable(dir)) {
        dir.join("forebay")
    } else {
        Path::new("/tmp").join(own)
    };
    Setting::new(value, SettingOrigin::Default)
}

fn holds_shared_memory(dir: &Path, mounts: &Mounts) -> bool {
    // The size, not what is free: every run must come to the same answer.
    let is_large = statvfs(dir).is_ok_and(|stat| stat.f_blocks.saturating_mul(stat.f_frsize) >= SHARED_MEMORY_BYTES_MIN);
    kind_of(dir, mounts).0 == FsKind::Memory && is_large && is_writable(dir)
}

/// Returns the directory for records and the user's secret: the configured one, else by the XDG rules; without a home
/// directory it is beside the sockets.
pub fn state_dir(config: &Config, environment: &Environment, runtime_dir: &Path) -> Setting<PathBuf> {
    let chosen = &config.own_paths.state;
    if let Some(dir) = &chosen.value {
        return Setting::new(dir.clone(), chosen.origin.clone());
    }
    // A home that does not exist counts as missing: it is not ours to make.
    let home = || environment.home().filter(|home| home.is_dir());
    let place = environment
        .absolute("XDG_STATE_HOME")
        .or_else(|| Some(home()?.join(".local/state")));
    let usable = place
        .map(|dir| dir.join("forebay"))
        .filter(|dir| dir.ancestors().find(|part| part.exists()).is_some_and(is_writable));
    Setting::new(usable.unwrap_or_else(|| runtime_dir.join("state")), SettingOrigin::Default)
}

/// Returns the directory in which the nodes of a job meet: the configured one, else one in the state directory; `None`
/// if that is beside the sockets for want of a home directory, where no other node sees it.
pub fn peers_dir(config: &Config, environment: &Environment) -> Option<PathBuf> {
    if let Some(dir) = &config.peers.dir.value {
        return Some(dir.clone());
    }
    let runtime_dir = runtime_dir(config, environment, &Mounts::read()).value;
    let state_dir = state_dir(config, environment, &runtime_dir).value;
    (!state_dir.starts_with(&runtime_dir)).then(|| state_dir.join("peers"))
}

/// Makes the runtime and the state directory, private to this user.
///
/// # Errors
/// When somebody else could have prepared one (S2), when it can't be made, or when its name is too long.
pub fn make(runtime_dir: &Setting<PathBuf>, state_dir: &Setting<PathBuf>) -> Result<(), UserError> {
    let runtime = &runtime_dir.value;
    if runtime.as_os_str().len() > RUNTIME_DIR_BYTES_MAX {
        return Err(UserError::bad_input(format_args!(
            "{} is longer than {RUNTIME_DIR_BYTES_MAX} bytes, too long for a socket; set {} to a shorter place",
            runtime.display(),
            env::RUNTIME_DIR
        )));
    }
    private_dir_all(runtime).map_err(|error| name_mend(&error, env::RUNTIME_DIR))?;
    if state_dir.value.is_dir() {
        // Only this user's files go there, each of them 0600; the directory may well be more open.
        return if is_writable(&state_dir.value) {
            Ok(())
        } else {
            Err(UserError::bad_input(format_args!(
                "{} can't be written; set {} to a directory of yours",
                state_dir.value.display(),
                env::STATE_DIR
            )))
        };
    }
    private_dir_all(&state_dir.value)
        .map(drop)
        .map_err(|error| name_mend(&error, env::STATE_DIR))
}

fn name_mend(error: &AgentError, variable: &str) -> UserError {
    match error {
        // It names a mend, too.
        AgentError::NotPrivate { .. } => UserError::bad_input(format_args!("{error}, or set {variable} to a directory of yours")),
        _ => UserError::bad_input(format_args!("{error}; set {variable} to a directory of yours")),
    }
}

fn is_writable(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|meta| meta.is_dir()) && accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Returns the directories of all tiering agents of this node and user, running or not, sorted.
pub fn agents_in(runtime_dir: &Path) -> Vec<PathBuf> {
    let is_key = |name: &OsStr| name.len() == 16 && name.as_bytes().iter().all(u8::is_ascii_hexdigit);
    let mut dirs = paths_in(runtime_dir);
    dirs.retain(|dir| dir.file_name().is_some_and(is_key));
    dirs
}

/// Checks that this user may create files in a directory.
///
/// # Errors
/// The reason, in words.
pub fn writable(dir: &Path) -> Result<(), String> {
    accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(|errno| io::Error::from(errno).to_string())
}

/// Returns whether a directory is writable by all and has no sticky bit: any user could replace a directory of ours
/// in it (S2).
pub fn anybody_may_rename(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|meta| meta.mode() & 0o1002 == 0o002)
}
