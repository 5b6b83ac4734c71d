//! The user's secret, with which the records of a catalogue are tagged, so that only records of this user's Forebay are
//! recovered (S5). It is never printed.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::rand::GetRandomFlags;
use zeroize::Zeroizing;

use crate::disk::uninterrupted;
use crate::error::StoreError;

const SECRET_BYTES: usize = 32;
const FILE_NAME: &str = "secret";

/// 32 bytes that are never printed, and wiped when they are dropped (S7). They are boxed, since moving a value leaves
/// its bytes behind.
#[derive(Clone)]
pub(crate) struct SecretKey(Box<Zeroizing<[u8; SECRET_BYTES]>>);

impl fmt::Debug for SecretKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretKey(..)")
    }
}

impl SecretKey {
    /// Creates a key that `fill` writes.
    fn filled(fill: impl FnOnce(&mut [u8; SECRET_BYTES])) -> Self {
        let mut key = Self(Box::default());
        fill(&mut key.0);
        key
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// Derives a key for one purpose.
    pub(crate) fn derive(&self, purpose: &[u8]) -> Self {
        Self::filled(|bytes| blake3::Hasher::new_keyed(self.bytes()).update(purpose).finalize_xof().fill(bytes))
    }
}

/// Secret of one user: 32 random bytes.
#[derive(Debug)]
pub struct Secret(SecretKey);

impl Secret {
    /// Creates a secret that is not kept: no later run recovers copies tagged with it.
    pub fn ephemeral() -> Self {
        Self(SecretKey::filled(|bytes| fill_random(bytes)))
    }

    /// Creates a secret from given bytes, for tests.
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(SecretKey::filled(|key| *key = bytes))
    }

    /// Loads the secret from the state directory `state`, or creates both. The directory, and missing ones above it,
    /// get mode 0700. A directory or secret that others could have written or read is refused.
    pub fn load_or_create(state: &Path) -> Result<Self, StoreError> {
        leave_no_core();
        let path = state.join(FILE_NAME);
        let failed = |operation| {
            move |source| StoreError::Secret {
                path: state.join(FILE_NAME),
                operation,
                source,
            }
        };
        make_dirs(state).map_err(failed("make the directory of"))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(state, flags, Mode::empty()).map_err(failed("open the directory of"))?;
        let stat = rustix::fs::fstat(&dir).map_err(failed("check the directory of"))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
            let why = "it must belong to you and be writable by nobody else".to_owned();
            return Err(StoreError::NotPrivate {
                path: state.to_owned(),
                why,
            });
        }
        if let Some(secret) = read(&dir, &path)? {
            return Ok(secret);
        }
        let fresh = Self::ephemeral();
        fresh.keep(&dir).map_err(failed("write"))?;
        // Another process may have been first: the secret that now has the name is used by both.
        read(&dir, &path)?.ok_or(Errno::NOENT).map_err(failed("read"))
    }

    /// Loads the secret from the state directory `state`, if there is one. Creates nothing.
    pub fn load(state: &Path) -> Result<Option<Self>, StoreError> {
        leave_no_core();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(state, flags, Mode::empty()) {
            Ok(dir) => read(&dir, &state.join(FILE_NAME)),
            Err(Errno::NOENT) => Ok(None),
            Err(source) => Err(StoreError::Secret {
                path: state.join(FILE_NAME),
                operation: "open the directory of",
                source,
            }),
        }
    }

    /// Returns the kept secret, or an ephemeral one with the reason.
    pub fn kept_or_ephemeral(state: &Path) -> (Self, Option<StoreError>) {
        match Self::load_or_create(state) {
            Ok(secret) => (secret, None),
            Err(error) => (Self::ephemeral(), Some(error)),
        }
    }

    /// Writes the secret under a temporary name and links it to its final one, so that the final name never leads to an
    /// incomplete secret.
    fn keep(&self, dir: &OwnedFd) -> Result<(), Errno> {
        let mut random = [0; 8];
        fill_random(&mut random);
        let temporary = format!("{FILE_NAME}.{:016x}", u64::from_ne_bytes(random));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let written = rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)
            .and_then(|()| uninterrupted(|| rustix::io::write(&fd, self.0.bytes())))
            .and_then(|count| if count == SECRET_BYTES { Ok(()) } else { Err(Errno::IO) })
            // Unlike copies, the secret survives a power loss: else all tiers would start empty after one.
            .and_then(|()| rustix::fs::fsync(&fd))
            .and_then(|()| match rustix::fs::linkat(dir, &temporary, dir, FILE_NAME, AtFlags::empty()) {
                Err(Errno::EXIST) => Ok(()),
                answer => answer,
            });
        rustix::fs::unlinkat(dir, &temporary, AtFlags::empty()).and(written)
    }

    /// Returns the key for one purpose.
    pub(crate) fn key(&self, purpose: &[u8]) -> SecretKey {
        self.0.derive(purpose)
    }
}

/// Disables core files for this process, since one would contain the secret.
fn leave_no_core() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // A limit can always be lowered.
    let _ = rustix::process::setrlimit(Resource::Core, none);
}

fn read(dir: &OwnedFd, path: &Path) -> Result<Option<Secret>, StoreError> {
    let failed = |source| StoreError::Secret {
        path: path.to_owned(),
        operation: "read",
        source,
    };
    let refused = |why: &str| StoreError::NotPrivate {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(dir, FILE_NAME, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(refused("it is a link: remove it")),
        Err(errno) => return Err(failed(errno)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused("it is not a file: remove it"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err(refused("others could have read or written it: remove it, and a new one is made"));
    }
    let mut count = Ok(0);
    let key = SecretKey::filled(|bytes| count = uninterrupted(|| rustix::io::pread(&fd, &mut *bytes, 0)));
    let count = count.map_err(failed)?;
    if count != SECRET_BYTES || stat.st_size != SECRET_BYTES as i64 {
        return Err(refused("it has not the size of a secret: remove it, and a new one is made"));
    }
    Ok(Some(Secret(key)))
}

fn make_dirs(path: &Path) -> Result<(), Errno> {
    let mut made = PathBuf::new();
    for component in path.components() {
        made.push(component);
        if matches!(component, Component::Normal(_)) {
            match rustix::fs::mkdir(&made, Mode::RWXU) {
                // An existing directory may be in one that we must not write to: opening the last one decides.
                Ok(()) | Err(Errno::EXIST | Errno::ACCESS | Errno::ROFS | Errno::PERM) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

/// Returns a random number from the kernel.
pub(crate) fn random_u32() -> u32 {
    let mut bytes = [0; 4];
    fill_random(&mut bytes);
    u32::from_ne_bytes(bytes)
}

/// Fills `bytes` with random bytes from the kernel.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) if count > 0 => filled += count,
            Err(Errno::INTR) => {}
            // Every Linux that Rust runs on has getrandom; without randomness there are no secrets and no new names.
            answer => panic!("the kernel gives no random bytes: {answer:?}"),
        }
    }
}
