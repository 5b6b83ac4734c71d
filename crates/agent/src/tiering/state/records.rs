//! Table from a source file, by device and inode, to the index records of its copy.

use std::collections::HashMap;

use forebay_contract::{Index, hash_pair};
use hashbrown::HashTable;

/// Record numbers by source inode. Takes four bytes a file, since the inode is in the record.
#[derive(Debug, Default)]
pub(crate) struct RecordsByFile {
    first: HashTable<u32>,
    /// Further records of a copy that has several names.
    more: HashMap<u64, Vec<u32>>,
}

/// Returns the device and inode of a record's source file.
pub(crate) fn file_of(index: &Index<'_>, number: u32) -> Option<(u64, u64)> {
    index
        .record(number)
        .and_then(|record| index.identity(record))
        .map(|identity| (identity.dev, identity.ino))
}

fn hash_of(index: &Index<'_>, number: u32) -> u64 {
    file_of(index, number).map_or(0, |(dev, ino)| hash_pair(0, dev, ino))
}

impl RecordsByFile {
    /// Returns a record of the copy of a file, if there is one.
    pub(crate) fn of_file(&self, index: &Index<'_>, dev: u64, ino: u64) -> Option<u32> {
        self.first
            .find(hash_pair(0, dev, ino), |number| file_of(index, *number) == Some((dev, ino)))
            .copied()
    }

    /// Adds a record.
    pub(crate) fn add(&mut self, index: &Index<'_>, number: u32) {
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

    /// Removes a record and returns the number of records that its copy has left.
    pub(crate) fn remove(&mut self, index: &Index<'_>, number: u32) -> usize {
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

    /// Returns all records of a copy, given one of them.
    pub(crate) fn all(&self, index: &Index<'_>, number: u32) -> Vec<u32> {
        let (Some((dev, ino)), Some(copy)) = (file_of(index, number), index.record(number).map(forebay_contract::Record::copy)) else {
            return Vec::new();
        };
        self.of_file(index, dev, ino)
            .into_iter()
            .chain(self.more.get(&copy).into_iter().flatten().copied())
            .collect()
    }

    /// Rebuilds the table after the index has grown, which changes all record numbers.
    pub(crate) fn rebuild(&mut self, index: &Index<'_>, records: u32) {
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
