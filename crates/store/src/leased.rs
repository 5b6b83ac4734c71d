//! A private root with its lease: names, listings and removal of copies.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::disk::{Disk, Folder, Lease, Name, uninterrupted};
use crate::error::StoreError;

/// A private root with its lease, shared by the tier, its catalogue and its writers.
#[derive(Debug)]
pub(crate) struct LeasedRoot {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) root: PathBuf,
    pub(crate) objects: PathBuf,
    /// Files that could not be removed yet; [`crate::Tier::retry_leftovers`] tries again.
    pub(crate) leftovers: Mutex<BTreeSet<u64>>,
    /// `None` after it was given up.
    pub(crate) lease: Mutex<Option<Box<dyn Lease>>>,
}

pub(crate) fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic can't leave the guarded values half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LeasedRoot {
    pub(crate) fn path_of(&self, name: Name) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        self.root.join(std::ffi::OsStr::from_bytes(name.path().as_bytes()))
    }

    pub(crate) fn object_path(&self, id: u64) -> PathBuf {
        self.path_of(Name::Object(id))
    }

    /// Does what only the holder of the lease may do; returns `None` after it was given up.
    pub(crate) fn while_leased<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let lease = guard(&self.lease);
        lease.is_some().then(act)
    }

    /// Removes the file of a copy; a missing file does not count as an error.
    pub(crate) fn remove_object(&self, id: u64) -> Result<(), StoreError> {
        match uninterrupted(|| self.disk.remove(Name::Object(id))) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => {
                guard(&self.leftovers).insert(id);
                Err(StoreError::tier(&self.object_path(id), "remove", errno))
            }
        }
    }

    /// Removes the file of a copy without reporting failures: a file that stays is in `leftovers`, and not in the
    /// catalogue.
    pub(crate) fn discard(&self, id: u64) {
        let _ = self.remove_object(id);
    }

    /// Returns the existing parts of `objects`.
    pub(crate) fn list_shards(&self) -> Result<Vec<u8>, StoreError> {
        list_shards(&*self.disk, &self.root)
    }

    pub(crate) fn list(&self, folder: Folder, each: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
        list(&*self.disk, &self.root, folder, each)
    }
}

fn list(disk: &dyn Disk, root: &Path, folder: Folder, each: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
    match uninterrupted(|| disk.list(folder, each)) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(StoreError::tier(root, "list", errno)),
    }
}

fn list_shards(disk: &dyn Disk, root: &Path) -> Result<Vec<u8>, StoreError> {
    let mut shards = Vec::new();
    list(disk, root, Folder::Objects, &mut |entry| shards.extend(Folder::parse_shard(entry)))?;
    Ok(shards)
}

/// Returns all copies on the disk, published or not, sorted; `root` is only for messages.
pub(crate) fn list_objects(disk: &dyn Disk, root: &Path) -> Result<Vec<u64>, StoreError> {
    let mut objects = Vec::new();
    for shard in list_shards(disk, root)? {
        list(disk, root, Folder::Shard(shard), &mut |entry| {
            objects.extend(Name::parse_object(shard, entry));
        })?;
    }
    objects.sort_unstable();
    Ok(objects)
}
