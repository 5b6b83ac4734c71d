//! A disk in memory, with a capacity: for tests, and for seeing what a file system costs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_contract::{FileTime, Identity};
use rustix::io::Errno;

use super::{Disk, DiskFile, DiskRoom, DiskStat, Folder, Lease, Name, Result};

const DEVICE: u64 = 0xF0;
const FILE_TYPE: u32 = 0o100_000;
const FOLDER_TYPE: u32 = 0o040_000;

/// Files in memory. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct MemoryDisk {
    shared: Arc<MemoryShared>,
}

#[derive(Debug)]
struct MemoryShared {
    files: Mutex<BTreeMap<Name, Arc<MemoryNode>>>,
    folders: Mutex<BTreeSet<Folder>>,
    capacity_bytes: u64,
    capacity_inodes: u64,
    used_bytes: AtomicU64,
    used_inodes: AtomicU64,
    locked: Arc<AtomicBool>,
    /// Number of changes so far; stands for the time.
    ticks: AtomicU64,
}

#[derive(Debug)]
struct MemoryNode {
    ino: u64,
    content: Mutex<Content>,
}

#[derive(Debug)]
struct Content {
    bytes: Vec<u8>,
    mode: u32,
    changed: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryDisk {
    /// Creates an empty disk of this capacity.
    pub fn new(capacity_bytes: u64, capacity_inodes: u64) -> Self {
        Self {
            shared: Arc::new(MemoryShared {
                files: Mutex::default(),
                folders: Mutex::new(BTreeSet::from([Folder::Root])),
                capacity_bytes,
                capacity_inodes,
                used_bytes: AtomicU64::new(0),
                used_inodes: AtomicU64::new(0),
                locked: Arc::default(),
                ticks: AtomicU64::new(1),
            }),
        }
    }

    /// Changes a file's bytes without any call on the disk, as a failing medium or an intruder would; returns false if
    /// there is no such file.
    pub fn alter(&self, name: Name, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let node = lock(&self.shared.files).get(&name.file()).cloned();
        node.is_some_and(|node| {
            let mut content = lock(&node.content);
            let before = content.bytes.len() as u64;
            change(&mut content.bytes);
            self.shared.used_bytes.fetch_add(content.bytes.len() as u64, Ordering::Relaxed);
            self.release(before);
            true
        })
    }

    /// Returns the disk as the next process finds it after the death of the lease's holder.
    pub fn after_crash(&self) -> Arc<Self> {
        self.shared.locked.store(false, Ordering::Release);
        Arc::new(self.clone())
    }

    /// Returns the names of all files.
    pub fn names(&self) -> Vec<Name> {
        lock(&self.shared.files).keys().copied().collect()
    }

    /// Returns the bytes of all linked and all open files.
    pub fn used_bytes(&self) -> u64 {
        self.shared.used_bytes.load(Ordering::Relaxed)
    }

    fn tick(&self) -> u64 {
        self.shared.ticks.fetch_add(1, Ordering::Relaxed)
    }

    fn node(&self, name: Name) -> Result<Arc<MemoryNode>> {
        lock(&self.shared.files).get(&name.file()).cloned().ok_or(Errno::NOENT)
    }

    fn file(&self, node: Arc<MemoryNode>, writable: bool) -> Box<dyn DiskFile> {
        Box::new(MemoryFile {
            disk: self.clone(),
            node,
            writable,
        })
    }

    /// Takes `more` bytes of the capacity, or none.
    fn reserve(&self, more: u64) -> Result<()> {
        let take = |used: u64| used.checked_add(more).filter(|used| *used <= self.shared.capacity_bytes);
        self.shared
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| Errno::NOSPC)?;
        Ok(())
    }

    fn release(&self, bytes: u64) {
        self.shared.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl MemoryNode {
    fn stat(&self) -> DiskStat {
        let content = lock(&self.content);
        let time = FileTime {
            sec: content.changed as i64,
            nsec: 0,
        };
        let identity = Identity {
            dev: DEVICE,
            ino: self.ino,
            size: content.bytes.len() as u64,
            mtime: time,
            ctime: time,
        };
        DiskStat {
            identity,
            mode: content.mode,
            uid: rustix::process::geteuid().as_raw(),
        }
    }
}

impl Disk for MemoryDisk {
    fn create(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        if !lock(&self.shared.folders).contains(&name.folder()) {
            return Err(Errno::NOENT);
        }
        let mut files = lock(&self.shared.files);
        if files.contains_key(&name.file()) {
            return Err(Errno::EXIST);
        }
        if self.shared.used_inodes.load(Ordering::Relaxed) >= self.shared.capacity_inodes {
            return Err(Errno::NOSPC);
        }
        self.shared.used_inodes.fetch_add(1, Ordering::Relaxed);
        let ino = self.tick();
        let content = Content {
            bytes: Vec::new(),
            mode: FILE_TYPE | name.mode(),
            changed: ino,
        };
        let node = Arc::new(MemoryNode {
            ino,
            content: Mutex::new(content),
        });
        files.insert(name.file(), Arc::clone(&node));
        Ok(self.file(node, true))
    }

    fn open_read(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        Ok(self.file(self.node(name)?, false))
    }

    fn open_write(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        Ok(self.file(self.node(name)?, true))
    }

    fn make_dir(&self, folder: Folder) -> Result<()> {
        let mut folders = lock(&self.shared.folders);
        if matches!(folder, Folder::Shard(_)) && !folders.contains(&Folder::Objects) {
            return Err(Errno::NOENT);
        }
        if folders.insert(folder) { Ok(()) } else { Err(Errno::EXIST) }
    }

    fn remove(&self, name: Name) -> Result<()> {
        let node = lock(&self.shared.files).remove(&name.file()).ok_or(Errno::NOENT)?;
        self.shared.used_inodes.fetch_sub(1, Ordering::Relaxed);
        // Open files keep their bytes; here they count as free immediately, which is enough for the tests.
        self.release(lock(&node.content).bytes.len() as u64);
        Ok(())
    }

    fn remove_dir(&self, folder: Folder) -> Result<()> {
        let mut folders = lock(&self.shared.folders);
        if folder == Folder::Root {
            return Err(Errno::BUSY);
        }
        if !folders.contains(&folder) {
            return Err(Errno::NOENT);
        }
        let has_shards = folder == Folder::Objects && folders.iter().any(|other| matches!(other, Folder::Shard(_)));
        if has_shards || lock(&self.shared.files).keys().any(|name| name.folder() == folder) {
            return Err(Errno::NOTEMPTY);
        }
        folders.remove(&folder);
        Ok(())
    }

    fn rename(&self, from: Name, to: Name) -> Result<()> {
        if from.folder() != Folder::Root || to.folder() != Folder::Root {
            return Err(Errno::INVAL);
        }
        let mut files = lock(&self.shared.files);
        let node = files.remove(&from).ok_or(Errno::NOENT)?;
        if let Some(replaced) = files.insert(to, node) {
            self.shared.used_inodes.fetch_sub(1, Ordering::Relaxed);
            self.release(lock(&replaced.content).bytes.len() as u64);
        }
        Ok(())
    }

    fn list(&self, folder: Folder, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        if !lock(&self.shared.folders).contains(&folder) {
            return Err(Errno::NOENT);
        }
        let mut paths: Vec<_> = lock(&self.shared.files)
            .keys()
            .filter(|name| name.folder() == folder)
            .map(|name| name.path())
            .collect();
        let parent_of = |child: &Folder| match child {
            Folder::Root => None,
            Folder::Objects => Some(Folder::Root),
            Folder::Shard(_) => Some(Folder::Objects),
        };
        paths.extend(
            lock(&self.shared.folders)
                .iter()
                .filter(|child| parent_of(child) == Some(folder))
                .map(|child| child.path()),
        );
        for path in paths {
            each(path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default());
        }
        Ok(())
    }

    fn stat(&self, name: Name) -> Result<DiskStat> {
        Ok(self.node(name)?.stat())
    }

    fn stat_root(&self) -> Result<DiskStat> {
        let identity = Identity {
            dev: DEVICE,
            ..Identity::default()
        };
        Ok(DiskStat {
            identity,
            mode: FOLDER_TYPE | 0o700,
            uid: rustix::process::geteuid().as_raw(),
        })
    }

    fn room(&self) -> Result<DiskRoom> {
        let shared = &self.shared;
        Ok(DiskRoom {
            total_bytes: shared.capacity_bytes,
            free_bytes: shared.capacity_bytes.saturating_sub(self.used_bytes()),
            total_inodes: shared.capacity_inodes,
            free_inodes: shared.capacity_inodes.saturating_sub(shared.used_inodes.load(Ordering::Relaxed)),
            fs_magic: crate::tier::TMPFS_MAGIC,
        })
    }

    fn lock(&self) -> Result<Box<dyn Lease>> {
        if self.shared.locked.swap(true, Ordering::AcqRel) {
            return Err(Errno::WOULDBLOCK);
        }
        // The lease is a file here, too, so that tests see what `clean` leaves behind.
        if self.node(Name::Lease).is_err() {
            let made = self.create(Name::Lease);
            if let Err(errno) = made {
                self.shared.locked.store(false, Ordering::Release);
                return Err(errno);
            }
        }
        Ok(Box::new(MemoryLease(Arc::clone(&self.shared.locked))))
    }
}

#[derive(Debug)]
struct MemoryLease(Arc<AtomicBool>);

impl Lease for MemoryLease {}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[derive(Debug)]
struct MemoryFile {
    disk: MemoryDisk,
    node: Arc<MemoryNode>,
    writable: bool,
}

impl MemoryFile {
    fn change(&self, change: impl FnOnce(&mut Content) -> Result<()>) -> Result<()> {
        if !self.writable {
            return Err(Errno::BADF);
        }
        let mut content = lock(&self.node.content);
        change(&mut content)?;
        content.changed = self.disk.tick();
        Ok(())
    }

    fn resize(&self, content: &mut Content, size: u64) -> Result<()> {
        let now = content.bytes.len() as u64;
        if size > now {
            self.disk.reserve(size - now)?;
        } else {
            self.disk.release(now - size);
        }
        content.bytes.resize(size as usize, 0);
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        let mut written = bytes.len();
        self.change(|content| {
            let size = content.bytes.len() as u64;
            let free = self.disk.shared.capacity_bytes.saturating_sub(self.disk.used_bytes());
            // As in a file system, the part that fits is written, and only the next write fails.
            let end = (offset + bytes.len() as u64).min(size.saturating_add(free).max(offset));
            written = (end - offset) as usize;
            if written == 0 && !bytes.is_empty() {
                return Err(Errno::NOSPC);
            }
            if end > size {
                self.resize(content, end)?;
            }
            content.bytes[offset as usize..end as usize].copy_from_slice(&bytes[..written]);
            Ok(())
        })?;
        Ok(written)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        let content = lock(&self.node.content);
        let from = content.bytes.get(offset as usize..).unwrap_or_default();
        let read = from.len().min(bytes.len());
        bytes[..read].copy_from_slice(&from[..read]);
        Ok(read)
    }

    fn stat(&self) -> Result<DiskStat> {
        Ok(self.node.stat())
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.change(|content| self.resize(content, size))
    }

    fn set_read_only(&self) -> Result<()> {
        let mut content = lock(&self.node.content);
        content.mode = FILE_TYPE | 0o400;
        content.changed = self.disk.tick();
        Ok(())
    }

    fn forget_pages(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
