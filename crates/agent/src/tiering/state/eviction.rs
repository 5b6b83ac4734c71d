//! Removal of valid copies: where memory grows short (F13), or to make room for others with the policy `lru`.
//! [`eviction::choose`] decides which.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::channel,
    },
    thread,
};

use forebay_contract::run::use_stamp;
use forebay_policy::{
    eviction::{self, Candidate, Want},
    fill_first::PlacementRefusal,
};

use crate::{
    host::clock::{boot_ms, boot_ns, unix_s},
    tiering::{
        limits::{LOOK_MAX, REPLACED_COPIES, REPLACED_PART},
        open_files::open_copies,
        state::{
            copies::PublishedCopies,
            replicas::Replica,
            tier_set::{EvictedCopies, TierState},
        },
    },
};

/// Look at the files that all processes have open, in a thread of its own. A process may be stuck in a source that
/// hangs, with its memory locked, and whoever reads its mappings waits with it; the event loop must not.
#[derive(Debug, Default)]
pub(crate) struct OpenCopiesLook {
    /// True while a look is under way.
    is_out: Arc<AtomicBool>,
}

impl OpenCopiesLook {
    /// Returns the copies in these tiers, removed ones too, that are open or mapped; `None` if they can't be known now.
    pub(crate) fn open_in<'a>(&self, tiers: impl Iterator<Item = &'a TierState>) -> Option<HashSet<u64>> {
        let objects: Vec<PathBuf> = tiers.map(|state| state.tier.objects_path().to_owned()).collect();
        if self.is_out.swap(true, Relaxed) {
            return None;
        }
        let (is_out, (sender, receiver)) = (Arc::clone(&self.is_out), channel());
        let look = move || {
            let open = open_copies(&objects);
            is_out.store(false, Relaxed);
            // After a timeout nobody receives it.
            let _ = sender.send(open);
        };
        if thread::Builder::new().name("look".into()).spawn(look).is_err() {
            self.is_out.store(false, Relaxed);
            return None;
        }
        receiver.recv_timeout(LOOK_MAX).ok()
    }
}

impl PublishedCopies {
    /// Looks at the memory that copies count in, and removes as many bytes of copies as its pressure asks for, from the
    /// lowest tier in memory up. Returns true if too few could be removed: memory stays short.
    pub(crate) fn watch_memory(&mut self) -> bool {
        let tiers: Vec<usize> = (0..self.tiers.len())
            .rev()
            .filter(|number| self.tiers.is_in_memory(*number))
            .collect();
        let held = tiers.iter().map(|number| self.tiers.used_bytes(*number)).sum();
        let Some(watch) = &mut self.tiers.memory else { return false };
        watch.look();
        let seen = watch.seen();
        let wanted = watch.pressure.give_back(&seen, held, boot_ms());
        let looks = wanted > 0 && watch.pressure.is_look_due(&seen, boot_ms());
        let (mut due, mut is_answered) = (wanted, true);
        for number in tiers {
            if looks && due > 0 {
                let answer = self.evict(number, &Want::as_many_as_there_are(due), 0);
                is_answered &= answer.is_some();
                let given = answer.unwrap_or_default();
                due = due.saturating_sub(given.bytes);
                self.tiers.note_given_back(number, given);
            }
            // Immediately: until the next look, copies may take no more than this look has shown.
            self.tiers.observe_room_of(number);
        }
        if let Some(watch) = self.tiers.memory.as_mut().filter(|_| looks) {
            let given = Some(wanted - due).filter(|bytes| is_answered || *bytes > 0);
            watch.pressure.looked(given, &seen, boot_ms());
        }
        self.tiers.publish_room();
        due > 0
    }

    /// Removes published copies of a tier; `None` if the open ones can't be known now.
    fn evict(&mut self, tier: usize, want: &Want, idle_s: u32) -> Option<EvictedCopies> {
        let open = self.open_look.open_in(std::iter::once(self.tiers.get(tier)?))?;
        let index = self.index.index();
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
        let candidates = (0..self.index.records()).filter_map(of_tier).collect();
        let (now, now_unix_s) = (use_stamp(self.started_at(), boot_ns()), unix_s());
        let unused_s = |directory| {
            let used_before = self.sweeps.used_before_unix_s(directory);
            match self.tiers.control().directory_stamp(directory) {
                0 if used_before > 0 => u32::try_from(now_unix_s.saturating_sub(used_before).max(0)).unwrap_or(u32::MAX),
                stamp => now.saturating_sub(stamp),
            }
        };
        let chosen = eviction::choose(candidates, unused_s, idle_s, want);
        for victim in &chosen {
            self.drop_copy_of(victim.record);
        }
        Some(EvictedCopies {
            files: chosen.len() as u64,
            bytes: chosen.iter().map(|victim| victim.bytes).sum(),
        })
    }

    /// Places a copy of `size` bytes, and makes room for it: first by replicas, then as the policy allows. Returns its
    /// number and its tier.
    ///
    /// # Errors
    /// The reason why no tier takes it.
    pub(crate) fn place(&mut self, size: u64) -> Result<(u64, usize), PlacementRefusal> {
        let mut placed = self.tiers.offer(size);
        let would_help = placed.is_err() && self.replicas_make_room(size);
        for _ in 0..REPLACED_COPIES {
            let is_full = matches!(placed, Err(PlacementRefusal::Quota | PlacementRefusal::Floor));
            if !is_full || !would_help || !self.drop_oldest_replica() {
                break;
            }
            placed = self.tiers.offer(size);
        }
        match placed {
            Err(PlacementRefusal::Quota | PlacementRefusal::Floor) if self.make_room(size) => self.tiers.offer(size),
            answer => answer,
        }
    }

    /// Returns true if a file of `size` bytes would fit into a tier without replicas.
    fn replicas_make_room(&self, size: u64) -> bool {
        let replicas = self.tiers.replicas.bytes();
        (0..self.tiers.len()).any(|tier| (1..=replicas).contains(&self.tiers.shortfall_bytes(tier, size)))
    }

    /// Removes the oldest copy of a file that another node owns. Returns false if there is none.
    fn drop_oldest_replica(&mut self) -> bool {
        let Some(replica) = self.tiers.replicas.take_oldest() else {
            return false;
        };
        let index = self.index.index();
        let found = index.find_kept(&replica.path).filter(|(_, record)| record.copy() == replica.copy);
        if let Some((number, _)) = found {
            self.drop_copy_of(number);
        }
        true
    }

    /// Returns true if a file of `size` bytes that this node owns may take room: a window is left for replicas.
    pub(crate) fn may_own(&self, size: u64) -> bool {
        let tiers = self.tiers.iter().enumerate().filter(|(_, state)| state.is_on());
        let (quota, used) = tiers.fold((0, 0), |(quota, used), (number, state)| {
            (quota + state.setting.bytes, used + self.tiers.used_bytes(number))
        });
        self.tiers.replicas.may_own(quota, used, size)
    }

    /// Counts the copies of earlier runs as replicas whose paths other nodes own. `of_others` returns whether this node
    /// keeps such a path for its group, and `None` for a path that it owns.
    pub(crate) fn find_replicas(&mut self, of_others: impl Fn(&[u8]) -> Option<bool>) {
        let index = self.index.index();
        let directories: HashMap<u32, &[u8]> = self.index.directories().map(|(path, number)| (number, path)).collect();
        let replica_of = |number| {
            let record = index.record(number).filter(|record| !index.is_cached_directory(record))?;
            let path = [directories.get(&record.directory())?, b"/".as_slice(), index.record_name(record)?].concat();
            let is_of_group = of_others(&path)?;
            Some(Replica {
                path,
                copy: record.copy(),
                bytes: record.size(),
                is_of_group,
            })
        };
        let found: Vec<Replica> = self.index.kept_records(|_, _| true).into_iter().filter_map(replica_of).collect();
        for replica in found {
            self.tiers.replicas.add(replica);
        }
        self.tiers.publish_room();
    }

    /// Removes copies that were not used for long so that a file of `size` bytes fits into a tier, the top one if
    /// possible. Returns true if copies were removed.
    fn make_room(&mut self, size: u64) -> bool {
        let Some(idle_s) = self.tiers.replacement().evicts_after_s() else {
            return false;
        };
        if !self.tiers.may_replace() {
            return false;
        }
        for number in 0..self.tiers.len() {
            let quota = match self.tiers.get(number) {
                Some(state) if state.is_on() && size <= state.setting.bytes => state.setting.bytes,
                _ => continue,
            };
            let want = Want {
                bytes_min: self.tiers.shortfall_bytes(number, size),
                // Each search goes through all names, so it makes room for more than one file.
                bytes_max: quota / REPLACED_PART,
                copies_max: REPLACED_COPIES,
            };
            // Without a shortfall the tier lacks something else than room.
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
        self.tiers.pause_replacement();
        false
    }
}

#[cfg(test)]
mod tests {
    use forebay_contract::{Attributes, Entry, FileTime, Identity, Tier};
    use forebay_policy::eviction::TierPolicy;

    use super::*;
    use crate::tiering::{
        pages::Pages,
        state::{
            copy_index::CopyIndex,
            tier_set::tests::{QUOTA, tier_set},
        },
    };

    /// Returns two copies of half the quota each, in two directories, with the policy `lru` and no time of rest.
    fn copies(dir: &std::path::Path) -> PublishedCopies {
        let pages_dir = dir.join("pages");
        std::fs::create_dir(&pages_dir).unwrap();
        let pages = Pages::create(&pages_dir, vec![Tier::new(1, b"/tier/objects").unwrap()], 0, 1024).unwrap();
        let tiers = tier_set(TierPolicy::Lru(0), dir);
        let index = CopyIndex::new(pages);
        let mut copies = PublishedCopies::new(index, tiers, channel().0, boot_ns());
        copies.tiers.observe_disks();
        for (ino, path) in [(1, b"/data/one"), (2, b"/data/two")] {
            assert!(copies.tiers.add_recovered(0, ino, QUOTA / 2, false));
            let identity = Identity {
                dev: 5,
                ino,
                size: QUOTA / 2,
                ..Identity::default()
            };
            let entry = Entry {
                directory: 0,
                name: b"file",
                identity,
                attributes: Attributes::default(),
                copy: ino,
                tier: 0,
                copy_ino: ino,
                copy_ctime: FileTime::default(),
                plain: true,
                inserted_at: 1,
                checked_at: 0,
            };
            assert!(copies.insert_new(path, entry));
        }
        copies
    }

    #[test]
    fn lru_removes_the_directory_that_was_used_longest_ago_to_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let mut copies = copies(dir.path());
        copies.sweeps.note_used_before(0, unix_s() - 100);
        copies.sweeps.note_used_before(1, unix_s() - 1000);
        assert!(copies.place(QUOTA / 4).is_ok());
        assert!(copies.index.of_file(5, 1).is_some() && copies.index.of_file(5, 2).is_none());
        let status = &copies.tiers.status()[0];
        assert_eq!((status.replaced_files, status.replaced_bytes, status.files), (1, QUOTA / 2, 1));
    }

    #[test]
    fn a_copy_that_fits_into_no_tier_removes_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut copies = copies(dir.path());
        assert!(copies.place(2 * QUOTA).is_err());
        assert!(copies.index.of_file(5, 1).is_some() && copies.index.of_file(5, 2).is_some());
    }
}
