//! The disks of loaders, which loaders of one agent share.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::Duration,
};

use forebay_store::{FreeFloor, Secret, Segments, SegmentsConfig, StoreError, limits::SEGMENT_BYTES};

use super::{disk_dir, protocol::DiskSetting};

use crate::host::private_dir::private_dir;

/// Attempts to lease a disk that another thread of this process holds, and the pause between them.
const LEASE_ATTEMPTS_MAX: u32 = 100;
const LEASE_PAUSE: Duration = Duration::from_millis(10);

/// A disk that loaders use.
#[derive(Clone, Debug)]
pub(crate) struct OpenedDisk {
    pub(crate) segments: Arc<Segments>,
    /// Most bytes there, as set by the loader that came first.
    pub(crate) bytes: u64,
}

/// A disk, or the reason why it can't be used, for a person.
pub(crate) type DiskResult = Result<OpenedDisk, String>;

/// A disk while a loader uses it, and its size. Locked while it is being opened: another thread that needs it waits,
/// and shares it.
type SharedDisk = Arc<Mutex<Option<(Weak<Segments>, u64)>>>;

/// All disks of this agent.
pub(crate) struct Disks {
    secret: Secret,
    /// Disks by directory. A disk that hangs does not delay users of other disks.
    known: Mutex<BTreeMap<PathBuf, SharedDisk>>,
}

impl Disks {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            secret,
            known: Mutex::default(),
        }
    }

    /// Opens a disk, if no loader has it open.
    pub(crate) fn open(&self, setting: &DiskSetting) -> DiskResult {
        let known = self.known(&setting.dir);
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((segments, bytes)) = &*known
            && let Some(segments) = segments.upgrade()
        {
            return Ok(OpenedDisk { segments, bytes: *bytes });
        }
        let bytes = setting.bytes;
        let segments = Arc::new(opened(setting, &self.secret)?);
        *known = Some((Arc::downgrade(&segments), bytes));
        Ok(OpenedDisk { segments, bytes })
    }

    fn known(&self, dir: &Path) -> SharedDisk {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(dir.to_owned()).or_default())
    }
}

fn opened(setting: &DiskSetting, secret: &Secret) -> Result<Segments, String> {
    let uid = rustix::process::geteuid();
    let dir = disk_dir(&setting.dir);
    private_dir(&dir).map_err(|error| error.to_string())?;
    let config = SegmentsConfig {
        dir,
        quota_bytes: setting.bytes,
        segment_bytes: SEGMENT_BYTES,
        free_floor: FreeFloor::default(),
    };
    let mut attempts = 0;
    loop {
        match Segments::open(config.clone(), secret, uid.as_raw()) {
            // The last thread of a loader that has just ended may be about to release it.
            Err(StoreError::InUse { holder, .. }) if holder == Some(std::process::id()) && attempts < LEASE_ATTEMPTS_MAX => {
                attempts += 1;
                thread::sleep(LEASE_PAUSE);
            }
            answer => return answer.map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(dir: &Path, bytes: u64) -> DiskSetting {
        DiskSetting {
            dir: dir.to_owned(),
            bytes,
        }
    }

    #[test]
    fn loaders_share_a_disk_and_the_size_that_the_first_gave_holds() {
        let root = tempfile::tempdir().unwrap();
        let disks = Disks::new(Secret::from_bytes([7; 32]));
        assert!(disks.open(&setting(&root.path().join("no"), 1)).is_err());
        let first = disks.open(&setting(root.path(), 1 << 30)).unwrap();
        let second = disks.open(&setting(root.path(), 1 << 20)).unwrap();
        assert_eq!(second.bytes, 1 << 30);
        assert!(Arc::ptr_eq(&first.segments, &second.segments));
        // After the last user is gone, the next one's size holds.
        drop((first, second));
        assert_eq!(disks.open(&setting(root.path(), 1 << 20)).unwrap().bytes, 1 << 20);
    }

    #[test]
    fn a_disk_that_hangs_keeps_nobody_from_another() {
        let root = tempfile::tempdir().unwrap();
        let disks = Disks::new(Secret::from_bytes([7; 32]));
        let hanging = disks.known(&root.path().join("hangs"));
        let _opening = hanging.lock().unwrap();
        assert!(disks.open(&setting(root.path(), 1 << 20)).is_ok());
    }
}
