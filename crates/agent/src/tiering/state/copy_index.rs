//! The shared index of copies, as the agent writes it: names, directories, and the records of each source file.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use forebay_contract::{Entry, Index, IndexWriter, Record};

use crate::{
    host::log,
    tiering::{
        limits::INDEX_FULL_PAUSE,
        pages::{IndexFile, NoRoom, Pages},
        state::records::{RecordsByFile, file_of},
    },
};

/// A record that was removed from the index.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RemovedRecord {
    pub(crate) copy: u64,
    pub(crate) tier: usize,
    pub(crate) size: u64,
    pub(crate) directory: u32,
    /// True for a record of a cached directory.
    pub(crate) is_directory: bool,
    /// Records that the copy has left.
    pub(crate) left: usize,
    /// One of the records that are left.
    pub(crate) other: Option<u32>,
}

/// Writer of the shared index, with tables by source file and by directory path.
#[derive(Debug)]
pub(crate) struct CopyIndex {
    pages: Pages,
    records: RecordsByFile,
    /// Numbers of directories by path.
    directories: HashMap<Vec<u8>, u32>,
    /// End of the pause after an insertion that found no room.
    no_room_until: Option<Instant>,
}

impl CopyIndex {
    pub(crate) fn new(pages: Pages) -> Self {
        Self {
            pages,
            records: RecordsByFile::default(),
            directories: HashMap::new(),
            no_room_until: None,
        }
    }

    pub(crate) fn index(&self) -> Index<'_> {
        self.pages.index()
    }

    pub(crate) const fn writer(&mut self) -> &mut IndexWriter<'static> {
        self.pages.writer()
    }

    /// Returns the current index file, for another thread to read.
    pub(crate) fn current(&self) -> Arc<IndexFile> {
        self.pages.current()
    }

    /// Removes the shared files.
    pub(crate) fn remove_files(&self) {
        self.pages.remove();
    }

    /// Returns the number of records, removed ones included.
    pub(crate) fn records(&self) -> u32 {
        self.pages.writer_ref().records()
    }

    /// Returns the numbers of kept records that satisfy `wanted`. Looks at all records.
    pub(crate) fn kept_records(&self, wanted: impl Fn(&Index<'_>, &Record) -> bool) -> Vec<u32> {
        let index = self.index();
        let is_wanted = |number: &u32| {
            index
                .record(*number)
                .is_some_and(|record| record.is_kept() && wanted(&index, record))
        };
        (0..self.records()).filter(is_wanted).collect()
    }

    pub(crate) fn entry_of(&self, record: &Record) -> Option<Entry<'_>> {
        self.pages.writer_ref().entry(record)
    }

    /// Returns a record of the copy of a file, if there is one.
    pub(crate) fn of_file(&self, dev: u64, ino: u64) -> Option<u32> {
        self.records.of_file(&self.index(), dev, ino)
    }

    /// Returns all records of the copy of a record.
    pub(crate) fn records_of_copy(&self, number: u32) -> Vec<u32> {
        self.records.all(&self.index(), number)
    }

    pub(crate) fn directory_number(&self, path: &[u8]) -> Option<u32> {
        self.directories.get(path).copied()
    }

    pub(crate) fn directories(&self) -> impl Iterator<Item = (&[u8], u32)> {
        self.directories.iter().map(|(path, number)| (path.as_slice(), *number))
    }

    /// Adds a directory and returns its number. If the index has to grow, `open` tells which copies are open.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn add_directory(&mut self, path: &[u8], open: &dyn Fn() -> Option<HashSet<u64>>) -> Result<u32, NoRoom> {
        let (number, grown) = self.pages.add_directory(path, open)?;
        if grown {
            self.rebuild_records();
        }
        self.directories.insert(path.to_vec(), number);
        Ok(number)
    }

    /// Adds a name of a copy and returns true if it is a cached directory's. If the index has to grow, `open` tells
    /// which copies are open.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn insert(&mut self, entry: &Entry<'_>, open: &dyn Fn() -> Option<HashSet<u64>>) -> Result<bool, NoRoom> {
        let (number, grown) = self.pages.insert(entry, open)?;
        if grown {
            self.rebuild_records();
        } else {
            self.records.add(&self.pages.index(), number);
        }
        let index = self.index();
        Ok(index.record(number).is_some_and(|record| index.is_cached_directory(record)))
    }

    /// Removes a record, so that no program finds the copy by that name any more.
    pub(crate) fn remove(&mut self, number: u32) -> Option<RemovedRecord> {
        let index = self.pages.index();
        let record = index.record(number).filter(|record| record.is_kept())?;
        let (dev, ino) = file_of(&index, number)?;
        let mut removed = RemovedRecord {
            copy: record.copy(),
            tier: record.tier(),
            size: record.size(),
            directory: record.directory(),
            is_directory: index.is_cached_directory(record),
            left: self.records.remove(&index, number),
            other: None,
        };
        self.pages.writer().kill(number);
        removed.other = (removed.left > 0).then(|| self.of_file(dev, ino)).flatten();
        Some(removed)
    }

    fn rebuild_records(&mut self) {
        let records = self.records();
        self.records.rebuild(&self.pages.index(), records);
    }

    /// Starts a pause in which no copy is begun, since an insertion found no room. Existing copies are still served.
    pub(crate) fn pause(&mut self, no_room: &NoRoom) {
        if no_room.grown {
            self.rebuild_records();
        }
        if !self.is_full() {
            log::fallback(&format!("no more copies for now: {}", no_room.why));
        }
        self.no_room_until = Some(Instant::now() + INDEX_FULL_PAUSE);
    }

    /// Returns true while the index had no room a short time ago. Each try to grow it takes time and memory.
    pub(crate) fn is_full(&self) -> bool {
        self.no_room_until.is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(test)]
mod tests {
    use forebay_contract::{Attributes, FileTime, Identity, Tier};

    use super::*;

    fn entry(directory: u32, name: &str, ino: u64) -> Entry<'_> {
        Entry {
            directory,
            name: name.as_bytes(),
            identity: Identity {
                dev: 5,
                ino,
                ..Identity::default()
            },
            attributes: Attributes::default(),
            copy: ino + 100,
            tier: 0,
            copy_ino: ino,
            copy_ctime: FileTime::default(),
            plain: true,
            inserted_at: 1,
            checked_at: 1,
        }
    }

    #[test]
    fn a_copy_is_found_by_its_file_until_its_last_name_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tier = Tier::new(1, b"/tier/objects").unwrap();
        let pages = Pages::create(dir.path(), vec![tier], 0, 1024).unwrap();
        let mut index = CopyIndex::new(pages);
        let none_open = || Some(HashSet::new());
        let directory = index.add_directory(b"/data", &none_open).unwrap();
        assert_eq!(index.directory_number(b"/data"), Some(directory));
        for (name, ino) in [("a", 1), ("b", 2), ("hard link of a", 1)] {
            assert!(!index.insert(&entry(directory, name, ino), &none_open).unwrap());
        }
        assert_eq!(index.kept_records(|_, record| record.copy() == 101).len(), 2);
        let first = index.of_file(5, 1).unwrap();
        assert_eq!(index.records_of_copy(first).len(), 2);
        let removed = index.remove(first).unwrap();
        assert_eq!((removed.copy, removed.left), (101, 1));
        let other = removed.other.unwrap();
        assert_eq!(index.remove(other).map(|removed| (removed.left, removed.other)), Some((0, None)));
        assert_eq!(index.remove(other), None, "it is gone already");
        assert_eq!((index.of_file(5, 1), index.of_file(5, 2).is_some()), (None, true));
    }

    #[test]
    fn an_insertion_without_room_pauses_copies() {
        let dir = tempfile::tempdir().unwrap();
        let tier = Tier::new(1, b"/tier/objects").unwrap();
        let pages = Pages::create(dir.path(), vec![tier], 0, 1024).unwrap();
        let mut index = CopyIndex::new(pages);
        assert!(!index.is_full());
        index.pause(&NoRoom {
            grown: true,
            why: crate::host::error::AgentError::TooLarge { what: "one more file" },
        });
        assert!(index.is_full());
    }
}
