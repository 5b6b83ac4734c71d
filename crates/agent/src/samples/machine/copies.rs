//! Samples that are in memory, on a disk, or both, and the placement of residents.

use forebay_policy::fill_first::{CopyId, TierIndex};
use forebay_policy::ids::Sample;
use forebay_store::FileVersion;

use super::{ArenaRange, DiskIndex};

/// The arena, among the tiers of the placement; disks follow.
pub(super) const MEMORY: TierIndex = TierIndex(0);

const UNKNOWN: u32 = u32::MAX;
const NOWHERE: u32 = u32::MAX;

/// Size and copy of a sample.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Size in bytes, as the policy was told it first.
    bytes: u32,
    /// Slot of its copy.
    slot: u32,
}

/// A sample with bytes somewhere, or on their way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    /// Range in the arena, and the version of the file that its bytes are of.
    pub(super) memory: Option<(ArenaRange, FileVersion)>,
    /// Tier in which it is resident, with the number of bytes and the version.
    pub(super) resident: Option<(TierIndex, u32, FileVersion)>,
    /// Requests that hold its bytes in the arena.
    pub(super) lent: u32,
    /// Its read under way.
    pub(super) flight: Option<u32>,
    /// The disk to which it is being written, and the number of the copy in the placement.
    pub(super) writing: Option<(DiskIndex, CopyId)>,
}

const NOTHING: Copy = Copy {
    memory: None,
    resident: None,
    lent: 0,
    flight: None,
    writing: None,
};

/// SampleCopies of all samples. Eight bytes a sample, and more for those with a copy.
#[derive(Debug)]
pub(super) struct SampleCopies {
    known: Vec<Known>,
    slots: Vec<Copy>,
    free: Vec<u32>,
    /// Number of the samples of known size, and their bytes.
    count: u64,
    bytes: u64,
}

impl SampleCopies {
    pub(super) fn new(samples: u32) -> Self {
        let none = Known {
            bytes: UNKNOWN,
            slot: NOWHERE,
        };
        Self {
            known: vec![none; samples as usize],
            slots: Vec::new(),
            free: Vec::new(),
            count: 0,
            bytes: 0,
        }
    }

    pub(super) fn get(&self, sample: Sample) -> Option<Copy> {
        self.slots.get(self.known[sample as usize].slot as usize).copied()
    }

    /// Touches the entries of these samples: see [`super::LoaderMachine::expect`].
    pub(super) fn expect(&self, samples: impl Iterator<Item = Sample> + Clone) {
        let slots = samples.map(|sample| self.known[sample as usize].slot);
        // All slots first, and then the copies in them.
        let seen = slots.clone().fold(0, |seen, slot| seen ^ slot);
        let lent = slots
            .filter_map(|slot| self.slots.get(slot as usize))
            .fold(seen, |seen, copy| seen ^ copy.lent ^ u32::from(copy.resident.is_some()));
        std::hint::black_box(lent);
    }

    /// Returns the copy of a sample, to be changed; an empty one if there was none.
    pub(super) fn of(&mut self, sample: Sample) -> &mut Copy {
        let known = &mut self.known[sample as usize];
        if known.slot == NOWHERE {
            known.slot = self.free.pop().unwrap_or_else(|| {
                self.slots.push(NOTHING);
                self.slots.len() as u32 - 1
            });
        }
        &mut self.slots[known.slot as usize]
    }

    /// Forgets a copy without bytes and without anything under way.
    pub(super) fn forget_if_empty(&mut self, sample: Sample) {
        let known = &mut self.known[sample as usize];
        let Some(copy) = self.slots.get_mut(known.slot as usize) else {
            return;
        };
        let is_empty =
            copy.memory.is_none() && copy.resident.is_none() && copy.lent == 0 && copy.flight.is_none() && copy.writing.is_none();
        if is_empty {
            *copy = NOTHING;
            self.free.push(known.slot);
            known.slot = NOWHERE;
        }
    }

    /// Records a sample's size. Returns the size to tell the policy, to which a sample has one size for ever.
    pub(super) fn learn(&mut self, sample: Sample, bytes: u32) -> u32 {
        let known = &mut self.known[sample as usize];
        if known.bytes == UNKNOWN {
            known.bytes = bytes.min(UNKNOWN - 1);
            self.count += 1;
            self.bytes += u64::from(known.bytes);
        }
        known.bytes
    }

    /// Returns true if the size of any sample is known.
    pub(super) const fn knows_sizes(&self) -> bool {
        self.count > 0
    }

    /// Size of a sample; the mean of the others if it was never read.
    pub(super) fn expected_bytes(&self, sample: Sample) -> u32 {
        match self.known[sample as usize].bytes {
            UNKNOWN => self.bytes.checked_div(self.count).unwrap_or(0) as u32,
            bytes => bytes,
        }
    }

    /// Size of a sample, if it is known.
    pub(super) fn known_bytes(&self, sample: Sample) -> Option<u32> {
        Some(self.known[sample as usize].bytes).filter(|bytes| *bytes != UNKNOWN)
    }

    /// Expected size of all samples together, in bytes; infinite while no size is known.
    pub(super) fn expected_bytes_of_all(&self) -> f64 {
        if self.count == 0 {
            return f64::INFINITY;
        }
        self.bytes as f64 / self.count as f64 * self.known.len() as f64
    }

    /// Lends the bytes in the arena to a request.
    pub(super) fn lend(&mut self, sample: Sample) {
        self.of(sample).lent += 1;
    }

    /// Number of requests that hold bytes in the arena.
    #[cfg(test)]
    pub(super) fn lent(&self) -> u32 {
        self.slots.iter().map(|copy| copy.lent).sum()
    }

    /// Takes the bytes back from a request.
    pub(super) fn give_back(&mut self, sample: Sample) {
        let copy = self.of(sample);
        copy.lent = copy.lent.saturating_sub(1);
    }
}
