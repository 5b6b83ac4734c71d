//! From a source file, by inode, to the records of its copy; and the taking away of records and copies.

use std::collections::HashMap;

use forebay_contract::{Freshness, Index, hash_pair};
use forebay_policy::{TierIndex, fill_first};
use hashbrown::HashTable;
use rustix::io::Errno;

use super::Clerk;

/// Record numbers by source inode: four bytes a file, since the inode stands in the record.
#[derive(Debug, Default)]
pub(super) struct Names {
    first: HashTable<u32>,
    /// Further records of a copy that has several names.
    more: HashMap<u64, Vec<u32>>,
}

fn file_of(index: &Index<'_>, number: u32) -> Option<(u64, u64)> {
    index
        .record(number)
        .and_then(|record| index.identity(record))
        .map(|identity| (identity.dev, identity.ino))
}

fn hash_of(index: &Index<'_>, number: u32) -> u64 {
    file_of(index, number).map_or(0, |(dev, ino)| hash_pair(0, dev, ino))
}

impl Names {
    /// A record of the copy of this file, if there is one.
    pub(super) fn of_file(&self, index: &Index<'_>, dev: u64, ino: u64) -> Option<u32> {
        self.first
            .find(hash_pair(0, dev, ino), |number| file_of(index, *number) == Some((dev, ino)))
            .copied()
    }

    fn add(&mut self, index: &Index<'_>, number: u32) {
        let Some((dev, ino)) = file_of(index, number) else { return };
        let Some(copy) = index.record(number).map(forebay_contract::Record::copy) else {
            return;
        };
        if self.of_file(index, dev, ino).is_some() {
            self.more.entry(copy).or_default().push(number);
        } else {
            self.first.insert_unique(hash_pair(0, dev, ino), number, |n| hash_of(index, *n));
        }
    }

    /// Forgets a record; gives how many its copy has left.
    fn remove(&mut self, index: &Index<'_>, number: u32) -> usize {
        let (Some((dev, ino)), Some(copy)) = (file_of(index, number), index.record(number).map(forebay_contract::Record::copy)) else {
            return 0;
        };
        if let Some(more) = self.more.get_mut(&copy) {
            more.retain(|other| *other != number);
            let left = more.len();
            if left == 0 {
                self.more.remove(&copy);
            }
            if let Ok(first) = self.first.find_entry(hash_pair(0, dev, ino), |n| *n == number) {
                first.remove();
                // Another name takes its place.
                if let Some(next) = self.more.get_mut(&copy).and_then(Vec::pop) {
                    self.first.insert_unique(hash_pair(0, dev, ino), next, |n| hash_of(index, *n));
                }
                if self.more.get(&copy).is_some_and(Vec::is_empty) {
                    self.more.remove(&copy);
                }
                return left;
            }
            return left + 1;
        }
        if let Ok(first) = self.first.find_entry(hash_pair(0, dev, ino), |n| *n == number) {
            first.remove();
        }
        0
    }

    /// All records of a copy, given one of them.
    fn all(&self, index: &Index<'_>, number: u32) -> Vec<u32> {
        let (Some((dev, ino)), Some(copy)) = (file_of(index, number), index.record(number).map(forebay_contract::Record::copy)) else {
            return Vec::new();
        };
        self.of_file(index, dev, ino)
            .into_iter()
            .chain(self.more.get(&copy).into_iter().flatten().copied())
            .collect()
    }

    /// Builds the table anew: record numbers change when the index grows.
    pub(super) fn rebuild(&mut self, index: &Index<'_>, records: u32) {
        self.first.clear();
        self.more.clear();
        for number in 0..records {
            if index.record(number).is_some_and(forebay_contract::Record::is_kept) {
                self.add(index, number);
            }
        }
        self.first.shrink_to_fit(|n| hash_of(index, *n));
    }
}

impl Clerk {
    /// Takes note of a record that has just been written; `grown`: all numbers are new.
    pub(super) fn note_record(&mut self, number: u32, directory: u32, grown: bool) {
        if grown {
            let records = self.pages.writer_ref().records();
            self.names.rebuild(&self.pages.index(), records);
        } else {
            self.names.add(&self.pages.index(), number);
        }
        let index = self.pages.index();
        let is_listing = index.record(number).is_some_and(|record| index.is_listing(record));
        if let Some(state) = self.directory_states.get_mut(directory as usize) {
            state.names += 1;
            state.listings += u32::from(is_listing);
        }
    }

    /// Takes a name from the doors, and with it all names of its copy, which is removed.
    pub(super) fn drop_record(&mut self, number: u32) {
        let index = self.pages.index();
        let Some(record) = index.record(number).filter(|record| record.is_kept()) else {
            return;
        };
        let (copy, tier, size, directory) = (record.copy(), record.tier(), record.size(), record.directory());
        let is_listing = index.is_listing(record);
        let Some((dev, ino)) = file_of(&index, number) else { return };
        let left = self.names.remove(&index, number);
        self.pages.writer().kill(number);
        if let Some(state) = self.directory_states.get_mut(directory as usize) {
            state.names = state.names.saturating_sub(1);
            state.listings = state.listings.saturating_sub(u32::from(is_listing));
        }
        if left == 0 {
            self.remove_copy(copy, tier, size, is_listing);
        } else if let Some(other) = self.names.of_file(&self.pages.index(), dev, ino) {
            // The catalogue can't forget one name of a copy: the next run would find it again.
            self.drop_record(other);
        }
    }

    /// Whether the copy of a record is still the file that was published. A door that could not open it hands the source over.
    pub(super) fn copy_is_there(&mut self, number: u32) -> bool {
        let index = self.pages.index();
        let Some(record) = index.record(number) else { return false };
        let Some(state) = self.tiers.get(record.tier()) else { return false };
        let found = state.tier.stat_copy(record.copy());
        match found {
            Ok(stat) => (stat.ino, stat.size, stat.ctime) == (record.copy_ino(), record.size(), record.copy_ctime()),
            // A copy that is lost is no fault of its tier; a tier that is gone is.
            Err(error) if error.errno() == Some(Errno::NOENT) && state.tier.is_in_place() => false,
            Err(error) => {
                let tier = record.tier();
                self.tier_fault(tier, &error);
                false
            }
        }
    }

    /// Takes all names of a record's copy from the doors and removes the copy.
    pub(super) fn drop_copy_of(&mut self, number: u32) {
        for other in self.names.all(&self.pages.index(), number) {
            self.drop_record(other);
        }
    }

    /// Removes what was changed through a door and not checked since: tombstones end with the agent, copies do not.
    pub(super) fn drop_changed(&mut self) {
        if self.control.newest_tombstone() == 0 {
            return;
        }
        let index = self.pages.index();
        let is_changed = |number: &u32| {
            let found = index.record(*number).filter(|record| record.is_kept()).and_then(|record| {
                let directory = index.directory(record.directory())?;
                let (name, identity) = (index.record_name(record)?, index.identity(record)?);
                Some(
                    self.control
                        .usable(record, directory, name, &identity, Freshness::Immutable, 0)
                        .is_err(),
                )
            });
            found == Some(true)
        };
        let changed: Vec<u32> = (0..self.pages.writer_ref().records()).filter(is_changed).collect();
        for number in changed {
            self.drop_record(number);
        }
    }

    pub(super) fn remove_copy(&mut self, copy: u64, tier: usize, size: u64, is_listing: bool) {
        if let Some(state) = self.tiers.get_mut(tier) {
            let copies = state.copies(is_listing);
            *copies = copies.saturating_sub(1);
            if let Err(error) = state.tier.remove(copy) {
                self.log.line(&format!("a copy could not be removed: {error}"));
                self.count_leftovers(tier);
            }
        }
        fill_first::step(
            &mut self.policy,
            fill_first::Event::Removed {
                tier: TierIndex(tier),
                size,
            },
        );
        self.publish_room();
    }
}
