//! Copying ahead of programs while the source is idle: the siblings of opened files, a batch at a time.
//!
//! Each of these would be read sooner or later, so reading it ahead costs the source nothing extra. The exception is
//! a file that a program opens at the same moment, or that changes meanwhile: it is read twice. Such bytes may be at
//! most one in [`RISK_PART`] of those that were copied, and no batch is larger than the rest of that allowance.
//!
//! So the reads of a dataset come to at most 1.05 times its bytes if the dataset is read once, each file is copied
//! when a program reads it, and each copy stays until then. Two cases are not counted:
//!
//! - a file that got no copy when a program read it (the tiers were full, or it had just been modified) and is read
//!   ahead later;
//! - a copy that was made ahead and removed before a program opens it (under `lru`, or given back).

/// Milliseconds without a request of a program after which the source counts as idle.
pub const IDLE_AFTER_MS: u64 = 1_000;
/// Files in a batch, at most.
pub const BATCH_FILES: usize = 64;
/// Bytes in a batch, at most; a larger file is one by itself.
pub const BATCH_BYTES_MAX: u64 = 64 << 20;
/// Part of the copied bytes that may have been read ahead and wasted: one in this many.
pub const RISK_PART: u64 = 20;
/// Pause in milliseconds after the tiers had no room.
const FULL_PAUSE_MS: u64 = 5_000;

/// Observations for a decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Milliseconds on any clock that does not run backwards.
    pub now_ms: u64,
    /// Any number that changes when the source answers a program.
    pub asked: u64,
    /// Copies that follow a program's reading, and directories that are being listed.
    pub following: usize,
    /// Copies that are being made ahead.
    pub ahead: usize,
    /// Bytes of the different files that were copied so far, ahead or not.
    pub copied_bytes: u64,
    /// Bytes that were read ahead and wasted.
    pub wasted_bytes: u64,
    /// The largest file for which the tiers have room, in bytes.
    pub room_bytes: u64,
}

/// Next step of the prefetcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchStep {
    /// Nothing now.
    Wait,
    /// List a directory; answered by [`PrefetchPlan::listed`].
    List(u32),
    /// Open the next listed files, and begin to copy them; answered by [`PrefetchPlan::opened`]. A file larger than the
    /// remaining bytes ends the batch, or goes to the end of the list if nothing before it fitted.
    Open {
        /// Most names in the batch.
        files: usize,
        /// Most bytes in the batch, together.
        bytes: u64,
    },
}

/// A directory in which programs have opened files at the source.
#[derive(Clone, Copy, Debug)]
struct OpenedDirectory {
    opened_at_ms: u64,
    is_listed: bool,
}

/// The directory being worked on.
#[derive(Clone, Copy, Debug)]
struct ListedNames {
    /// Names that are left.
    left: usize,
    /// Names in a row that were looked at and too large.
    too_large: usize,
    /// Size of the smallest of them in bytes.
    smallest: u64,
}

/// State of the prefetcher.
#[derive(Clone, Debug, Default)]
pub struct PrefetchPlan {
    asked: u64,
    /// Time at which programs were last seen to ask the source; `None` before the first look.
    asked_at_ms: Option<u64>,
    directories: Vec<OpenedDirectory>,
    listing: Option<ListedNames>,
    /// An answer is due.
    is_waiting: bool,
    /// Time at which the batch began whose copies are being made.
    batch_at_ms: Option<u64>,
    next_ms: u64,
}

impl PrefetchPlan {
    /// Notes that a program has opened a file of this directory at the source. Directories are numbered from 0
    /// without gaps.
    pub fn asked_in(&mut self, directory: u32, now_ms: u64) {
        let at = directory as usize;
        if at == self.directories.len() {
            self.directories.push(OpenedDirectory {
                opened_at_ms: now_ms,
                is_listed: false,
            });
        } else if let Some(known) = self.directories.get_mut(at) {
            known.opened_at_ms = now_ms;
        }
    }

    /// Marks the directory to be listed again, since another run opens files there: the rest of it may be useful now.
    pub fn list_again(&mut self, directory: u32) {
        if let Some(known) = self.directories.get_mut(directory as usize) {
            known.is_listed = false;
        }
    }

    /// Notes that a program has asked the source for something.
    pub fn asked(&mut self, now_ms: u64) {
        self.asked_at_ms = Some(now_ms);
    }

    /// Returns true if the source is idle, as far as [`Self::next`] and [`Self::asked`] have seen.
    pub fn is_idle(&self, now_ms: u64) -> bool {
        self.asked_at_ms.is_some_and(|at| now_ms.saturating_sub(at) >= IDLE_AFTER_MS)
    }

    /// Takes the observations in, and decides the next step.
    pub fn next(&mut self, seen: &Seen) -> PrefetchStep {
        let now_ms = seen.now_ms;
        if self.asked_at_ms.is_none() || seen.asked != self.asked || seen.following > 0 {
            self.asked = seen.asked;
            self.asked(now_ms);
        }
        if self.is_waiting || seen.ahead > 0 {
            return PrefetchStep::Wait;
        }
        if let Some(at_ms) = self.batch_at_ms.take() {
            // Leaves as much time to others as the batch took.
            self.next_ms = self.next_ms.max(now_ms + now_ms.saturating_sub(at_ms));
        }
        if !self.is_idle(now_ms) || now_ms < self.next_ms {
            return PrefetchStep::Wait;
        }
        let risk = (seen.copied_bytes / RISK_PART).saturating_sub(seen.wasted_bytes);
        let bytes = risk.min(seen.room_bytes);
        match &mut self.listing {
            Some(listing) if listing.left > 0 => {
                if listing.too_large >= listing.left {
                    // All remaining files were too large: wait until more bytes are allowed.
                    if bytes < listing.smallest {
                        return PrefetchStep::Wait;
                    }
                    listing.too_large = 0;
                }
                let bytes = if listing.smallest <= bytes {
                    bytes.min(BATCH_BYTES_MAX.max(listing.smallest))
                } else {
                    bytes.min(BATCH_BYTES_MAX)
                };
                if bytes == 0 {
                    return PrefetchStep::Wait;
                }
                self.is_waiting = true;
                PrefetchStep::Open {
                    files: listing.left.min(BATCH_FILES),
                    bytes,
                }
            }
            _ => self.list(),
        }
    }

    /// Lists the directory that was opened last; each is listed once.
    fn list(&mut self) -> PrefetchStep {
        let left = self
            .directories
            .iter_mut()
            .enumerate()
            .filter(|(_, directory)| !directory.is_listed);
        let Some((at, directory)) = left.max_by_key(|(at, directory)| (directory.opened_at_ms, *at)) else {
            return PrefetchStep::Wait;
        };
        directory.is_listed = true;
        self.is_waiting = true;
        PrefetchStep::List(at as u32)
    }

    /// Takes the answer to [`PrefetchStep::List`]: the number of files without a copy.
    pub fn listed(&mut self, files: usize) {
        self.is_waiting = false;
        self.listing = Some(ListedNames {
            left: files,
            too_large: 0,
            smallest: u64::MAX,
        });
    }

    /// Takes the answer to [`PrefetchStep::Open`]: the number of names left, the number that were too large and went to
    /// the end of the list, and the size of the smallest of these in bytes.
    pub fn opened(&mut self, left: usize, too_large: usize, smallest: u64, now_ms: u64) {
        self.is_waiting = false;
        let Some(listing) = &mut self.listing else { return };
        let done = listing.left.saturating_sub(left);
        listing.left = left;
        if done > 0 {
            (listing.too_large, listing.smallest) = (0, u64::MAX);
            self.batch_at_ms = Some(now_ms);
        }
        listing.too_large += too_large;
        if too_large > 0 {
            listing.smallest = listing.smallest.min(smallest);
        }
    }

    /// Notes that the tiers had no room.
    pub fn full(&mut self, now_ms: u64) {
        self.next_ms = self.next_ms.max(now_ms.saturating_add(FULL_PAUSE_MS));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MB: u64 = 1_000_000;

    fn idle(now_ms: u64) -> Seen {
        Seen {
            now_ms,
            copied_bytes: 100 * MB,
            room_bytes: u64::MAX,
            ..Seen::default()
        }
    }

    /// Returns a prefetcher that looked at time 0 and knows two directories, the second of them opened last.
    fn begun() -> PrefetchPlan {
        let mut prefetch = PrefetchPlan::default();
        assert_eq!(prefetch.next(&idle(0)), PrefetchStep::Wait);
        prefetch.asked_in(0, 0);
        prefetch.asked_in(1, 1);
        prefetch.asked_in(0, 0);
        prefetch
    }

    #[test]
    fn siblings_of_the_last_open_come_first_and_each_directory_once() {
        let mut prefetch = begun();
        assert_eq!(prefetch.next(&idle(IDLE_AFTER_MS - 1)), PrefetchStep::Wait, "not idle yet");
        assert_eq!(prefetch.next(&idle(IDLE_AFTER_MS)), PrefetchStep::List(1));
        assert_eq!(prefetch.next(&idle(2_000)), PrefetchStep::Wait, "one thing at a time");
        prefetch.listed(100);
        assert_eq!(prefetch.next(&idle(2_000)), PrefetchStep::Open { files: 64, bytes: 5 * MB });
        prefetch.opened(36, 0, 0, 2_000);
        assert_eq!(
            prefetch.next(&Seen { ahead: 1, ..idle(2_100) }),
            PrefetchStep::Wait,
            "one batch at a time"
        );
        assert_eq!(
            prefetch.next(&idle(2_200)),
            PrefetchStep::Wait,
            "it took 200 ms, and as much is left to others"
        );
        assert_eq!(prefetch.next(&idle(2_400)), PrefetchStep::Open { files: 36, bytes: 5 * MB });
        prefetch.opened(0, 0, 0, 2_400);
        assert_eq!(prefetch.next(&idle(2_400)), PrefetchStep::List(0));
        prefetch.listed(0);
        assert_eq!(prefetch.next(&idle(9_000)), PrefetchStep::Wait, "all was listed");
        prefetch.list_again(1);
        assert_eq!(prefetch.next(&idle(9_000)), PrefetchStep::List(1));
    }

    #[test]
    fn it_stops_when_programs_ask_and_while_copies_follow_them() {
        let stirs: [fn(&mut PrefetchPlan, &mut Seen); 3] = [
            |_, seen| seen.asked = 1,
            |_, seen| seen.following = 1,
            |prefetch, seen| prefetch.asked(seen.now_ms),
        ];
        for stir in stirs {
            let mut prefetch = begun();
            let mut seen = idle(5_000);
            stir(&mut prefetch, &mut seen);
            assert_eq!(prefetch.next(&seen), PrefetchStep::Wait);
            assert!(!prefetch.is_idle(5_000 + IDLE_AFTER_MS - 1));
            let later = Seen {
                now_ms: 5_000 + IDLE_AFTER_MS,
                following: 0,
                ..seen
            };
            assert_eq!(prefetch.next(&later), PrefetchStep::List(1), "idle again");
        }
    }

    #[test]
    fn what_is_too_large_for_what_may_be_risked_waits_until_more_is_known() {
        let mut prefetch = begun();
        prefetch.next(&idle(1_000));
        prefetch.listed(2);
        let open = |bytes| PrefetchStep::Open { files: 2, bytes };
        assert_eq!(prefetch.next(&idle(1_000)), open(5 * MB));
        prefetch.opened(2, 2, 80 * MB, 1_000);
        assert_eq!(prefetch.next(&idle(2_000)), PrefetchStep::Wait);
        let more = Seen {
            copied_bytes: 2_000 * MB,
            ..idle(3_000)
        };
        assert_eq!(prefetch.next(&more), open(80 * MB), "and then it is a batch by itself");
        let wasted = Seen {
            wasted_bytes: 5 * MB,
            ..idle(9_000)
        };
        let mut prefetch = begun();
        prefetch.next(&wasted);
        prefetch.listed(2);
        assert_eq!(prefetch.next(&wasted), PrefetchStep::Wait, "all that may be risked was lost");
        let full = Seen {
            room_bytes: 0,
            ..idle(9_000)
        };
        assert_eq!(prefetch.next(&full), PrefetchStep::Wait, "the tiers have no room");
        assert_eq!(prefetch.next(&idle(9_000)), open(5 * MB));
    }

    #[test]
    fn full_tiers_are_left_alone_for_a_while() {
        let mut prefetch = begun();
        prefetch.full(1_000);
        assert_eq!(prefetch.next(&idle(1_000 + FULL_PAUSE_MS - 1)), PrefetchStep::Wait);
        assert_eq!(prefetch.next(&idle(1_000 + FULL_PAUSE_MS)), PrefetchStep::List(1));
    }

    proptest! {
        /// Programs that open just what is being read ahead can't make the source read more than 1.05 times what was
        /// copied.
        #[test]
        fn no_more_than_a_twentieth_is_read_twice(sizes in prop::collection::vec(0..3_000_000_u64, 1..400), is_lost in prop::collection::vec(any::<bool>(), 64), first in 0..200_000_000_u64) {
            let mut prefetch = begun();
            let mut left: std::collections::VecDeque<u64> = sizes.into();
            let (mut copied_bytes, mut wasted_bytes, mut now_ms) = (first, 0, 0);
            let mut losses = is_lost.into_iter().cycle();
            for _ in 0..2_000 {
                now_ms += 500;
                match prefetch.next(&Seen { now_ms, copied_bytes, wasted_bytes, room_bytes: u64::MAX, ..Seen::default() }) {
                    PrefetchStep::Wait => {}
                    PrefetchStep::List(directory) => prefetch.listed(if directory == 1 { left.len() } else { 0 }),
                    PrefetchStep::Open { files, bytes } => {
                        let (mut done, mut too_large, mut smallest, mut taken) = (0, 0, u64::MAX, 0);
                        for _ in 0..files {
                            let Some(size) = left.pop_front() else { break };
                            if taken + size <= bytes {
                                (taken, done) = (taken + size, done + 1);
                                // It is copied in either case: behind its reader if not ahead of it.
                                copied_bytes += size;
                                if losses.next() == Some(true) {
                                    wasted_bytes += size;
                                }
                            } else if done > 0 {
                                left.push_front(size);
                                break;
                            } else {
                                left.push_back(size);
                                (too_large, smallest) = (too_large + 1, smallest.min(size));
                            }
                        }
                        prefetch.opened(left.len(), too_large, smallest, now_ms);
                    }
                }
                prop_assert!(wasted_bytes <= copied_bytes / RISK_PART, "{} of {}", wasted_bytes, copied_bytes);
            }
        }
    }
}
