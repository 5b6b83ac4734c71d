//! Allocation of ranges in a memory or a file of fixed length, by a list of free ranges.
//!
//! The smallest range that is large enough is taken (best fit), of several the first; a range that is given back
//! joins its free neighbours. So data that is written once and then left alone has no holes; data that comes and goes
//! leaves some percent unused if lengths differ.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges of `0..length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    length: u64,
    free_bytes: u64,
    /// Length by beginning. No two ranges touch.
    by_start: BTreeMap<u64, u64>,
    /// Free ranges as (length, beginning).
    by_length: BTreeSet<(u64, u64)>,
}

impl Ranges {
    /// Creates a list in which all of `0..length` is free.
    pub fn new(length: u64) -> Self {
        let mut ranges = Self {
            length,
            free_bytes: 0,
            by_start: BTreeMap::new(),
            by_length: BTreeSet::new(),
        };
        ranges.give(0, length);
        ranges
    }

    /// Bytes in all.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Bytes that are free, in whatever pieces.
    pub const fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Bytes of the largest free range.
    pub fn largest(&self) -> u64 {
        self.by_length.last().map_or(0, |&(length, _)| length)
    }

    /// Takes a range of `bytes` and returns its beginning; `None` if no free range is that long. A range of 0 bytes
    /// always fits.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return Some(0);
        }
        let &(length, start) = self.by_length.range((bytes, 0)..).next()?;
        self.remove(start, length);
        self.insert(start + bytes, length - bytes);
        Some(start)
    }

    /// Takes the first range of `bytes` that begins at `from` or behind it; if there is none, any, as [`Self::take`]
    /// does.
    pub fn take_from(&mut self, from: u64, bytes: u64) -> Option<u64> {
        let before = self.by_start.range(..from).next_back().map(|(start, length)| start + length);
        let is_around = before.is_some_and(|end| end >= from.saturating_add(bytes));
        let behind = || self.by_start.range(from..).find(|(_, length)| **length >= bytes);
        let start = if is_around { Some(from) } else { behind().map(|(start, _)| *start) };
        match start {
            Some(start) if self.take_at(start, bytes) => Some(start),
            _ => self.take(bytes),
        }
    }

    /// Takes this very range; `false`, and nothing is taken, if it is not all free.
    pub fn take_at(&mut self, start: u64, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let Some((&begin, &length)) = self.by_start.range(..=start).next_back() else {
            return false;
        };
        let end = begin + length;
        if start.checked_add(bytes).is_none_or(|wanted| wanted > end) {
            return false;
        }
        self.remove(begin, length);
        self.insert(begin, start - begin);
        self.insert(start + bytes, end - start - bytes);
        true
    }

    /// Gives back a range that was taken.
    pub fn give(&mut self, start: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (mut start, mut end) = (start, start + bytes);
        debug_assert!(end <= self.length, "{start}..{end} lies beyond {}", self.length);
        let before = self.by_start.range(..start).next_back().map(|(&at, &length)| (at, length));
        if let Some((at, length)) = before {
            debug_assert!(at + length <= start, "{start}..{end} is free already");
            if at + length == start {
                self.remove(at, length);
                start = at;
            }
        }
        let after = self.by_start.range(start..).next().map(|(&at, &length)| (at, length));
        if let Some((at, length)) = after {
            debug_assert!(end <= at, "{start}..{end} is free already");
            if at == end {
                self.remove(at, length);
                end = at + length;
            }
        }
        self.insert(start, end - start);
    }

    fn insert(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.free_bytes += length;
            self.by_start.insert(start, length);
            self.by_length.insert((length, start));
        }
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.free_bytes -= length;
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}
