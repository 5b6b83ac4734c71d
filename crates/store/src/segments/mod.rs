//! Extents (samples, or parts of files) packed into large files, for the loader: creating a file for each would cost
//! more than reading it.
//!
//! A catalogue lists their positions. Bytes are written first and their record afterwards, so an extent is stored
//! completely or not at all. A position is used again only after the record of its removal was written. Every read is
//! compared with the checksum of its record, so damage by a crash, a power loss or a failing disk is a miss, never
//! wrong bytes. Nothing needs to be synced, and nothing is verified before it is requested.
//!
//! A user of an extent *claims* it. An unclaimed extent stays until its room is needed; then the one goes that was
//! claimed the longest time ago.

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

use self::log::{SegmentLog, SegmentRecord, Stored};
use self::room::{SegmentRange, SegmentRoom};
use crate::disk::{self, Disk, DiskFile, Folder, Lease, Name, RealDisk, uninterrupted};
use crate::error::StoreError;
use crate::leased::{guard, list_objects};
use crate::limits;
use crate::opening;
use crate::root;
use crate::secret::{self, Secret};

/// Content of FORMAT for the layout that this version reads and writes.
const FORMAT: &[u8] = b"forebay segments 1\n";

/// Identity of an extent: a digest of path, offset and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExtentKey([u8; 16]);

impl ExtentKey {
    /// Returns the key of the `length` bytes at `offset` of the file with this path; `u64::MAX`: up to its end.
    pub fn new(path: &[u8], offset: u64, length: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&offset.to_le_bytes()).update(&length.to_le_bytes()).update(path);
        Self(first_half(&hasher))
    }
}

/// Version of a file: a digest of its inode, size and times, without device numbers, since they change with each mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion([u8; 16]);

impl FileVersion {
    /// Returns the version of a file with this identity.
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

    /// Returns the version of an object that has this mark.
    pub fn of_object(mark: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"object").update(&mark.to_le_bytes());
        Self(first_half(&hasher))
    }

    /// Returns a version that no file has: only its owner finds what is stored under it.
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

/// Part of the segments' file system that is always left free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeFloor {
    /// Number of bytes.
    Bytes(u64),
    /// Percentage of all bytes.
    Percent(u64),
}

impl Default for FreeFloor {
    fn default() -> Self {
        Self::Percent(limits::FREE_FLOOR_PERCENT)
    }
}

/// Configuration of segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentsConfig {
    /// Existing directory on a local file system; the private root is made in it.
    pub dir: PathBuf,
    /// Largest total size of all segments, in bytes.
    pub quota_bytes: u64,
    /// Length of a segment in bytes: [`crate::limits::SEGMENT_BYTES`], except in tests.
    pub segment_bytes: u64,
    /// Part of the file system that is left free for others.
    pub free_floor: FreeFloor,
}

/// A stored extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredExtent {
    /// Version of its file.
    pub version: FileVersion,
    /// Length in bytes.
    pub bytes: u32,
}

/// Open segments, leased to this process until this is dropped.
#[derive(Debug)]
pub struct Segments {
    config: SegmentsConfig,
    disk: Arc<dyn Disk>,
    root: PathBuf,
    state: Mutex<SegmentsState>,
    /// Keys released but still claimed in `state`. A holder of this lock makes no disk request.
    let_go: Mutex<Vec<ExtentKey>>,
    _lease: Box<dyn Lease>,
}

#[derive(Debug)]
struct SegmentsState {
    log: SegmentLog,
    room: SegmentRoom,
    extents: HashMap<ExtentKey, HeldExtent>,
    /// Unclaimed extents, by the time of their last claim.
    unclaimed: BTreeMap<u64, ExtentKey>,
    /// Number of claims so far; stands for the time.
    ticks: u64,
    /// Removed extents whose records are not written yet: their positions must not be used again.
    unwritten: Vec<Stored>,
}

#[derive(Clone, Copy, Debug)]
struct HeldExtent {
    stored: Stored,
    claims: u32,
    /// Time of the last claim or release, in ticks.
    tick: u64,
}

impl Stored {
    fn place(&self) -> SegmentRange {
        SegmentRange {
            segment: self.segment,
            offset: self.offset,
            bytes: u64::from(self.bytes),
        }
    }
}

impl Segments {
    /// Opens the segments in `config.dir` for the user `uid`, creates their private root if it is missing, and leases
    /// it. Stored extents are unclaimed.
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
        let (log, stored) = SegmentLog::open(Arc::clone(&disk), root.clone(), key)?;
        let mut state = SegmentsState {
            log,
            room: SegmentRoom::new(config.quota_bytes, config.segment_bytes),
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

    /// Locks the state, and carries out the pending releases.
    fn state(&self) -> MutexGuard<'_, SegmentsState> {
        let mut state = guard(&self.state);
        let let_go = std::mem::take(&mut *guard(&self.let_go));
        for key in let_go {
            state.release(key);
        }
        state
    }

    /// Returns a stored extent's version and length.
    pub fn find(&self, key: ExtentKey) -> Option<StoredExtent> {
        let state = self.state();
        let Stored { version, bytes, .. } = state.extents.get(&key)?.stored;
        Some(StoredExtent { version, bytes })
    }

    /// Claims an extent of this version; `false` if it is not stored.
    pub fn claim(&self, key: ExtentKey, version: FileVersion) -> bool {
        self.state().claim(key, version)
    }

    /// Releases an extent claimed by [`Self::claim`] or [`Self::put`]. It does not wait for others who store something
    /// on a disk that hangs.
    pub fn release(&self, key: ExtentKey) {
        guard(&self.let_go).push(key);
    }

    /// Returns the bytes of all extents.
    pub fn used_bytes(&self) -> u64 {
        guard(&self.state).room.used_bytes()
    }

    /// Returns the number of stored extents.
    pub fn count(&self) -> usize {
        guard(&self.state).extents.len()
    }

    /// Stores an extent, and claims it. It replaces one of another version.
    ///
    /// # Errors
    /// [`StoreError::Full`] if there is no room beside the claimed extents, or the file system has none above the free
    /// floor.
    pub fn put(&self, key: ExtentKey, version: FileVersion, bytes: &[u8]) -> Result<(), StoreError> {
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

    /// Finishes storing an extent whose bytes were written, or could not be; on success it is stored and claimed.
    fn finish(&self, stored: Stored, written: Result<(), StoreError>) -> Result<(), StoreError> {
        let (key, place) = (stored.key, stored.place());
        let state = &mut *self.state();
        // Another thread may have been faster, with this version or another.
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

    /// Fills `into` with an extent of this version, whose length it has; `false` if that is not stored.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if its bytes are not those written; the extent is removed.
    pub fn read(&self, key: ExtentKey, version: FileVersion, into: &mut [u8]) -> Result<bool, StoreError> {
        let found = self.state().extents.get(&key).map(|extent| extent.stored);
        let Some(stored) = found.filter(|stored| stored.version == version && stored.bytes as usize == into.len()) else {
            return Ok(false);
        };
        let file = self.file(stored.segment)?;
        let read = disk::read_full_at(&*file, into, stored.offset).map_err(|errno| self.error("read a segment of", errno))?;
        if read == into.len() && XxHash3_128::oneshot(into).to_le_bytes() == stored.checksum {
            return Ok(true);
        }
        // Another thread may have removed it meanwhile, and its position be used again: then it is not stored.
        let state = &mut *self.state();
        if state.extents.get(&key).is_none_or(|extent| extent.stored != stored) {
            return Ok(false);
        }
        state.remove(key)?;
        Err(StoreError::Damaged {
            path: self.root.clone(),
            what: "an extent's bytes differ from the written ones",
        })
    }

    /// Removes an extent, claimed or not.
    pub fn forget(&self, key: ExtentKey) -> Result<(), StoreError> {
        self.state().remove(key)
    }

    /// Reserves room, and removes unclaimed extents if that is needed.
    fn reserve(&self, state: &mut SegmentsState, bytes: u64) -> Result<SegmentRange, StoreError> {
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

    /// Checks that the file system has this many bytes above the free floor.
    fn has_room_for(&self, growth_bytes: u64) -> Result<(), StoreError> {
        if growth_bytes == 0 {
            return Ok(());
        }
        let room = uninterrupted(|| self.disk.room()).map_err(|errno| self.error("ask the room of", errno))?;
        let floor_bytes = match self.config.free_floor {
            FreeFloor::Bytes(bytes) => bytes,
            FreeFloor::Percent(percent) => room.total_bytes / 100 * percent.min(100),
        };
        if room.free_bytes.saturating_sub(floor_bytes) < growth_bytes {
            return Err(self.error("store in", Errno::NOSPC));
        }
        Ok(())
    }

    fn add_segment(&self, state: &mut SegmentsState) -> Result<(), StoreError> {
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
                // The file may exist nevertheless; the next opening finds it otherwise.
                let _ = uninterrupted(|| self.disk.remove(name));
                Err(self.error("make a segment in", errno))
            }
        }
    }

    /// Returns the file of a segment, and opens it if it is not open.
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

impl SegmentsState {
    /// Takes an extent that an earlier process stored; or removes it, if it can't exist any more.
    fn bring(&mut self, stored: Stored) {
        if self.room.take_at(stored.place()) {
            self.insert(stored, 0);
        } else {
            // Nobody reads from that position: writing this removal must free nothing.
            self.unwritten.push(Stored { bytes: 0, ..stored });
        }
    }

    fn insert(&mut self, stored: Stored, claims: u32) {
        self.ticks += 1;
        let tick = self.ticks;
        self.extents.insert(stored.key, HeldExtent { stored, claims, tick });
        if claims == 0 {
            self.unclaimed.insert(tick, stored.key);
        }
    }

    fn claim(&mut self, key: ExtentKey, version: FileVersion) -> bool {
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
        records.push(SegmentRecord::Stored(stored));
        if let Err(error) = self.log.append(&records) {
            self.room.give(stored.place());
            return Err(error);
        }
        self.removals_written();
        self.insert(stored, 1);
        if self.log.is_mostly_dead() {
            // On failure the log stays as it was, only longer than necessary.
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

    /// Removes the unclaimed extent with the oldest claim; `false` if there is none.
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

    fn removals(&self) -> Vec<SegmentRecord> {
        self.unwritten
            .iter()
            .map(|stored| SegmentRecord::Removed { key: stored.key })
            .collect()
    }

    /// Frees the positions of removed extents, now that their records are written.
    fn removals_written(&mut self) {
        for stored in std::mem::take(&mut self.unwritten) {
            self.room.give(stored.place());
        }
    }
}

/// Returns the existing segments with extents, those with the highest used end first. The quota may have made the last
/// segment shorter than the others, so it must have nothing behind its end. Other segments are removed: their process
/// ended before it wrote a record, or removed all their extents.
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
