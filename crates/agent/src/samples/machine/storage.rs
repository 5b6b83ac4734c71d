//! Storage of samples: the copies in the arena and on disks, and the placement of residents.

use std::collections::BTreeMap;

use forebay_policy::fill_first::{self as placement, Action as Placed, CopyId, FillFirst, TierIndex};
use forebay_policy::ids::Sample;
use forebay_policy::residency::Residency;
use forebay_store::FileVersion;

use super::copies::{MEMORY, SampleCopies};
use super::sample_queue::SampleQueue;
use super::{Actions, ArenaRange, DiskIndex, DiskOperation, HERE, MachineAction, ReadFrom, ReadOutcome, WriteError};

use crate::samples::limits::{LOADER_DISK_FAULTS_MAX, LOADER_SWEEP_LOOKS, LOADER_SWEEP_PAUSE, LOADER_WRITES_PART};

/// Copies of a loader, and the room for them.
#[derive(Debug)]
pub(super) struct SampleStorage {
    pub(super) copies: SampleCopies,
    placement: FillFirst,
    /// Copies that were offered to the placement.
    offers: u64,
    /// Resident samples, searched in cyclic order when room is needed.
    residents: SampleQueue,
    sweep_pause: u32,
    writing_bytes: u64,
    arena_bytes: u64,
    /// Bytes of the arena that hold samples.
    held_bytes: u64,
    /// Bytes of the arena that were freed in all.
    freed_bytes: u64,
    /// Samples that the policy keeps and for which there was no room.
    lost: u64,
    /// Faults of a disk in a row, of reads and of writes separately: a disk that has become read-only reads well.
    disk_faults: BTreeMap<(DiskIndex, DiskOperation), u32>,
}

impl SampleStorage {
    pub(super) fn new(samples: u32, placement: FillFirst, arena_bytes: u64) -> Self {
        Self {
            copies: SampleCopies::new(samples),
            placement,
            offers: 0,
            residents: SampleQueue::new(samples),
            sweep_pause: 0,
            writing_bytes: 0,
            arena_bytes,
            held_bytes: 0,
            freed_bytes: 0,
            lost: 0,
            disk_faults: BTreeMap::new(),
        }
    }

    /// Bytes of the arena that hold samples.
    pub(super) const fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes of the arena that were freed in all.
    pub(super) const fn freed_bytes(&self) -> u64 {
        self.freed_bytes
    }

    /// Samples that the policy keeps and for which there was no room.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes of residents in memory.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> u64 {
        self.placement.used_bytes(MEMORY)
    }

    /// Returns true if a tier has room for `bytes`.
    pub(super) fn has_room(&self, bytes: u64, now_s: f64) -> bool {
        self.placement.room_hint(milliseconds(now_s)) >= bytes
    }

    /// Takes the bytes of a sample that was read.
    pub(super) fn add(&mut self, sample: Sample, place: ArenaRange, version: FileVersion) {
        self.copies.of(sample).memory = Some((place, version));
        self.held_bytes += u64::from(place.bytes);
    }

    /// Frees a range of the arena.
    pub(super) fn free(&mut self, place: ArenaRange, actions: &mut Actions) {
        actions.push(MachineAction::Free { place });
        self.freed_bytes += u64::from(place.bytes);
    }

    /// Counts room that was reserved for a sample of another node, and that the sample has not taken.
    pub(super) fn count_unused_room(&mut self, from: ReadFrom, outcome: ReadOutcome) {
        let ReadFrom::Peer { bytes, guess_bytes, .. } = from else { return };
        let reserved_bytes = bytes.unwrap_or(guess_bytes);
        let taken_bytes = match outcome {
            ReadOutcome::Whole { place, .. } => place.bytes,
            // There was none.
            ReadOutcome::NoRoom { .. } => reserved_bytes,
            _ => 0,
        };
        self.freed_bytes += u64::from(reserved_bytes.saturating_sub(taken_bytes));
    }

    /// Ends the faults in a row of a disk.
    pub(super) fn disk_worked(&mut self, disk: DiskIndex, operation: DiskOperation) {
        self.disk_faults.remove(&(disk, operation));
    }

    /// Settles a sample after a change: its bytes stay where they are needed, and nowhere else.
    pub(super) fn settle(&mut self, sample: Sample, residency: &dyn Residency, now_s: f64, actions: &mut Actions) {
        let Some(copy) = self.copies.get(sample) else { return };
        if copy.lent > 0 || copy.flight.is_some() || copy.writing.is_some() {
            return;
        }
        let is_held = residency.holds(HERE, sample);
        match copy.resident {
            Some((MEMORY, ..)) if is_held => {}
            Some(_) if is_held => self.free_memory(sample, actions),
            Some(_) => self.give_up(sample, actions),
            None if is_held => self.keep(sample, residency, now_s, actions),
            None => self.free_memory(sample, actions),
        }
        self.copies.forget_if_empty(sample);
    }

    /// Places a sample that the policy keeps and that is in the arena.
    fn keep(&mut self, sample: Sample, residency: &dyn Residency, now_s: f64, actions: &mut Actions) {
        let Some((place, version)) = self.copies.of(sample).memory else {
            return;
        };
        let mut placed = self.offer(place.bytes, now_s);
        if matches!(placed, Placed::Refuse { .. }) && self.sweep(u64::from(place.bytes), residency, actions) {
            placed = self.offer(place.bytes, now_s);
        }
        let writes_max = self.arena_bytes / LOADER_WRITES_PART;
        match placed {
            Placed::Place { copy, tier: MEMORY } => {
                placement::step(&mut self.placement, placement::Event::Published(copy));
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
                placement::step(&mut self.placement, placement::Event::Dropped(copy));
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

    fn reside(&mut self, sample: Sample, tier: TierIndex, bytes: u32, version: FileVersion) {
        self.copies.of(sample).resident = Some((tier, bytes, version));
        self.residents.push(sample);
    }

    /// Loses a sample that the policy keeps, for lack of room: its next use reads it again.
    fn lose(&mut self, sample: Sample, actions: &mut Actions) {
        self.lost += 1;
        self.free_memory(sample, actions);
    }

    /// Frees the bytes in the arena.
    fn free_memory(&mut self, sample: Sample, actions: &mut Actions) {
        if let Some((place, _)) = self.copies.of(sample).memory.take() {
            self.held_bytes -= u64::from(place.bytes);
            self.free(place, actions);
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
    pub(super) fn adopt(&mut self, sample: Sample, disk: DiskIndex, bytes: u32, version: FileVersion, actions: &mut Actions) {
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
    pub(super) fn free_given_up(&mut self, residency: &mut dyn Residency, now_s: f64, actions: &mut Actions) {
        while let Some((_, sample)) = residency.given_up() {
            self.settle(sample, residency, now_s, actions);
        }
    }

    /// Gives up residents that the policy does not hold any more, until `bytes` are free. The policy does not list all
    /// of them, so residents are searched in cyclic order. Returns true if room was made.
    fn sweep(&mut self, bytes: u64, residency: &dyn Residency, actions: &mut Actions) -> bool {
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
            if is_busy || residency.holds(HERE, sample) {
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
    pub(super) fn written(
        &mut self,
        (sample, disk, result): (Sample, DiskIndex, Result<(), WriteError>),
        residency: &dyn Residency,
        now_s: f64,
        actions: &mut Actions,
    ) {
        let copy = self.copies.of(sample);
        let (Some((_, id)), Some((place, version))) = (copy.writing.take(), copy.memory) else {
            return;
        };
        self.writing_bytes -= u64::from(place.bytes);
        let tier = TierIndex(disk + 1);
        if result.is_ok() {
            self.disk_worked(disk, DiskOperation::Write);
            placement::step(&mut self.placement, placement::Event::Published(id));
            self.reside(sample, tier, place.bytes, version);
            self.settle(sample, residency, now_s, actions);
            return;
        }
        placement::step(&mut self.placement, placement::Event::Dropped(id));
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
            placement::step(&mut self.placement, placement::Event::Off(tier));
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
