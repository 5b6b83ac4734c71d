//! Reading ahead of the first reader of a large file: how far, and how much at the same time.
//!
//! Whoever reads a file piece by piece waits once a piece for the source. Read ahead, in many pieces at the same time,
//! the file comes at the source's speed. But a program that reads a twentieth of each file must not cost the source
//! more than that, so a file is read as a whole only with evidence, and otherwise by a small part ahead of its reader.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::pressure::JobMemory;

const MIB: u64 = 1 << 20;
/// Files of a directory that a program has read whole, one after the other, from which on it is expected to read the
/// next one whole.
const STREAK_MIN: u32 = 2;
/// Part of a file with a known format that its reader passes in order before the rest is read: one in this many.
/// A reader of a twentieth never comes that far.
const ORDER_PART: u64 = 16;
/// Part of such a file that its reader reads anywhere before the rest is read: one in this many.
const ANYWHERE_PART: u64 = 8;
/// Part of what a reader has passed in order by which an unknown file is read ahead of it: one in this many. So a
/// reader that stops costs at most this part more.
const TRUST_PART: u64 = 32;
/// Part of the memory to spare that files may take that no tier has room for: one in this many. Pages of a file must
/// stay until its reader comes, beside those that the job reads meanwhile.
const PAGES_PART: u64 = 4;
/// Files in a row of which nobody could tell whether a program has read them whole, while it still counts as one that
/// does.
const UNTOLD_MAX: u32 = 2;
/// Program and directory pairs that are remembered.
const PROGRAMS_MAX: usize = 4096;

/// Returns the bytes of files that may be read ahead at the same time into the page cache alone, where no tier has room
/// for them.
pub fn page_cache_bytes(memory: &JobMemory) -> u64 {
    memory.room_bytes_each(PAGES_PART)
}

/// Choice of how far files are read ahead of the program that reads them first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AheadMode {
    /// Not at all: copies follow their readers.
    #[default]
    Follow,
    /// By evidence of what the program will read.
    Auto,
    /// The whole file once it is opened.
    File,
}

/// Evidence about the reader of a large file, in bytes except for the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderEvidence {
    /// Size of the file.
    pub size: u64,
    /// Passed in order: from the start, or from the end of the header of a known format.
    pub in_order: u64,
    /// Read in all, anywhere in the file.
    pub anywhere: u64,
    /// True if the file has a known format, of which programs mostly read all, and its header is valid.
    pub has_known_format: bool,
    /// Files of the directory that the program has read whole, without a partial one after them.
    pub streak: u32,
}

/// Part of a file to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AheadReach {
    /// Up to this offset.
    UpTo(u64),
    /// All of it.
    Whole,
}

/// Decides how far to read a file ahead of its reader.
pub fn reach(mode: AheadMode, reader: &ReaderEvidence) -> AheadReach {
    let ReaderEvidence {
        size,
        in_order,
        anywhere,
        has_known_format,
        streak,
    } = *reader;
    let has_begun = in_order > 0 || anywhere > 0;
    let proves = in_order >= size / ORDER_PART || anywhere >= size / ANYWHERE_PART;
    let is_whole = match mode {
        AheadMode::Follow => return AheadReach::UpTo(0),
        AheadMode::File => true,
        AheadMode::Auto => streak >= STREAK_MIN || (has_known_format && (proves || (streak > 0 && has_begun))),
    };
    if is_whole {
        AheadReach::Whole
    } else {
        AheadReach::UpTo((in_order + in_order / TRUST_PART).min(size))
    }
}

/// Returns true if the next file of a directory is read before its program opens it. The program has read `streak` of
/// its files whole in a row; `has_known_name` tells whether their names are those of a known format.
pub const fn reads_next(mode: AheadMode, streak: u32, has_known_name: bool) -> bool {
    match mode {
        AheadMode::Follow => false,
        AheadMode::File => true,
        AheadMode::Auto => streak >= STREAK_MIN || (has_known_name && streak > 0),
    }
}

/// Returns true if a reader of a file that was read ahead has used enough of it to count as one that reads files
/// whole.
pub const fn has_used_whole(size: u64, used: u64) -> bool {
    used >= size / 2
}

/// Files that programs have read whole, by program and directory.
#[derive(Clone, Debug, Default)]
pub struct WholeReads {
    streaks: BTreeMap<u64, WholeStreak>,
    changes: u64,
}

/// Files that a program has read in a directory since the last one that it did not read whole.
#[derive(Clone, Copy, Debug, Default)]
struct WholeStreak {
    whole: u32,
    /// Files since the last whole one of which nobody could tell.
    untold: u32,
    /// Number of the last change.
    change: u64,
}

impl WholeReads {
    /// Returns the number of files that a program has read whole in a directory since the last partial one. `key`
    /// names both.
    pub fn streak(&self, key: u64) -> u32 {
        self.streaks.get(&key).map_or(0, |streak| streak.whole)
    }

    /// Notes that a program has read a file of a directory, whole or not. `None` if it left before anybody could tell:
    /// that changes nothing twice in a row, and counts as not whole the third time.
    pub fn note(&mut self, key: u64, whole: Option<bool>) {
        self.changes += 1;
        if self.streaks.len() >= PROGRAMS_MAX && !self.streaks.contains_key(&key) {
            let oldest = self.streaks.iter().min_by_key(|(_, streak)| streak.change).map(|(key, _)| *key);
            oldest.and_then(|oldest| self.streaks.remove(&oldest));
        }
        let change = self.changes;
        let before = self.streaks.get(&key).copied().unwrap_or_default();
        let (whole, untold) = match whole {
            Some(true) => (before.whole.saturating_add(1), 0),
            None if before.untold < UNTOLD_MAX => (before.whole, before.untold + 1),
            Some(false) | None => (0, 0),
        };
        self.streaks.insert(key, WholeStreak { whole, untold, change });
    }
}

/// Smallest number of bytes that are requested of a source at the same time for reading ahead.
pub const WINDOW_MIN_BYTES: u64 = MIB;
/// Largest such number.
pub const WINDOW_MAX_BYTES: u64 = 32 * MIB;
const WINDOW_FIRST_BYTES: u64 = 4 * MIB;
/// Shortest answer time in microseconds that counts as the source's own: below it, noise would rule.
const ANSWER_MIN_US: u64 = 500;
/// Factor of the shortest answer time up to which more is requested at the same time.
const GROW_BELOW: u64 = 2;
/// Factor of the shortest answer time from which less is requested.
const SHRINK_ABOVE: u64 = 4;
/// Answers after which the shortest answer time is measured again, with a quarter of the requests: the source may have
/// become slower by itself.
const MEASURED_FOR: u64 = 512;

/// Bytes that may be requested of one source at the same time. An answer that takes long beside the shortest one has
/// waited for others: then less is requested, so that the reads of programs wait for little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AheadWindow {
    bytes: u64,
    files: u64,
    shortest_us: u64,
    answers: u64,
}

impl Default for AheadWindow {
    fn default() -> Self {
        Self {
            bytes: WINDOW_FIRST_BYTES,
            files: 0,
            shortest_us: u64::MAX,
            answers: 0,
        }
    }
}

impl AheadWindow {
    /// Adds a file that is read ahead.
    pub const fn begin(&mut self) {
        self.files += 1;
    }

    /// Removes a file that was read ahead.
    pub const fn end(&mut self) {
        self.files = self.files.saturating_sub(1);
    }

    /// Returns the bytes that may be requested at the same time of one of the files.
    pub fn share(&self) -> u64 {
        (self.bytes / self.files.max(1)).max(WINDOW_MIN_BYTES)
    }

    /// Notes that a piece of [`WINDOW_MIN_BYTES`] came `answer_us` microseconds after its request, and was waited
    /// for.
    pub fn answered(&mut self, answer_us: u64) {
        let answer_us = answer_us.max(ANSWER_MIN_US);
        self.answers += 1;
        if self.answers.is_multiple_of(MEASURED_FOR) {
            self.bytes = (self.bytes / 4).max(WINDOW_MIN_BYTES);
            self.shortest_us = u64::MAX;
            return;
        }
        self.shortest_us = self.shortest_us.min(answer_us);
        if answer_us < GROW_BELOW * self.shortest_us {
            self.bytes = (self.bytes + self.bytes / 16).min(WINDOW_MAX_BYTES);
        } else if answer_us > SHRINK_ABOVE * self.shortest_us {
            self.bytes = (self.bytes - self.bytes / 8).max(WINDOW_MIN_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const READER: ReaderEvidence = ReaderEvidence {
        size: 256 * MIB,
        in_order: 0,
        anywhere: 0,
        has_known_format: false,
        streak: 0,
    };

    #[test]
    fn the_page_cache_alone_takes_a_quarter_of_the_memory_to_spare() {
        let free = |free_bytes, stalled_percent| JobMemory {
            limit_bytes: 1024 * MIB,
            free_bytes,
            stalled_percent,
        };
        assert_eq!(
            page_cache_bytes(&free(528 * MIB, 0.0)),
            100 * MIB,
            "twice the floor of 64 MiB stays free"
        );
        assert_eq!(page_cache_bytes(&free(128 * MIB, 0.0)), 0);
        assert_eq!(page_cache_bytes(&free(528 * MIB, 20.0)), 0, "programs wait for memory");
    }

    #[test]
    fn the_mode_rules_where_it_leaves_no_choice() {
        let seen = ReaderEvidence { streak: 9, ..READER };
        assert_eq!(reach(AheadMode::Follow, &seen), AheadReach::UpTo(0));
        assert_eq!(reach(AheadMode::File, &READER), AheadReach::Whole);
        assert_eq!(reach(AheadMode::Auto, &READER), AheadReach::UpTo(0));
    }

    #[test]
    fn two_whole_files_make_the_next_one_whole_and_a_partial_one_ends_it() {
        let mut reads = WholeReads::default();
        let now = |reads: &WholeReads| {
            reach(
                AheadMode::Auto,
                &ReaderEvidence {
                    streak: reads.streak(7),
                    ..READER
                },
            )
        };
        reads.note(7, Some(true));
        assert_eq!(now(&reads), AheadReach::UpTo(0));
        reads.note(8, Some(true));
        assert_eq!(now(&reads), AheadReach::UpTo(0), "another program");
        reads.note(7, Some(true));
        assert_eq!(now(&reads), AheadReach::Whole);
        reads.note(7, Some(false));
        assert_eq!(now(&reads), AheadReach::UpTo(0));
    }

    #[test]
    fn three_files_in_a_row_of_which_nobody_can_tell_end_a_streak() {
        let mut reads = WholeReads::default();
        reads.note(7, Some(true));
        reads.note(7, None);
        reads.note(7, None);
        assert_eq!(reads.streak(7), 1);
        reads.note(7, Some(true));
        for streak in [2, 2, 0, 0] {
            reads.note(7, None);
            assert_eq!(reads.streak(7), streak);
        }
    }

    #[test]
    fn the_next_file_is_read_for_programs_that_read_whole_files() {
        let auto = |streak, has_known_name| reads_next(AheadMode::Auto, streak, has_known_name);
        assert_eq!(
            [auto(2, false), auto(1, false), auto(1, true), auto(0, true)],
            [true, false, true, false]
        );
        assert!(reads_next(AheadMode::File, 0, false));
        assert!(!reads_next(AheadMode::Follow, 9, true));
    }

    #[test]
    fn a_known_format_is_read_whole_once_its_reader_goes_on() {
        let known = ReaderEvidence {
            has_known_format: true,
            ..READER
        };
        let now = |reader| reach(AheadMode::Auto, &reader);
        assert_eq!(
            now(ReaderEvidence {
                in_order: 16 * MIB,
                ..known
            }),
            AheadReach::Whole
        );
        assert_eq!(
            now(ReaderEvidence {
                anywhere: 32 * MIB,
                ..known
            }),
            AheadReach::Whole
        );
        assert_eq!(
            now(ReaderEvidence {
                anywhere: 4096,
                streak: 1,
                ..known
            }),
            AheadReach::Whole
        );
        assert_ne!(now(ReaderEvidence { streak: 1, ..known }), AheadReach::Whole, "not begun");
        assert_ne!(
            now(ReaderEvidence {
                in_order: 16 * MIB,
                ..READER
            }),
            AheadReach::Whole
        );
    }

    #[test]
    fn programs_are_forgotten_oldest_first() {
        let mut reads = WholeReads::default();
        for key in 0..=PROGRAMS_MAX as u64 {
            reads.note(key, Some(true));
        }
        assert_eq!((reads.streak(0), reads.streak(1)), (0, 1));
        assert_eq!(reads.streaks.len(), PROGRAMS_MAX);
    }

    #[test]
    fn the_window_grows_while_answers_are_fast_and_shrinks_when_they_queue() {
        let mut window = AheadWindow::default();
        for _ in 0..200 {
            window.answered(5_000);
        }
        assert_eq!(window.share(), WINDOW_MAX_BYTES);
        for _ in 0..100 {
            window.answered(50_000);
        }
        assert_eq!(window.share(), WINDOW_MIN_BYTES);
        let mut shared = AheadWindow::default();
        (0..2).for_each(|_| shared.begin());
        assert_eq!(shared.share(), WINDOW_FIRST_BYTES / 2);
        (0..3).for_each(|_| shared.end());
        assert_eq!(shared.share(), WINDOW_FIRST_BYTES);
    }

    #[test]
    fn a_source_of_a_fixed_rate_is_not_asked_for_more_than_it_carries() {
        // 100 MiB/s and 1 ms: a piece that is alone takes 11 ms, and each further one 10 ms more.
        let mut window = AheadWindow::default();
        for _ in 0..2_000 {
            let pieces = window.bytes / MIB;
            window.answered(1_000 + pieces * 10_000);
        }
        assert!(window.bytes <= 8 * MIB, "{window:?}");
    }

    proptest! {
        /// Whoever reads a twentieth of a file, in whatever way, costs at most a twentieth of that more.
        #[test]
        fn a_reader_of_a_twentieth_is_never_read_ahead_of_by_much(
            size in (1u64 << 17)..(1 << 40), part in 0u64..=50, known: bool, elsewhere in 0u64..=50,
        ) {
            let in_order = size / 1000 * part;
            let anywhere = in_order.max(size / 1000 * elsewhere);
            let reader = ReaderEvidence { size, in_order, anywhere, has_known_format: known, streak: 0 };
            match reach(AheadMode::Auto, &reader) {
                AheadReach::Whole => prop_assert!(false, "{reader:?}"),
                AheadReach::UpTo(upto) => prop_assert!(upto <= in_order + in_order / 20),
            }
        }
    }
}
