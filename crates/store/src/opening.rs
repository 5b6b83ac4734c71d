//! Opens a private root: its lease, its FORMAT, the check of a new one.

use std::path::Path;

use rustix::io::Errno;

use crate::disk::{self, Disk, Folder, Lease, Name, uninterrupted};
use crate::error::{Lack, StoreError};
use crate::probe;
use crate::secret;

/// Leases the root on `disk`, and prepares it if it is new. `root` is only for messages, `dir` is the directory that
/// the user named, and `format` is the content of FORMAT for this layout.
pub(crate) fn take(disk: &dyn Disk, root: &Path, dir: &Path, format: &[u8]) -> Result<Box<dyn Lease>, StoreError> {
    let unfit = |lack| StoreError::Unfit {
        path: dir.to_owned(),
        lack,
    };
    let lease = uninterrupted(|| disk.lock()).map_err(|errno| match errno {
        Errno::WOULDBLOCK => StoreError::InUse {
            path: root.to_owned(),
            holder: holder(disk),
        },
        errno if probe::is_unsupported(errno) => unfit(Lack::Locks),
        errno => StoreError::tier(root, "lease", errno),
    })?;
    if !has_format(disk, root, format)? {
        match probe::lack(disk, secret::random_u32()) {
            Ok(None) => write_format(disk, root, format)?,
            Ok(Some(lack)) => return Err(unfit(lack)),
            Err(errno) => return Err(StoreError::tier(root, "try", errno)),
        }
    }
    match uninterrupted(|| disk.make_dir(Folder::Objects)) {
        Ok(()) | Err(Errno::EXIST) => Ok(lease),
        Err(errno) => Err(StoreError::tier(root, "make objects in", errno)),
    }
}

/// Returns the number of the process that holds the lease, if it wrote one.
pub(crate) fn holder(disk: &dyn Disk) -> Option<u32> {
    let mut text = [0; 16];
    let file = disk.open_read(Name::Lease).ok()?;
    let read = disk::read_full_at(&*file, &mut text, 0).ok()?;
    std::str::from_utf8(&text[..read]).ok()?.trim().parse().ok()
}

fn error(root: &Path, operation: &'static str) -> impl Fn(Errno) -> StoreError {
    let path = root.join("FORMAT");
    move |errno| StoreError::tier(&path, operation, errno)
}

/// Returns whether the tier was made already and its file system found fit; a tier of another version is refused.
/// FORMAT is written first and in one piece, so a truncated one belongs to a tier that was still empty.
fn has_format(disk: &dyn Disk, root: &Path, format: &[u8]) -> Result<bool, StoreError> {
    let mut found = vec![0; 4 * format.len()];
    let file = match uninterrupted(|| disk.open_read(Name::Format)) {
        Err(Errno::NOENT) => return Ok(false),
        answer => answer.map_err(error(root, "open"))?,
    };
    let read = disk::read_full_at(&*file, &mut found, 0).map_err(error(root, "read"))?;
    found.truncate(read);
    if !format.starts_with(&found) {
        let found = String::from_utf8_lossy(&found).trim_end().to_owned();
        return Err(StoreError::UnknownFormat {
            path: root.to_owned(),
            found,
        });
    }
    Ok(found == format)
}

fn write_format(disk: &dyn Disk, root: &Path, format: &[u8]) -> Result<(), StoreError> {
    match uninterrupted(|| disk.remove(Name::Format)) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(error(root, "remove")(errno)),
    }
    let file = uninterrupted(|| disk.create(Name::Format)).map_err(error(root, "create"))?;
    disk::write_all_at(&*file, format, 0)
        .and_then(|()| disk::close(file))
        .map_err(error(root, "write"))
}
