//! Copies that go while nothing is wrong with them: given back where memory grows short (F13), or, with the policy `lru`, to make room for
//! others. Which ones, [`eviction::choose`] decides.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::channel,
    },
    thread,
    time::Instant,
};

use forebay_contract::run::use_stamp;
use forebay_policy::{
    CopyId, TierIndex,
    eviction::{self, Candidate, Want},
    fill_first::{self, Action, Refusal},
    pressure::{Memory, Pressure},
};

use crate::{
    host::{
        clock::{boot_ms, boot_ns, unix_s},
        memory::Gauge,
    },
    tiering::{
        limits::{LOOK_MAX, NO_VICTIMS_PAUSE, REPLACED_COPIES, REPLACED_PART},
        ram,
        reader::open_copies,
    },
};

use super::{Clerk, TierState};

/// What is watched so that copies in memory never starve the program.
#[derive(Debug)]
pub(super) struct MemoryWatch {
    gauge: Gauge,
    seen: Memory,
    pressure: Pressure,
}

impl MemoryWatch {
    /// `None` where no tier lies in memory.
    pub(super) fn over(mut tiers: impl Iterator<Item = bool>) -> Option<Self> {
        let gauge = tiers.any(|is_memory| is_memory).then(Gauge::find)?;
        Some(Self {
            seen: gauge.look().memory,
            gauge,
            pressure: Pressure::default(),
        })
    }

    /// As it was seen last.
    pub(super) const fn seen(&self) -> Memory {
        self.seen
    }
}

/// What is remembered between evictions, and the look at what all processes have open. One of them may be stuck in a source that hangs,
/// with its memory locked, and whoever asks for its mappings waits with it: that is never the clerk.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    is_out: Arc<AtomicBool>,
    /// There was nothing to make room with; it is looked for again then.
    no_victims_until: Option<Instant>,
}

impl Eviction {
    /// Copies below `objects`, removed ones too, that are open or mapped; `None` where that can't be known now.
    fn open_copies(&self, objects: Vec<PathBuf>) -> Option<HashSet<u64>> {
        if self.is_out.swap(true, Relaxed) {
            return None;
        }
        let (is_out, (tell, told)) = (Arc::clone(&self.is_out), channel());
        let look = move || {
            let open = open_copies(&objects);
            is_out.store(false, Relaxed);
            // Nobody waits any more where it took too long.
            let _ = tell.send(open);
        };
        if thread::Builder::new().name("look".into()).spawn(look).is_err() {
            self.is_out.store(false, Relaxed);
            return None;
        }
        told.recv_timeout(LOOK_MAX).ok()
    }

    /// The same of all tiers.
    pub(super) fn open_in(&self, tiers: &[TierState]) -> Option<HashSet<u64>> {
        let objects = tiers.iter().map(|state| state.tier.objects_path().to_owned()).collect();
        self.open_copies(objects)
    }
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evicted {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl Clerk {
    /// Looks at the memory that copies count in, and gives back what is asked for, from the lowest tier in memory up.
    pub(super) fn watch_memory(&mut self) {
        let tiers: Vec<usize> = (0..self.tiers.len()).rev().filter(|number| self.is_in_memory(*number)).collect();
        let Some(watch) = &mut self.memory else { return };
        watch.seen = watch.gauge.look().memory;
        let held = tiers.iter().map(|number| self.policy.used_bytes(TierIndex(*number))).sum();
        let wanted = watch.pressure.give_back(&watch.seen, held, boot_ms());
        let looks = wanted > 0 && watch.pressure.is_look_due(&watch.seen, boot_ms());
        let (mut due, mut is_answered) = (wanted, true);
        for number in tiers {
            if looks && due > 0 {
                let answer = self.evict(number, &Want::as_many_as_there_are(due), 0);
                is_answered &= answer.is_some();
                let given = answer.unwrap_or_default();
                due = due.saturating_sub(given.bytes);
                self.note_given_back(number, given);
            }
            // At once: until the next look copies may take no more than what this one has shown.
            self.observe_room_of(number);
        }
        if let Some(watch) = self.memory.as_mut().filter(|_| looks) {
            let given = Some(wanted - due).filter(|bytes| is_answered || *bytes > 0);
            watch.pressure.looked(given, &watch.seen, boot_ms());
        }
        self.copier.set_memory_short(due > 0);
        self.publish_room();
    }

    fn note_given_back(&mut self, tier: usize, given: Evicted) {
        let Some(state) = self.tiers.get_mut(tier).filter(|_| given.files > 0) else {
            return;
        };
        if state.given_back.files == 0 {
            self.log.line(&format!("memory grows short: copies of tier {tier} are given back"));
        }
        state.given_back.files += given.files;
        state.given_back.bytes += given.bytes;
    }

    /// Removes published copies of a tier: see [`eviction::choose`]. `None` where it can't be known now which are open.
    pub(super) fn evict(&mut self, tier: usize, want: &Want, idle_s: u32) -> Option<Evicted> {
        let objects = self.tiers.get(tier)?.tier.objects_path().to_owned();
        let open = self.eviction.open_copies(vec![objects])?;
        let index = self.pages.index();
        let of_tier = |number: u32| {
            let record = index.record(number).filter(|record| record.is_kept() && record.tier() == tier)?;
            Some(Candidate {
                record: number,
                copy: record.copy(),
                directory: record.directory(),
                bytes: record.size(),
                is_open: open.contains(&record.copy()),
            })
        };
        let candidates = (0..self.pages.writer_ref().records()).filter_map(of_tier).collect();
        let (now, now_unix_s) = (use_stamp(self.started_at, boot_ns()), unix_s());
        let unused_s = |directory| {
            let used_before = self
                .directory_states
                .get(directory as usize)
                .map_or(0, |state| state.used_before_unix_s);
            match self.control.directory_stamp(directory) {
                0 if used_before > 0 => u32::try_from(now_unix_s.saturating_sub(used_before).max(0)).unwrap_or(u32::MAX),
                stamp => now.saturating_sub(stamp),
            }
        };
        let chosen = eviction::choose(candidates, unused_s, idle_s, want);
        for gone in &chosen {
            self.drop_copy_of(gone.record);
        }
        Some(Evicted {
            files: chosen.len() as u64,
            bytes: chosen.iter().map(|gone| gone.bytes).sum(),
        })
    }

    /// Numbers a copy of `size` bytes and offers it to policy; gives its number and its tier.
    ///
    /// # Errors
    /// Why no tier takes it.
    pub(super) fn offer(&mut self, size: u64) -> Result<(u64, usize), Refusal> {
        self.next_flight += 1;
        let number = self.next_flight;
        let offer = fill_first::Event::Offer {
            copy: CopyId(number),
            size,
            now_ms: boot_ms(),
        };
        match fill_first::step(&mut self.policy, offer) {
            Action::Place { tier, .. } => Ok((number, tier.0)),
            Action::Refuse { reason, .. } => Err(reason),
            // No offer is answered by it.
            Action::Nothing => Err(Refusal::Off),
        }
    }

    /// The same, and once more where room was made for it.
    ///
    /// # Errors
    /// Why no tier takes it.
    pub(super) fn place(&mut self, size: u64) -> Result<(u64, usize), Refusal> {
        match self.offer(size) {
            Err(Refusal::Quota | Refusal::Floor) if self.make_room(size) => self.offer(size),
            answer => answer,
        }
    }

    /// With `lru`, removes copies that were not used for long so that a file of `size` bytes fits into some tier, the top one if it can be;
    /// tells whether there is a point in offering it again.
    fn make_room(&mut self, size: u64) -> bool {
        let Some(idle_s) = self.config.policy.evicts_after_s() else {
            return false;
        };
        if !self.may_make_room() {
            return false;
        }
        for number in 0..self.tiers.len() {
            let quota = match self.tiers.get(number) {
                Some(state) if state.off.is_none() && size <= state.setting.bytes => state.setting.bytes,
                _ => continue,
            };
            let want = Want {
                bytes_min: self.policy.shortfall_bytes(TierIndex(number), size),
                // Each time all names are looked through, so it is worth it for more than one file.
                bytes_max: quota / REPLACED_PART,
                copies_max: REPLACED_COPIES,
            };
            // Where nothing is short it is not room that is lacking.
            if want.bytes_min == 0 {
                continue;
            }
            let freed = self.evict(number, &want, idle_s).unwrap_or_default();
            if let Some(state) = self.tiers.get_mut(number).filter(|_| freed.files > 0) {
                state.replaced.files += freed.files;
                state.replaced.bytes += freed.bytes;
                return true;
            }
        }
        self.eviction.no_victims_until = Some(Instant::now() + NO_VICTIMS_PAUSE);
        false
    }

    fn may_make_room(&self) -> bool {
        self.config.policy.evicts_after_s().is_some() && self.eviction.no_victims_until.is_none_or(|until| Instant::now() >= until)
    }

    /// The size of the largest file for which room could be made.
    pub(super) fn room_to_make(&self) -> u64 {
        if !self.may_make_room() {
            return 0;
        }
        let usable = self.tiers.iter().filter(|state| state.off.is_none());
        usable.map(|state| state.setting.bytes).max().unwrap_or(0)
    }

    /// What of a tier's file system may be used: where it lies in memory, no more than its share of what memory has to spare.
    pub(super) fn spare_memory(&self, tier: usize) -> u64 {
        let watch = self.memory.as_ref().filter(|_| self.is_in_memory(tier));
        let sharing = self.tiers.iter().filter(|state| state.off.is_none() && state.tier.is_memory());
        watch.map_or(u64::MAX, |watch| watch.seen.room_bytes_each(sharing.count() as u64))
    }

    pub(super) fn is_in_memory(&self, tier: usize) -> bool {
        self.tiers.get(tier).is_some_and(|state| state.tier.is_memory())
    }

    /// Removes what lies in memory with this agent; the last thing that it does.
    pub(super) fn remove_ram(&self) {
        for setting in self.config.tiers.iter().filter(|setting| setting.ram) {
            if let Err(error) = ram::remove(&setting.dir) {
                self.log.line(&format!("copies in memory could not be removed: {error}"));
            }
        }
    }
}
