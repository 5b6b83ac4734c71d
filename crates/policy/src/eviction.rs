//! Which copies go first where some have to go: to give memory back, or, with the policy `lru`, to make room for others.
//!
//! Doors note use by directory, and that is how finely it is known when a copy was used. So it is a directory that is least recently used, and
//! one that was used within the time that the user names keeps all of its copies: a program that goes through it may be anywhere in it. What a
//! process has open stays in any case: removing it would free nothing while it is read.

use std::cmp::Reverse;

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
    /// Whether a process has it open or mapped.
    pub is_open: bool,
}

/// How much is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Less than so many bytes would be of no use: then nothing goes.
    pub bytes_min: u64,
    /// Beyond that it goes on up to so many bytes,
    pub bytes_max: u64,
    /// or so many copies.
    pub copies_max: usize,
}

impl Want {
    /// So many bytes; where there are not as many, what there is.
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

/// Chooses copies of one tier: as many as are wanted, or none if there is less than what is of use. `unused_s` tells how long ago any copy of a
/// directory was used, in seconds; those of one that was used within `idle_s` stay. Each copy is chosen once, by one of its names.
pub fn choose(candidates: Vec<Candidate>, unused_s: impl Fn(u32) -> u32, idle_s: u32, want: &Want) -> Vec<Candidate> {
    let with_use = candidates.into_iter().map(|candidate| (unused_s(candidate.directory), candidate));
    let mut left: Vec<(u32, Candidate)> = with_use.collect();
    // A copy with a name in a directory that is in use, is in use: of its names the one that was used last counts.
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
