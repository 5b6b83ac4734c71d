//! The one error of this crate.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use crate::probe::Lack;

/// What went wrong, where, in which operation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The tier refused an operation.
    #[error("cannot {operation} {}: {source}", path.display())]
    Tier {
        /// What it was about.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The system's answer.
        source: Errno,
    },
    /// The tier has no room: back off and serve from the source.
    #[error("no room to {operation} {}: {source}", path.display())]
    Full {
        /// What it was about.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The system's answer.
        source: Errno,
    },
    /// The source refused an operation.
    #[error("cannot {operation} the source of {}: {source}", path.display())]
    Source {
        /// The copy that was to be made.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The system's answer.
        source: Errno,
    },
    /// The source is not, or no longer, the version of which a copy was begun.
    #[error("the source of {} changed: {what}", path.display())]
    Changed {
        /// The copy that was to be made.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// A copy or the catalogue is not what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// What is damaged.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// Something that must be ours alone is not.
    #[error("{} is refused: {why}", path.display())]
    NotPrivate {
        /// What is refused.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The directory's file system lacks what a tier needs.
    #[error("{} can't hold copies: its file system {lack}; name a directory on another one, such as ext4 or xfs", path.display())]
    Unfit {
        /// The tier's directory.
        path: PathBuf,
        /// What it lacks.
        lack: Lack,
    },
    /// Another process holds the lease of the tier.
    #[error("{} is in use{}", path.display(), holder.map(|pid| format!(" by process {pid}")).unwrap_or_default())]
    InUse {
        /// The tier's root.
        path: PathBuf,
        /// The process that holds it, where it said so.
        holder: Option<u32>,
    },
    /// The tier was made by another version.
    #[error("{} has the unknown format {found:?}: remove it, or run `forebay clean`", path.display())]
    UnknownFormat {
        /// The tier's root.
        path: PathBuf,
        /// What its FORMAT says.
        found: String,
    },
    /// A path, name or mount is longer than the catalogue holds.
    #[error("{what} of {bytes} bytes is too long for {}", path.display())]
    TooLong {
        /// The catalogue.
        path: PathBuf,
        /// What is too long.
        what: &'static str,
        /// How long it is.
        bytes: usize,
    },
    /// The user's secret cannot be kept.
    #[error("cannot {operation} the secret {}: {source}", path.display())]
    Secret {
        /// The secret's file.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The system's answer.
        source: Errno,
    },
}

impl StoreError {
    /// The tier's answer as an error: lack of room is told apart from faults.
    pub(crate) fn tier(path: &Path, operation: &'static str, source: Errno) -> Self {
        let path = path.to_owned();
        match source {
            // FBIG: larger than this file system, or this process's limit, lets a file be. It is a matter of room all the same.
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::Full { path, operation, source },
            _ => Self::Tier { path, operation, source },
        }
    }

    /// Whether the tier lacks room (bytes, inodes or quota): back off.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// Whether the tier is at fault: after a few of these it is to be quarantined. Lack of descriptors or memory in this process is
    /// no fault of the tier.
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

    /// Whether the source is the reason: it failed, or it changed. The tier is well.
    pub fn is_source(&self) -> bool {
        matches!(self, Self::Source { .. } | Self::Changed { .. })
    }

    /// The system's answer, where there was one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Tier { source, .. } | Self::Full { source, .. } | Self::Source { source, .. } | Self::Secret { source, .. } => {
                Some(*source)
            }
            _ => None,
        }
    }
}
