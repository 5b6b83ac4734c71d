//! Refusals on the wire: a kind for programs, and words for people.

use serde::{Deserialize, Serialize};

/// Reasons for a refusal that a program may act on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The request is invalid, or does not fit what the agent does at the moment.
    #[default]
    Invalid,
    /// Agent and peer are of different versions.
    OtherVersion,
    /// Another process holds the name or the rank that was asked for. It may be about to end: try again.
    Taken,
    /// The agent reached one of its limits, or the machine has no more memory or descriptors.
    Exhausted,
    /// The request was valid, and failed afterwards, as a fork whose parent ended.
    Failed,
    /// The job had passed the step of a fork before its ranks could hear of it. A later step may do.
    Passed,
}

impl RefusalKind {
    /// Returns the name on the wire, in logs and in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::OtherVersion => "other_version",
            Self::Taken => "taken",
            Self::Exhausted => "exhausted",
            Self::Failed => "failed",
            Self::Passed => "passed",
        }
    }
}

/// An agent's refusal. On the wire it is `{"response": "refused", "kind": ..., "why": ...}` for every role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Kind, for programs.
    #[serde(default)]
    pub kind: RefusalKind,
    /// Reason and mend, for a person.
    pub why: String,
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(kind: RefusalKind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into() }
    }

    /// Refuses a peer of another version of Forebay.
    pub(crate) fn other_version(mend: &str) -> Self {
        let why = format!("the agent is of another version of Forebay: {mend}");
        Self::new(RefusalKind::OtherVersion, why)
    }
}

/// Refuses an invalid request.
impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::from(why.to_owned())
    }
}

/// Refuses an invalid request.
impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::new(RefusalKind::Invalid, why)
    }
}
