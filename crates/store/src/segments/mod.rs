//! Extents (samples, or parts of files) packed into large files, for the loader: creating a file for each would cost more than reading it.
//!
//! A catalogue says what lies where. Bytes are written first and their record afterwards, so that an extent is there whole or not at all; a place is
//! used again only after the record is written that gives it up. Every read is compared with the checksum of its record: what a crash, a power loss or a failing disk
//! left is a miss, never other bytes. Nothing needs to be synced, and nothing is verified before it is asked for.
//!
//! Who needs an extent *claims* it. What nobody claims stays as long as nobody needs its room; then the one goes that was claimed the longest time ago.

mod log;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_contract::Identity;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use self::log::{Log, Record, Stored};
use self::room::{Place, Room};
use crate::disk::{self, Disk, DiskFile, Folder, Lease, Name, RealDisk, uninterrupted};
use crate::error::StoreError;
use crate::opening;
use crate::root;
use crate::secret::{self, Secret};
use crate::tier::{FreeFloor, guard, list_objects};

/// What FORMAT says of the layout that this version reads and writes.
const FORMAT: &[u8] = b"forebay segments 1\n";

/// Which extent of which file: a digest of path, offset and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExtentKey([u8; 16]);

impl ExtentKey {
    /// The extent of `length` bytes at `offset` of the file with this path; `u64::MAX`: up to its end.
    pub fn new(path: &[u8], offset: u64, length: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&offset.to_le_bytes()).update(&length.to_le_bytes()).update(path);
        Self(first_half(&hasher))
    }
}

/// Which version of a file: a digest of its inode, size and times. Device numbers change with each mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version([u8; 16]);

impl Version {
    /// The version that a file is of now.
    pub fn of(identity: &Identity) -> Self {
        let Identity {
            ino, size, mtime, ctime, ..
        } = *identity;
        let mut hasher = blake3::Hasher::new();
        for number in [
            ino,
            size,
            mtime.sec as u64,
            u64::from(mtime.nsec),
            ctime.sec as u64,
            u64::from(ctime.nsec),
        ] {
            hasher.update(&number.to_le_bytes());
        }
        Self(first_half(&hasher))
    }

    /// The version of an object that has this mark.
    pub fn of_object(mark: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"object").update(&mark.to_le_bytes());
        Self(first_half(&hasher))
    }

    /// One that no file is of: what is stored as this is found by nobody but who has it.
    pub fn of_nothing() -> Self {
        let mut random = [0; 16];
        secret::fill_random(&mut random);
        Self(random)
    }
}

fn first_half(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut half = [0; 16];
    hasher.finalize_xof().fill(&mut half);
    half
}

/// Segments as they are configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentsConfig {
    /// An existing directory on a local file system; the private root is made in it.
    pub dir: PathBuf,
    /// Most bytes of all segments together.
    pub quota_bytes: u64,
    /// Length of a segment: [`crate::limits::SEGMENT_BYTES`], but in tests.
    pub segment_bytes: u64,
    /// What is left free for others.
    pub free_floor: FreeFloor,
}

/// An extent that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The version of its file.
    pub version: Version,
    /// Its length.
    pub bytes: u32,
}

/// Open segments, leased to this process until this is dropped.
#[derive(Debug)]
pub struct Segments {
    config: SegmentsConfig,
    disk: Arc<dyn Disk>,
    root: PathBuf,
    state: Mutex<State>,
    /// What was let go and is still claimed in `state`. Whoever has this locked asks nothing of the disk.
    let_go: Mutex<Vec<ExtentKey>>,
    _lease: Box<dyn Lease>,
}

#[derive(Debug)]
struct State {
    log: Log,
    room: Room,
    extents: HashMap<ExtentKey, Extent>,
    /// What nobody claims, by when it was claimed last.
    unclaimed: BTreeMap<u64, ExtentKey>,
    /// Counts claims; stands for the time.
    ticks: u64,
    /// Removed, but not yet by a record: their places are not to be used again.
    unwritten: Vec<Stored>,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    stored: Stored,
    claims: u32,
    /// When it was claimed or let go last.
    tick: u64,
}

impl Stored {
    fn place(&self) -> Place {
        Place {
            segment: self.segment,
            offset: self.offset,
            bytes: u64::from(self.bytes),
        }
    }
}

impl Segments {
    /// Opens the segments in `config.dir` for the user `uid`, makes their private root where it is missing, and leases it. What is there is claimed by nobody.
    pub fn open(config: SegmentsConfig, secret: &Secret, uid: u32) -> Result<Self, StoreError> {
        let path = root::root_path(&config.dir, uid);
        let fd = root::open_or_make(&config.dir, uid)?;
        let disk = RealDisk::new(fd).map_err(|errno| StoreError::tier(&path, "open", errno))?;
        Self::open_on(Arc::new(disk), path, config, secret)
    }

    /// Opens segments on any disk, whose root is known to be private; `root` is only for messages.
    pub fn open_on(disk: Arc<dyn Disk>, root: PathBuf, config: SegmentsConfig, secret: &Secret) -> Result<Self, StoreError> {
        let lease = opening::take(&*disk, &root, &config.dir, FORMAT)?;
        let stat = uninterrupted(|| disk.stat_root()).map_err(|errno| StoreError::tier(&root, "stat", errno))?;
        let key = secret.key(format!("forebay segments 1, root {}", stat.identity.ino).as_bytes());
        let (log, stored) = Log::open(Arc::clone(&disk), root.clone(), key)?;
        let mut state = State {
            log,
            room: Room::new(config.quota_bytes, config.segment_bytes),
            extents: HashMap::new(),
            unclaimed: BTreeMap::new(),
            ticks: 0,
            unwritten: Vec::new(),
        };
        for id in present(&*disk, &root, &stored)? {
            if !state.room.add(id, None) {
                remove_segment(&*disk, &root, id)?;
            }
        }
        for stored in stored {
            state.bring(stored);
        }
        state.write_removals()?;
        Ok(Self {
            config,
            disk,
            root,
            state: Mutex::new(state),
            let_go: Mutex::default(),
            _lease: lease,
        })
    }

    /// The state, without what was let go before.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = guard(&self.state);
        let let_go = std::mem::take(&mut *guard(&self.let_go));
        for key in let_go {
            state.release(key);
        }
        state
    }

    /// What is there of an extent.
    pub fn find(&self, key: ExtentKey) -> Option<Found> {
        let state = self.state();
        let Stored { version, bytes, .. } = state.extents.get(&key)?.stored;
        Some(Found { version, bytes })
    }

    /// Claims an extent of this version; `false` if it is not there.
    pub fn claim(&self, key: ExtentKey, version: Version) -> bool {
        self.state().claim(key, version)
    }

    /// Lets an extent go that was claimed, by [`Self::claim`] or [`Self::put`]. Others may be storing something on a disk that hangs: this does not wait for them.
    pub fn release(&self, key: ExtentKey) {
        guard(&self.let_go).push(key);
    }

    /// Bytes of all extents.
    pub fn used_bytes(&self) -> u64 {
        guard(&self.state).room.used_bytes()
    }

    /// Extents that there are.
    pub fn count(&self) -> usize {
        guard(&self.state).extents.len()
    }

    /// Stores an extent, and claims it. One of another version is given up for it.
    ///
    /// # Errors
    /// [`StoreError::Full`] where there is no room beside what is claimed, or the file system has none above the free floor.
    pub fn put(&self, key: ExtentKey, version: Version, bytes: &[u8]) -> Result<(), StoreError> {
        let Ok(length) = u32::try_from(bytes.len()) else {
            return Err(self.error("store in", Errno::FBIG));
        };
        let place = {
            let state = &mut *self.state();
            match state.extents.get(&key).map(|extent| extent.stored.version) {
                Some(found) if found == version => {
                    state.claim(key, version);
                    return Ok(());
                }
                Some(_) => state.remove(key)?,
                None => {}
            }
            self.reserve(state, u64::from(length))?
        };
        let stored = Stored {
            key,
            version,
            segment: place.segment,
            offset: place.offset,
            bytes: length,
            checksum: XxHash3_128::oneshot(bytes).to_le_bytes(),
        };
        let written = self
            .file(place.segment)
            .and_then(|file| disk::write_all_at(&*file, bytes, place.offset).map_err(|errno| self.error("write a segment of", errno)));
        self.finish(stored, written)
    }

    /// The bytes of an extent are written, or could not be. It is stored then, and claimed.
    fn finish(&self, stored: Stored, written: Result<(), StoreError>) -> Result<(), StoreError> {
        let (key, place) = (stored.key, stored.place());
        let state = &mut *self.state();
        // Somebody else may have been faster, with this version or another.
        if written.is_err() || state.claim(key, stored.version) {
            state.room.give(place);
            return written;
        }
        if state.extents.contains_key(&key)
            && let Err(error) = state.remove(key)
        {
            state.room.give(place);
            return Err(error);
        }
        state.room.grown(place);
        state.store(stored)
    }

    /// Fills `into` with an extent of this version, whose length it has; `false` if that is not there.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where its bytes are not what was written: it is given up.
    pub fn read(&self, key: ExtentKey, version: Version, into: &mut [u8]) -> Result<bool, StoreError> {
        let found = self.state().extents.get(&key).map(|extent| extent.stored);
        let Some(stored) = found.filter(|stored| stored.version == version && stored.bytes as usize == into.len()) else {
            return Ok(false);
        };
        let file = self.file(stored.segment)?;
        let read = disk::read_full_at(&*file, into, stored.offset).map_err(|errno| self.error("read a segment of", errno))?;
        if read == into.len() && XxHash3_128::oneshot(into).to_le_bytes() == stored.checksum {
            return Ok(true);
        }
        // Somebody may have given it up meanwhile, and its place be used again: then it is not there.
        let state = &mut *self.state();
        if state.extents.get(&key).is_none_or(|extent| extent.stored != stored) {
            return Ok(false);
        }
        state.remove(key)?;
        Err(StoreError::Damaged {
            path: self.root.clone(),
            what: "an extent's bytes are not what was written",
        })
    }

    /// Gives an extent up, whoever claims it.
    pub fn forget(&self, key: ExtentKey) -> Result<(), StoreError> {
        self.state().remove(key)
    }

    /// Takes room, which extents that nobody claims make where it must be.
    fn reserve(&self, state: &mut State, bytes: u64) -> Result<Place, StoreError> {
        if !state.log.is_writable() {
            return Err(self.error("store in", Errno::IO));
        }
        if bytes > self.config.segment_bytes.min(self.config.quota_bytes) {
            return Err(self.error("store in", Errno::NOSPC));
        }
        loop {
            if let Some(place) = state.room.take(bytes) {
                return match self.has_room_for(state.room.growth(place)) {
                    Ok(()) => Ok(place),
                    Err(error) => {
                        state.room.give(place);
                        Err(error)
                    }
                };
            }
            if state.room.next_bytes() >= bytes.max(1) {
                self.add_segment(state)?;
            } else if !state.remove_oldest()? {
                return Err(self.error("store in", Errno::NOSPC));
            }
        }
    }

    /// Whether the file system has so many bytes above what is to be left free.
    fn has_room_for(&self, growth_bytes: u64) -> Result<(), StoreError> {
        if growth_bytes == 0 {
            return Ok(());
        }
        let room = uninterrupted(|| self.disk.room()).map_err(|errno| self.error("ask the room of", errno))?;
        let floor_bytes = match self.config.free_floor {
            FreeFloor::Bytes(bytes) => bytes,
            FreeFloor::Percent(percent) => room.total_bytes / 100 * u64::from(percent.min(100)),
        };
        if room.free_bytes.saturating_sub(floor_bytes) < growth_bytes {
            return Err(self.error("store in", Errno::NOSPC));
        }
        Ok(())
    }

    fn add_segment(&self, state: &mut State) -> Result<(), StoreError> {
        let mut id = [0; 8];
        secret::fill_random(&mut id);
        let id = u64::from_ne_bytes(id);
        let name = Name::Segment(id);
        let create = || uninterrupted(|| self.disk.create(name));
        let created = match create() {
            Err(Errno::NOENT) => match uninterrupted(|| self.disk.make_dir(Folder::Shard(id as u8))) {
                Ok(()) | Err(Errno::EXIST) => create(),
                Err(errno) => Err(errno),
            },
            answer => answer,
        };
        match created {
            Ok(file) => {
                state.room.add(id, Some(Arc::from(file)));
                Ok(())
            }
            Err(errno) => {
                // It may be there all the same; else the next opening finds it.
                let _ = uninterrupted(|| self.disk.remove(name));
                Err(self.error("make a segment in", errno))
            }
        }
    }

    /// The file of a segment, opened where it is not.
    fn file(&self, segment: u64) -> Result<Arc<dyn DiskFile>, StoreError> {
        if let Some(file) = guard(&self.state).room.file(segment) {
            return Ok(file);
        }
        let opened = uninterrupted(|| self.disk.open_write(Name::Segment(segment)));
        let file: Arc<dyn DiskFile> = Arc::from(opened.map_err(|errno| self.error("open a segment of", errno))?);
        guard(&self.state).room.opened(segment, &file);
        Ok(file)
    }

    fn error(&self, operation: &'static str, errno: Errno) -> StoreError {
        StoreError::tier(&self.root, operation, errno)
    }
}

impl State {
    /// Takes what an earlier process stored; or gives it up, where it can't be there any more.
    fn bring(&mut self, stored: Stored) {
        if self.room.take_at(stored.place()) {
            self.insert(stored, 0);
        } else {
            // Nothing lies there that anybody reads: no place is to be freed once this is written.
            self.unwritten.push(Stored { bytes: 0, ..stored });
        }
    }

    fn insert(&mut self, stored: Stored, claims: u32) {
        self.ticks += 1;
        let tick = self.ticks;
        self.extents.insert(stored.key, Extent { stored, claims, tick });
        if claims == 0 {
            self.unclaimed.insert(tick, stored.key);
        }
    }

    fn claim(&mut self, key: ExtentKey, version: Version) -> bool {
        let Some(extent) = self.extents.get_mut(&key).filter(|extent| extent.stored.version == version) else {
            return false;
        };
        self.unclaimed.remove(&extent.tick);
        self.ticks += 1;
        extent.tick = self.ticks;
        extent.claims += 1;
        true
    }

    fn release(&mut self, key: ExtentKey) {
        let Some(extent) = self.extents.get_mut(&key).filter(|extent| extent.claims > 0) else {
            return;
        };
        extent.claims -= 1;
        if extent.claims == 0 {
            self.ticks += 1;
            extent.tick = self.ticks;
            self.unclaimed.insert(extent.tick, key);
        }
    }

    /// Writes the record of an extent whose bytes are written, and claims it.
    fn store(&mut self, stored: Stored) -> Result<(), StoreError> {
        let mut records = self.removals();
        records.push(Record::Stored(stored));
        if let Err(error) = self.log.append(&records) {
            self.room.give(stored.place());
            return Err(error);
        }
        self.removals_written();
        self.insert(stored, 1);
        if self.log.is_mostly_dead() {
            // Where this can't be done the log is as it was, only longer than it need be.
            let _ = self.rewrite();
        }
        Ok(())
    }

    fn rewrite(&mut self) -> Result<(), StoreError> {
        let mut all: Vec<(u64, Stored)> = self.extents.values().map(|extent| (extent.tick, extent.stored)).collect();
        all.sort_unstable_by_key(|(tick, _)| *tick);
        let stored: Vec<Stored> = all.into_iter().map(|(_, stored)| stored).collect();
        self.log.rewrite(&stored)
    }

    /// Gives up the extent that was claimed the longest time ago, of those that nobody claims; `false` if there is none.
    fn remove_oldest(&mut self) -> Result<bool, StoreError> {
        let Some((_, &key)) = self.unclaimed.first_key_value() else {
            return Ok(false);
        };
        self.remove(key)?;
        Ok(true)
    }

    fn remove(&mut self, key: ExtentKey) -> Result<(), StoreError> {
        if let Some(extent) = self.extents.remove(&key) {
            self.unclaimed.remove(&extent.tick);
            self.unwritten.push(extent.stored);
        }
        self.write_removals()
    }

    fn write_removals(&mut self) -> Result<(), StoreError> {
        let records = self.removals();
        self.log.append(&records)?;
        self.removals_written();
        Ok(())
    }

    fn removals(&self) -> Vec<Record> {
        self.unwritten.iter().map(|stored| Record::Removed { key: stored.key }).collect()
    }

    /// Only now may their places be used again.
    fn removals_written(&mut self) {
        for stored in std::mem::take(&mut self.unwritten) {
            self.room.give(stored.place());
        }
    }
}

/// The segments that are there and hold something, those first that are used up to a higher end: where the quota leaves the last one shorter than the
/// others, as it was when it was made, nothing lies behind its end. The others are removed: they are of a process that ended before it had written a
/// record, or that gave all of their extents up.
fn present(disk: &dyn Disk, root: &Path, stored: &[Stored]) -> Result<Vec<u64>, StoreError> {
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for stored in stored {
        let end = ends.entry(stored.segment).or_default();
        *end = (*end).max(stored.offset + u64::from(stored.bytes));
    }
    let mut present = Vec::new();
    for id in list_objects(disk, root)? {
        if ends.contains_key(&id) {
            present.push(id);
        } else {
            remove_segment(disk, root, id)?;
        }
    }
    present.sort_by_key(|id| std::cmp::Reverse(ends[id]));
    Ok(present)
}

fn remove_segment(disk: &dyn Disk, root: &Path, id: u64) -> Result<(), StoreError> {
    match uninterrupted(|| disk.remove(Name::Segment(id))) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(StoreError::tier(root, "remove a segment of", errno)),
    }
}
