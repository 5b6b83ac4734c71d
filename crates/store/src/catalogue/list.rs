//! Reads the catalogue of a tier that an agent may be using: changes nothing and takes no lease.

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::record;
use super::scan::Scan;
use super::{CatalogueItem, Recovery, RecoveryReport, log_key, root_key};
use crate::disk::{Disk, Name, RealDisk, uninterrupted};
use crate::error::StoreError;
use crate::leased::list_objects;
use crate::root::{self, BootId};
use crate::secret::Secret;

/// Reports the copies in the tier directory `dir` of the user `uid`, as recovery would, except those without a file.
/// Returns `None` if there is no tier. Copies that an agent publishes meanwhile may be missing.
///
/// # Errors
/// A root that is not private to the user, or a disk that fails.
pub fn list(dir: &Path, uid: u32, secret: &Secret, each: &mut dyn FnMut(CatalogueItem<'_>)) -> Result<Option<RecoveryReport>, StoreError> {
    let Some(fd) = root::open_existing(dir, uid)? else {
        return Ok(None);
    };
    let path = root::root_path(dir, uid);
    let failed = |operation| {
        let path = &path;
        move |errno| StoreError::tier(path, operation, errno)
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(fd).map_err(failed("open"))?);
    let file = match uninterrupted(|| disk.open_read(Name::Catalogue)) {
        Err(Errno::NOENT) => return Ok(Some(RecoveryReport::default())),
        answer => answer.map_err(failed("open the catalogue of"))?,
    };
    let failed_reading = failed("read the catalogue of");
    let Some(salt) = record::read_salt(&*file).map_err(failed_reading)? else {
        return Ok(Some(RecoveryReport::default()));
    };
    let ino = uninterrupted(|| disk.stat_root()).map_err(failed("stat"))?.identity.ino;
    let key = log_key(&root_key(secret, ino), &salt);
    let boot = BootId::current();
    let scan = Scan::with_positions(&*file, &key, boot, &mut || {}).map_err(failed_reading)?;
    let objects = list_objects(&*disk, &path)?;
    let dev = uninterrupted(|| disk.stat(Name::Catalogue)).map_err(failed("stat"))?.identity.dev;
    let mut recovery = Recovery::new(path.clone(), file, key, Box::new(scan), dev)?;
    let is_there = |id| objects.binary_search(&id).is_ok();
    for (directory, _) in recovery.directories() {
        recovery.tell(directory, &mut |recovered| match recovered {
            CatalogueItem::Copy(copy) if !is_there(copy.id) => {}
            CatalogueItem::Alias(alias) if !is_there(alias.id) => {}
            recovered => each(recovered),
        })?;
    }
    Ok(Some(recovery.report()))
}
