//! Which copies go first where some have to go: to give memory back, or, with the policy `lru`, to make room for others.
//!
//! Doors note use by directory, and that is how finely it is known when a copy was used. So it is a directory that is least recently used, and
//! one that was used within the time that the user names keeps all of its copies: a program that goes through it may be anywhere in it. What a
//! process has open stays in any case: removing it would free nothing while it is read.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

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

/// Chooses copies of one tier until they have `bytes` bytes, or there are no more that may go. `unused_s` tells how long ago any copy of a
/// directory was used, in seconds; those of one that was used within `idle_s` stay. Each copy is chosen once, by one of its names.
pub fn choose(candidates: Vec<Candidate>, unused_s: impl Fn(u32) -> u32, idle_s: u32, bytes: u64) -> Vec<Candidate> {
    // A copy with a name in a directory that is in use, is in use.
    let mut unused: BTreeMap<u64, u32> = BTreeMap::new();
    for candidate in &candidates {
        let by_name = unused_s(candidate.directory);
        unused
            .entry(candidate.copy)
            .and_modify(|least| *least = by_name.min(*least))
            .or_insert(by_name);
    }
    let mut left: Vec<(u32, Candidate)> = candidates
        .into_iter()
        .filter(|candidate| !candidate.is_open)
        .filter_map(|candidate| Some((*unused.get(&candidate.copy)?, candidate)))
        .filter(|(unused_s, _)| *unused_s >= idle_s)
        .collect();
    left.sort_unstable_by_key(|(unused_s, candidate)| (Reverse(*unused_s), candidate.directory, candidate.record));
    let (mut chosen, mut copies, mut sum) = (Vec::new(), BTreeSet::new(), 0_u64);
    for (_, candidate) in left {
        if sum >= bytes {
            break;
        }
        if copies.insert(candidate.copy) {
            sum = sum.saturating_add(candidate.bytes);
            chosen.push(candidate);
        }
    }
    chosen
}
