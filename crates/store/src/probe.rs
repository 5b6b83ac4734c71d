//! Checks that a file system has the features that a tier needs, before the tier is made (F16).
//!
//! Odd file systems refuse little: they ignore permissions, grant a lock twice, or give a file a new number each time
//! it is opened. The results would be copies that others can read, or that the preload library never accepts. The check
//! covers exactly the features that the other modules rely on.

use std::path::Path;

use rustix::io::Errno;

use crate::disk::{self, Disk, Folder, Name, RealDisk, uninterrupted, write_all_at};
use crate::error::{Lack, StoreError};
use crate::root;
use crate::secret;

/// Content of the test file.
const CONTENT: &[u8] = b"forebay checks this file system here\n";

/// Returns whether an error number means that a file system has no such operation; several numbers do.
pub(crate) fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK | Errno::INVAL | Errno::PERM)
}

/// Upper half of the name of the copy that is tried. Its letters show whether the file system changes their case, which
/// a name of digits alone would not.
const LETTERS: u64 = 0xABCD_EF00_0000_0000;

/// Returns the missing feature of the file system of a tier without copies, if there is one. The caller holds the
/// lease; `random` keeps tries at the same time apart.
///
/// # Errors
/// Errors that say nothing about the file system's features: no room, a failing device.
pub(crate) fn lack(disk: &dyn Disk, random: u32) -> disk::Result<Option<Lack>> {
    let id = LETTERS | u64::from(random);
    let found = try_all(disk, id);
    // A file that can't be removed now is in no catalogue, and is reaped later.
    for name in [Name::Object(id), Name::CatalogueNew] {
        let _ = uninterrupted(|| disk.remove(name));
    }
    for folder in [Folder::Shard(id as u8), Folder::Objects] {
        let _ = uninterrupted(|| disk.remove_dir(folder));
    }
    found
}

fn try_all(disk: &dyn Disk, id: u64) -> disk::Result<Option<Lack>> {
    // In order of dependence: if one feature is missing, the later checks would mislead.
    for attempt in [locks, size, copies, renames] {
        if let Some(lack) = attempt(disk, id)? {
            return Ok(Some(lack));
        }
    }
    Ok(None)
}

fn locks(disk: &dyn Disk, _: u64) -> disk::Result<Option<Lack>> {
    match uninterrupted(|| disk.lock()) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        Ok(_) => Ok(Some(Lack::Locks)),
        Err(errno) if is_unsupported(errno) => Ok(Some(Lack::Locks)),
        Err(errno) => Err(errno),
    }
}

fn size(disk: &dyn Disk, _: u64) -> disk::Result<Option<Lack>> {
    let room = uninterrupted(|| disk.room())?;
    Ok((room.total_bytes == 0).then_some(Lack::Size))
}

/// Checks the life of a copy: made read-only and still written, closed, found again by its name, removed while it is
/// read.
fn copies(disk: &dyn Disk, id: u64) -> disk::Result<Option<Lack>> {
    let (name, shard) = (Name::Object(id), id as u8);
    for folder in [Folder::Objects, Folder::Shard(shard)] {
        match uninterrupted(|| disk.make_dir(folder)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    let file = match uninterrupted(|| disk.create(name)) {
        Err(Errno::ACCESS | Errno::PERM) => return Ok(Some(Lack::Permissions)),
        answer => answer?,
    };
    write_all_at(&*file, CONTENT, 0)?;
    let is_private = |mode: u32| mode & 0o7777 == name.mode();
    if !is_private(uninterrupted(|| file.stat())?.mode) {
        // The umask may have taken the owner's right to read. If modes can't be changed they are not kept either.
        match uninterrupted(|| file.set_read_only()) {
            Err(errno) if !is_unsupported(errno) => return Err(errno),
            _ => {}
        }
    }
    let made = uninterrupted(|| file.stat())?;
    if !is_private(made.mode) {
        return Ok(Some(Lack::Permissions));
    }
    disk::close(file)?;
    let reader = uninterrupted(|| disk.open_read(name))?;
    let (opened, named) = (uninterrupted(|| reader.stat())?, uninterrupted(|| disk.stat(name))?);
    if opened.identity != made.identity || named.identity != made.identity {
        return Ok(Some(Lack::Identity));
    }
    let mut listed = (None, None);
    let mut find_shard = |entry: &[u8]| listed.0 = listed.0.or(Folder::parse_shard(entry).filter(|found| *found == shard));
    uninterrupted(|| disk.list(Folder::Objects, &mut find_shard))?;
    let mut find_copy = |entry: &[u8]| listed.1 = listed.1.or(Name::parse_object(shard, entry).filter(|found| *found == id));
    uninterrupted(|| disk.list(Folder::Shard(shard), &mut find_copy))?;
    if listed != (Some(shard), Some(id)) {
        return Ok(Some(Lack::Names));
    }
    uninterrupted(|| disk.remove(name))?;
    // This is the first read, since an earlier one would have filled the page cache.
    let mut bytes = [0; CONTENT.len() + 1];
    match disk::read_full_at(&*reader, &mut bytes, 0) {
        Ok(read) => Ok((&bytes[..read] != CONTENT).then_some(Lack::Content)),
        Err(Errno::STALE | Errno::NOENT) => Ok(Some(Lack::Unlinked)),
        Err(errno) => Err(errno),
    }
}

/// Checks that a rename replaces a file. It replaces FORMAT, which is not written yet.
fn renames(disk: &dyn Disk, _: u64) -> disk::Result<Option<Lack>> {
    match uninterrupted(|| disk.remove(Name::CatalogueNew)) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let file = uninterrupted(|| disk.create(Name::CatalogueNew))?;
    disk::close(file)?;
    match uninterrupted(|| disk.rename(Name::CatalogueNew, Name::Format)) {
        Err(errno) if is_unsupported(errno) => return Ok(Some(Lack::Rename)),
        answer => answer?,
    }
    // The new name must lead to the file now, and the old one to none.
    let is_gone = match uninterrupted(|| disk.stat(Name::CatalogueNew)) {
        Err(Errno::NOENT) => true,
        answer => answer.map(|_| false)?,
    };
    match uninterrupted(|| disk.remove(Name::Format)) {
        Ok(()) => Ok((!is_gone).then_some(Lack::Rename)),
        Err(Errno::NOENT) => Ok(Some(Lack::Rename)),
        Err(errno) => Err(errno),
    }
}

/// Returns the missing feature of the file system of the directory `dir` for a tier of the user `uid`, if there is one.
/// An existing tier was checked when it was made. Nothing is left behind.
///
/// # Errors
/// `dir` can't be used, is full, or its device fails.
pub fn probe(dir: &Path, uid: u32) -> Result<Option<Lack>, StoreError> {
    let failed = |errno| StoreError::tier(dir, "try", errno);
    if let Some(fd) = root::open_existing(dir, uid)? {
        let disk = RealDisk::new(fd).map_err(failed)?;
        if uninterrupted(|| disk.stat(Name::Format)).is_ok() {
            return Ok(None);
        }
    }
    let tried = root::with_temporary(dir, uid, |fd| {
        let disk = RealDisk::new(fd)?;
        let _lease = match uninterrupted(|| disk.lock()) {
            Err(errno) if is_unsupported(errno) => return Ok(Some(Lack::Locks)),
            answer => answer?,
        };
        let found = lack(&disk, secret::random_u32());
        let _ = uninterrupted(|| disk.remove(Name::Lease));
        found
    });
    match tried {
        Err(StoreError::Unfit { lack, .. }) => Ok(Some(lack)),
        answer => answer?.map_err(failed),
    }
}
