//! Samples that are in memory, on a disk, or both, and the placement of residents.

use forebay_policy::fill_first::{self as placement, Action as Placed, CopyId, TierIndex};
use forebay_policy::ids::Sample;
use forebay_store::Version;

use super::{Actions, ArenaRange, DiskIndex, DiskOperation, HERE, Machine, MachineAction, WriteError};

use crate::samples::limits::{LOADER_DISK_FAULTS_MAX, LOADER_SWEEP_LOOKS, LOADER_SWEEP_PAUSE, LOADER_WRITES_PART};

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
    pub(super) memory: Option<(ArenaRange, Version)>,
    /// Tier in which it is resident, with the number of bytes and the version.
    pub(super) resident: Option<(TierIndex, u32, Version)>,
    /// Requests that hold its bytes in the arena.
    lent: u32,
    /// Its read under way.
    pub(super) flight: Option<u32>,
    /// The disk to which it is being written, and the number of the copy in the placement.
    writing: Option<(DiskIndex, CopyId)>,
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

    /// Touches the entries of these samples: see [`Machine::glance`].
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
    fn forget_if_empty(&mut self, sample: Sample) {
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

impl Machine {
    /// Settles a sample after a change: its bytes stay where they are needed, and nowhere else.
    pub(super) fn settle(&mut self, sample: Sample, now_s: f64, actions: &mut Actions) {
        let Some(copy) = self.copies.get(sample) else { return };
        if copy.lent > 0 || copy.flight.is_some() || copy.writing.is_some() {
            return;
        }
        let is_held = self.residency.holds(HERE, sample);
        match copy.resident {
            Some((MEMORY, ..)) if is_held => {}
            Some(_) if is_held => self.free_memory(sample, actions),
            Some(_) => self.give_up(sample, actions),
            None if is_held => self.keep(sample, now_s, actions),
            None => self.free_memory(sample, actions),
        }
        self.copies.forget_if_empty(sample);
    }

    /// Places a sample that the policy keeps and that is in the arena.
    fn keep(&mut self, sample: Sample, now_s: f64, actions: &mut Actions) {
        let Some((place, version)) = self.copies.of(sample).memory else {
            return;
        };
        let mut placed = self.offer(place.bytes, now_s);
        if matches!(placed, Placed::Refuse { .. }) && self.sweep(u64::from(place.bytes), actions) {
            placed = self.offer(place.bytes, now_s);
        }
        let writes_max = self.arena_bytes / LOADER_WRITES_PART;
        match placed {
            Placed::Place { copy, tier: MEMORY } => {
                placement::step(&mut self.placement, placement::Event::Published { copy });
                self.reside(sample, MEMORY, place.bytes, version);
            }
            Placed::Place { copy, tier } if self.writing_bytes + u64::from(place.bytes) <= writes_max => {
                let disk = tier.0 - 1;
                self.writing_bytes += u64::from(place.bytes);
                self.copies.of(sample).writing = Some((disk, copy));
                actions.push(MachineAction::Write {
                    sample,
                    disk,
                    place,
                    version,
                });
            }
            Placed::Place { copy, .. } => {
                // The disk does not keep up. The next use is another chance.
                placement::step(&mut self.placement, placement::Event::Dropped { copy });
                self.lose(sample, actions);
            }
            Placed::Refuse { .. } | Placed::Nothing => self.lose(sample, actions),
        }
    }

    fn offer(&mut self, bytes: u32, now_s: f64) -> Placed {
        let offer = placement::Event::Offer {
            copy: self.next_copy(),
            size: u64::from(bytes),
            now_ms: milliseconds(now_s),
        };
        placement::step(&mut self.placement, offer)
    }

    fn next_copy(&mut self) -> CopyId {
        self.offers += 1;
        CopyId(self.offers)
    }

    fn reside(&mut self, sample: Sample, tier: TierIndex, bytes: u32, version: Version) {
        self.copies.of(sample).resident = Some((tier, bytes, version));
        self.residents.push(sample);
    }

    /// Loses a sample that the policy keeps, for lack of room: its next use reads it again.
    fn lose(&mut self, sample: Sample, actions: &mut Actions) {
        self.figures.lost += 1;
        self.free_memory(sample, actions);
    }

    /// Frees the bytes in the arena.
    fn free_memory(&mut self, sample: Sample, actions: &mut Actions) {
        if let Some((place, _)) = self.copies.of(sample).memory.take() {
            self.held_bytes -= u64::from(place.bytes);
            actions.push(MachineAction::Free { place });
            self.flights.room_was_freed(place);
        }
    }

    /// Gives up a resident.
    fn give_up(&mut self, sample: Sample, actions: &mut Actions) {
        if let Some((tier, bytes, _)) = self.copies.of(sample).resident.take() {
            self.removed(tier, bytes);
            if tier != MEMORY {
                actions.push(MachineAction::Release { sample, disk: tier.0 - 1 });
            }
        }
        self.free_memory(sample, actions);
    }

    fn removed(&mut self, tier: TierIndex, bytes: u32) {
        let size = u64::from(bytes);
        placement::step(&mut self.placement, placement::Event::Removed { tier, size });
    }

    /// Removes a resident that is not where it should be; the thread that reads the disk has cleaned up there.
    pub(super) fn is_gone(&mut self, sample: Sample) {
        if let Some((tier, bytes, _)) = self.copies.of(sample).resident.take() {
            self.removed(tier, bytes);
        }
    }

    /// Recovers a sample that an earlier job left on a disk: it is this job's now.
    pub(super) fn adopt(&mut self, sample: Sample, disk: DiskIndex, bytes: u32, version: Version, actions: &mut Actions) {
        let tier = TierIndex(disk + 1);
        let adopt = placement::Event::Adopt {
            copy: self.next_copy(),
            size: u64::from(bytes),
            tier,
        };
        if matches!(placement::step(&mut self.placement, adopt), Placed::Place { .. }) {
            self.reside(sample, tier, bytes, version);
        } else {
            actions.push(MachineAction::Release { sample, disk });
        }
    }

    /// Frees the copies that the policy has just given up. If they were found only when room is needed, other copies
    /// would be refused until then, and in the next epoch they would go shortly before their use.
    pub(super) fn free_given_up(&mut self, now_s: f64, actions: &mut Actions) {
        while let Some((_, sample)) = self.residency.given_up() {
            self.settle(sample, now_s, actions);
        }
    }

    /// Gives up residents that the policy does not hold any more, until `bytes` are free. The policy does not list all
    /// of them, so residents are searched in cyclic order. Returns true if room was made.
    fn sweep(&mut self, bytes: u64, actions: &mut Actions) -> bool {
        if self.sweep_pause > 0 {
            self.sweep_pause -= 1;
            return false;
        }
        let mut freed = 0;
        for _ in 0..LOADER_SWEEP_LOOKS {
            let Some(sample) = self.residents.pop() else { break };
            let Some(copy) = self.copies.get(sample) else { continue };
            // It was given up meanwhile.
            let Some((_, resident_bytes, _)) = copy.resident else { continue };
            let is_busy = copy.lent > 0 || copy.flight.is_some() || copy.writing.is_some();
            if is_busy || self.residency.holds(HERE, sample) {
                self.residents.push(sample);
                continue;
            }
            freed += u64::from(resident_bytes);
            self.give_up(sample, actions);
            self.copies.forget_if_empty(sample);
            if freed >= bytes {
                return true;
            }
        }
        self.sweep_pause = LOADER_SWEEP_PAUSE;
        freed > 0
    }

    /// Takes the result of a write to a disk.
    pub(super) fn written(&mut self, sample: Sample, disk: DiskIndex, result: Result<(), WriteError>, now_s: f64, actions: &mut Actions) {
        let copy = self.copies.of(sample);
        let (Some((_, id)), Some((place, version))) = (copy.writing.take(), copy.memory) else {
            return;
        };
        self.writing_bytes -= u64::from(place.bytes);
        let tier = TierIndex(disk + 1);
        if result.is_ok() {
            self.disk_faults.remove(&(disk, DiskOperation::Write));
            placement::step(&mut self.placement, placement::Event::Published { copy: id });
            self.reside(sample, tier, place.bytes, version);
            self.settle(sample, now_s, actions);
            return;
        }
        placement::step(&mut self.placement, placement::Event::Dropped { copy: id });
        if result == Err(WriteError::Full) {
            let full = placement::Event::Full {
                tier,
                size: u64::from(place.bytes),
                now_ms: milliseconds(now_s),
            };
            placement::step(&mut self.placement, full);
        } else {
            self.disk_failed(disk, DiskOperation::Write);
        }
        // It is not offered again immediately, or a failing disk would be tried for ever.
        let is_needed = self.copies.get(sample).is_some_and(|copy| copy.lent > 0 || copy.flight.is_some());
        if !is_needed {
            self.lose(sample, actions);
            self.copies.forget_if_empty(sample);
        }
    }

    /// Counts a fault of a disk. After some faults in a row it is not written to any more (fault F2).
    pub(super) fn disk_failed(&mut self, disk: DiskIndex, way: DiskOperation) {
        let faults = self.disk_faults.entry((disk, way)).or_default();
        *faults += 1;
        if *faults >= LOADER_DISK_FAULTS_MAX {
            let tier = TierIndex(disk + 1);
            placement::step(&mut self.placement, placement::Event::Off { tier });
        }
    }

    /// Returns all samples that this loader has on disks, to be released when it ends.
    pub(crate) fn on_disks(&self) -> Vec<(Sample, DiskIndex)> {
        let on_disk = |sample: Sample| {
            let (tier, ..) = self.copies.get(sample)?.resident?;
            (tier != MEMORY).then(|| (sample, tier.0 - 1))
        };
        self.residents.iter().filter_map(on_disk).collect()
    }
}

fn milliseconds(now_s: f64) -> u64 {
    (now_s * 1000.0) as u64
}
