//! Number of opens of each file of a run, exact for a sample of the files. The sample stays small for any number of
//! files.
//!
//! A file is in the sample if the low `level` bits of its name's key are zero. Once the table is full the level rises
//! by one: half of the sample leaves, and other files take its slots. So each file has the same chance to be in the
//! sample, and those in it were counted from their first open on. A race can list a file twice or lose an open. These
//! figures are only shown to a person.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{hash::hash_bytes, region::Region};

const SLOTS: u64 = 4096;
/// The level has a cache line of its own.
const SLOTS_AT: u64 = 64;
/// Length of the table in bytes.
pub(crate) const BYTES: u64 = SLOTS_AT + SLOTS * 8;
/// Bits of a slot for the number of opens; the other 40 hold the key. A slot of 0 is free.
const COUNT_BITS: u32 = 24;
/// Count at which counting stops: far enough from the key that processes which count at the same time do not reach it.
const COUNT_MAX: u64 = (1 << COUNT_BITS) - (1 << 16);
/// The bit that keeps a key from being 0.
const KEY_SET: u64 = 1 << 39;
/// Shift of the key for its slot. The bits below [`KEY_SET`] choose the slot, the lowest ones the sample; the two must
/// not meet.
const PLACE_SHIFT: u32 = 39 - SLOTS.ilog2();
const LEVEL_MAX: u64 = PLACE_SHIFT as u64;
/// Number of slots searched for a name. The table counts as full if none of them is free.
const PROBES: u64 = 32;
/// Number of attempts, if another process takes the slot meanwhile.
const ATTEMPTS: u32 = 4;
const SEED: u64 = 0x6F70_656E_732E_2E2E;

/// Layout that the preload library and the command share.
pub(crate) const LAYOUT: &[u64] = &[SLOTS, SLOTS_AT, BYTES, COUNT_BITS as u64, KEY_SET, PLACE_SHIFT as u64, PROBES, SEED];

/// Access to the table.
#[derive(Clone, Copy, Debug)]
pub struct Opens<'a> {
    region: Region<'a>,
    base: u64,
}

impl<'a> Opens<'a> {
    /// Opens the table that begins at a byte offset, all zeroes at first.
    pub(crate) const fn at(region: Region<'a>, base: u64) -> Self {
        Self { region, base }
    }

    /// Counts an open of the file with this spelled name.
    #[inline]
    pub fn note(&self, name: &[u8]) {
        let key = hash_bytes(SEED, name) >> COUNT_BITS | KEY_SET;
        let Some(shared) = self.region.at::<AtomicU64>(self.base) else {
            return;
        };
        let level = shared.load(Relaxed).min(LEVEL_MAX);
        if !is_sampled(key, level) || self.count(key, level) || level == LEVEL_MAX {
            return;
        }
        // Another process may have raised it meanwhile, by one as well.
        let _ = shared.compare_exchange(level, level + 1, Relaxed, Relaxed);
        if is_sampled(key, level + 1) {
            self.count(key, level + 1);
        }
    }

    /// Returns the sampling rate: one file in this number is in the sample.
    pub fn one_in(&self) -> u64 {
        1 << self.level()
    }

    /// Returns the number of opens of each file of the sample.
    pub fn counts(&self) -> impl Iterator<Item = u32> + 'a {
        let (table, level) = (*self, self.level());
        (0..SLOTS)
            .filter_map(move |at| table.slot(at))
            .map(|slot| slot.load(Relaxed))
            .filter(move |seen| *seen != 0 && is_sampled(*seen >> COUNT_BITS, level))
            .map(|seen| (seen & ((1 << COUNT_BITS) - 1)) as u32)
    }

    fn level(&self) -> u64 {
        self.region
            .at::<AtomicU64>(self.base)
            .map_or(0, |level| level.load(Relaxed).min(LEVEL_MAX))
    }

    fn slot(&self, at: u64) -> Option<&'a AtomicU64> {
        self.region.element(self.base + SLOTS_AT, at & (SLOTS - 1))
    }

    /// Counts an open in the key's slot; `false` if the key has none and none is free.
    fn count(&self, key: u64, level: u64) -> bool {
        for _ in 0..ATTEMPTS {
            match self.find(key, level) {
                SampleSlot::Own(slot, seen) => {
                    if seen & ((1 << COUNT_BITS) - 1) < COUNT_MAX {
                        slot.fetch_add(1, Relaxed);
                    }
                    return true;
                }
                SampleSlot::Free(slot, seen) => {
                    if slot.compare_exchange(seen, key << COUNT_BITS | 1, Relaxed, Relaxed).is_ok() {
                        return true;
                    }
                }
                SampleSlot::Nothing => return false,
            }
        }
        true
    }

    /// Returns the slot of a key, or one that it may take. Slots are never emptied, so no slot of the key stands behind
    /// a free one.
    fn find(&self, key: u64, level: u64) -> SampleSlot<'a> {
        let mut found = SampleSlot::Nothing;
        for probe in 0..PROBES {
            let Some(slot) = self.slot((key >> PLACE_SHIFT).wrapping_add(probe)) else {
                break;
            };
            let seen = slot.load(Relaxed);
            if seen >> COUNT_BITS == key {
                return SampleSlot::Own(slot, seen);
            }
            let is_free = seen == 0 || !is_sampled(seen >> COUNT_BITS, level);
            if is_free && matches!(found, SampleSlot::Nothing) {
                found = SampleSlot::Free(slot, seen);
            }
            if seen == 0 {
                break;
            }
        }
        found
    }
}

enum SampleSlot<'a> {
    Own(&'a AtomicU64, u64),
    Free(&'a AtomicU64, u64),
    Nothing,
}

const fn is_sampled(key: u64, level: u64) -> bool {
    key & ((1 << level) - 1) == 0
}
