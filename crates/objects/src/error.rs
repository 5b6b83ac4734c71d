//! The one error of this crate.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use thiserror::Error;

/// What went wrong, where. No variant holds a signed address, a key or a token.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for can't be: the line says what, and the mend.
    #[error("{0}")]
    Input(String),
    /// The store, or what lies between, said no.
    #[error("{object}: {why}")]
    Store {
        /// `s3://bucket/key`, or what else was asked.
        object: String,
        /// Its answer, and the mend where one is known.
        why: String,
    },
    /// Who asks may not have it.
    #[error("{object}: {why}")]
    Denied {
        /// `s3://bucket/key`, or what else was asked.
        object: String,
        /// The store's answer, and the mend.
        why: String,
    },
    /// There is no such object.
    #[error("{object}: there is no such object")]
    Missing {
        /// `s3://bucket/key`.
        object: String,
    },
    /// An object is another version than the one that is meant.
    #[error("{object}: it has changed since it was listed or first read; begin again with what is there now")]
    Changed {
        /// `s3://bucket/key`.
        object: String,
    },
    /// An object ends before the bytes that were asked for.
    #[error("{object} ends before byte {end}: it was cut, or is not the object that is meant")]
    Short {
        /// `s3://bucket/key`.
        object: String,
        /// Where these bytes end.
        end: u64,
    },
    /// The local file system said no.
    #[error("cannot {operation} {}: {source}", path.display())]
    Disk {
        /// What it was about.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// The view was being fetched when this happened.
    #[error("{0}; what was fetched is kept: the same command goes on from there")]
    Unfinished(Box<Error>),
}

impl Error {
    pub(crate) fn disk(path: &Path, operation: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Disk {
            path: path.to_owned(),
            operation,
            source: Arc::new(source.into()),
        }
    }

    /// Whether fetching had begun: otherwise nothing has changed at all.
    pub fn is_unfinished(&self) -> bool {
        matches!(self, Self::Unfinished(_))
    }
}
