//! Recovery of the copies of earlier runs. They are added to the index as they are read from the catalogue, and are
//! used once their directory has been swept, or immediately if the user declares the source immutable.
//!
//! No program waits for recovery: one that opens a file of a directory that is not recovered yet reads the source. But
//! its handoff waits here until the directory has been recovered, which the handoff makes the next one. The file's copy
//! is most likely there already, and the program opens the rest of the directory next.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use forebay_contract::{Entry, Identity, index::split};
use forebay_policy::{Space, TierIndex, fill_first, retention};

use crate::{
    host::{
        clock::{boot_ns, unix_s},
        log::{self, Log},
        shared::set_thread_nice,
    },
    tiering::{
        control::ReplyTo,
        handoff::Handoff,
        limits::{COMPACT_PAUSE, COPY_NICE, RECOVERY_BEFORE_START_MAX, RECOVERY_SMALL_COPIES},
        mounts::{MountSource, MountTable},
        protocol::ControlResponse,
        recovery::{self, RecoveredCopy, RecoveredName, RecoveryBatch, RecoveryDemand, RecoveryStage},
        state::{
            copies::{PublishedCopies, log_compaction},
            flights::CopyFlights,
            tier_set::{TierSet, TierState},
        },
    },
};

/// Progress of the recovery.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    begun: bool,
    /// Tiers that are being recovered, by number.
    tiers: HashMap<usize, TierRecovery>,
    /// Directories in the catalogues that are not recovered yet: a bit for each tier.
    pending: HashMap<Arc<[u8]>, u32>,
    /// Handoffs that wait for their directory.
    deferred: HashMap<Vec<u8>, Vec<Handoff>>,
    /// Commands that have joined and wait a little for the recovery of small tiers.
    joining: Vec<JoiningCommand>,
    /// Copies whose source is not mounted now. They are tried again when a run joins.
    unmounted: Vec<(usize, RecoveredCopy)>,
    /// Devices of the sources of recovered copies.
    devices: Vec<u64>,
    /// Source that was looked up last, and its device.
    device: Option<(Arc<MountSource>, u64)>,
    /// End of the pause after a catalogue was compacted.
    compact_after: Option<Instant>,
}

/// Recovery of one tier.
#[derive(Debug)]
struct TierRecovery {
    demand: Arc<RecoveryDemand>,
    /// True for a tier with so few copies that the start of the first run waits for it.
    is_small: bool,
    /// True once the catalogue has been read.
    is_catalogued: bool,
    /// True once no more copies come.
    is_told: bool,
}

/// A command that has joined and is not answered yet.
#[derive(Debug)]
struct JoiningCommand {
    reply: ReplyTo,
    answer: ControlResponse,
    until: Instant,
}

/// State that recovered copies are checked against and added to.
#[derive(Debug)]
pub(crate) struct RecoveryTarget<'a> {
    pub(crate) copies: &'a mut PublishedCopies,
    pub(crate) flights: &'a CopyFlights,
    pub(crate) mounts: &'a MountTable,
    /// Number of recovered copies.
    pub(crate) recovered: &'a mut u64,
}

impl Recovery {
    pub(crate) fn is_running(&self) -> bool {
        !self.tiers.is_empty()
    }

    /// Returns the handoffs that wait for their directory.
    pub(crate) fn deferred(&self) -> impl Iterator<Item = &Handoff> {
        self.deferred.values().flatten()
    }

    /// Returns true while copies of earlier runs are not recovered yet.
    pub(crate) fn has_pending(&self) -> bool {
        self.tiers.values().any(|tier| !tier.is_told)
    }

    fn is_catalogued(&self) -> bool {
        self.tiers.values().all(|tier| tier.is_catalogued)
    }

    /// Starts the recovery of each tier in the background, the first time. Each thread passes its batches to `deliver`.
    /// Returns false, and does nothing, if recovery has begun.
    pub(crate) fn begin(&mut self, tiers: &TierSet, deliver: impl Fn(RecoveryBatch) + Clone + Send + 'static) -> bool {
        self.device = None;
        if self.begun {
            return false;
        }
        self.begun = true;
        for (number, state) in tiers.iter().enumerate() {
            let demand = Arc::new(RecoveryDemand::default());
            match recovery::start(number, Arc::clone(&state.tier), Arc::clone(&demand), deliver.clone()) {
                Ok(()) => self.add_tier(number, demand, state.tier.expected_copies()),
                Err(error) => log::fallback(&format!("earlier copies are not recovered: {error}")),
            }
        }
        true
    }

    fn add_tier(&mut self, number: usize, demand: Arc<RecoveryDemand>, expected_copies: u64) {
        let tier = TierRecovery {
            demand,
            is_small: (1..=RECOVERY_SMALL_COPIES).contains(&expected_copies),
            is_catalogued: false,
            is_told: false,
        };
        self.tiers.insert(number, tier);
    }

    /// Tries again the copies whose source was not mounted.
    pub(crate) fn retry_unmounted(&mut self, target: &mut RecoveryTarget<'_>) {
        for (tier, found) in std::mem::take(&mut self.unmounted) {
            self.take_copy(tier, found, target);
        }
    }

    /// Lifts the budget of recovery while no run is connected, and while handoffs wait for a catalogue.
    pub(crate) fn set_pace(&self, has_runs: bool) {
        let hurried = !(has_runs && (self.deferred.is_empty() || self.is_catalogued()));
        for tier in self.tiers.values() {
            tier.demand.set_hurried(hurried);
        }
    }

    /// Answers a command that has joined: immediately, or after the small tiers have been recovered.
    pub(crate) fn answer_join(&mut self, reply: ReplyTo, answer: ControlResponse) {
        self.joining.push(JoiningCommand {
            reply,
            answer,
            until: Instant::now() + RECOVERY_BEFORE_START_MAX,
        });
        self.answer_waiting();
    }

    /// Answers the commands that need not wait any longer. Returns how long the next one may still wait.
    pub(crate) fn answer_waiting(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let is_waiting = self.tiers.values().any(|tier| tier.is_small && !tier.is_told);
        for joining in self.joining.extract_if(.., |joining| !is_waiting || joining.until <= now) {
            // A command that has gone needs no answer; its connection reports the end, too.
            joining.reply.send(joining.answer);
        }
        self.joining.iter().map(|joining| joining.until - now).min()
    }

    /// Keeps a handoff until its directory has been recovered. Returns the handoff if there is nothing to wait for.
    pub(crate) fn defer(&mut self, mut handoff: Handoff, has_runs: bool) -> Option<Handoff> {
        let Some((dir, _)) = split(&handoff.path) else {
            return Some(handoff);
        };
        if self.is_catalogued() && !self.pending.contains_key(dir) {
            return Some(handoff);
        }
        let dir = dir.to_vec();
        // Recovery takes longer than an opener waits.
        handoff.waiting = None;
        let is_first = !self.deferred.contains_key(&dir);
        self.deferred.entry(dir.clone()).or_default().push(handoff);
        if !self.is_catalogued() {
            self.set_pace(has_runs);
        } else if is_first {
            self.want(&dir);
        }
        None
    }

    /// Requests a directory as the next one.
    fn want(&self, dir: &[u8]) {
        let Some((path, tiers)) = self.pending.get_key_value(dir) else {
            return;
        };
        for (number, tier) in &self.tiers {
            if tiers >> number & 1 == 1 {
                tier.demand.want(Arc::clone(path));
            }
        }
    }

    /// Adds the copies and names of a batch, and notes the stage that the tier's recovery has reached.
    pub(crate) fn take(&mut self, batch: RecoveryBatch, has_runs: bool, target: &mut RecoveryTarget<'_>) {
        for found in batch.found {
            self.take_copy(batch.tier, found, target);
        }
        for alias in batch.aliases {
            self.take_name(&alias, target.copies);
        }
        for path in batch.brought {
            self.finish_directory(batch.tier, &path);
        }
        if let Some(stage) = batch.stage {
            self.take_stage(batch.tier, stage, has_runs, target);
        }
        target.copies.tiers.publish_room();
    }

    fn finish_directory(&mut self, tier: usize, path: &Arc<[u8]>) {
        if let Some(tiers) = self.pending.get_mut(path) {
            *tiers &= !(1 << tier);
            if *tiers == 0 {
                self.pending.remove(path);
            }
        }
    }

    fn take_stage(&mut self, tier: usize, stage: RecoveryStage, has_runs: bool, target: &mut RecoveryTarget<'_>) {
        let was_catalogued = self.is_catalogued();
        match stage {
            RecoveryStage::Catalogued {
                copies,
                bytes,
                directories,
            } => {
                expect(&mut target.copies.tiers, tier, bytes, copies);
                self.catalogued(tier, directories);
            }
            RecoveryStage::Told => {
                self.told_all(tier, &mut target.copies.tiers);
                if let Some(recovery) = self.tiers.get_mut(&tier) {
                    recovery.is_told = true;
                }
            }
            RecoveryStage::Ended { report, missing } => {
                self.told_all(tier, &mut target.copies.tiers);
                self.tiers.remove(&tier);
                Log.line(&format!("recovery of tier {tier}: {report}"));
                forget_missing(tier, missing, target);
            }
        }
        if !was_catalogued && self.is_catalogued() {
            for dir in self.deferred.keys() {
                self.want(dir);
            }
        }
        self.set_pace(has_runs);
    }

    fn catalogued(&mut self, tier: usize, directories: Vec<Arc<[u8]>>) {
        for path in directories {
            *self.pending.entry(path).or_default() |= 1 << tier;
        }
        if let Some(recovery) = self.tiers.get_mut(&tier) {
            recovery.is_catalogued = true;
        }
    }

    /// Expects nothing more from a tier, whether or not all of it was recovered.
    fn told_all(&mut self, tier: usize, set: &mut TierSet) {
        expect(set, tier, 0, 0);
        self.pending.retain(|_, tiers| {
            *tiers &= !(1 << tier);
            *tiers != 0
        });
    }

    /// Returns the deferred handoffs whose directory has been recovered.
    pub(crate) fn take_deferred(&mut self) -> Vec<Handoff> {
        if self.deferred.is_empty() || !self.is_catalogued() {
            return Vec::new();
        }
        let pending = &self.pending;
        self.deferred
            .extract_if(|dir, _| !pending.contains_key(dir.as_slice()))
            .flat_map(|(_, handoffs)| handoffs)
            .collect()
    }

    fn take_copy(&mut self, tier: usize, found: RecoveredCopy, target: &mut RecoveryTarget<'_>) {
        let is_directory = found.attributes.is_directory();
        let (copies, size) = (&mut *target.copies, found.identity.size);
        if found.damaged || retention::is_due(found.last_used_unix_s, unix_s()) {
            if found.counted {
                copies.tiers.remove_copy(found.copy, tier, size, is_directory);
            } else {
                copies.tiers.remove_uncounted(tier, found.copy);
            }
            return;
        }
        if !found.counted && !copies.tiers.add_recovered(tier, found.copy, size, is_directory) {
            return;
        }
        let Some(dev) = self.device_of(&found.mount, target.mounts) else {
            self.unmounted.push((tier, RecoveredCopy { counted: true, ..found }));
            return;
        };
        let identity = Identity { dev, ..found.identity };
        // The same file, or another one under the same name.
        let copied_again =
            copies.index.of_file(dev, identity.ino).is_some() || copies.index.index().find_kept(&joined(&found.dir, &found.name)).is_some();
        if copied_again || target.flights.number_of((dev, identity.ino)).is_some() {
            // A program opened the file before its copy was recovered.
            copies.tiers.remove_copy(found.copy, tier, size, is_directory);
            return;
        }
        *target.recovered += 1;
        copies.tiers.keep_digest(found.copy, size, found.checksum, None);
        if !self.devices.contains(&dev) {
            self.devices.push(dev);
        }
        let entry = Entry {
            directory: 0,
            name: &found.name,
            identity,
            attributes: found.attributes,
            copy: found.copy,
            tier,
            copy_ino: found.object.ino,
            copy_ctime: found.object.ctime,
            plain: false,
            inserted_at: boot_ns(),
            checked_at: 0,
        };
        // Without room in the index, the copy stays in the tier, counted, for a later run.
        if !copies.index.is_full()
            && copies.insert_new(&found.dir, entry)
            && let Some(number) = copies.index.directory_number(&found.dir)
        {
            copies.sweeps.note_used_before(number, found.last_used_unix_s);
        }
    }

    /// Returns the device at which a source is mounted now. Copies of one source come together, so the last answer is
    /// kept.
    fn device_of(&mut self, mount: &Arc<MountSource>, mounts: &MountTable) -> Option<u64> {
        if let Some((known, dev)) = &self.device
            && Arc::ptr_eq(known, mount)
        {
            return Some(*dev);
        }
        let dev = mounts.device_of(mount)?;
        self.device = Some((Arc::clone(mount), dev));
        Some(dev)
    }

    /// Adds another name of a recovered copy. A name whose copy was not recovered is left out.
    fn take_name(&self, alias: &RecoveredName, copies: &mut PublishedCopies) {
        let index = copies.index.index();
        if index.find_kept(&joined(&alias.dir, &alias.name)).is_some() {
            return;
        }
        let record = self
            .devices
            .iter()
            .filter_map(|dev| copies.index.of_file(*dev, alias.ino))
            .filter_map(|number| index.record(number))
            .find(|record| record.copy() == alias.copy);
        let Some(entry) = record.and_then(|record| copies.index.entry_of(record)) else {
            return;
        };
        let entry = Entry {
            name: &alias.name,
            plain: false,
            inserted_at: boot_ns(),
            checked_at: 0,
            ..entry
        };
        copies.insert(&alias.dir, entry);
    }

    /// Returns true if recovery does not read the catalogues any more.
    pub(crate) fn may_compact(&self) -> bool {
        self.begun && !self.is_running()
    }

    /// Starts to compact mostly dead catalogues, each in a thread of its own: while copies come and go, a catalogue
    /// would grow as long as the run lasts.
    pub(crate) fn compact_catalogues(&mut self, tiers: &TierSet) {
        let now = Instant::now();
        let is_early = self.compact_after.is_some_and(|after| now < after);
        if is_early || !self.may_compact() {
            return;
        }
        for state in tiers.iter().filter(|state| state.is_on()) {
            if state.tier.compaction_is_due().unwrap_or(false) {
                self.compact_after = Some(now + COMPACT_PAUSE);
                Self::compact(state);
            }
        }
    }

    fn compact(state: &TierState) {
        let tier = Arc::clone(&state.tier);
        let compact = move || {
            set_thread_nice(COPY_NICE);
            if let Err(error) = tier.compact() {
                log_compaction(&error);
            }
        };
        // If no thread can be started, a later call tries again, at the latest when the agent ends.
        let _ = thread::Builder::new().name("compactor".into()).spawn(compact);
    }
}

fn expect(tiers: &mut TierSet, tier: usize, bytes: u64, copies: u64) {
    tiers.step(fill_first::Event::Expect(TierIndex(tier), Space { bytes, inodes: copies }));
}

/// Removes the records of copies whose file is missing from the tier.
fn forget_missing(tier: usize, missing: Vec<u64>, target: &mut RecoveryTarget<'_>) {
    if missing.is_empty() {
        return;
    }
    let missing: HashSet<u64> = missing.into_iter().collect();
    let is_missing = |record: &forebay_contract::Record| record.tier() == tier && missing.contains(&record.copy());
    let numbers = target.copies.index.kept_records(|_, record| is_missing(record));
    *target.recovered = target.recovered.saturating_sub(numbers.len() as u64);
    for number in numbers {
        target.copies.drop_record(number);
    }
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name].concat()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::{host::doorbell::Doorbell, tiering::handoff::handoff_of};

    #[test]
    fn a_handoff_waits_for_its_directory_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let [early, late] = ["early", "late"].map(|name| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        });
        let mut recovery = Recovery::default();
        let handoff = |dir: &std::path::Path| {
            std::fs::write(dir.join("file"), b"x").unwrap();
            handoff_of(&dir.join("file"))
        };
        assert!(recovery.defer(handoff(&early), true).is_some(), "nothing to recover");
        recovery.add_tier(0, Arc::default(), 10);
        assert!(
            recovery.defer(handoff(&early), true).is_none(),
            "nobody knows what is in the catalogue"
        );
        assert!(recovery.take_deferred().is_empty());
        let late_bytes: Arc<[u8]> = late.as_os_str().as_encoded_bytes().into();
        recovery.catalogued(0, vec![Arc::clone(&late_bytes)]);
        assert_eq!(recovery.take_deferred().len(), 1);
        assert!(recovery.defer(handoff(&late), true).is_none());
        assert_eq!(recovery.deferred().count(), 1);
        recovery.finish_directory(0, &late_bytes);
        assert_eq!(recovery.take_deferred().len(), 1);
        assert!(recovery.defer(handoff(&late), true).is_some());
    }

    #[test]
    fn a_command_waits_for_small_tiers_only_and_not_for_long() {
        let mut recovery = Recovery::default();
        let (sender, answers) = channel();
        let doorbell = Arc::new(Doorbell::create().unwrap());
        let reply = ReplyTo::new(7, sender, doorbell);
        recovery.add_tier(0, Arc::default(), RECOVERY_SMALL_COPIES + 1);
        recovery.answer_join(reply.clone(), ControlResponse::Stopping);
        assert!(answers.try_recv().is_ok());
        recovery.add_tier(1, Arc::default(), RECOVERY_SMALL_COPIES);
        recovery.answer_join(reply, ControlResponse::Stopping);
        assert!(answers.try_recv().is_err());
        assert!(recovery.answer_waiting().is_some_and(|left| left <= RECOVERY_BEFORE_START_MAX));
        recovery.joining[0].until = Instant::now();
        assert_eq!(recovery.answer_waiting(), None);
        assert!(answers.try_recv().is_ok());
    }
}
