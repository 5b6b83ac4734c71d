//! A process's own mappings of index files, with a count of the readers of each. They are not shared between processes,
//! only between a program's threads.
//!
//! The memory of a replaced index is freed once no process maps it. So the preload library unmaps old ones, but never
//! while another thread (or a signal handler of the same thread) reads there. A slot has one word for the mapping and
//! one that counts its readers:
//!
//! - a reader counts itself *first* and then reads the mapping; if it finds [`EMPTYING`] set it leaves again;
//! - emptying turns a count of 0 into [`EMPTYING`] in one step: nobody reads there then, and nobody can begin until it
//!   is cleared.
//!
//! Both change the same word, and its changes have one order. Either the reader comes first, and emptying fails; or the
//! reader comes second, and sees the mark or no mapping at all. Nobody waits. A reader that never leaves (a thread lost
//! in a fork, a handler that jumps out of a call) keeps one slot and its mapping for ever. A process that has lost all
//! slots so reads the source.

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

/// Number of indices that a process can have mapped at a time: the current one, and replaced ones that are still read.
pub const MAPPINGS_MAX: usize = 8;
/// Flag in the count of readers: the mapping is being removed.
const EMPTYING: u32 = 1 << 31;

/// Mappings begin and end at multiples of this, whatever the machine's page size.
const UNIT: u64 = 4096;
/// Bits of a word for a mapping's length in units; the others hold its address.
const LEN_BITS: u32 = 28;

/// Address and length of a mapping in one word, so that both are published together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedMapping(NonZeroU64);

impl PackedMapping {
    /// Packs a mapping. Returns `None` for an address over 48 bits or a length of a TiB.
    fn of(region: Region<'_>) -> Option<Self> {
        let address = region.base().as_ptr() as u64;
        let units = (region.len() as u64).div_ceil(UNIT);
        let fits = address.is_multiple_of(UNIT) && address >> 48 == 0 && units < 1 << LEN_BITS;
        NonZeroU64::new((address / UNIT) << LEN_BITS | units).filter(|_| fits).map(Self)
    }

    /// Unpacks a mapping. Its last page is complete; behind the file's end it holds zeroes.
    fn region(self) -> Option<Region<'static>> {
        let base = NonNull::new(((self.0.get() >> LEN_BITS) * UNIT) as *mut u8)?;
        let len = (self.0.get() & ((1 << LEN_BITS) - 1)) * UNIT;
        // SAFETY: the caller of `Mappings::keep` promised that the region stays, and callers of this are counted as
        // readers.
        Some(unsafe { Region::new(base, len as usize) })
    }
}

/// A slot for one mapping.
#[derive(Debug)]
struct MappingSlot {
    /// Number of readers, or [`EMPTYING`].
    inside: AtomicU32,
    /// Mapping as a [`PackedMapping`]; 0: none.
    mapping: AtomicU64,
}

impl MappingSlot {
    const fn new() -> Self {
        Self {
            inside: AtomicU32::new(0),
            mapping: AtomicU64::new(0),
        }
    }

    #[inline]
    fn enter(&'static self) -> Option<IndexReader> {
        let before = self.inside.fetch_add(1, Acquire);
        let index = if before & EMPTYING == 0 { self.index() } else { None };
        if let Some(index) = index {
            return Some(IndexReader { index, slot: self });
        }
        self.inside.fetch_sub(1, Release);
        None
    }

    fn index(&self) -> Option<Index<'static>> {
        Index::open(PackedMapping(NonZeroU64::new(self.mapping.load(Acquire))?).region()?)
    }

    fn fill(&self, word: PackedMapping) -> bool {
        self.mapping.compare_exchange(0, word.0.get(), Release, Relaxed).is_ok()
    }

    /// Removes the mapping, if nobody reads there and `is_due` returns true for its generation.
    fn empty(&'static self, is_due: impl Fn(u64) -> bool) -> Option<Region<'static>> {
        let word = self.mapping.load(Relaxed);
        if !self.enter().is_some_and(|reading| is_due(reading.index().generation())) {
            return None;
        }
        self.inside.compare_exchange(0, EMPTYING, Acquire, Relaxed).ok()?;
        // Another mapping may have come in its slot since. If it is the same one again, it is removed too early and
        // mapped once more.
        let taken = self.mapping.compare_exchange(word, 0, Relaxed, Relaxed).is_ok();
        self.inside.fetch_sub(EMPTYING, Release);
        if taken {
            PackedMapping(NonZeroU64::new(word)?).region()
        } else {
            None
        }
    }
}

/// A reader's hold on a mapping, which stays while this lives.
pub struct IndexReader {
    index: Index<'static>,
    slot: &'static MappingSlot,
}

impl IndexReader {
    /// Returns the index that is read.
    #[inline]
    pub const fn index(&self) -> Index<'_> {
        self.index
    }
}

impl fmt::Debug for IndexReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IndexReader").field(&self.index.generation()).finish()
    }
}

impl Drop for IndexReader {
    #[inline]
    fn drop(&mut self) {
        self.slot.inside.fetch_sub(1, Release);
    }
}

/// The mappings of a process.
#[derive(Debug)]
pub struct Mappings([MappingSlot; MAPPINGS_MAX]);

impl Default for Mappings {
    fn default() -> Self {
        Self::new()
    }
}

impl Mappings {
    /// Creates a set without mappings.
    pub const fn new() -> Self {
        Self([const { MappingSlot::new() }; MAPPINGS_MAX])
    }

    /// Returns the slots in the order in which a generation is looked for: its own first.
    #[inline]
    fn slots(&'static self, generation: u64) -> impl Iterator<Item = &'static MappingSlot> {
        (0..MAPPINGS_MAX).filter_map(move |step| self.0.get((generation as usize).wrapping_add(step) % MAPPINGS_MAX))
    }

    /// Starts reading in the index of this generation, if it is mapped.
    #[inline]
    pub fn read(&'static self, generation: u64) -> Option<IndexReader> {
        self.slots(generation)
            .filter_map(MappingSlot::enter)
            .find(|reading| reading.index.generation() == generation)
    }

    /// Starts reading in all mapped indices, one after the other, this generation first.
    pub fn read_all(&'static self, generation: u64) -> impl Iterator<Item = IndexReader> {
        self.slots(generation).filter_map(MappingSlot::enter)
    }

    /// Adds a mapping of an index. Returns false if there is no free slot or another thread was faster; the caller then
    /// still owns the mapping.
    ///
    /// # Safety
    /// The region is a mapping of its own, stays until [`Self::take_older`] returns it, and holds an [`Index`] that the
    /// agent made.
    pub unsafe fn keep(&'static self, region: Region<'static>) -> bool {
        let (Some(word), Some(index)) = (PackedMapping::of(region), Index::open(region)) else {
            return false;
        };
        for slot in self.slots(index.generation()) {
            if slot.fill(word) {
                return true;
            }
            if slot.enter().is_some_and(|other| other.index.generation() == index.generation()) {
                return false;
            }
        }
        false
    }

    /// Removes the mappings older than a generation that nobody reads now; the caller unmaps them.
    pub fn take_older(&'static self, generation: u64) -> impl Iterator<Item = Region<'static>> {
        self.0.iter().filter_map(move |slot| slot.empty(|mapped| mapped < generation))
    }
}
