//! Opens that wait for a copy that another node of the job sends: words in the run page on which programs sleep.
//!
//! An opener takes a word, reads it, sends its descriptor handoff with the word's number, and sleeps while the word is
//! as it was. The agent changes the word and wakes the opener when the copy is there, or will not come. Nothing is held
//! in between: an opener that dies leaves a word behind that the next one takes as it is. Two openers share a word only
//! if another [`WORDS`] opens were begun meanwhile; then one may wake early, and reads the source.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::region::Region;

/// Number of words.
pub const WORDS: u32 = 4096;
/// Position of the words behind the header.
const WORDS_AT: u64 = 64;
/// Length of the table in bytes.
pub(crate) const BYTES: u64 = WORDS_AT + WORDS as u64 * 4;
/// Position of the time until which openers may wait beyond [`longest_wait_ns`].
const PROLONGED_AT: u64 = 8;
/// Longest wait for a file without bytes, in nanoseconds.
const WAIT_MIN_NS: u64 = 1_000_000_000;
/// Nanoseconds of the longest wait for each byte of a file: 10 MB/s.
const WAIT_NS_A_BYTE: u64 = 100;

/// Layout that the preload library and the agent share.
pub(crate) const LAYOUT: &[u64] = &[WORDS as u64, WORDS_AT, BYTES, PROLONGED_AT, WAIT_MIN_NS, WAIT_NS_A_BYTE];

/// Returns the longest time in nanoseconds for which the open of a file of `bytes` waits, unless the agent says again
/// and again that it may wait longer ([`OpenWaits::prolong`]).
pub const fn longest_wait_ns(bytes: u64) -> u64 {
    WAIT_MIN_NS.saturating_add(bytes.saturating_mul(WAIT_NS_A_BYTE))
}

/// Access to the table.
#[derive(Clone, Copy, Debug)]
pub struct OpenWaits<'a> {
    region: Region<'a>,
    base: u64,
}

/// Word of one opener, as it was before the handoff.
#[derive(Clone, Copy, Debug)]
pub struct OpenWait<'a> {
    /// Number of the word, which goes along with the handoff.
    pub number: u32,
    /// The word: a futex.
    pub word: &'a AtomicU32,
    /// Its value as long as the opener is to wait.
    pub value: u32,
}

impl<'a> OpenWaits<'a> {
    /// Opens the table that begins at a byte offset, all zeroes at first.
    pub(crate) const fn at(region: Region<'a>, base: u64) -> Self {
        Self { region, base }
    }

    fn header(&self) -> Option<&'a AtomicU64> {
        self.region.element(self.base, 0)
    }

    fn word(&self, number: u32) -> Option<&'a AtomicU32> {
        self.region.element(self.base + WORDS_AT, u64::from(number % WORDS))
    }

    /// Takes the next word; `None` if opens do not wait.
    pub fn begin(&self) -> Option<OpenWait<'a>> {
        let header = self.header()?;
        // Bit 0: opens wait. Above it: words that were taken.
        if header.load(Acquire) & 1 == 0 {
            return None;
        }
        let number = (header.fetch_add(2, Relaxed) >> 1) as u32 % WORDS;
        let word = self.word(number)?;
        Some(OpenWait {
            number,
            word,
            value: word.load(Acquire),
        })
    }

    /// Returns true while opens wait.
    pub fn is_waiting(&self) -> bool {
        self.header().is_some_and(|header| header.load(Acquire) & 1 != 0)
    }

    /// Has all later opens wait, or none.
    pub fn set_waiting(&self, is_waiting: bool) {
        if let Some(header) = self.header() {
            if is_waiting {
                header.fetch_or(1, AcqRel);
            } else {
                header.fetch_and(!1, AcqRel);
            }
        }
    }

    /// Lets openers wait until a time, in nanoseconds of `CLOCK_BOOTTIME`, beyond [`longest_wait_ns`].
    pub fn prolong(&self, until_ns: u64) {
        if let Some(prolonged) = self.region.element::<AtomicU64>(self.base + PROLONGED_AT, 0) {
            prolonged.fetch_max(until_ns, AcqRel);
        }
    }

    /// Returns the time until which openers may wait, in nanoseconds of `CLOCK_BOOTTIME`; 0 if nobody was let wait.
    pub fn prolonged_until(&self) -> u64 {
        let prolonged = self.region.element::<AtomicU64>(self.base + PROLONGED_AT, 0);
        prolonged.map_or(0, |prolonged| prolonged.load(Acquire))
    }

    /// Changes a word, and returns it: whoever sleeps on it is to be woken.
    pub fn end(&self, number: u32) -> Option<&'a AtomicU32> {
        let word = self.word(number)?;
        word.fetch_add(1, AcqRel);
        Some(word)
    }
}

impl OpenWait<'_> {
    /// Returns true once the agent has changed the word.
    pub fn is_over(&self) -> bool {
        self.word.load(Acquire) != self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::large_stack_arrays, reason = "there is no allocation here")]
    fn an_opener_waits_until_its_own_word_has_changed() {
        let mut memory = [0_u64; BYTES as usize / 8];
        let base = core::ptr::NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: memory that outlives the region, and is used by it alone.
        let waits = OpenWaits::at(unsafe { Region::new(base, BYTES as usize) }, 0);
        assert!(waits.begin().is_none(), "nobody waits at first");
        waits.set_waiting(true);
        let (one, other) = (waits.begin().unwrap(), waits.begin().unwrap());
        assert_ne!(one.number, other.number);
        waits.end(other.number).unwrap();
        assert!(!one.is_over() && other.is_over());
        waits.end(one.number).unwrap();
        assert!(one.is_over());
        for _ in 2..WORDS {
            waits.begin().unwrap();
        }
        assert_eq!(waits.begin().unwrap().number, one.number, "words are taken in turn");
        assert_eq!(waits.prolonged_until(), 0);
        waits.prolong(7);
        waits.prolong(5);
        assert_eq!(waits.prolonged_until(), 7, "nobody is told to wait for less");
        waits.set_waiting(false);
        assert!(waits.begin().is_none());
    }

    #[test]
    fn a_larger_file_is_waited_for_longer() {
        assert_eq!(longest_wait_ns(0), WAIT_MIN_NS);
        assert_eq!(longest_wait_ns(10_000_000) - WAIT_MIN_NS, 1_000_000_000, "10 MB/s");
        assert_eq!(longest_wait_ns(u64::MAX), u64::MAX);
    }
}
