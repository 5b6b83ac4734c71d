//! The catalogue: an append-only log of the published copies, which outlives the run.
//!
//! A record is valid only if its frame is complete and its tag, keyed with the user's secret, the log's salt and the
//! root's inode, is right. An incomplete tail (F9), altered bytes (F10) and records of somebody else (S5) are all found
//! in this way, and end the log there. The log is read at its first use, not at opening, so that a large warm tier
//! delays no program. Reading notes the positions of each directory's records, so that recovery ([`Recovery`]) can
//! begin with the requested ones.

mod compact;
mod list;
pub(crate) mod record;
mod recovery;
mod scan;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_contract::{Attributes, Identity};
use rustix::io::Errno;

use crate::disk::{DiskFile, Name, uninterrupted};
use crate::error::StoreError;
use crate::leased::LeasedRoot;
use crate::limits;
use crate::root::BootId;
use crate::secret::{Secret, SecretKey};
pub use list::list;
use record::{CatalogueRecord, EntryRecord, FrameBatch, TagKey};
pub use recovery::{CatalogueAlias, CatalogueCopy, CatalogueItem, KnownCopies, Recovery, RecoveryReport};
use scan::Scan;

/// Mount of a source. A source is known by its mount, since device numbers change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceMount<'a> {
    /// Mounted source, such as `10.0.0.1:/pfs`.
    pub source: &'a [u8],
    /// Type of the file system, such as `nfs4`.
    pub fs_type: &'a [u8],
}

/// A copy to publish.
#[derive(Clone, Copy, Debug)]
pub struct CatalogueEntry<'a> {
    /// Name of the copy in the tier.
    pub id: u64,
    /// Directory of the source file, as spelled.
    pub dir: &'a [u8],
    /// Name of the source file in its directory.
    pub name: &'a [u8],
    /// Mount of the source.
    pub mount: SourceMount<'a>,
    /// Version that was copied.
    pub identity: Identity,
    /// Attributes that `fstat` reports of it besides.
    pub attributes: Attributes,
    /// Identity of the copy itself ([`crate::Finished::object`]).
    pub object: Identity,
    /// XXH3-128 checksum of the copy ([`crate::Finished::checksum`]).
    pub checksum: u128,
    /// Present time, in Unix seconds.
    pub created_unix_s: i64,
}

/// The catalogue of one tier.
#[derive(Debug)]
pub(crate) struct Catalogue {
    shared: Arc<LeasedRoot>,
    boot: BootId,
    /// Key derived from the secret and the root; each log's key comes from this and its salt.
    root_key: SecretKey,
    log: Mutex<Option<OpenLog>>,
    /// True while the catalogue is being rewritten.
    is_compacting: AtomicBool,
}

/// The log while it is open.
#[derive(Debug)]
struct OpenLog {
    file: Box<dyn DiskFile>,
    key: TagKey,
    /// End of the valid records; the next one is written here.
    end: u64,
    dirs: Interned,
    mounts: Interned,
    used: HashMap<u32, i64>,
    boot_is_current: bool,
    live: u64,
    dead: u64,
    /// Removals that are still to be written.
    pending: Vec<u64>,
    /// Scan made at opening, until recovery takes it.
    first_scan: Option<Box<Scan>>,
    /// Identity of this opening.
    opening: Arc<()>,
}

/// Byte strings that records refer to by number.
#[derive(Clone, Debug, Default)]
struct Interned {
    by_id: HashMap<u32, Arc<[u8]>>,
    by_bytes: HashMap<Arc<[u8]>, u32>,
    next: u32,
}

impl Interned {
    fn insert(&mut self, id: u32, bytes: &[u8]) {
        let bytes: Arc<[u8]> = bytes.into();
        self.by_bytes.insert(Arc::clone(&bytes), id);
        self.by_id.insert(id, bytes);
        self.next = self.next.max(id.saturating_add(1));
    }

    fn id_of(&self, bytes: &[u8]) -> Option<u32> {
        self.by_bytes.get(bytes).copied()
    }

    fn bytes_of(&self, id: u32) -> Option<&Arc<[u8]>> {
        self.by_id.get(&id)
    }
}

impl Catalogue {
    pub(crate) fn new(shared: Arc<LeasedRoot>, boot: BootId, root_key: SecretKey) -> Self {
        Self {
            shared,
            boot,
            root_key,
            log: Mutex::new(None),
            is_compacting: AtomicBool::new(false),
        }
    }

    fn path(&self) -> PathBuf {
        self.shared.path_of(Name::Catalogue)
    }

    fn error(&self, operation: &'static str) -> impl Fn(Errno) -> StoreError + '_ {
        move |errno| StoreError::tier(&self.path(), operation, errno)
    }

    fn key_of(&self, salt: &[u8]) -> TagKey {
        log_key(&self.root_key, salt)
    }

    /// Calls `with` with the open log, which is opened first and cut after its valid part.
    fn with_log<T>(&self, with: impl FnOnce(&mut Option<OpenLog>, &Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.with_log_rested(&mut || {}, with)
    }

    /// Calls `with` with the open log; calls `rest` after each piece that is read to open it.
    fn with_log_rested<T>(
        &self,
        rest: &mut dyn FnMut(),
        with: impl FnOnce(&mut Option<OpenLog>, &Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // A panic with the lock held would be a bug of ours; the log's state only changes after its file.
        let mut guard: MutexGuard<'_, Option<OpenLog>> = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            *guard = Some(self.open(rest)?);
        }
        with(&mut guard, self)
    }

    fn open(&self, rest: &mut dyn FnMut()) -> Result<OpenLog, StoreError> {
        let disk = &self.shared.disk;
        // Left by a compaction that did not finish.
        match uninterrupted(|| disk.remove(Name::CatalogueNew)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(self.error("clean up beside")(errno)),
        }
        let file = match uninterrupted(|| disk.open_write(Name::Catalogue)) {
            Err(Errno::NOENT) => uninterrupted(|| disk.create(Name::Catalogue)).map_err(self.error("create"))?,
            answer => answer.map_err(self.error("open"))?,
        };
        let salt = match record::read_salt(&*file).map_err(self.error("read"))? {
            Some(salt) => salt,
            None => self.begin_log(&*file)?,
        };
        let key = self.key_of(&salt);
        let scan = Scan::with_positions(&*file, &key, self.boot, rest).map_err(self.error("read"))?;
        if scan.torn_bytes > 0 {
            uninterrupted(|| file.truncate(scan.end)).map_err(self.error("cut the torn end of"))?;
        }
        Ok(OpenLog::new(file, key, scan))
    }

    /// Makes `file` an empty log, whatever it held.
    fn begin_log(&self, file: &dyn DiskFile) -> Result<[u8; record::SALT_BYTES], StoreError> {
        let header = record::new_header();
        let mut salt = [0; record::SALT_BYTES];
        salt.copy_from_slice(&header[record::MAGIC.len()..]);
        uninterrupted(|| file.truncate(0))
            .and_then(|()| crate::disk::write_all_at(file, &header, 0))
            .map_err(self.error("begin"))?;
        Ok(salt)
    }

    pub(crate) fn publish(&self, entry: &CatalogueEntry<'_>) -> Result<(), StoreError> {
        self.check_length("a directory", entry.dir.len(), limits::PATH_BYTES_MAX)?;
        self.check_length("a name", entry.name.len(), limits::NAME_BYTES_MAX)?;
        self.check_length("a mount", entry.mount.source.len(), limits::PATH_BYTES_MAX)?;
        self.check_length("a file system type", entry.mount.fs_type.len(), limits::NAME_BYTES_MAX)?;
        self.append(|log, batch| {
            let dir = log.dir_id(entry.dir, batch);
            let key = record::mount_key(entry.mount.source, entry.mount.fs_type);
            let mount = log.mounts.id_of(&key).unwrap_or_else(|| {
                let SourceMount { source, fs_type } = entry.mount;
                batch.push(&CatalogueRecord::Mount {
                    id: log.mounts.next,
                    source,
                    fs_type,
                });
                log.mounts.next
            });
            batch.push(&CatalogueRecord::Entry(EntryRecord::new(entry, dir, mount)));
            LogChange {
                dir: Some((dir, entry.dir.into())),
                mount: Some((mount, key)),
                live: 1,
                ..LogChange::default()
            }
        })
    }

    pub(crate) fn publish_alias(&self, id: u64, dir_path: &[u8], name: &[u8]) -> Result<(), StoreError> {
        self.check_length("a directory", dir_path.len(), limits::PATH_BYTES_MAX)?;
        self.check_length("a name", name.len(), limits::NAME_BYTES_MAX)?;
        self.append(|log, batch| {
            let dir = log.dir_id(dir_path, batch);
            batch.push(&CatalogueRecord::Alias { id, dir, name });
            LogChange {
                dir: Some((dir, dir_path.into())),
                ..LogChange::default()
            }
        })
    }

    /// Records that copies were removed. If the log can't be written, the removals wait for the next record.
    pub(crate) fn removed(&self, ids: &[u64]) -> Result<(), StoreError> {
        self.with_log(|slot, _| {
            if let Some(log) = slot {
                let room = limits::PENDING_REMOVALS_MAX.saturating_sub(log.pending.len());
                log.pending.extend(ids.iter().take(room));
                log.live = log.live.saturating_sub(ids.len() as u64);
                log.dead += 2 * ids.len() as u64;
            }
            Ok(())
        })?;
        self.append(|_, _| LogChange::default())
    }

    pub(crate) fn verified(&self, id: u64) -> Result<(), StoreError> {
        self.append(|_, batch| {
            batch.push(&CatalogueRecord::Verified { id });
            LogChange::default()
        })
    }

    /// Records the last use of a directory, unless that was done a short time ago or it has no copies.
    pub(crate) fn mark_used(&self, dir: &[u8], unix_s: i64) -> Result<(), StoreError> {
        self.append(|log, batch| {
            let Some(dir) = log.dirs.id_of(dir) else {
                return LogChange::default();
            };
            let last = log.used.get(&dir).copied();
            if last.is_some_and(|last| unix_s < last.saturating_add(limits::USE_RESOLUTION_S)) {
                return LogChange::default();
            }
            batch.push(&CatalogueRecord::Used { dir, unix_s });
            LogChange {
                used: Some((dir, unix_s)),
                dead: u64::from(last.is_some()),
                ..LogChange::default()
            }
        })
    }

    fn check_length(&self, what: &'static str, bytes: usize, max: usize) -> Result<(), StoreError> {
        if bytes <= max {
            Ok(())
        } else {
            Err(StoreError::TooLong {
                path: self.path(),
                what,
                bytes,
            })
        }
    }

    /// Writes records with one system call. The state changes only after they are written.
    fn append(&self, fill: impl FnOnce(&OpenLog, &mut FrameBatch<'_>) -> LogChange) -> Result<(), StoreError> {
        self.with_log(|slot, _| {
            let Some(log) = slot else { return Ok(()) };
            let key = log.key.clone();
            let mut batch = FrameBatch::new(&key, log.end);
            if !log.boot_is_current {
                batch.push(&CatalogueRecord::Boot { id: self.boot.0 });
            }
            let only_boot = batch.end();
            for id in &log.pending {
                batch.push(&CatalogueRecord::Removed { id: *id });
            }
            let change = fill(log, &mut batch);
            if batch.end() == only_boot {
                return Ok(());
            }
            let written = batch.flush(&*log.file);
            if let Err(errno) = written {
                // A part of it must not remain in front of the next record. If it can't be cut off, the log is read
                // again.
                if uninterrupted(|| log.file.truncate(log.end)).is_err() {
                    *slot = None;
                }
                return Err(self.error("write")(errno));
            }
            log.end = batch.end();
            log.boot_is_current = true;
            log.pending.clear();
            log.take(change);
            Ok(())
        })
    }

    /// Begins recovery: reads the log if nobody has yet, and calls `rest` after each piece of it.
    pub(crate) fn begin_recovery(&self, dev: u64, rest: &mut dyn FnMut()) -> Result<Recovery, StoreError> {
        let (file, key, scan) = self.with_log_rested(rest, |slot, _| {
            let Some(log) = slot else {
                return Err(self.error("read")(Errno::IO));
            };
            let file = uninterrupted(|| self.shared.disk.open_read(Name::Catalogue)).map_err(self.error("open"))?;
            Ok((file, log.key.clone(), log.first_scan.take()))
        })?;
        // From here on without the lock: copies may be published and removed while the old ones are reported.
        let scan = match scan {
            Some(scan) => scan,
            None => Box::new(Scan::with_positions(&*file, &key, self.boot, rest).map_err(self.error("read"))?),
        };
        Recovery::new(self.path(), file, key, scan, dev)
    }
}

/// Returns the key from which the keys of all logs of a root derive.
pub(crate) fn root_key(secret: &Secret, root_ino: u64) -> SecretKey {
    secret.key(format!("forebay catalogue 1, root {root_ino}").as_bytes())
}

fn log_key(root_key: &SecretKey, salt: &[u8]) -> TagKey {
    TagKey::new(root_key.derive(salt))
}

/// Changes of state by a written batch.
#[derive(Debug, Default)]
struct LogChange {
    dir: Option<(u32, Arc<[u8]>)>,
    mount: Option<(u32, Arc<[u8]>)>,
    used: Option<(u32, i64)>,
    live: u64,
    dead: u64,
}

impl OpenLog {
    fn new(file: Box<dyn DiskFile>, key: TagKey, scan: Scan) -> Self {
        Self {
            file,
            key,
            end: scan.end,
            dirs: scan.dirs.clone(),
            mounts: scan.mounts.clone(),
            used: scan.used.clone(),
            boot_is_current: scan.boot_is_current,
            live: scan.live(),
            dead: scan.dead(),
            pending: Vec::new(),
            first_scan: Some(Box::new(scan)),
            opening: Arc::new(()),
        }
    }

    /// Returns the number of a directory, and adds its record to the batch if it is new.
    fn dir_id(&self, path: &[u8], batch: &mut FrameBatch<'_>) -> u32 {
        self.dirs.id_of(path).unwrap_or_else(|| {
            batch.push(&CatalogueRecord::Dir { id: self.dirs.next, path });
            self.dirs.next
        })
    }

    fn take(&mut self, change: LogChange) {
        if let Some((id, bytes)) = change.dir.filter(|(_, bytes)| self.dirs.id_of(bytes).is_none()) {
            self.dirs.insert(id, &bytes);
        }
        if let Some((id, bytes)) = change.mount.filter(|(_, bytes)| self.mounts.id_of(bytes).is_none()) {
            self.mounts.insert(id, &bytes);
        }
        self.used.extend(change.used);
        self.live += change.live;
        self.dead += change.dead;
    }
}
