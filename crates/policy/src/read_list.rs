//! Lists of what the runs of a command have read, by which its next run is read ahead.
//!
//! A list holds the first files and directories of a command in the order in which it opened them. Of a file it keeps
//! the version and the parts that were read, in 64ths. A part counts only if all of its bytes were read, so whoever
//! reads the list again asks the source for nothing that no run has read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most files and directories in a list: those that a command opens first.
pub const ENTRIES_MAX: usize = 16_384;
/// Most bytes of all paths in a list.
pub const PATH_BYTES_MAX: usize = 4 << 20;
/// Parts into which a file is divided.
const PARTS: u64 = 64;
/// Share of the bytes that a program was seen to read by which its parts in the page cache may be more: one in this
/// many. Others may have read them.
const MORE_PART: u64 = 4;

/// Parts of a file that were read, one bit each, the first 64th lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReadParts(u64);

impl ReadParts {
    /// No part of a file.
    pub const NONE: Self = Self(0);
    /// All parts of a file.
    pub const WHOLE: Self = Self(u64::MAX);

    /// Returns true if the whole file was read.
    pub const fn is_whole(self) -> bool {
        self.0 == u64::MAX
    }

    /// Returns true if no part was read.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns the parts that lie within the first `len` bytes of a file of `size` bytes.
    pub fn of_first(size: u64, len: u64) -> Self {
        Self::of(size, |_, end| end <= len)
    }

    /// Returns the parts of a file of `size` bytes, from offset to offset, for which `is_read` holds.
    pub fn of(size: u64, mut is_read: impl FnMut(u64, u64) -> bool) -> Self {
        let bits = (0..PARTS).filter(|part| is_read(bound(size, *part), bound(size, part + 1)));
        Self(bits.fold(0, |all, part| all | 1 << part))
    }

    /// Returns the parts in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the bytes of the parts in a file of `size` bytes.
    pub fn bytes(self, size: u64) -> u64 {
        self.ranges(size).map(|(from, upto)| upto - from).sum()
    }

    /// Returns the offsets at which runs of parts begin and end in a file of `size` bytes, in order.
    pub fn ranges(self, size: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let has = |part: u64| part < PARTS && self.0 & (1 << part) != 0;
            let first = (next..PARTS).find(|part| has(*part))?;
            next = (first..=PARTS).find(|part| !has(*part))?;
            Some((bound(size, first), bound(size, next)))
        })
    }
}

/// Returns the offset at which a part begins.
fn bound(size: u64, part: u64) -> u64 {
    (u128::from(size) * u128::from(part) / u128::from(PARTS)) as u64
}

/// Observations of the reader of a large file at the end of its copy, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEvidence {
    /// Size of the file.
    pub size: u64,
    /// Copied from the start.
    pub copied: u64,
    /// True if the copy is whole.
    pub is_whole: bool,
    /// True if the file was read ahead of its reader.
    pub was_ahead: bool,
    /// Seen to be read of it.
    pub seen: u64,
    /// Most bytes that can have been read of it.
    pub at_most: u64,
    /// Parts in the page cache.
    pub cached: ReadParts,
}

/// Decides which parts of a large file count as read by the program that has opened it.
pub fn parts_read(evidence: &ReadEvidence) -> ReadParts {
    let ReadEvidence {
        size,
        copied,
        is_whole,
        was_ahead,
        seen,
        at_most,
        cached,
    } = *evidence;
    // A copy that followed its reader may be of pages that others have read.
    if is_whole && (was_ahead || at_most >= size / 2) {
        return ReadParts::WHOLE;
    }
    let mut parts = ReadParts::of_first(size, copied.min(at_most));
    if !is_whole && cached.bytes(size) <= seen + seen / MORE_PART {
        parts = parts.union(cached);
    }
    parts
}

/// A file or directory that a run has read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadEntry {
    /// Path as the program spelled it.
    pub path: String,
    /// Time from the start of the run to the open in milliseconds.
    pub at_ms: u64,
    /// Version of a file; `None` for a directory, which was listed.
    pub version: Option<ReadVersion>,
    /// Parts of a file that were read.
    pub parts: ReadParts,
}

/// Version of a file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadVersion {
    /// Size in bytes.
    pub size: u64,
    /// Last change of the contents: seconds and nanoseconds.
    pub changed: (i64, u32),
}

impl ReadEntry {
    /// Returns the bytes that were read of it.
    pub fn bytes(&self) -> u64 {
        self.version.map_or(0, |version| self.parts.bytes(version.size))
    }
}

/// List of what the runs of a command have read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadList {
    entries: BTreeMap<String, ReadEntry>,
    path_bytes: usize,
}

impl ReadList {
    /// Adds an entry, or what it tells beyond the one of its path: parts of the same version, or another version. The
    /// time of an entry stays. A full list takes no further path.
    pub fn add(&mut self, entry: ReadEntry) {
        if let Some(known) = self.entries.get_mut(&entry.path) {
            if known.version == entry.version {
                known.parts = known.parts.union(entry.parts);
            } else {
                (known.version, known.parts) = (entry.version, entry.parts);
            }
            return;
        }
        let path_bytes = self.path_bytes + entry.path.len();
        if self.entries.len() < ENTRIES_MAX && path_bytes <= PATH_BYTES_MAX {
            self.path_bytes = path_bytes;
            self.entries.insert(entry.path.clone(), entry);
        }
    }

    /// Adds the entries of a later run in the order of their times.
    pub fn merge(&mut self, later: &Self) {
        for entry in later.in_order() {
            self.add(entry.clone());
        }
    }

    /// Removes the entry of a path.
    pub fn remove(&mut self, path: &str) {
        if let Some(entry) = self.entries.remove(path) {
            self.path_bytes -= entry.path.len();
        }
    }

    /// Returns the entries in the order in which they were opened.
    pub fn in_order(&self) -> Vec<&ReadEntry> {
        let mut entries: Vec<&ReadEntry> = self.entries.values().collect();
        entries.sort_by_key(|entry| entry.at_ms);
        entries
    }

    /// Returns the number of files, and the bytes that were read of them.
    pub fn files(&self) -> (u64, u64) {
        let files = self.entries.values().filter(|entry| entry.version.is_some());
        files.fold((0, 0), |(files, bytes), entry| (files + 1, bytes + entry.bytes()))
    }

    /// Returns the number of directories.
    pub fn directories(&self) -> u64 {
        self.entries.values().filter(|entry| entry.version.is_none()).count() as u64
    }

    /// Returns true if nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn entry(path: &str, at_ms: u64, parts: ReadParts) -> ReadEntry {
        let version = Some(ReadVersion { size: 64, changed: (1, 2) });
        ReadEntry {
            path: path.into(),
            at_ms,
            version,
            parts,
        }
    }

    fn evidence(used: u64) -> ReadEvidence {
        ReadEvidence {
            size: 64 * MIB,
            copied: 0,
            is_whole: false,
            was_ahead: false,
            seen: used,
            at_most: used,
            cached: ReadParts::NONE,
        }
    }

    #[test]
    fn ranges_join_parts_that_follow_each_other() {
        let parts = ReadParts::of(64 * MIB, |from, _| from < 2 * MIB || from == 5 * MIB || from >= 63 * MIB);
        let ranges: Vec<_> = parts.ranges(64 * MIB).collect();
        assert_eq!(ranges, [(0, 2 * MIB), (5 * MIB, 6 * MIB), (63 * MIB, 64 * MIB)]);
        assert_eq!(parts.bytes(64 * MIB), 4 * MIB);
        assert_eq!(ReadParts::WHOLE.ranges(5).collect::<Vec<_>>(), [(0, 5)]);
    }

    #[test]
    fn a_copy_counts_as_read_only_with_evidence_of_its_reader() {
        let whole = ReadEvidence {
            is_whole: true,
            copied: 64 * MIB,
            cached: ReadParts::WHOLE,
            ..evidence(3 * MIB)
        };
        assert_eq!(parts_read(&whole), ReadParts::of_first(64 * MIB, 3 * MIB), "others had read it");
        assert_eq!(
            parts_read(&ReadEvidence {
                at_most: 40 * MIB,
                ..whole
            }),
            ReadParts::WHOLE
        );
        assert_eq!(parts_read(&ReadEvidence { was_ahead: true, ..whole }), ReadParts::WHOLE);
    }

    #[test]
    fn parts_in_the_page_cache_count_as_far_as_the_reader_may_have_read_them() {
        let cached = ReadParts::of(64 * MIB, |from, _| from >= 60 * MIB);
        let part = ReadEvidence {
            cached,
            ..evidence(4 * MIB)
        };
        assert_eq!(parts_read(&part), cached);
        assert_eq!(parts_read(&ReadEvidence { seen: 3 * MIB, ..part }), ReadParts::NONE);
    }

    #[test]
    fn runs_of_a_command_merge() {
        let mut list = ReadList::default();
        list.add(entry("a", 5, ReadParts(1)));
        list.add(entry("b", 1, ReadParts::WHOLE));
        let mut later = ReadList::default();
        later.add(entry("a", 9, ReadParts(2)));
        later.add(entry("c", 3, ReadParts(1)));
        let other = Some(ReadVersion { size: 64, changed: (9, 9) });
        later.add(ReadEntry {
            version: other,
            ..entry("b", 0, ReadParts(4))
        });
        list.merge(&later);
        let seen: Vec<_> = list
            .in_order()
            .into_iter()
            .map(|entry| (entry.path.as_str(), entry.at_ms, entry.parts.0))
            .collect();
        assert_eq!(seen, [("b", 1, 4), ("c", 3, 1), ("a", 5, 3)]);
        assert_eq!(list.files(), (3, 4), "of 64 bytes a part is one");
        list.remove("c");
        list.remove("nothing");
        assert_eq!((list.files().0, list.directories(), list.path_bytes), (2, 0, 2));
    }

    #[test]
    fn a_list_is_bounded_and_keeps_what_was_opened_first() {
        let mut list = ReadList::default();
        for number in 0..=ENTRIES_MAX {
            list.add(entry(&number.to_string(), number as u64, ReadParts::WHOLE));
        }
        assert_eq!(list.files().0, ENTRIES_MAX as u64);
        assert_eq!(list.in_order().last().map(|entry| entry.at_ms), Some(ENTRIES_MAX as u64 - 1));
        let mut list = ReadList::default();
        for number in 0..3 {
            list.add(entry(&number.to_string().repeat(PATH_BYTES_MAX / 2), number, ReadParts::WHOLE));
        }
        assert_eq!(list.files().0, 2);
    }

    proptest! {
        /// A list has nothing that no run has read: beyond what a copy has followed its reader to, parts that are
        /// recorded are no more than a quarter above what the program was seen to read.
        #[test]
        fn no_more_is_recorded_than_was_read(
            size in 1u64..1 << 40, copied in 0u64..=100, used in 0u64..=100, bits: u64, is_whole: bool,
        ) {
            let evidence = ReadEvidence {
                size,
                copied: if is_whole { size } else { size / 100 * copied },
                is_whole,
                was_ahead: false,
                seen: size / 100 * used / 2,
                at_most: size / 100 * used,
                cached: ReadParts(bits),
            };
            let parts = parts_read(&evidence);
            if parts.is_whole() && is_whole {
                prop_assert!(evidence.at_most >= size / 2);
            } else {
                let cached = evidence.seen + evidence.seen / MORE_PART;
                prop_assert!(parts.bytes(size) <= cached + evidence.at_most);
            }
        }

        /// The ranges of parts lie in the file, in order, and hold the bytes of the parts.
        #[test]
        fn ranges_lie_in_the_file(size: u64, bits: u64) {
            let mut last = 0;
            for (from, upto) in ReadParts(bits).ranges(size) {
                prop_assert!(last <= from && from <= upto && upto <= size);
                last = upto;
            }
        }
    }
}
