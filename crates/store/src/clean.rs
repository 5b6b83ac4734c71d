//! Looks into tiers that may be in use, and removes whole tiers on request. Nothing outside the private root is
//! removed, links are not followed, mounts not crossed, and files with foreign names are left and reported (S10).

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::disk::{self, Disk, Folder, Name, RealDisk, uninterrupted};
use crate::error::StoreError;
use crate::limits;
use crate::opening::holder;
use crate::root;

/// Result of `clean`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// The tier's root.
    pub root: PathBuf,
    /// True if there was a root.
    pub existed: bool,
    /// Number of copies removed, published or not.
    pub removed: u64,
    /// Sizes of the copies removed, in bytes.
    pub removed_bytes: u64,
    /// Number of entries left, since they are foreign or could not be removed; the root then stays, too.
    pub left: u64,
}

/// Contents of a tier on disk, in use or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootReport {
    /// Path of its root.
    pub root: PathBuf,
    /// True if a process uses it now.
    pub in_use: bool,
    /// Number of that process, if it wrote one.
    pub holder: Option<u32>,
    /// Number of copies in it, published or not.
    pub copies: u64,
    /// Sizes of the copies, in bytes.
    pub bytes: u64,
}

/// Removes one file and returns its size; a missing file does not count as an error.
pub(crate) fn remove_object(disk: &dyn Disk, id: u64) -> Result<u64, Errno> {
    let bytes = match uninterrupted(|| disk.stat(Name::Object(id))) {
        Ok(stat) => stat.identity.size,
        Err(Errno::NOENT) => return Ok(0),
        Err(errno) => return Err(errno),
    };
    match uninterrupted(|| disk.remove(Name::Object(id))) {
        Ok(()) | Err(Errno::NOENT) => Ok(bytes),
        Err(errno) => Err(errno),
    }
}

/// Returns the contents of the tier directory `dir` of the user `uid`; `None` if there is no root.
pub fn inspect(dir: &Path, uid: u32) -> Result<Option<RootReport>, StoreError> {
    let path = root::root_path(dir, uid);
    let failed = |operation| move |errno| StoreError::tier(&root::root_path(dir, uid), operation, errno);
    let Some(fd) = root::open_existing(dir, uid)? else {
        return Ok(None);
    };
    let disk = RealDisk::new(fd).map_err(failed("open"))?;
    let in_use = disk.is_leased().map_err(failed("look at the lease of"))?;
    let mut report = RootReport {
        root: path,
        in_use,
        holder: None,
        copies: 0,
        bytes: 0,
    };
    if in_use {
        report.holder = holder(&disk);
    }
    each_object(&disk, &mut |disk, name| {
        if let Some(stat) = name.and_then(|id| disk.stat(Name::Object(id)).ok()) {
            report.copies += 1;
            report.bytes += stat.identity.size;
        }
    })
    .map_err(failed("list"))?;
    Ok(Some(report))
}

/// Removes the whole tier of the user `uid` in `dir`, unless it is in use.
pub fn clean(dir: &Path, uid: u32) -> Result<CleanReport, StoreError> {
    let path = root::root_path(dir, uid);
    let Some(fd) = root::open_existing(dir, uid)? else {
        return Ok(CleanReport {
            root: path,
            ..CleanReport::default()
        });
    };
    let failed = |operation| move |errno| StoreError::tier(&root::root_path(dir, uid), operation, errno);
    let stat = rustix::fs::fstat(&fd).map_err(failed("stat"))?;
    let disk = RealDisk::new(fd).map_err(failed("open"))?;
    let report = clean_on(&disk, &path)?;
    if report.left == 0 {
        root::remove(dir, uid, &stat)?;
    }
    Ok(report)
}

/// Removes all our files below the root of a disk, the lease last; `path` is only for messages.
pub fn clean_on(disk: &dyn Disk, path: &Path) -> Result<CleanReport, StoreError> {
    let failed = |operation| move |errno| StoreError::tier(path, operation, errno);
    let lease = uninterrupted(|| disk.lock()).map_err(|errno| match errno {
        Errno::WOULDBLOCK => StoreError::InUse {
            path: path.to_owned(),
            holder: holder(disk),
        },
        errno => failed("lease")(errno),
    })?;
    let mut report = CleanReport {
        root: path.to_owned(),
        existed: true,
        ..CleanReport::default()
    };
    each_object(disk, &mut |disk, name| match name.map(|id| remove_object(disk, id)) {
        Some(Ok(bytes)) => {
            report.removed += 1;
            report.removed_bytes += bytes;
        }
        Some(Err(_)) | None => report.left += 1,
    })
    .map_err(failed("list"))?;
    for folder in (0..=u8::MAX).map(Folder::Shard).chain([Folder::Objects]) {
        match remove_folder(disk, folder) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(_) => report.left += 1,
        }
    }
    for name in [Name::CatalogueNew, Name::Catalogue, Name::Format, Name::Lease] {
        match uninterrupted(|| disk.remove(name)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(_) => report.left += 1,
        }
    }
    // The lease's file is open while it is held, and a file system may keep it visible.
    drop(lease);
    for attempt in 0..=limits::HIDDEN_ATTEMPTS_MAX {
        let (mut left, mut hidden) = (0, 0);
        let mut count = |entry: &[u8]| if is_hidden(entry) { hidden += 1 } else { left += 1 };
        uninterrupted(|| disk.list(Folder::Root, &mut count)).map_err(failed("list"))?;
        if hidden == 0 || attempt == limits::HIDDEN_ATTEMPTS_MAX {
            report.left += left + hidden;
            break;
        }
        std::thread::sleep(limits::HIDDEN_PAUSE);
    }
    Ok(report)
}

/// Removes a directory, after waiting for files that are only hidden in it.
fn remove_folder(disk: &dyn Disk, folder: Folder) -> disk::Result<()> {
    for _ in 0..limits::HIDDEN_ATTEMPTS_MAX {
        match uninterrupted(|| disk.remove_dir(folder)) {
            Err(Errno::NOTEMPTY) => {}
            answer => return answer,
        }
        let mut is_only_hidden = true;
        uninterrupted(|| disk.list(folder, &mut |entry| is_only_hidden &= is_hidden(entry)))?;
        if !is_only_hidden {
            break;
        }
        std::thread::sleep(limits::HIDDEN_PAUSE);
    }
    uninterrupted(|| disk.remove_dir(folder))
}

/// Returns whether an entry is a removed file that NFS or FUSE keep under a hidden name while somebody has it open. It
/// disappears a moment after.
fn is_hidden(entry: &[u8]) -> bool {
    entry.starts_with(b".nfs") || entry.starts_with(b".fuse_hidden")
}

/// Calls `each` with every entry of every part of `objects`: the copy's number, or `None` for a foreign entry.
fn each_object(disk: &dyn Disk, each: &mut dyn FnMut(&dyn Disk, Option<u64>)) -> Result<(), Errno> {
    for shard in 0..=u8::MAX {
        let mut found = Vec::new();
        match uninterrupted(|| disk.list(Folder::Shard(shard), &mut |entry| found.push(Name::parse_object(shard, entry)))) {
            // A file in the place of a directory is left; removing the directory reports it.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
            Err(errno) => return Err(errno),
        }
        for name in found {
            each(disk, name);
        }
    }
    Ok(())
}
