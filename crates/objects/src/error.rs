//! The one error of this crate.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use thiserror::Error;
use ureq::http::StatusCode;

use crate::{credentials::plain, dialect::Refused};

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

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Another attempt may succeed.
    Passing(String),
    /// The same, and some of the bytes have come.
    Partly(String),
    /// No other will.
    Lasting(String),
    /// Who asks may not have it.
    Denied(String),
    /// There is no such object.
    Missing,
    /// The object is not, or no longer, the version that is meant.
    Changed,
    /// It ends before the bytes that were asked for.
    Short,
    /// What was received could not be kept.
    Disk(io::Error),
}

impl Fault {
    /// What it comes to, of an object or of a bucket.
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
}

impl Fault {
    /// A key that the store does not take.
    pub(crate) fn refused_key(words: &str) -> Self {
        Self::Denied(format!("{words}; check the credentials and what they allow"))
    }

    /// There is no key, and the store wants one; `mend` says how to have one.
    pub(crate) fn no_key(words: &str, mend: &str) -> Self {
        Self::Denied(format!("{words}, and no credentials were found; {mend}"))
    }

    /// A listing has no time of an object.
    pub(crate) fn no_time() -> Self {
        Self::Lasting("lists an object with a time that is none".into())
    }

    /// A listing has no version of an object, which this protocol names so.
    pub(crate) fn no_version(name: &str) -> Self {
        Self::Lasting(format!("lists an object without its version ({name})"))
    }
}

impl Refused {
    /// The store's words, or the status where it has none.
    pub(crate) fn words(&self, status: StatusCode) -> String {
        match (self.code.is_empty(), self.message.is_empty()) {
            (true, true) => format!("HTTP status {}", status.as_u16()),
            (true, false) => format!("HTTP status {}: {}", status.as_u16(), plain(&self.message)),
            (false, true) => plain(&self.code),
            (false, false) => format!("{}: {}", plain(&self.code), plain(&self.message)),
        }
    }
}
