//! A process's own mappings of index files: who reads in which of them, and when one can be taken away. Not shared with anybody, but a door's
//! threads meet here, so it lies beside what they read.
//!
//! An index that is replaced gives its memory back once nobody has it mapped. So a door unmaps what is old, and must never do that while
//! another of its threads (or a signal handler of the same one) is reading there. A place is one word for the mapping and one that
//! counts who is inside:
//!
//! - who enters counts itself *first* and reads the mapping then; who finds [`EMPTYING`] set goes out again;
//! - who empties turns a count of 0 into [`EMPTYING`], in one step: nobody is inside, and nobody can come in until it is taken back.
//!
//! Both are changes of the same word, which have one order: either the entering comes first, and the emptying fails, or it comes second, and
//! sees the mark or no mapping at all. Nobody waits for anybody. Whoever never leaves (a thread that was forked away from inside a
//! call, a handler that jumps out of one) keeps one place and its mapping for ever; a process that has lost all places so reads the source.

use core::{
    fmt,
    num::NonZeroU64,
    ptr::NonNull,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::{index::Index, region::Region};

/// Indices that a process can have mapped at once: the current one, and those that are being read while they are replaced.
pub const PLACES: usize = 8;
/// In the count of readers: the mapping is being taken out.
const EMPTYING: u32 = 1 << 31;

/// Mappings begin and end at multiples of this, whatever the machine's page size.
const UNIT: u64 = 4096;
/// Bits of a word for a mapping's length in units; the rest is its address.
const LEN_BITS: u32 = 28;

/// Address and length of a mapping in one word, so that both are published at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(NonZeroU64);

impl Word {
    /// `None` for what does not fit: an address of more than 48 bits, a mapping of a TiB.
    fn of(region: Region<'_>) -> Option<Self> {
        let address = region.base().as_ptr() as u64;
        let units = (region.len() as u64).div_ceil(UNIT);
        let fits = address.is_multiple_of(UNIT) && address >> 48 == 0 && units < 1 << LEN_BITS;
        NonZeroU64::new((address / UNIT) << LEN_BITS | units).filter(|_| fits).map(Self)
    }

    /// Its last page is whole: what lies behind the file's end in it are zeroes.
    fn region(self) -> Option<Region<'static>> {
        let base = NonNull::new(((self.0.get() >> LEN_BITS) * UNIT) as *mut u8)?;
        let len = (self.0.get() & ((1 << LEN_BITS) - 1)) * UNIT;
        // SAFETY: of a region that `Mappings::keep` was promised to stay, and whoever gets this is counted inside.
        Some(unsafe { Region::new(base, len as usize) })
    }
}

/// Room for one mapping.
#[derive(Debug)]
struct Place {
    /// How many are inside, or [`EMPTYING`].
    inside: AtomicU32,
    /// A [`Word`]; 0: nothing.
    mapping: AtomicU64,
}

impl Place {
    const fn new() -> Self {
        Self {
            inside: AtomicU32::new(0),
            mapping: AtomicU64::new(0),
        }
    }

    #[inline]
    fn enter(&'static self) -> Option<Reading> {
        let before = self.inside.fetch_add(1, Acquire);
        let index = if before & EMPTYING == 0 { self.index() } else { None };
        if let Some(index) = index {
            return Some(Reading { index, place: self });
        }
        self.inside.fetch_sub(1, Release);
        None
    }

    fn index(&self) -> Option<Index<'static>> {
        Index::open(Word(NonZeroU64::new(self.mapping.load(Acquire))?).region()?)
    }

    fn fill(&self, word: Word) -> bool {
        self.mapping.compare_exchange(0, word.0.get(), Release, Relaxed).is_ok()
    }

    /// Takes out what is mapped here, if nobody is inside and `is_due` says so of its generation.
    fn empty(&'static self, is_due: impl Fn(u64) -> bool) -> Option<Region<'static>> {
        let word = self.mapping.load(Relaxed);
        if !self.enter().is_some_and(|reading| is_due(reading.index().generation())) {
            return None;
        }
        self.inside.compare_exchange(0, EMPTYING, Acquire, Relaxed).ok()?;
        // Another one may have come in its place since; or the same again, which is then taken out too early and mapped once more.
        let taken = self.mapping.compare_exchange(word, 0, Relaxed, Relaxed).is_ok();
        self.inside.fetch_sub(EMPTYING, Release);
        if taken { Word(NonZeroU64::new(word)?).region() } else { None }
    }
}

/// Somebody who is inside: what it reads is not taken away while this lives.
pub struct Reading {
    index: Index<'static>,
    place: &'static Place,
}

impl Reading {
    /// What is read.
    #[inline]
    pub const fn index(&self) -> Index<'_> {
        self.index
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reading").field(&self.index.generation()).finish()
    }
}

impl Drop for Reading {
    #[inline]
    fn drop(&mut self) {
        self.place.inside.fetch_sub(1, Release);
    }
}

/// The mappings of a process.
#[derive(Debug)]
pub struct Mappings([Place; PLACES]);

impl Default for Mappings {
    fn default() -> Self {
        Self::new()
    }
}

impl Mappings {
    /// None.
    pub const fn new() -> Self {
        Self([const { Place::new() }; PLACES])
    }

    /// The places, in the order in which a generation is looked for: its own first.
    #[inline]
    fn places(&'static self, generation: u64) -> impl Iterator<Item = &'static Place> {
        (0..PLACES).filter_map(move |step| self.0.get((generation as usize).wrapping_add(step) % PLACES))
    }

    /// Reads in the index of this generation, if it is mapped.
    #[inline]
    pub fn read(&'static self, generation: u64) -> Option<Reading> {
        self.places(generation)
            .filter_map(Place::enter)
            .find(|reading| reading.index.generation() == generation)
    }

    /// Reads in all that are mapped, one after the other, this generation first.
    pub fn read_all(&'static self, generation: u64) -> impl Iterator<Item = Reading> {
        self.places(generation).filter_map(Place::enter)
    }

    /// Puts in a mapping of an index. False: there is no place for it, or another thread was faster; it is the caller's still.
    ///
    /// # Safety
    /// The region is a mapping of its own that stays until [`Self::take_older`] gives it back, and an [`Index`] that the agent made.
    pub unsafe fn keep(&'static self, region: Region<'static>) -> bool {
        let (Some(word), Some(index)) = (Word::of(region), Index::open(region)) else {
            return false;
        };
        for place in self.places(index.generation()) {
            if place.fill(word) {
                return true;
            }
            if place.enter().is_some_and(|other| other.index.generation() == index.generation()) {
                return false;
            }
        }
        false
    }

    /// Takes out what is older than a generation and read by nobody now; the caller unmaps it.
    pub fn take_older(&'static self, generation: u64) -> impl Iterator<Item = Region<'static>> {
        self.0.iter().filter_map(move |place| place.empty(|mapped| mapped < generation))
    }
}
