//! The error type of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

/// An error, with its path and operation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// An operation on the tier failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Tier {
        /// Path of the tier or copy.
        path: PathBuf,
        /// Operation that failed.
        operation: &'static str,
        /// Error number of the system.
        source: Errno,
    },
    /// The tier has no room: back off and serve from the source.
    #[error("no room to {operation} {}: {source}", path.display())]
    Full {
        /// Path of the tier or copy.
        path: PathBuf,
        /// Operation that failed.
        operation: &'static str,
        /// Error number of the system.
        source: Errno,
    },
    /// An operation on the source failed.
    #[error("cannot {operation} the source of {}: {source}", path.display())]
    Source {
        /// Path of the intended copy.
        path: PathBuf,
        /// Operation that failed.
        operation: &'static str,
        /// Error number of the system.
        source: Errno,
    },
    /// The source is no longer the version of which a copy was begun.
    #[error("the source of {} changed: {what}", path.display())]
    Changed {
        /// Path of the intended copy.
        path: PathBuf,
        /// The difference.
        what: &'static str,
    },
    /// A copy or the catalogue does not hold what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// Path of the damaged file.
        path: PathBuf,
        /// The difference.
        what: &'static str,
    },
    /// A file or directory that must be private to the user is not.
    #[error("{} is refused: {why}", path.display())]
    NotPrivate {
        /// Path that is refused.
        path: PathBuf,
        /// Reason of the refusal.
        why: String,
    },
    /// The directory's file system lacks a feature that a tier needs.
    #[error("{} can't hold copies: its file system {lack}; name a directory on another one, such as ext4 or xfs", path.display())]
    Unfit {
        /// The tier's directory.
        path: PathBuf,
        /// The missing feature.
        lack: Lack,
    },
    /// Another process holds the lease of the tier.
    #[error("{} is in use{}; wait until that has ended, or name another directory", path.display(), holder.map(|pid| format!(" by process {pid}")).unwrap_or_default())]
    InUse {
        /// The tier's root.
        path: PathBuf,
        /// Number of the process that holds it, if it wrote one.
        holder: Option<u32>,
    },
    /// The tier was made by another version.
    #[error("{} has the unknown format {found:?}: remove it, or run `forebay clean`", path.display())]
    UnknownFormat {
        /// The tier's root.
        path: PathBuf,
        /// Content of its FORMAT.
        found: String,
    },
    /// A path, name or mount is longer than the catalogue holds.
    #[error("{what} of {bytes} bytes is too long for {}", path.display())]
    TooLong {
        /// Path of the catalogue.
        path: PathBuf,
        /// The part that is too long.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
    },
    /// The user's secret cannot be kept.
    #[error("cannot {operation} the secret {}: {source}", path.display())]
    Secret {
        /// Path of the secret's file.
        path: PathBuf,
        /// Operation that failed.
        operation: &'static str,
        /// Error number of the system.
        source: Errno,
    },
}

impl StoreError {
    /// Turns an error number of the tier into an error, with lack of room told apart from faults.
    pub(crate) fn tier(path: &Path, operation: &'static str, source: Errno) -> Self {
        let path = path.to_owned();
        match source {
            // FBIG means a limit of the file system or the process on the size of a file, so it is lack of room, too.
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::Full { path, operation, source },
            _ => Self::Tier { path, operation, source },
        }
    }

    /// Returns whether the tier lacks room (bytes, inodes or quota): back off.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// Returns whether the tier is at fault; after a few such errors it is to be quarantined. A lack of descriptors or
    /// memory in this process is not the tier's fault.
    pub fn is_tier_fault(&self) -> bool {
        match self {
            Self::Tier { source, .. } => !matches!(
                *source,
                Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR | Errno::AGAIN | Errno::EXIST
            ),
            Self::Damaged { .. } | Self::NotPrivate { .. } | Self::Unfit { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the source is the reason: it failed or changed, while the tier works.
    pub fn is_source(&self) -> bool {
        matches!(self, Self::Source { .. } | Self::Changed { .. })
    }

    /// Returns the error number of the system, if there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Tier { source, .. } | Self::Full { source, .. } | Self::Source { source, .. } | Self::Secret { source, .. } => {
                Some(*source)
            }
            _ => None,
        }
    }
}

/// A feature that a file system lacks to hold a tier. Its text completes "its file system ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lack {
    /// Locks: two agents could use the tier at the same time.
    Locks,
    /// Permissions: others could read copies.
    Permissions,
    /// Stable identity of files: the preload library would reject every copy and read the source.
    Identity,
    /// Removed files that stay readable while they are open: a program would lose a copy that it reads.
    Unlinked,
    /// Atomic rename: the catalogue could not be rewritten.
    Rename,
    /// Names: copies of earlier runs could not be found, or not be removed.
    Names,
    /// Content: reads would be wrong.
    Content,
    /// Size: no room could be left free for others.
    Size,
}

impl fmt::Display for Lack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Locks => "locks no files (flock)",
            Self::Permissions => "keeps no permissions, so that others could read copies",
            Self::Identity => "gives a file another inode number or time once it is closed",
            Self::Unlinked => "does not keep an open file once its name is removed",
            Self::Rename => "can't put a file in another's place",
            Self::Names => "lists files by other names than they were given",
            Self::Content => "returns other bytes than were written",
            Self::Size => "does not say how large it is",
        })
    }
}
