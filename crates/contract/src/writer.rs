//! The agent's side of the index. The preload library calls nothing here.

use core::{
    fmt,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

use crate::{
    Attributes, CONTRACT_VERSION, FileTime, Identity, PATH_BYTES_MAX, TIERS_MAX,
    hash::{hash_bytes, hash_pair},
    index::{Class, DEAD, DETACHED, Directory, HEADER_BYTES, Index, IndexHeader, LIVE, MAGIC, PROBES_MAX, Record, Tier, split, tier_key},
    region::Region,
};

const CLASSES: u64 = 4096;
/// Room for names that an index reserves for each file, in bytes.
const NAME_BYTES: u64 = 32;
/// Number of files for each of which an index reserves one directory.
const DIRECTORY_FILES: u64 = 4;
/// Largest use of any part by one insertion, in bytes: a whole path.
pub const INSERTION_BYTES_MAX: u64 = PATH_BYTES_MAX as u64 + 1;

/// Positions of all parts in an index file of a given capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLayout {
    slots: u64,
    records: u64,
    directories: u64,
    names: u64,
}

impl IndexLayout {
    /// Returns a layout with room for this number of files, with names and directories as in common datasets.
    pub fn for_files(files: u64, spare: u64) -> Self {
        Self::with_room(files.max(spare), spare / DIRECTORY_FILES, files.max(spare) * NAME_BYTES)
    }

    /// Returns a layout with room for this number of records and directories and this many bytes of names (each below
    /// 2^32).
    pub fn with_room(records: u64, directories: u64, names: u64) -> Self {
        let bound = |n: u64| n.clamp(1024, u64::from(u32::MAX) - 1);
        let records = bound(records);
        // The tables are at most two thirds full, so that runs of slots stay short.
        Self {
            slots: (records + records / 2).next_power_of_two(),
            records,
            directories: bound(directories),
            names: bound(names).next_multiple_of(8),
        }
    }

    /// Returns the length of the file in bytes; the file is sparse until it is filled.
    pub const fn file_bytes(&self) -> u64 {
        self.names_at() + self.names
    }

    /// Returns the number of bytes at the start of the file that a look-up may touch: header and slots. They must be
    /// backed by memory before a program maps the file, since a read of a hole that can't be filled raises SIGBUS
    /// there.
    pub const fn tables_bytes(&self) -> u64 {
        self.records_at()
    }

    const fn inode_slots_at(&self) -> u64 {
        HEADER_BYTES + self.slots * 8
    }
    const fn records_at(&self) -> u64 {
        self.inode_slots_at() + self.slots * 8
    }
    const fn directories_at(&self) -> u64 {
        self.records_at() + self.records * size_of::<Record>() as u64
    }
    const fn classes_at(&self) -> u64 {
        self.directories_at() + self.directories * size_of::<Directory>() as u64
    }
    const fn names_at(&self) -> u64 {
        self.classes_at() + CLASSES * size_of::<Class>() as u64
    }
}

/// A table of the index is full: the next generation is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexFull;

impl fmt::Display for IndexFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the index is full")
    }
}

/// A name to publish.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Number of the spelled directory.
    pub directory: u32,
    /// Last component.
    pub name: &'a [u8],
    /// Version that the copy holds.
    pub identity: Identity,
    /// Attributes that `fstat` reports of the source besides.
    pub attributes: Attributes,
    /// Number of the copy.
    pub copy: u64,
    /// Tier of the copy.
    pub tier: usize,
    /// Inode of the copy.
    pub copy_ino: u64,
    /// Last change of the copy's inode.
    pub copy_ctime: FileTime,
    /// True if the path was seen to lead to the file without a symbolic link.
    pub plain: bool,
    /// Time of the insertion: only sweeps that begin later compare this record.
    pub inserted_at: u64,
    /// Time at which the name led to this version; 0: not known yet.
    pub checked_at: u64,
}

/// The only writer of an index file.
#[derive(Debug)]
pub struct IndexWriter<'a> {
    index: Index<'a>,
    records: u32,
    live: u32,
    directories: u32,
    classes: u32,
    names: u32,
}

impl<'a> IndexWriter<'a> {
    /// Lays out an empty index in a zeroed region of [`IndexLayout::file_bytes`].
    pub fn create(region: Region<'a>, layout: &IndexLayout, generation: u64, seed: u64, tiers: &[Tier]) -> Option<Self> {
        if (region.len() as u64) < layout.file_bytes() || tiers.len() > TIERS_MAX {
            return None;
        }
        let mut table = [Tier::new(0, b"")?; TIERS_MAX];
        table.get_mut(..tiers.len())?.copy_from_slice(tiers);
        let header = IndexHeader {
            magic: AtomicU64::new(0),
            version: u64::from(CONTRACT_VERSION),
            generation,
            seed,
            slots: layout.slots,
            path_slots_at: HEADER_BYTES,
            inode_slots_at: layout.inode_slots_at(),
            records: layout.records,
            records_at: layout.records_at(),
            directories: layout.directories,
            directories_at: layout.directories_at(),
            classes: CLASSES,
            classes_at: layout.classes_at(),
            names: layout.names,
            names_at: layout.names_at(),
            tier_count: tiers.len() as u64,
            tiers: table,
        };
        let place = region.slot::<IndexHeader>(0)?;
        // SAFETY: checked by `slot`, and nobody else has mapped a file whose generation is not published yet.
        unsafe { place.write(header) };
        region.at::<AtomicU64>(0)?.store(MAGIC, Release);
        Some(Self {
            index: Index::open(region)?,
            records: 0,
            live: 0,
            directories: 0,
            classes: 0,
            names: 0,
        })
    }

    /// Returns read access, as the preload library has it.
    pub const fn index(&self) -> Index<'a> {
        self.index
    }

    /// Returns the number of records that are usable or kept.
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// Returns the number of records written, dead ones included: their numbers run from 0 to this.
    pub const fn records(&self) -> u32 {
        self.records
    }

    /// Returns the number of directories: their numbers run from 0 to this.
    pub const fn directories(&self) -> u32 {
        self.directories
    }

    /// Returns offset and used bytes of each part that fills from its start. The next insertion may use
    /// [`INSERTION_BYTES_MAX`] more of each, which must be backed by memory beforehand.
    pub const fn parts(&self) -> [(u64, u64); 4] {
        let header = self.index.header;
        let [records, directories, classes, names] =
            bytes_of_parts(self.records as u64, self.directories as u64, self.classes as u64, self.names as u64);
        [
            (header.records_at, records),
            (header.directories_at, directories),
            (header.classes_at, classes),
            (header.names_at, names),
        ]
    }

    /// Returns the layout of the next generation: twice the room of what [`Self::copy_into`] copies, and room for
    /// `spare` files more. Returns besides the number of bytes of each of its [`Self::parts`] that copying will fill.
    ///
    /// So a generation takes at least as many new records as it began with, and each of them bears the same cost of
    /// copying. If records die as fast as new ones come, the size follows the live ones.
    pub fn next_layout(&self, spare: u64, still_open: impl Fn(&Record) -> bool) -> (IndexLayout, [u64; 4]) {
        let paths = (0..self.directories).filter_map(|number| self.index.directory(number));
        let mut names: u64 = paths.map(|directory| u64::from(directory.path_len)).sum();
        let mut records = 0;
        for record in self.to_bring(&still_open) {
            names += u64::from(record.name_len);
            records += 1;
        }
        let (directories, classes) = (u64::from(self.directories), u64::from(self.classes));
        let layout = IndexLayout::with_room(
            records * 2 + spare,
            directories * 2 + spare / DIRECTORY_FILES,
            names * 2 + spare * NAME_BYTES,
        );
        (layout, bytes_of_parts(records, directories, classes, names))
    }

    /// Returns the records that the next generation needs: kept ones, and those of dropped copies that a process still
    /// has open, since a descriptor leads back to its source while it exists.
    fn to_bring(&self, still_open: &impl Fn(&Record) -> bool) -> impl Iterator<Item = &'a Record> {
        (0..self.records)
            .filter_map(|number| self.index.record(number))
            .filter(|record| record.is_kept() || still_open(record))
    }

    /// Adds a spelled directory (no final slash). Its number stays the same in every later generation.
    ///
    /// # Errors
    /// [`IndexFull`].
    pub fn add_directory(&mut self, path: &[u8], dev: u64, ino: u64) -> Result<u32, IndexFull> {
        let number = self.directories;
        if u64::from(number) >= self.index.header.directories || path.len() > PATH_BYTES_MAX {
            return Err(IndexFull);
        }
        let path_at = self.add_name(path)?;
        let at = self.index.header.directories_at + u64::from(number) * size_of::<Directory>() as u64;
        let place = self.index.region.slot::<Directory>(at).ok_or(IndexFull)?;
        let directory = Directory {
            path_at,
            path_len: path.len() as u32,
            dev: AtomicU64::new(dev),
            ino: AtomicU64::new(ino),
            swept_at: AtomicU64::new(0),
            way_checked_at: AtomicU64::new(0),
        };
        // SAFETY: checked by `slot`; no record names this directory yet, so nobody reads it.
        unsafe { place.write(directory) };
        self.directories += 1;
        Ok(number)
    }

    /// Records the inode that a spelled directory now leads to.
    pub fn set_directory_inode(&self, number: u32, dev: u64, ino: u64) {
        if let Some(directory) = self.index.directory(number) {
            directory.dev.store(dev, Relaxed);
            directory.ino.store(ino, Relaxed);
        }
    }

    /// Records that a directory's path, by a look that began at `at`, led to the same directory as before.
    pub fn set_way_checked(&self, number: u32, at: u64) {
        if let Some(directory) = self.index.directory(number) {
            directory.way_checked_at.store(at, Release);
        }
    }

    /// Records that a sweep which began at `at` compared all records of a directory with the source (0: not valid any
    /// more).
    pub fn set_swept(&self, number: u32, at: u64) {
        if let Some(directory) = self.index.directory(number) {
            directory.swept_at.store(at, Release);
        }
    }

    /// Publishes a name, and replaces a live record of the same name. Returns the record's number.
    ///
    /// # Errors
    /// [`IndexFull`]: nothing is changed.
    pub fn insert(&mut self, entry: &Entry<'_>) -> Result<u32, IndexFull> {
        let index = self.index;
        let header = index.header;
        let directory = index
            .directory(entry.directory)
            .and_then(|d| index.directory_path(d))
            .ok_or(IndexFull)?;
        let mut path = [0u8; PATH_BYTES_MAX + 1];
        let path = join(directory, entry.name, &mut path).ok_or(IndexFull)?;
        if u64::from(self.records) >= header.records || split(path).is_none() || entry.name.len() > usize::from(u16::MAX) {
            return Err(IndexFull);
        }
        let path_hash = hash_bytes(header.seed, path);
        let inode_hash = hash_pair(header.seed, tier_key(self.first_tier_on_device(entry.tier)), entry.copy_ino);
        let replaced = index.find_kept(path).map(|found| found.0);
        let path_slot = self.free_slot(header.path_slots_at, path_hash, replaced).ok_or(IndexFull)?;
        let inode_slot = self.free_slot(header.inode_slots_at, inode_hash, None).ok_or(IndexFull)?;
        let class = self.class(&entry.identity, &entry.attributes)?;
        let name_at = match replaced.and_then(|number| index.record(number)) {
            Some(old) => old.name_at,
            None => self.add_name(entry.name)?,
        };
        let number = self.records;
        let place = index
            .region
            .slot::<Record>(header.records_at + u64::from(number) * size_of::<Record>() as u64)
            .ok_or(IndexFull)?;
        // SAFETY: checked by `slot`; no slot leads to this number yet.
        unsafe { place.write(record_of(entry, class, name_at)) };
        self.records += 1;
        self.live += 1;
        let word = |hash: u64| (hash >> 32) << 32 | u64::from(number + 1);
        inode_slot.store(word(inode_hash), Release);
        path_slot.store(word(path_hash), Release);
        if let Some(record) = index.record(number) {
            record.inserted_at.store(entry.inserted_at, Release);
        }
        if let Some(old) = replaced {
            self.kill(old);
        }
        Ok(number)
    }

    /// Makes a record usable again: its name led to the same version at `at`.
    pub fn confirm(&self, number: u32, at: u64) {
        if let Some(record) = self.index.record(number)
            && record.is_kept()
        {
            record.checked_at.fetch_max(at, Release);
            record.state.store(LIVE, Release);
        }
    }

    /// Makes a record unusable; its copy stays, for a later [`Self::confirm`].
    pub fn detach(&self, number: u32) {
        if let Some(record) = self.index.record(number)
            && record.is_live()
        {
            record.state.store(DETACHED, Release);
        }
    }

    /// Makes a record unusable for good.
    pub fn kill(&mut self, number: u32) {
        if let Some(record) = self.index.record(number)
            && record.is_kept()
        {
            record.state.store(DEAD, Release);
            self.live -= 1;
        }
    }

    /// Writes all directories, the kept records and those of dropped copies that are `still_open` into a new index.
    ///
    /// # Errors
    /// [`IndexFull`]: the new one is too small as well.
    pub fn copy_into(&self, next: &mut IndexWriter<'_>, still_open: impl Fn(&Record) -> bool) -> Result<(), IndexFull> {
        for number in 0..self.directories {
            let directory = self.index.directory(number).ok_or(IndexFull)?;
            let path = self.index.directory_path(directory).ok_or(IndexFull)?;
            let same = next.add_directory(path, directory.dev(), directory.ino())?;
            next.set_swept(same, directory.swept_at());
            next.set_way_checked(same, directory.way_checked_at());
        }
        // In their order: all records of one name but the last are dead.
        for record in self.to_bring(&still_open) {
            let entry = self.entry(record).ok_or(IndexFull)?;
            let copied = next.insert(&entry)?;
            if !record.is_kept() {
                next.kill(copied);
            } else if !record.is_live() {
                next.detach(copied);
            }
        }
        Ok(())
    }

    /// Returns the entry that a record was made from.
    pub fn entry(&self, record: &Record) -> Option<Entry<'a>> {
        Some(Entry {
            directory: record.directory,
            name: self.index.record_name(record)?,
            identity: self.index.identity(record)?,
            attributes: self.index.attributes(record)?,
            copy: record.copy,
            tier: record.tier(),
            copy_ino: record.copy_ino,
            copy_ctime: record.copy_ctime(),
            plain: record.is_plain(),
            inserted_at: record.inserted_at(),
            checked_at: record.checked_at(),
        })
    }

    fn first_tier_on_device(&self, tier: usize) -> usize {
        let tiers = self.index.tiers();
        let dev = tiers.get(tier).map(Tier::dev);
        tiers.iter().position(|t| Some(t.dev()) == dev).unwrap_or(tier)
    }

    /// Returns a slot for a new word: that of `replaced`, else the first free one of the run.
    fn free_slot(&self, slots_at: u64, hash: u64, replaced: Option<u32>) -> Option<&'a AtomicU64> {
        let mask = self.index.header.slots - 1;
        // The limit is shorter than the one of readers. At two thirds full the longest run of 1.3 million names is
        // about 200.
        for step in 0..PROBES_MAX * 3 / 4 {
            let slot = self.index.region.element::<AtomicU64>(slots_at, hash.wrapping_add(step) & mask)?;
            let word = slot.load(Relaxed);
            if word == 0 || (replaced.is_some() && replaced == (word as u32).checked_sub(1)) {
                return Some(slot);
            }
        }
        None
    }

    fn class(&mut self, identity: &Identity, attributes: &Attributes) -> Result<u32, IndexFull> {
        let Attributes {
            mode,
            uid,
            gid,
            nlink,
            blksize,
            ..
        } = *attributes;
        let class = Class {
            dev: identity.dev,
            mode,
            uid,
            gid,
            nlink,
            blksize,
            reserved: 0,
        };
        let header = self.index.header;
        // Datasets have few classes. The newest is searched first, since files come by directory.
        for number in (0..self.classes).rev() {
            if self.index.region.element::<Class>(header.classes_at, u64::from(number)) == Some(&class) {
                return Ok(number);
            }
        }
        if u64::from(self.classes) >= header.classes {
            return Err(IndexFull);
        }
        let at = header.classes_at + u64::from(self.classes) * size_of::<Class>() as u64;
        let place = self.index.region.slot::<Class>(at).ok_or(IndexFull)?;
        // SAFETY: checked by `slot`; no record names this class yet.
        unsafe { place.write(class) };
        self.classes += 1;
        Ok(self.classes - 1)
    }

    fn add_name(&mut self, name: &[u8]) -> Result<u32, IndexFull> {
        let at = self.names;
        if u64::from(at) + name.len() as u64 > self.index.header.names {
            return Err(IndexFull);
        }
        let to = self
            .index
            .region
            .base()
            .as_ptr()
            .wrapping_add((self.index.header.names_at + u64::from(at)) as usize);
        // SAFETY: inside the names, checked above; `name` is not in this part, which nothing leads to yet.
        unsafe { core::ptr::copy_nonoverlapping(name.as_ptr(), to, name.len()) };
        self.names += name.len() as u32;
        Ok(at)
    }
}

/// Returns the lengths in bytes of the parts that fill from their start.
const fn bytes_of_parts(records: u64, directories: u64, classes: u64, names: u64) -> [u64; 4] {
    [
        records * size_of::<Record>() as u64,
        directories * size_of::<Directory>() as u64,
        classes * size_of::<Class>() as u64,
        names,
    ]
}

fn record_of(entry: &Entry<'_>, class: u32, name_at: u32) -> Record {
    Record {
        checked_at: AtomicU64::new(entry.checked_at),
        inserted_at: AtomicU64::new(u64::MAX),
        copy: entry.copy,
        copy_ino: entry.copy_ino,
        copy_ctime_sec: entry.copy_ctime.sec,
        ino: entry.identity.ino,
        size: entry.identity.size,
        mtime_sec: entry.identity.mtime.sec,
        ctime_sec: entry.identity.ctime.sec,
        blocks: entry.attributes.blocks,
        copy_ctime_nsec: entry.copy_ctime.nsec,
        mtime_nsec: entry.identity.mtime.nsec,
        ctime_nsec: entry.identity.ctime.nsec,
        name_at,
        directory: entry.directory,
        class,
        state: AtomicU32::new(LIVE),
        name_len: entry.name.len() as u16,
        tier: entry.tier as u8,
        plain: u8::from(entry.plain),
    }
}

/// Writes `directory/name` to `out`.
fn join<'b>(directory: &[u8], name: &[u8], out: &'b mut [u8]) -> Option<&'b [u8]> {
    let len = directory.len() + 1 + name.len();
    let path = out.get_mut(..len)?;
    let (front, back) = path.split_at_mut_checked(directory.len())?;
    front.copy_from_slice(directory);
    let (slash, rest) = back.split_first_mut()?;
    *slash = b'/';
    rest.copy_from_slice(name);
    Some(path)
}
