//! Copies of earlier runs: taken into the index as they come, servable once their directory has been swept (or at once, where
//! the user vouches for the source).
//!
//! Nobody waits for adoption: a program that opens a file of a directory that was not brought yet reads the source. But its hand-over
//! waits here until the directory has come, which it makes the adopter's next: the file is most likely there already, and the rest
//! of its directory is what the program opens next.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use forebay_contract::{Entry, Identity, index::split};
use forebay_policy::{Action, CopyId, TierIndex, fill_first, retention};

use crate::{
    host::{
        clock::{boot_ns, thread_cpu, unix_s},
        shared::set_thread_nice,
    },
    tiering::{
        control::ReplyTo,
        handoff::Handoff,
        limits::{ADOPT_AT_ONCE, ADOPTED_BEFORE_START_MAX, COMPACT_PAUSE, COPY_NICE},
        mounts::MountSource,
        protocol::ControlResponse,
        recovery::{self, RecoveredCopy, RecoveredName, RecoveryBatch, RecoveryDemand, RecoveryStage},
    },
};

use super::{Clerk, Event, deliver};

/// How far adoption has come.
#[derive(Debug, Default)]
pub(super) struct Adoption {
    begun: bool,
    /// Tiers that are still being adopted, by number.
    tiers: HashMap<usize, Adopting>,
    /// Directories that are catalogued and not brought yet: a bit for each tier.
    untold: HashMap<Arc<[u8]>, u32>,
    /// Hand-overs that wait for their directory.
    deferred: HashMap<Vec<u8>, Vec<Handoff>>,
    /// Commands whose run is joined, but that may wait a little.
    joining: Vec<Joining>,
    /// Copies whose source is not mounted now; looked at again when a run joins.
    unmounted: Vec<(usize, RecoveredCopy)>,
    /// Devices of the sources of what was adopted.
    devices: Vec<u64>,
    /// Where the source that was asked for last is mounted.
    device: Option<(Arc<MountSource>, u64)>,
    /// No catalogue is rewritten before that.
    compact_after: Option<Instant>,
}

/// A tier that is being adopted.
#[derive(Debug)]
struct Adopting {
    demand: Arc<RecoveryDemand>,
    /// All of it at once: the first run's start waits for it.
    is_small: bool,
    /// It is known what there is to bring.
    is_catalogued: bool,
    is_told: bool,
}

#[derive(Debug)]
struct Joining {
    reply: ReplyTo,
    answer: ControlResponse,
    until: Instant,
}

impl Adoption {
    pub(super) fn is_running(&self) -> bool {
        !self.tiers.is_empty()
    }

    /// Hand-overs that wait.
    pub(super) fn deferred(&self) -> impl Iterator<Item = &Handoff> {
        self.deferred.values().flatten()
    }

    /// Whether copies of earlier runs are still to be brought.
    pub(super) fn is_untold(&self) -> bool {
        self.tiers.values().any(|tier| !tier.is_told)
    }

    fn is_catalogued(&self) -> bool {
        self.tiers.values().all(|tier| tier.is_catalogued)
    }
}

impl Clerk {
    /// Begins adoption with the first run, in the background; with later ones, takes those copies whose source is mounted by now.
    pub(super) fn adopt_more(&mut self) {
        self.adoption.device = None;
        if self.adoption.begun {
            let waiting = std::mem::take(&mut self.adoption.unmounted);
            for (tier, found) in waiting {
                self.adopt_one(tier, found);
            }
            self.pace_adoption();
            return;
        }
        self.adoption.begun = true;
        for (number, state) in self.tiers.iter().enumerate() {
            let demand = Arc::new(RecoveryDemand::default());
            let deliver = deliver(&self.events, Event::Adopted);
            match recovery::start(number, Arc::clone(&state.tier), Arc::clone(&demand), deliver) {
                Ok(()) => {
                    let adopting = Adopting {
                        demand,
                        is_small: (1..=ADOPT_AT_ONCE).contains(&state.tier.expected_copies()),
                        is_catalogued: false,
                        is_told: false,
                    };
                    self.adoption.tiers.insert(number, adopting);
                }
                Err(error) => self.log.line(&format!("earlier copies are not adopted: {error}")),
            }
        }
    }

    /// Lifts the budget of adoption while nobody runs, and while hand-overs wait for the catalogue.
    pub(super) fn pace_adoption(&self) {
        let hurried = self.runs.is_empty() || !(self.adoption.deferred.is_empty() || self.adoption.is_catalogued());
        for tier in self.adoption.tiers.values() {
            tier.demand.set_hurried(hurried);
        }
    }

    /// Answers a command that has joined: at once, or after the small tiers have been adopted.
    pub(super) fn answer_join(&mut self, reply: ReplyTo, answer: ControlResponse) {
        self.adoption.joining.push(Joining {
            reply,
            answer,
            until: Instant::now() + ADOPTED_BEFORE_START_MAX,
        });
        self.let_start();
    }

    /// Lets runs start that have waited long enough; gives how long the next one may wait still.
    pub(super) fn let_start(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let is_waiting = self.adoption.tiers.values().any(|tier| tier.is_small && !tier.is_told);
        for joining in self.adoption.joining.extract_if(.., |joining| !is_waiting || joining.until <= now) {
            // A command that has gone away needs no answer; its disconnection is told as well.
            joining.reply.send(joining.answer);
        }
        self.adoption.joining.iter().map(|joining| joining.until - now).min()
    }

    /// Keeps a hand-over back whose directory is still to be brought; gives it back if there is nothing to wait for.
    pub(super) fn defer(&mut self, handed: Handoff) -> Option<Handoff> {
        let Some((dir, _)) = split(&handed.path) else { return Some(handed) };
        let wait = !self.adoption.is_catalogued() || self.adoption.untold.contains_key(dir);
        if !wait {
            return Some(handed);
        }
        let dir = dir.to_vec();
        let is_first = !self.adoption.deferred.contains_key(&dir);
        self.adoption.deferred.entry(dir.clone()).or_default().push(handed);
        if self.adoption.is_catalogued() {
            if is_first {
                self.want(&dir);
            }
        } else {
            self.pace_adoption();
        }
        None
    }

    /// Has a directory brought next.
    fn want(&self, dir: &[u8]) {
        let Some((path, tiers)) = self.adoption.untold.get_key_value(dir) else {
            return;
        };
        for (number, tier) in &self.adoption.tiers {
            if tiers >> number & 1 == 1 {
                tier.demand.want(Arc::clone(path));
            }
        }
    }

    /// Takes a batch.
    pub(super) fn adopted(&mut self, batch: RecoveryBatch) {
        let begun = thread_cpu();
        for found in batch.found {
            self.adopt_one(batch.tier, found);
        }
        for alias in batch.aliases {
            self.adopt_alias(&alias);
        }
        for path in batch.brought {
            self.brought(batch.tier, &path);
        }
        if let Some(stage) = batch.stage {
            self.reached(batch.tier, stage);
        }
        self.publish_room();
        // The adopter counts it; one that is gone has ended.
        let _ = batch.taken.send(thread_cpu().saturating_sub(begun));
        self.take_deferred();
    }

    fn brought(&mut self, tier: usize, path: &Arc<[u8]>) {
        if let Some(tiers) = self.adoption.untold.get_mut(path) {
            *tiers &= !(1 << tier);
            if *tiers == 0 {
                self.adoption.untold.remove(path);
            }
        }
    }

    fn reached(&mut self, tier: usize, stage: RecoveryStage) {
        let was_catalogued = self.adoption.is_catalogued();
        match stage {
            RecoveryStage::Catalogued {
                copies,
                bytes,
                directories,
            } => {
                self.expect(tier, bytes, copies);
                for path in directories {
                    *self.adoption.untold.entry(path).or_default() |= 1 << tier;
                }
                if let Some(adopting) = self.adoption.tiers.get_mut(&tier) {
                    adopting.is_catalogued = true;
                }
            }
            RecoveryStage::Told => {
                self.all_told(tier);
                if let Some(adopting) = self.adoption.tiers.get_mut(&tier) {
                    adopting.is_told = true;
                }
            }
            RecoveryStage::Ended { report, missing } => {
                self.all_told(tier);
                self.adoption.tiers.remove(&tier);
                self.log.line(&format!("adoption of tier {tier}: {report}"));
                self.forget_missing(tier, missing);
            }
        }
        if !was_catalogued && self.adoption.is_catalogued() {
            for dir in self.adoption.deferred.keys() {
                self.want(dir);
            }
        }
        self.pace_adoption();
    }

    /// Nothing more comes from a tier, whether or not all did.
    fn all_told(&mut self, tier: usize) {
        self.expect(tier, 0, 0);
        self.adoption.untold.retain(|_, tiers| {
            *tiers &= !(1 << tier);
            *tiers != 0
        });
    }

    fn expect(&mut self, tier: usize, bytes: u64, copies: u64) {
        let tier = TierIndex(tier);
        fill_first::step(&mut self.policy, fill_first::Event::Expect { tier, bytes, copies });
    }

    /// Goes on with the hand-overs whose directory has been brought.
    fn take_deferred(&mut self) {
        if self.adoption.deferred.is_empty() || !self.adoption.is_catalogued() {
            return;
        }
        let untold = &self.adoption.untold;
        let ready: Vec<Handoff> = self
            .adoption
            .deferred
            .extract_if(|dir, _| !untold.contains_key(dir.as_slice()))
            .flat_map(|(_, handed)| handed)
            .collect();
        for handed in ready {
            self.take_on(handed);
        }
    }

    /// Takes from the doors what the reaper did not find.
    fn forget_missing(&mut self, tier: usize, missing: Vec<u64>) {
        if missing.is_empty() {
            return;
        }
        let missing: HashSet<u64> = missing.into_iter().collect();
        let index = self.pages.index();
        let is_missing = |number: &u32| {
            index
                .record(*number)
                .is_some_and(|record| record.is_kept() && record.tier() == tier && missing.contains(&record.copy()))
        };
        let numbers: Vec<u32> = (0..self.pages.writer_ref().records()).filter(is_missing).collect();
        self.total.adopted = self.total.adopted.saturating_sub(numbers.len() as u64);
        for number in numbers {
            self.drop_record(number);
        }
    }

    fn adopt_one(&mut self, tier: usize, found: RecoveredCopy) {
        let is_listing = found.attributes.is_directory();
        if found.damaged || retention::is_due(found.last_used_unix_s, unix_s()) {
            if found.counted {
                self.remove_copy(found.copy, tier, found.identity.size, is_listing);
            } else {
                self.remove_uncounted(tier, found.copy);
            }
            return;
        }
        if !found.counted && !self.count_adopted(tier, &found) {
            return;
        }
        let Some(dev) = self.device_of(&found.mount) else {
            self.adoption.unmounted.push((tier, RecoveredCopy { counted: true, ..found }));
            return;
        };
        let identity = Identity { dev, ..found.identity };
        // By its inode, or another file under the same name.
        let copied_again = self.names.of_file(&self.pages.index(), dev, identity.ino).is_some()
            || self.pages.index().find_kept(&joined(&found.dir, &found.name)).is_some();
        if copied_again || self.flight_of_file.contains_key(&(dev, identity.ino)) {
            // A program was faster.
            self.remove_copy(found.copy, tier, identity.size, is_listing);
            return;
        }
        self.total.adopted += 1;
        if !self.adoption.devices.contains(&dev) {
            self.adoption.devices.push(dev);
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
        // Without room it stays in the tier, counted, for a later run.
        if !self.index_has_no_room() && self.insert_new(&found.dir, entry) {
            let number = self.directories.get(&*found.dir).copied().unwrap_or(u32::MAX);
            if let Some(state) = self.directory_states.get_mut(number as usize) {
                state.used_before_unix_s = state.used_before_unix_s.max(found.last_used_unix_s);
            }
        }
    }

    /// Where a source is mounted now; copies of one source come together.
    fn device_of(&mut self, mount: &Arc<MountSource>) -> Option<u64> {
        if let Some((known, dev)) = &self.adoption.device
            && Arc::ptr_eq(known, mount)
        {
            return Some(*dev);
        }
        let dev = self.mounts.device_of(mount)?;
        self.adoption.device = Some((Arc::clone(mount), dev));
        Some(dev)
    }

    /// Another spelling of a copy that was adopted; one whose copy was not is left out.
    fn adopt_alias(&mut self, alias: &RecoveredName) {
        let index = self.pages.index();
        if index.find_kept(&joined(&alias.dir, &alias.name)).is_some() {
            return;
        }
        let record = self
            .adoption
            .devices
            .iter()
            .filter_map(|dev| self.names.of_file(&index, *dev, alias.ino))
            .filter_map(|number| index.record(number))
            .find(|record| record.copy() == alias.copy);
        let Some(entry) = record.and_then(|record| self.pages.writer_ref().entry(record)) else {
            return;
        };
        self.insert(
            &alias.dir,
            Entry {
                name: &alias.name,
                plain: false,
                inserted_at: boot_ns(),
                checked_at: 0,
                ..entry
            },
        );
    }

    /// Removes a copy that was never counted.
    fn remove_uncounted(&mut self, tier: usize, copy: u64) {
        if let Some(state) = self.tiers.get(tier)
            && let Err(error) = state.tier.remove(copy)
        {
            self.log.line(&format!("an old copy could not be removed: {error}"));
            self.count_leftovers(tier);
        }
    }

    /// Counts an adopted copy against the quota; one that is over it is removed.
    fn count_adopted(&mut self, tier: usize, found: &RecoveredCopy) -> bool {
        let event = fill_first::Event::Adopt {
            copy: CopyId(found.copy),
            size: found.identity.size,
            tier: TierIndex(tier),
        };
        let placed = matches!(fill_first::step(&mut self.policy, event), Action::Place { .. });
        let Some(state) = self.tiers.get_mut(tier) else { return false };
        if placed {
            *state.copies(found.attributes.is_directory()) += 1;
        } else {
            self.remove_uncounted(tier, found.copy);
        }
        placed
    }

    /// Has catalogues rewritten, beside, most of which is dead: where copies come and go they would grow as long as the run lasts.
    pub(super) fn compact_catalogues(&mut self) {
        let now = Instant::now();
        let is_early = self.adoption.compact_after.is_some_and(|after| now < after);
        // Adoption reads the catalogue as it was.
        if is_early || self.adoption.is_running() || !self.adoption.begun {
            return;
        }
        for state in self.tiers.iter().filter(|state| state.off.is_none()) {
            if !state.tier.compaction_is_due().unwrap_or(false) {
                continue;
            }
            self.adoption.compact_after = Some(now + COMPACT_PAUSE);
            let (tier, log) = (Arc::clone(&state.tier), self.log);
            let compact = move || {
                set_thread_nice(COPY_NICE);
                if let Err(error) = tier.compact() {
                    log.line(&format!("the catalogue could not be compacted: {error}"));
                }
            };
            // Without a thread it is tried again later, at the latest when the agent ends.
            let _ = thread::Builder::new().name("compactor".into()).spawn(compact);
        }
    }

    /// Writes which directories were used, so that what nobody uses is found in later runs; then tidies the catalogues.
    pub(super) fn note_use(&mut self) {
        let now = unix_s();
        let index = self.pages.index();
        for (path, number) in &self.directories {
            let used = self.control.directory_stamp(*number) != 0;
            if !used || index.directory(*number).is_none() {
                continue;
            }
            for state in &self.tiers {
                // A full tier loses only the date of use.
                let _ = state.tier.mark_used(path, now);
            }
        }
        for state in &self.tiers {
            if !self.adoption.is_running()
                && self.adoption.begun
                && let Err(error) = state.tier.compact_if_due()
            {
                self.log.line(&format!("the catalogue could not be compacted: {error}"));
            }
        }
    }
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name].concat()
}
