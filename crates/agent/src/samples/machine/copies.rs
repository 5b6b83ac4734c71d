//! Samples that are there: in memory, on a disk, or both; and what is kept where.

use forebay_policy::fill_first::{self as placement, Action as Placed, CopyId, TierIndex};
use forebay_policy::ids::Sample;
use forebay_store::Version;

use super::{Action, Actions, Core, Disk, HERE, Place, Way, WriteError};

use crate::samples::limits::{LOADER_DISK_FAULTS_MAX, LOADER_SWEEP_LOOKS, LOADER_SWEEP_PAUSE, LOADER_WRITES_PART};

/// The arena, among the tiers of the placement; disks follow.
pub(super) const MEMORY: TierIndex = TierIndex(0);

const UNKNOWN: u32 = u32::MAX;
const NOWHERE: u32 = u32::MAX;

/// What is known of a sample.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Its size, as the policy was told it first.
    bytes: u32,
    /// Its copy.
    slot: u32,
}

/// A sample of which something is there, or on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    /// Its bytes in the arena, and the version of the file that they are of.
    pub(super) memory: Option<(Place, Version)>,
    /// Where it is resident, with how many bytes and in which version.
    pub(super) resident: Option<(TierIndex, u32, Version)>,
    /// Uses that have its bytes in the arena.
    lent: u32,
    /// It is being read.
    pub(super) flight: Option<u32>,
    /// It is being written to this disk, as this copy of the placement's.
    writing: Option<(Disk, CopyId)>,
}

const NOTHING: Copy = Copy {
    memory: None,
    resident: None,
    lent: 0,
    flight: None,
    writing: None,
};

/// All of them. Eight bytes a sample, and more for those that are there.
#[derive(Debug)]
pub(super) struct Copies {
    known: Vec<Known>,
    slots: Vec<Copy>,
    free: Vec<u32>,
    /// Of the samples whose size is known: how many, and their bytes.
    count: u64,
    bytes: u64,
}

impl Copies {
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

    /// What is known of these samples is read: see [`Core::glance`].
    pub(super) fn expect(&self, samples: impl Iterator<Item = Sample> + Clone) {
        let slots = samples.map(|sample| self.known[sample as usize].slot);
        // First where all of them are, then what is there.
        let seen = slots.clone().fold(0, |seen, slot| seen ^ slot);
        let lent = slots
            .filter_map(|slot| self.slots.get(slot as usize))
            .fold(seen, |seen, copy| seen ^ copy.lent ^ u32::from(copy.resident.is_some()));
        std::hint::black_box(lent);
    }

    /// The copy of a sample, to be changed; an empty one where there is none.
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

    /// Forgets a copy of which nothing is there and nothing under way.
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

    /// A sample was seen to have this size; what the policy is to be told, for which a sample has one size and keeps it.
    pub(super) fn learn(&mut self, sample: Sample, bytes: u32) -> u32 {
        let known = &mut self.known[sample as usize];
        if known.bytes == UNKNOWN {
            known.bytes = bytes.min(UNKNOWN - 1);
            self.count += 1;
            self.bytes += u64::from(known.bytes);
        }
        known.bytes
    }

    /// Whether the size of any sample is known.
    pub(super) const fn knows_sizes(&self) -> bool {
        self.count > 0
    }

    /// Its size; for one that was never read the mean of the others.
    pub(super) fn expected_bytes(&self, sample: Sample) -> u32 {
        match self.known[sample as usize].bytes {
            UNKNOWN => self.bytes.checked_div(self.count).unwrap_or(0) as u32,
            bytes => bytes,
        }
    }

    /// A use gets the bytes that are in the arena.
    pub(super) fn lend(&mut self, sample: Sample) {
        self.of(sample).lent += 1;
    }

    /// Uses that have bytes which are in the arena.
    #[cfg(test)]
    pub(super) fn lent(&self) -> u32 {
        self.slots.iter().map(|copy| copy.lent).sum()
    }

    /// A use has let them go.
    pub(super) fn give_back(&mut self, sample: Sample) {
        let copy = self.of(sample);
        copy.lent = copy.lent.saturating_sub(1);
    }
}

impl Core {
    /// Something about a sample has changed: its bytes stay where they are needed, and nowhere else.
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

    /// Finds a place for a sample that the policy keeps and that is in the arena.
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
                actions.push(Action::Write {
                    sample,
                    disk,
                    place,
                    version,
                });
            }
            Placed::Place { copy, .. } => {
                // The disk does not keep up. The next use brings another chance.
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

    /// The policy keeps it and there is no room: its next use reads it anew.
    fn lose(&mut self, sample: Sample, actions: &mut Actions) {
        self.figures.lost += 1;
        self.free_memory(sample, actions);
    }

    /// The bytes in the arena go.
    fn free_memory(&mut self, sample: Sample, actions: &mut Actions) {
        if let Some((place, _)) = self.copies.of(sample).memory.take() {
            self.held_bytes -= u64::from(place.bytes);
            actions.push(Action::Free { place });
            self.flights.room_was_freed(place);
        }
    }

    /// A resident goes.
    fn give_up(&mut self, sample: Sample, actions: &mut Actions) {
        if let Some((tier, bytes, _)) = self.copies.of(sample).resident.take() {
            self.removed(tier, bytes);
            if tier != MEMORY {
                actions.push(Action::Release { sample, disk: tier.0 - 1 });
            }
        }
        self.free_memory(sample, actions);
    }

    fn removed(&mut self, tier: TierIndex, bytes: u32) {
        let size = u64::from(bytes);
        placement::step(&mut self.placement, placement::Event::Removed { tier, size });
    }

    /// A resident is not where it should be; whoever reads the disk has seen to that.
    pub(super) fn is_gone(&mut self, sample: Sample) {
        if let Some((tier, bytes, _)) = self.copies.of(sample).resident.take() {
            self.removed(tier, bytes);
        }
    }

    /// An earlier job had left the sample on a disk: now it is this one's.
    pub(super) fn adopt(&mut self, sample: Sample, disk: Disk, bytes: u32, version: Version, actions: &mut Actions) {
        let tier = TierIndex(disk + 1);
        let adopt = placement::Event::Adopt {
            copy: self.next_copy(),
            size: u64::from(bytes),
            tier,
        };
        if matches!(placement::step(&mut self.placement, adopt), Placed::Place { .. }) {
            self.reside(sample, tier, bytes, version);
        } else {
            actions.push(Action::Release { sample, disk });
        }
    }

    /// What the policy has given up goes at once. Were it found when room is needed only, others would be refused till then, and in the next epoch it
    /// would go shortly before its use.
    pub(super) fn free_given_up(&mut self, now_s: f64, actions: &mut Actions) {
        while let Some((_, sample)) = self.residency.given_up() {
            self.settle(sample, now_s, actions);
        }
    }

    /// Gives up residents that the policy does not hold any more, until so many bytes are free. Of many at once it does not say which these are:
    /// residents are gone through in turn. Whether that went.
    fn sweep(&mut self, bytes: u64, actions: &mut Actions) -> bool {
        if self.sweep_pause > 0 {
            self.sweep_pause -= 1;
            return false;
        }
        let mut freed = 0;
        for _ in 0..LOADER_SWEEP_LOOKS {
            let Some(sample) = self.residents.pop() else { break };
            let Some(copy) = self.copies.get(sample) else { continue };
            // One that was given up meanwhile.
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

    /// A sample was written to a disk, or not.
    pub(super) fn written(&mut self, sample: Sample, disk: Disk, result: Result<(), WriteError>, now_s: f64, actions: &mut Actions) {
        let copy = self.copies.of(sample);
        let (Some((_, id)), Some((place, version))) = (copy.writing.take(), copy.memory) else {
            return;
        };
        self.writing_bytes -= u64::from(place.bytes);
        let tier = TierIndex(disk + 1);
        if result.is_ok() {
            self.disk_faults.remove(&(disk, Way::Write));
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
            self.disk_failed(disk, Way::Write);
        }
        // Not offered again at once, or a disk that fails would be tried for ever.
        let is_needed = self.copies.get(sample).is_some_and(|copy| copy.lent > 0 || copy.flight.is_some());
        if !is_needed {
            self.lose(sample, actions);
            self.copies.forget_if_empty(sample);
        }
    }

    /// Something is wrong with a disk. After some faults in a row nothing is written to it any more (fault F2).
    pub(super) fn disk_failed(&mut self, disk: Disk, way: Way) {
        let faults = self.disk_faults.entry((disk, way)).or_default();
        *faults += 1;
        if *faults >= LOADER_DISK_FAULTS_MAX {
            let tier = TierIndex(disk + 1);
            placement::step(&mut self.placement, placement::Event::Off { tier });
        }
    }

    /// All that lies on disks for this loader, to be let go when it ends.
    pub(crate) fn on_disks(&self) -> Vec<(Sample, Disk)> {
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
