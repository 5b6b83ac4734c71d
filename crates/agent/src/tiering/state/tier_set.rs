//! The tiers, their fill levels and faults, and the placement of copies.

use std::{
    collections::HashMap,
    slice::{Iter, IterMut},
    sync::Arc,
    time::Instant,
};

use forebay_contract::{Control, NotCached};
use forebay_policy::{
    CopyId, Space, TierIndex,
    eviction::TierPolicy,
    fill_first::{self, Action, FillFirst, PlacementRefusal},
    pressure::{JobMemory, Pressure},
    speed::Speed,
};
use forebay_store::{StoreError, Tier};

use crate::{
    host::{clock::boot_ms, log, memory::Gauge},
    tiering::{
        config::{AgentConfig, TierSetting},
        limits::{NO_VICTIMS_PAUSE, TIER_FAULTS_MAX, UNDIGESTED_BYTES_MAX},
        nodes::{blob::CopyDigests, partial::PartialCopy},
        protocol::TierStatus,
        state::replicas::Replicas,
    },
};

/// A tier and its counts.
#[derive(Debug)]
pub(crate) struct TierState {
    pub(crate) setting: TierSetting,
    pub(crate) tier: Arc<Tier>,
    files: u64,
    directories: u64,
    pub(crate) faults: u32,
    /// Reason why the tier is not used; `None` while it is.
    pub(crate) off: Option<String>,
    /// Copies removed because memory grew short.
    pub(crate) given_back: EvictedCopies,
    /// Copies removed to make room for others.
    pub(crate) replaced: EvictedCopies,
    pub(crate) speed: Speed,
    /// Number of times that the tier was set aside for being slow.
    pub(crate) set_aside: u64,
}

impl TierState {
    fn new(tier: Arc<Tier>, setting: TierSetting) -> Self {
        Self {
            setting,
            tier,
            files: 0,
            directories: 0,
            faults: 0,
            off: None,
            given_back: EvictedCopies::default(),
            replaced: EvictedCopies::default(),
            speed: Speed::default(),
            set_aside: 0,
        }
    }

    /// Returns the number of copies of files, or of cached directories.
    pub(crate) const fn copies(&mut self, is_directory: bool) -> &mut u64 {
        if is_directory { &mut self.directories } else { &mut self.files }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.off.is_none()
    }
}

/// Copies that were removed while they were valid.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EvictedCopies {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// Memory and its pressure, watched so that copies in memory never starve the program.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    gauge: Gauge,
    seen: JobMemory,
    pub(crate) pressure: Pressure,
}

impl MemoryWatch {
    fn find() -> Self {
        let gauge = Gauge::find();
        Self {
            seen: gauge.look().memory,
            gauge,
            pressure: Pressure::default(),
        }
    }

    /// Returns the memory as of the last look.
    pub(crate) const fn seen(&self) -> JobMemory {
        self.seen
    }

    pub(crate) fn look(&mut self) {
        self.seen = self.gauge.look().memory;
    }
}

/// All tiers, top first, and the policy that places copies in them.
#[derive(Debug)]
pub(crate) struct TierSet {
    tiers: Vec<TierState>,
    policy: FillFirst,
    replacement: TierPolicy,
    /// End of the pause after no copy could be removed to make room.
    no_victims_until: Option<Instant>,
    /// `None` if no tier is in memory.
    pub(crate) memory: Option<MemoryWatch>,
    last_number: u64,
    /// Copies that make room for others, since other nodes own their files.
    pub(crate) replicas: Replicas,
    /// Digests of published copies that are not small. Kept on a lone node, too: the next run may be one of several
    /// nodes, and then its copies are worth as much.
    digests: HashMap<u64, CopyDigests>,
    control: Control<'static>,
}

impl TierSet {
    pub(crate) fn new(tiers: Vec<Arc<Tier>>, config: &AgentConfig, policy: FillFirst, control: Control<'static>) -> Self {
        let settings = config.tiers.iter().cloned();
        let tiers: Vec<TierState> = tiers
            .into_iter()
            .zip(settings)
            .map(|(tier, setting)| TierState::new(tier, setting))
            .collect();
        let memory = tiers.iter().any(|state| state.tier.is_memory()).then(MemoryWatch::find);
        Self {
            memory,
            tiers,
            policy,
            replacement: config.policy,
            no_victims_until: None,
            last_number: 0,
            replicas: Replicas::default(),
            digests: HashMap::new(),
            control,
        }
    }

    pub(crate) fn get(&self, tier: usize) -> Option<&TierState> {
        self.tiers.get(tier)
    }

    pub(crate) fn get_mut(&mut self, tier: usize) -> Option<&mut TierState> {
        self.tiers.get_mut(tier)
    }

    pub(crate) fn iter(&self) -> Iter<'_, TierState> {
        self.tiers.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> IterMut<'_, TierState> {
        self.tiers.iter_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.tiers.len()
    }

    pub(crate) const fn control(&self) -> Control<'static> {
        self.control
    }

    pub(crate) const fn replacement(&self) -> TierPolicy {
        self.replacement
    }

    pub(crate) fn step(&mut self, event: fill_first::Event) -> Action {
        fill_first::step(&mut self.policy, event)
    }

    pub(crate) fn used_bytes(&self, tier: usize) -> u64 {
        self.policy.used_bytes(TierIndex(tier))
    }

    pub(crate) fn shortfall_bytes(&self, tier: usize, size: u64) -> u64 {
        self.policy.shortfall_bytes(TierIndex(tier), size)
    }

    pub(crate) fn is_in_memory(&self, tier: usize) -> bool {
        self.get(tier).is_some_and(|state| state.tier.is_memory())
    }

    /// Numbers a copy of `size` bytes and places it. Returns its number and its tier.
    ///
    /// # Errors
    /// The reason why no tier takes it.
    pub(crate) fn offer(&mut self, size: u64) -> Result<(u64, usize), PlacementRefusal> {
        let number = self.next_number();
        let offer = fill_first::Event::Offer {
            copy: CopyId(number),
            size,
            now_ms: boot_ms(),
        };
        match self.step(offer) {
            Action::Place { tier, .. } => Ok((number, tier.0)),
            Action::Refuse { reason, .. } => Err(reason),
            // The policy never answers an offer so.
            Action::Nothing => Err(PlacementRefusal::Off),
        }
    }

    /// Returns a number that no copy in the making has.
    pub(crate) const fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Counts a copy of an earlier run against the quota of its tier. Returns false, and removes the copy, if it does
    /// not fit.
    pub(crate) fn add_recovered(&mut self, tier: usize, copy: u64, size: u64, is_directory: bool) -> bool {
        let event = fill_first::Event::Adopt {
            copy: CopyId(copy),
            size,
            tier: TierIndex(tier),
        };
        let fits = matches!(self.step(event), Action::Place { .. });
        let Some(state) = self.get_mut(tier) else { return false };
        if fits {
            *state.copies(is_directory) += 1;
        } else {
            self.remove_uncounted(tier, copy);
        }
        fits
    }

    /// Keeps the digests of a published copy, unless it is small.
    pub(crate) fn keep_digest(&mut self, copy: u64, size: u64, whole: u128, pieces: Option<Arc<PartialCopy>>) {
        if size > UNDIGESTED_BYTES_MAX {
            self.digests.insert(copy, CopyDigests { whole, pieces });
        }
    }

    /// Returns the digests of a published copy that is not small; `None` if an earlier agent has made it.
    pub(crate) fn digests_of(&self, copy: u64) -> Option<&CopyDigests> {
        self.digests.get(&copy)
    }

    /// Removes a published copy and counts it out of its tier.
    pub(crate) fn remove_copy(&mut self, copy: u64, tier: usize, size: u64, is_directory: bool) {
        self.replicas.remove(copy);
        self.digests.remove(&copy);
        if let Some(state) = self.get_mut(tier) {
            let copies = state.copies(is_directory);
            *copies = copies.saturating_sub(1);
            if let Err(error) = state.tier.remove(copy) {
                log::fallback(&format!("a copy could not be removed: {error}"));
                self.count_leftovers(tier);
            }
        }
        self.step(fill_first::Event::Removed {
            tier: TierIndex(tier),
            size,
        });
        self.publish_room();
    }

    /// Removes a copy that was never counted.
    pub(crate) fn remove_uncounted(&mut self, tier: usize, copy: u64) {
        if let Some(state) = self.get(tier)
            && let Err(error) = state.tier.remove(copy)
        {
            log::fallback(&format!("an old copy could not be removed: {error}"));
            self.count_leftovers(tier);
        }
    }

    /// Removes a whole copy that is not published.
    pub(crate) fn discard(&self, tier: usize, copy: u64) {
        if let Some(state) = self.get(tier)
            && let Err(error) = state.tier.discard(copy)
        {
            log::fallback(&format!("a copy could not be removed: {error}"));
        }
    }

    /// Counts what an error while a copy of `size` bytes was made says about the tier. Returns the reason to count for
    /// the copy.
    pub(crate) fn blame(&mut self, tier: usize, size: u64, error: &StoreError) -> NotCached {
        if error.is_full() {
            let event = fill_first::Event::Full {
                tier: TierIndex(tier),
                size,
                now_ms: boot_ms(),
            };
            self.step(event);
            return NotCached::TierWasFull;
        }
        if error.is_source() {
            return if matches!(error, StoreError::Changed { .. }) {
                NotCached::ChangedMeanwhile
            } else {
                NotCached::SourceError
            };
        }
        self.count_fault(tier, error);
        NotCached::TierError
    }

    /// Counts a fault of a tier. After a few faults the tier is switched off, for preload libraries too.
    pub(crate) fn count_fault(&mut self, tier: usize, error: &StoreError) {
        if !error.is_tier_fault() {
            return;
        }
        let Some(state) = self.get_mut(tier) else { return };
        state.faults += 1;
        if state.faults == TIER_FAULTS_MAX {
            state.off = Some(error.to_string());
            log::fallback(&format!("tier {tier} is switched off: {error}"));
            self.control.set_tier_off(tier, true);
            self.step(fill_first::Event::Off(TierIndex(tier)));
        }
    }

    /// Returns true if a record's copy is still the file that was published, and counts a fault of the tier if it can't
    /// be read.
    pub(crate) fn has_copy(&mut self, record: &forebay_contract::Record) -> bool {
        let Some(state) = self.get(record.tier()) else { return false };
        match state.tier.stat_copy(record.copy()) {
            Ok(stat) => (stat.ino, stat.size, stat.ctime) == (record.copy_ino(), record.size(), record.copy_ctime()),
            // A tier is at fault if it is gone, not if it has lost a copy.
            Err(error) if error.errno() == Some(rustix::io::Errno::NOENT) && state.tier.is_in_place() => false,
            Err(error) => {
                self.count_fault(record.tier(), &error);
                false
            }
        }
    }

    /// Tells the policy the free room of each tier's file system.
    pub(crate) fn observe_disks(&mut self) {
        for number in 0..self.len() {
            self.count_leftovers(number);
        }
        for number in 0..self.len() {
            if !self.is_in_memory(number) {
                self.observe_room_of(number);
            }
        }
    }

    /// Tells the policy the free room of one tier's file system.
    pub(crate) fn observe_room_of(&mut self, number: usize) {
        let state = self.get(number).filter(|state| state.is_on());
        if let Some(Ok(room)) = state.map(|state| state.tier.room()) {
            let bytes = room.bytes.min(self.spare_memory(number));
            self.step(fill_first::Event::Room(TierIndex(number), Space { bytes, ..room }));
        }
    }

    /// Returns the usable bytes of a tier's file system: for a tier in memory, its share of the memory to spare.
    fn spare_memory(&self, tier: usize) -> u64 {
        let watch = self.memory.as_ref().filter(|_| self.is_in_memory(tier));
        let sharing = self.iter().filter(|state| state.is_on() && state.tier.is_memory());
        watch.map_or(u64::MAX, |watch| watch.seen.room_bytes_each(sharing.count() as u64))
    }

    /// Tells the policy the room that removed copies still take.
    fn count_leftovers(&mut self, tier: usize) {
        let Some(state) = self.get(tier).filter(|state| state.is_on()) else {
            return;
        };
        let left = state.tier.retry_leftovers();
        self.step(fill_first::Event::Left(TierIndex(tier), left));
    }

    /// Returns the size of the largest file that fits into a tier as it is.
    pub(crate) fn room(&self) -> u64 {
        self.policy.room_hint(boot_ms())
    }

    /// Returns the size of the largest file that fits into a tier, after copies have made room for it if the policy
    /// replaces copies.
    pub(crate) fn room_or_replaceable(&self) -> u64 {
        self.room().max(self.replaceable())
    }

    /// Publishes the size of the largest file that is worth a handoff.
    pub(crate) fn publish_room(&self) {
        self.control.set_room_hint(self.room_or_replaceable().max(self.replicas.bytes()));
    }

    /// Returns true if copies may be removed to make room now.
    pub(crate) fn may_replace(&self) -> bool {
        self.replacement.evicts_after_s().is_some() && self.no_victims_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Pauses the search for copies to remove, since there were none.
    pub(crate) fn pause_replacement(&mut self) {
        self.no_victims_until = Some(Instant::now() + NO_VICTIMS_PAUSE);
    }

    /// Returns the size of the largest file for which removed copies could make room.
    fn replaceable(&self) -> u64 {
        if !self.may_replace() {
            return 0;
        }
        let usable = self.iter().filter(|state| state.is_on());
        usable.map(|state| state.setting.bytes).max().unwrap_or(0)
    }

    /// Counts copies that were removed because memory grew short.
    pub(crate) fn note_given_back(&mut self, tier: usize, given: EvictedCopies) {
        let Some(state) = self.tiers.get_mut(tier).filter(|_| given.files > 0) else {
            return;
        };
        if state.given_back.files == 0 {
            log::fallback(&format!("memory grows short: copies of tier {tier} are given back"));
        }
        state.given_back.files += given.files;
        state.given_back.bytes += given.bytes;
    }

    /// Returns the bytes of copies that were removed while they were valid. They may be read again.
    pub(crate) fn evicted_bytes(&self) -> u64 {
        self.iter().map(|tier| tier.replaced.bytes + tier.given_back.bytes).sum()
    }

    /// Returns the status of each tier, top first.
    pub(crate) fn status(&self) -> Vec<TierStatus> {
        let status = |(number, tier): (usize, &TierState)| TierStatus {
            dir: tier.setting.dir.clone(),
            ram: tier.setting.ram,
            quota_bytes: tier.setting.bytes,
            used_bytes: self.used_bytes(number),
            files: tier.files,
            listings: tier.directories,
            off: tier.off.clone(),
            set_aside: tier.set_aside,
            replaced_files: tier.replaced.files,
            replaced_bytes: tier.replaced.bytes,
            given_back_files: tier.given_back.files,
            given_back_bytes: tier.given_back.bytes,
        };
        self.iter().enumerate().map(status).collect()
    }
}

/// Returns the reason to count when no tier takes a copy.
pub(crate) const fn reason_of(reason: PlacementRefusal) -> NotCached {
    match reason {
        PlacementRefusal::Off => NotCached::TierOff,
        PlacementRefusal::TooLarge => NotCached::LargerThanEveryTier,
        PlacementRefusal::Quota => NotCached::QuotaUsedUp,
        PlacementRefusal::Floor => NotCached::FreeSpaceFloor,
        PlacementRefusal::BackingOff => NotCached::TierWasFull,
        PlacementRefusal::InFlight => NotCached::InFlight,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use forebay_contract::{Region, control::CONTROL_BYTES};
    use forebay_store::{BootId, Secret, disk::MemoryDisk};

    use super::*;

    pub(crate) const QUOTA: u64 = 1 << 20;

    /// Returns a set of one tier of 1 MiB on a disk in memory.
    pub(crate) fn tier_set(replacement: TierPolicy, dir: &std::path::Path) -> TierSet {
        tier_set_of(QUOTA, replacement, dir)
    }

    /// Returns a set of one tier of `bytes` on a disk in memory.
    pub(crate) fn tier_set_of(bytes: u64, replacement: TierPolicy, dir: &std::path::Path) -> TierSet {
        let quota = Space { bytes, inodes: 1000 };
        let disk = Arc::new(MemoryDisk::new(64 << 20, 10_000));
        let tier = Tier::open_on(disk, "/tier".into(), quota, &Secret::from_bytes([7; 32]), BootId([1; 16])).unwrap();
        let agent = AgentConfig::for_tiers(dir, dir, &[TierSetting::kept("/tier".into(), bytes)], replacement, false);
        let file = crate::host::shared::SharedFile::create(&dir.join("control"), CONTROL_BYTES).unwrap();
        let region: Region<'static> = file.leak();
        let policy = FillFirst::new([tier.quota()]);
        TierSet::new(vec![Arc::new(tier)], &agent, policy, Control::create(region).unwrap())
    }

    #[test]
    fn recovered_copies_count_against_the_quota() {
        let dir = tempfile::tempdir().unwrap();
        let mut tiers = tier_set(TierPolicy::FillFirst, dir.path());
        tiers.observe_disks();
        assert!(tiers.add_recovered(0, 1, QUOTA / 2, false));
        assert!(tiers.add_recovered(0, 2, QUOTA / 4, true));
        assert!(!tiers.add_recovered(0, 3, QUOTA / 2, false), "over the quota");
        let status = &tiers.status()[0];
        assert_eq!((status.files, status.listings), (1, 1));
        let used = status.used_bytes;
        tiers.remove_copy(1, 0, QUOTA / 2, false);
        assert_eq!(tiers.used_bytes(0), used - QUOTA / 2);
        assert_eq!(tiers.status()[0].files, 0);
    }

    #[test]
    fn only_lru_replaces_copies_and_not_during_its_pause() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = tier_set(TierPolicy::FillFirst, dir.path());
        assert!(!tiers.may_replace());
        let dir = tempfile::tempdir().unwrap();
        let mut tiers = tier_set(TierPolicy::Lru(0), dir.path());
        assert!(tiers.may_replace());
        assert_eq!(tiers.room_or_replaceable(), QUOTA);
        tiers.pause_replacement();
        assert!(!tiers.may_replace());
        assert_eq!(tiers.room_or_replaceable(), tiers.room());
    }

    #[test]
    fn a_tier_is_switched_off_after_a_few_faults_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let mut tiers = tier_set(TierPolicy::FillFirst, dir.path());
        let error = tiers.get(0).unwrap().tier.open_copy(99).map(drop).unwrap_err();
        for _ in 1..TIER_FAULTS_MAX {
            assert_eq!(tiers.blame(0, 1, &error), NotCached::TierError);
        }
        assert!(tiers.get(0).unwrap().is_on());
        tiers.blame(0, 1, &error);
        assert!(tiers.status()[0].off.is_some());
        assert_eq!(tiers.offer(1), Err(PlacementRefusal::Off));
    }
}
