//! The error type of this crate.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use thiserror::Error;
use ureq::http::StatusCode;

/// An error, with its object or path. No variant holds a signed address, a key or a token.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid: the line names the fault and the remedy.
    #[error("{0}")]
    Input(String),
    /// The store, or a server before it, refused or failed.
    #[error("{object}: {why}")]
    Store {
        /// `s3://bucket/key`, or another address that was asked.
        object: String,
        /// Its answer, and the remedy if one is known.
        why: String,
    },
    /// The caller has no right.
    #[error("{object}: {why}")]
    Denied {
        /// `s3://bucket/key`, or another address that was asked.
        object: String,
        /// The store's answer, and the remedy.
        why: String,
    },
    /// There is no such object.
    #[error("{object}: there is no such object")]
    Missing {
        /// `s3://bucket/key`.
        object: String,
    },
    /// An object is another version than the requested one.
    #[error("{object}: it has changed since it was listed or first read; start again with its present version")]
    Changed {
        /// `s3://bucket/key`.
        object: String,
    },
    /// An object ends before the requested bytes.
    #[error("{object} ends before byte {end}: it was cut, or is not the object that is meant")]
    Short {
        /// `s3://bucket/key`.
        object: String,
        /// Required end of the object.
        end: u64,
    },
    /// An operation on the local file system failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Disk {
        /// Path of the file or directory.
        path: PathBuf,
        /// Operation that failed.
        operation: &'static str,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// The error ended the fetching of a view.
    #[error("{0}; the fetched part is kept: the same command continues")]
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

    /// Returns whether fetching had begun; otherwise nothing has changed.
    pub fn is_unfinished(&self) -> bool {
        matches!(self, Self::Unfinished(_))
    }
}

/// Reason why an attempt failed.
#[derive(Debug)]
pub(crate) enum RequestFault {
    /// Another attempt may succeed.
    Passing(String),
    /// Another attempt may succeed, and some of the bytes have come.
    Partly(String),
    /// No further attempt can succeed.
    Lasting(String),
    /// The caller has no right.
    Denied(String),
    /// There is no such object.
    Missing,
    /// The object is no longer the requested version.
    Changed,
    /// It ends before the requested bytes.
    Short,
    /// Received bytes could not be kept.
    Disk(io::Error),
}

impl RequestFault {
    /// Turns the fault into an error about an object or a bucket.
    pub(crate) fn of(self, object: String) -> Error {
        match self {
            Self::Passing(why) | Self::Partly(why) | Self::Lasting(why) => Error::Store { object, why },
            Self::Denied(why) => Error::Denied { object, why },
            Self::Missing => Error::Missing { object },
            Self::Changed => Error::Changed { object },
            Self::Short => Error::Store {
                object,
                why: "is shorter than it was said to be".into(),
            },
            Self::Disk(error) => Error::Store {
                object,
                why: error.to_string(),
            },
        }
    }

    /// Returns the fault of a key that the store refuses.
    pub(crate) fn refused_key(words: &str) -> Self {
        Self::Denied(format!("{words}; check the credentials and their rights"))
    }

    /// Returns the fault of a missing key; `mend` names the remedy.
    pub(crate) fn no_key(words: &str, mend: &str) -> Self {
        Self::Denied(format!("{words}, and no credentials were found; {mend}"))
    }

    /// Returns the fault of a listing without the time of an object.
    pub(crate) fn no_time() -> Self {
        Self::Lasting("lists an object without a valid time".into())
    }

    /// Returns the fault of a listing without the version of an object, in a field of this name.
    pub(crate) fn no_version(name: &str) -> Self {
        Self::Lasting(format!("lists an object without its version ({name})"))
    }
}

/// Error of an answer, in the store's words.
#[derive(Debug, Default)]
pub(crate) struct StoreRefusal {
    pub(crate) code: String,
    pub(crate) message: String,
}

impl StoreRefusal {
    /// Returns the store's words, or the status if there are none.
    pub(crate) fn words(&self, status: StatusCode) -> String {
        match (self.code.is_empty(), self.message.is_empty()) {
            (true, true) => format!("HTTP status {}", status.as_u16()),
            (true, false) => format!("HTTP status {}: {}", status.as_u16(), plain(&self.message)),
            (false, true) => plain(&self.code),
            (false, false) => format!("{}: {}", plain(&self.code), plain(&self.message)),
        }
    }
}

/// Returns another program's text as one short line without control characters, which a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    let line: String = text.chars().take(200).collect();
    line.replace(char::is_control, " ")
}
