//! Order of eviction: chooses the copies to remove, to give memory back or, with the policy `lru`, to make room for
//! others.
//!
//! The preload library notes use by directory, so the age of a copy is known by directory only. So a directory is
//! least recently used, not a copy. A directory that was used within the time that the user names keeps all of its
//! copies: a program that goes through it may be anywhere in it. A copy that a process has open always stays:
//! removing it would free nothing while it is read.

use std::{cmp::Reverse, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Policy for a file that fits into no tier, as in `forebay run --policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierPolicy {
    /// No eviction: the files copied first stay.
    #[default]
    FillFirst,
    /// Eviction of the directory that was used longest ago, unless that is less than this number of seconds.
    Lru(u32),
}

impl TierPolicy {
    /// Forms in which a user writes a policy.
    pub const FORMS: &str = "fill_first, lru or lru=SECONDS";
    /// Default of `lru` in seconds: a program sweeps no directory that it leaves unused for longer.
    pub const LRU_IDLE_S: u32 = 600;

    /// Seconds without use after which the copies of a directory may go for others; `None` if none ever may.
    pub const fn evicts_after_s(self) -> Option<u32> {
        match self {
            Self::FillFirst => None,
            Self::Lru(idle_s) => Some(idle_s),
        }
    }
}

impl fmt::Display for TierPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FillFirst => formatter.write_str("fill_first"),
            Self::Lru(idle_s) => write!(formatter, "lru={idle_s}"),
        }
    }
}

impl FromStr for TierPolicy {
    /// Message that names the mistake and the valid forms.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |why: String| format!("{why}; write {}", Self::FORMS);
        match text.split_once('=') {
            None if text == "fill_first" => Ok(Self::FillFirst),
            None if text == "lru" => Ok(Self::Lru(Self::LRU_IDLE_S)),
            Some(("lru", seconds)) => match seconds.parse() {
                Ok(0) => Err(refuse("lru=0 would remove copies in use".into())),
                Ok(seconds) => Ok(Self::Lru(seconds)),
                Err(_) => Err(refuse(format!("invalid number of seconds '{seconds}'"))),
            },
            _ => Err(refuse(format!("unknown policy '{text}'"))),
        }
    }
}

/// A published copy by one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The name's record.
    pub record: u32,
    /// The copy.
    pub copy: u64,
    /// The directory that the name is in.
    pub directory: u32,
    /// The copy's size.
    pub bytes: u64,
    /// True if a process has the copy open or mapped.
    pub is_open: bool,
}

/// Amount to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Smallest useful amount in bytes: if less can go, nothing goes.
    pub bytes_min: u64,
    /// Bytes at which eviction stops.
    pub bytes_max: u64,
    /// Number of copies at which eviction stops.
    pub copies_max: usize,
}

impl Want {
    /// Evicts `bytes`, or all that can go if that is less.
    pub const fn as_many_as_there_are(bytes: u64) -> Self {
        Self {
            bytes_min: 0,
            bytes_max: bytes,
            copies_max: usize::MAX,
        }
    }

    const fn is_met(&self, bytes: u64, copies: usize) -> bool {
        bytes >= self.bytes_min && (bytes >= self.bytes_max || copies >= self.copies_max)
    }
}

/// Chooses copies of one tier up to the amount, or none if less than its minimum can go. `unused_s` returns the
/// seconds since any copy of a directory was used; copies of a directory used within `idle_s` stay. Each copy is
/// chosen once, by one of its names.
pub fn choose(candidates: Vec<Candidate>, unused_s: impl Fn(u32) -> u32, idle_s: u32, want: &Want) -> Vec<Candidate> {
    let with_use = candidates.into_iter().map(|candidate| (unused_s(candidate.directory), candidate));
    let mut left: Vec<(u32, Candidate)> = with_use.collect();
    // A copy may have several names. The one used last counts: a name in a directory in use keeps the copy.
    left.sort_unstable_by_key(|(unused_s, candidate)| (candidate.copy, *unused_s));
    left.dedup_by_key(|(_, candidate)| candidate.copy);
    left.retain(|(unused_s, candidate)| !candidate.is_open && *unused_s >= idle_s);
    left.sort_unstable_by_key(|(unused_s, candidate)| (Reverse(*unused_s), candidate.directory, candidate.record));
    let (mut chosen, mut bytes) = (Vec::new(), 0_u64);
    for (_, candidate) in left {
        if want.is_met(bytes, chosen.len()) {
            break;
        }
        bytes = bytes.saturating_add(candidate.bytes);
        chosen.push(candidate);
    }
    if bytes < want.bytes_min {
        chosen.clear();
    }
    chosen
}
