//! The user's secret: with it the records of a catalogue are tagged, so that only records that this user's Forebay wrote are adopted
//! (S5). It is never printed.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::disk::uninterrupted;
use crate::error::StoreError;

const SECRET_BYTES: usize = 32;
const FILE_NAME: &str = "secret";

/// 32 random bytes of one user.
pub struct Secret([u8; SECRET_BYTES]);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        std::hint::black_box(&self.0);
    }
}

impl Secret {
    /// A secret that nobody keeps: what is tagged with it is adopted by no later run.
    pub fn ephemeral() -> Self {
        let mut bytes = [0; SECRET_BYTES];
        fill_random(&mut bytes);
        Self(bytes)
    }

    /// A given secret, for tests.
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The secret kept in the state directory `state`, which is made (0700) with the directories above it where it is missing. What
    /// others could have written or read is refused.
    pub fn load_or_create(state: &Path) -> Result<Self, StoreError> {
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
        // Another process may have been first: what has the name now is the secret of both.
        read(&dir, &path)?.ok_or(Errno::NOENT).map_err(failed("read"))
    }

    /// The secret kept in the state directory `state`, if there is one. Nothing is made.
    pub fn load(state: &Path) -> Result<Option<Self>, StoreError> {
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

    /// The kept secret, or, with the reason, an ephemeral one.
    pub fn kept_or_ephemeral(state: &Path) -> (Self, Option<StoreError>) {
        match Self::load_or_create(state) {
            Ok(secret) => (secret, None),
            Err(error) => (Self::ephemeral(), Some(error)),
        }
    }

    /// Writes the secret under a name of its own and links it to its final one, which thus only ever has a whole secret.
    fn keep(&self, dir: &OwnedFd) -> Result<(), Errno> {
        let mut random = [0; 8];
        fill_random(&mut random);
        let temporary = format!("{FILE_NAME}.{:016x}", u64::from_ne_bytes(random));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let written = rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)
            .and_then(|()| uninterrupted(|| rustix::io::write(&fd, &self.0)))
            .and_then(|count| if count == SECRET_BYTES { Ok(()) } else { Err(Errno::IO) })
            // The secret outlives a power loss, unlike copies: else all tiers would start clean after one.
            .and_then(|()| rustix::fs::fsync(&fd))
            .and_then(|()| match rustix::fs::linkat(dir, &temporary, dir, FILE_NAME, AtFlags::empty()) {
                Err(Errno::EXIST) => Ok(()),
                answer => answer,
            });
        rustix::fs::unlinkat(dir, &temporary, AtFlags::empty()).and(written)
    }

    /// A key for one purpose.
    pub(crate) fn key(&self, purpose: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, purpose).as_bytes()
    }
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
        return Err(refused("it is no file: remove it"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err(refused("others could have read or written it: remove it, and a new one is made"));
    }
    let mut bytes = [0; SECRET_BYTES];
    let count = uninterrupted(|| rustix::io::pread(&fd, &mut bytes, 0)).map_err(failed)?;
    if count != SECRET_BYTES || stat.st_size != SECRET_BYTES as i64 {
        return Err(refused("it has not the size of a secret: remove it, and a new one is made"));
    }
    Ok(Some(Secret(bytes)))
}

fn make_dirs(path: &Path) -> Result<(), Errno> {
    let mut made = PathBuf::new();
    for component in path.components() {
        made.push(component);
        if matches!(component, Component::Normal(_)) {
            match rustix::fs::mkdir(&made, Mode::RWXU) {
                // A directory that is there may stand in one that is not ours to write: opening the last one decides.
                Ok(()) | Err(Errno::EXIST | Errno::ACCESS | Errno::ROFS | Errno::PERM) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

/// Random bytes from the kernel.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) if count > 0 => filled += count,
            Err(Errno::INTR) => {}
            // Every Linux that Rust runs on has getrandom; without randomness there are no secrets and no fresh names.
            answer => panic!("the kernel gives no random bytes: {answer:?}"),
        }
    }
}
