//! A file with a secret that all nodes of a job have, such as a Secret that Kubernetes mounts.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

/// Shortest secret in bytes: a shorter one can be guessed.
const BYTES_MIN: usize = 16;
/// Longest secret in bytes.
const BYTES_MAX: u64 = 4096;

/// A file that is refused.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// It can't be read.
    #[error("the secret file {} can't be read: {source}; set FOREBAY_PEERS_SECRET to a file that all nodes have", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Other users can read or write it, or it belongs to one of them.
    #[error("the secret file {} {why}: {mend}", path.display())]
    NotPrivate {
        /// The file.
        path: PathBuf,
        /// Reason.
        why: &'static str,
        /// Mend.
        mend: &'static str,
    },
    /// It is too short or too long for a secret.
    #[error("the secret file {} has {bytes} bytes, expected {BYTES_MIN} to {BYTES_MAX}: write 32 random bytes into it", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length without blanks at its end.
        bytes: u64,
    },
}

/// Reads a secret, without blanks at its end.
///
/// A file of this user may be readable by nobody else. One of root's may be readable by a group: so Kubernetes gives a
/// Secret to a pod that does not run as root.
///
/// # Errors
/// [`SecretFileError`].
pub fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretFileError> {
    let io = |source| SecretFileError::Io {
        path: path.to_owned(),
        source,
    };
    let refuse = |why, mend| {
        Err(SecretFileError::NotPrivate {
            path: path.to_owned(),
            why,
            mend,
        })
    };
    let file = File::open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?;
    let user = rustix::process::geteuid().as_raw();
    if !found.is_file() {
        return refuse("is not a file", "name a file");
    }
    if found.uid() != user && found.uid() != 0 {
        return refuse("belongs to another user", "use a file of your own");
    }
    let others = if found.uid() == 0 { 0o027 } else { 0o077 };
    if found.mode() & others != 0 {
        return refuse(
            "can be read or changed by other users",
            "chmod 600, or defaultMode: 0400 of a mounted Secret",
        );
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    let kept = bytes.trim_ascii_end().len();
    if kept < BYTES_MIN || bytes.len() as u64 > BYTES_MAX {
        return Err(SecretFileError::Length {
            path: path.to_owned(),
            bytes: kept as u64,
        });
    }
    bytes.truncate(kept);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn s7_a_secret_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, "0123456789abcdef\n").unwrap();
        let with = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read(&path).map_err(|error| error.to_string())
        };
        assert_eq!(with(0o600).unwrap().as_slice(), b"0123456789abcdef");
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(with(0o440).is_ok(), is_root, "as Kubernetes mounts it");
        for mode in [0o604, 0o660, 0o602] {
            let error = with(mode).unwrap_err();
            assert!(error.contains("can be read or changed by other users: chmod 600"), "{error}");
        }
    }

    #[test]
    fn what_is_not_a_secret_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        assert!(read(&path).unwrap_err().to_string().contains("set FOREBAY_PEERS_SECRET"));
        for text in [String::new(), "short".into(), "x".repeat(5000)] {
            fs::write(&path, &text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
            let error = read(&path).unwrap_err();
            assert!(matches!(error, SecretFileError::Length { .. }), "{error}");
            fs::remove_file(&path).unwrap();
        }
        assert!(read(dir.path()).unwrap_err().to_string().contains("is not a file"));
    }
}
