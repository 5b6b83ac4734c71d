//! A tier: one private root with its lease, its room and its copies.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use forebay_contract::Identity;
use forebay_policy::Space;
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use crate::catalogue::{Catalogue, CatalogueEntry, CatalogueItem, Recovery, RecoveryReport};
use crate::clean::clean;
use crate::copy::CopyWriter;
use crate::disk::{self, Disk, DiskFile, Folder, Name, RealDisk, uninterrupted};
use crate::error::StoreError;
use crate::leased::{LeasedRoot, guard};
use crate::limits;
use crate::opening;
use crate::root::{self, BootId};
use crate::secret::{self, Secret};

/// Content of FORMAT for the layout that this version reads and writes.
const FORMAT: &[u8] = b"forebay tier 1\n";

pub(crate) const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58F6;

/// An open tier. This process holds its lease until the tier and the last [`CopyWriter`] of it are dropped, or
/// [`Tier::give_up_lease`] is called.
#[derive(Debug)]
pub struct Tier {
    quota: Space,
    shared: Arc<LeasedRoot>,
    pub(crate) catalogue: Catalogue,
    dev: u64,
    is_memory: bool,
    ids: Mutex<Ids>,
}

/// Generator of names of copies: a random number for this opening, and a counter.
#[derive(Debug)]
struct Ids {
    incarnations: Vec<u32>,
    counter: u32,
}

impl Tier {
    /// Opens the tier in the existing directory `dir` for the user `uid`, creates its private root if it is missing,
    /// and leases it. `quota` limits all files of the tier together.
    ///
    /// The catalogue is not read yet: opening takes no longer for a large tier.
    pub fn open(dir: &Path, quota: Space, secret: &Secret, uid: u32) -> Result<Self, StoreError> {
        let path = root::root_path(dir, uid);
        let path = std::path::absolute(&path).unwrap_or(path);
        let fd = root::open_or_make(dir, uid)?;
        let disk = RealDisk::new(fd).map_err(|errno| StoreError::tier(&path, "open", errno))?;
        Self::open_on(Arc::new(disk), path, quota, secret, BootId::current()).inspect_err(|error| {
            if matches!(error, StoreError::Unfit { .. }) {
                // A root that will get no copies would only be in the way.
                let _ = clean(dir, uid);
            }
        })
    }

    /// Opens a tier on any disk, whose root is known to be private; `root` is only for messages and
    /// [`Tier::objects_path`].
    pub fn open_on(disk: Arc<dyn Disk>, root: PathBuf, quota: Space, secret: &Secret, boot: BootId) -> Result<Self, StoreError> {
        let lease = opening::take(&*disk, &root, root.parent().unwrap_or(&root), FORMAT)?;
        let failed = |operation| {
            let root = &root;
            move |errno| StoreError::tier(root, operation, errno)
        };
        let stat = uninterrupted(|| disk.stat_root()).map_err(failed("stat"))?;
        // The number of a file, not of the root: overlayfs gives its files other device numbers than its directories.
        let dev = uninterrupted(|| disk.stat(Name::Format))
            .map_err(failed("stat FORMAT of"))?
            .identity
            .dev;
        let fs_magic = uninterrupted(|| disk.room()).map_err(failed("ask the room of"))?.fs_magic;
        let root_key = crate::catalogue::root_key(secret, stat.identity.ino);
        let objects = root.join("objects");
        let shared = Arc::new(LeasedRoot {
            disk,
            root,
            objects,
            leftovers: Mutex::default(),
            lease: Mutex::new(Some(lease)),
        });
        Ok(Self {
            quota,
            catalogue: Catalogue::new(Arc::clone(&shared), boot, root_key),
            shared,
            dev,
            is_memory: matches!(fs_magic, TMPFS_MAGIC | RAMFS_MAGIC),
            ids: Mutex::new(Ids {
                incarnations: vec![secret::random_u32()],
                counter: 0,
            }),
        })
    }

    /// Returns the room for copies: the quota without the inodes that the tier needs for itself.
    pub fn quota(&self) -> Space {
        Space {
            inodes: self.quota.inodes.saturating_sub(limits::OVERHEAD_INODES),
            ..self.quota
        }
    }

    /// Returns the path of the private root.
    pub fn root_path(&self) -> &Path {
        &self.shared.root
    }

    /// Returns the directory below which the preload library opens copies by name: `XX/ID`, ID the copy's 16
    /// hexadecimal digits and XX the last two.
    pub fn objects_path(&self) -> &Path {
        &self.shared.objects
    }

    /// Returns the path of the copy `id`.
    pub fn copy_path(&self, id: u64) -> PathBuf {
        self.shared.object_path(id)
    }

    /// Returns the device number of the tier's files.
    pub fn device(&self) -> u64 {
        self.dev
    }

    /// Returns whether the tier is in memory (tmpfs), so that its copies count against the job's memory (F13).
    pub fn is_memory(&self) -> bool {
        self.is_memory
    }

    /// Returns the room that the file system now has above the free floor.
    pub fn room(&self) -> Result<Space, StoreError> {
        // A copy may be the first in its part of `objects`, which takes an inode, too, as do the catalogue, made when
        // it is first opened, and its replacement. If the parts can't be listed, none counts as made. They are listed
        // first: a part made meanwhile then counts twice rather than not at all.
        let parts = self.shared.list_shards().map_or(0, |parts| parts.len() as u64);
        let room =
            uninterrupted(|| self.shared.disk.room()).map_err(|errno| StoreError::tier(&self.shared.root, "ask the room of", errno))?;
        // A file system that does not count its inodes says that it has this many.
        let floor = |total: u64| {
            if total == u64::MAX {
                0
            } else {
                total / 100 * limits::FREE_FLOOR_PERCENT
            }
        };
        let kept_inodes = floor(room.total_inodes) + limits::CATALOGUES_MAX + limits::PARTS_MAX.saturating_sub(parts);
        Ok(Space {
            bytes: room.free_bytes.saturating_sub(floor(room.total_bytes)),
            inodes: room.free_inodes.saturating_sub(kept_inodes),
        })
    }

    /// Gives up the lease, as the last act of a process that ends. One of its threads may wait for a source that hangs.
    /// That thread does nothing more, but would hold the lease until the source answers (F11).
    pub fn give_up_lease(&self) {
        drop(guard(&self.shared.lease).take());
    }

    /// Returns about how many copies the catalogue lists, estimated from its length; dead ones count, too.
    pub fn expected_copies(&self) -> u64 {
        let length = rustix::fs::stat(self.shared.root.join("catalogue")).map_or(0, |stat| stat.st_size as u64);
        length / limits::CATALOGUE_BYTES_A_COPY
    }

    /// Returns a name for a copy that no other copy has or had.
    pub fn next_id(&self) -> u64 {
        let mut ids = guard(&self.ids);
        if ids.counter == u32::MAX {
            ids.incarnations.push(secret::random_u32());
            ids.counter = 0;
        }
        ids.counter += 1;
        let incarnation = ids.incarnations.last().copied().unwrap_or_default();
        u64::from(incarnation) << 32 | u64::from(ids.counter)
    }

    /// Returns whether [`Tier::next_id`] of this opening returned `id`.
    pub fn is_ours(&self, id: u64) -> bool {
        guard(&self.ids).incarnations.contains(&((id >> 32) as u32))
    }

    /// Begins the copy `id`, a result of [`Tier::next_id`], of the version `identity` of a source file.
    pub fn begin(&self, id: u64, identity: &Identity) -> Result<CopyWriter, StoreError> {
        let failed = |errno| StoreError::tier(&self.copy_path(id), "create", errno);
        if !self.is_ours(id) {
            return Err(failed(Errno::INVAL));
        }
        let create = || uninterrupted(|| self.shared.disk.create(Name::Object(id)));
        let created = match create() {
            Err(Errno::NOENT) => self.make_shard(id as u8).and_then(|()| create()),
            answer => answer,
        };
        match created {
            Ok(file) => Ok(CopyWriter::new(Arc::clone(&self.shared), id, *identity, file)),
            Err(errno) => {
                if errno != Errno::EXIST {
                    // The file may exist nevertheless: a file system may report an error and still have made it.
                    self.shared.discard(id);
                }
                Err(failed(errno))
            }
        }
    }

    fn make_shard(&self, shard: u8) -> disk::Result<()> {
        for folder in [Folder::Objects, Folder::Shard(shard)] {
            match uninterrupted(|| self.shared.disk.make_dir(folder)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Opens a copy for reading.
    pub fn open_copy(&self, id: u64) -> Result<Box<dyn DiskFile>, StoreError> {
        uninterrupted(|| self.shared.disk.open_read(Name::Object(id))).map_err(|errno| StoreError::tier(&self.copy_path(id), "open", errno))
    }

    /// Returns the present identity of a copy's file, looked up by name as the preload library does: a copy in a root
    /// that was moved away is not found.
    pub fn stat_copy(&self, id: u64) -> Result<Identity, StoreError> {
        let failed = |operation| move |errno| StoreError::tier(&self.copy_path(id), operation, errno);
        let stat = uninterrupted(|| rustix::fs::stat(self.copy_path(id))).map_err(failed("stat"))?;
        Ok(disk::identity_of(&stat))
    }

    /// Returns whether the name of the private root still leads to it: the preload library finds no copy in a root that
    /// was moved or removed.
    pub fn is_in_place(&self) -> bool {
        let by_name = uninterrupted(|| rustix::fs::stat(&self.shared.root)).map(|stat| disk::identity_of(&stat));
        let by_descriptor = uninterrupted(|| self.shared.disk.stat_root()).map(|stat| stat.identity);
        matches!((by_name, by_descriptor), (Ok(named), Ok(ours)) if (named.dev, named.ino) == (ours.dev, ours.ino))
    }

    /// Adds a finished copy to the catalogue, so that the next runs recover it. On failure the copy is removed.
    pub fn publish(&self, entry: &CatalogueEntry<'_>) -> Result<(), StoreError> {
        self.catalogue.publish(entry).inspect_err(|_| self.shared.discard(entry.id))
    }

    /// Removes a finished copy that is not to be published after all.
    pub fn discard(&self, id: u64) -> Result<(), StoreError> {
        self.shared.remove_object(id)
    }

    /// Adds a further path of a published copy to the catalogue.
    pub fn publish_alias(&self, id: u64, dir: &[u8], name: &[u8]) -> Result<(), StoreError> {
        self.catalogue.publish_alias(id, dir, name)
    }

    /// Removes a published copy: its record first, then its file. Open descriptors stay readable.
    ///
    /// If the catalogue cannot be written (for example because the disk is full), the file is removed nevertheless. Its
    /// record then leads to no file, which is found when the copy is opened or reaped.
    pub fn remove(&self, id: u64) -> Result<(), StoreError> {
        let recorded = self.catalogue.removed(&[id]);
        self.shared.remove_object(id)?;
        match recorded {
            Err(error) if error.is_full() => self.catalogue.removed(&[]).or(Ok(())),
            answer => answer,
        }
    }

    /// Records that copies of the directory `dir` were used at `unix_s`. Frequent calls are cheap: it writes at most
    /// one record an hour.
    pub fn mark_used(&self, dir: &[u8], unix_s: i64) -> Result<(), StoreError> {
        self.catalogue.mark_used(dir, unix_s)
    }

    /// Begins the recovery of copies that earlier openings published: reads the whole catalogue, calling `rest` after
    /// each [`limits::READ_PIECE_BYTES`] of it, and looks at no copy. Call it once, before [`Tier::compact_if_due`].
    /// Copies may be made, published and removed during the recovery.
    pub fn begin_recovery(&self, rest: &mut dyn FnMut()) -> Result<Recovery, StoreError> {
        self.catalogue.begin_recovery(self.dev, rest)
    }

    /// Recovers all copies in one call, directory by directory.
    pub fn recover(&self, mut each: impl FnMut(CatalogueItem<'_>)) -> Result<RecoveryReport, StoreError> {
        let mut recovery = self.begin_recovery(&mut || {})?;
        for (directory, _) in recovery.directories() {
            recovery.tell(directory, &mut each)?;
        }
        Ok(recovery.report())
    }

    /// Reads a copy of an earlier boot and compares it with its record ([`crate::CatalogueCopy::checksum`] and
    /// `object`). A correct copy is trusted until the next boot; any other is [`StoreError::Damaged`]: remove it.
    pub fn verify(&self, id: u64, checksum: u128, object: &Identity) -> Result<(), StoreError> {
        let damaged = |what| StoreError::Damaged {
            path: self.copy_path(id),
            what,
        };
        let failed = |operation| move |errno| StoreError::tier(&self.copy_path(id), operation, errno);
        let file = self.open_copy(id)?;
        let now = uninterrupted(|| file.stat()).map_err(failed("stat"))?.identity;
        if now.size != object.size {
            return Err(damaged("its size differs from the written one"));
        }
        if (now.ino, now.mtime, now.ctime) != (object.ino, object.mtime, object.ctime) {
            return Err(damaged("it was changed or replaced after it was written"));
        }
        let mut hasher = XxHash3_128::new();
        let mut piece = vec![0; limits::READ_PIECE_BYTES.min(now.size as usize + 1)];
        let mut offset = 0;
        loop {
            match uninterrupted(|| file.read_at(&mut piece, offset)).map_err(failed("read"))? {
                0 => break,
                read => {
                    hasher.write(&piece[..read]);
                    offset += read as u64;
                }
            }
        }
        if offset != now.size || hasher.finish_128() != checksum {
            return Err(damaged("its bytes differ from the written ones"));
        }
        // If this can't be written, the next run only verifies the copy once more.
        let _ = self.catalogue.verified(id);
        Ok(())
    }

    /// Returns whether dead records outnumber live ones in the catalogue, and nobody rewrites it now.
    pub fn compaction_is_due(&self) -> Result<bool, StoreError> {
        self.catalogue.compaction_is_due()
    }

    /// Rewrites the catalogue if that is due. Returns whether it was.
    pub fn compact_if_due(&self) -> Result<bool, StoreError> {
        let due = self.compaction_is_due()?;
        if due {
            self.compact()?;
        }
        Ok(due)
    }

    /// Rewrites the catalogue without dead records. It may run on a thread of its own: copies may be published and
    /// removed meanwhile.
    pub fn compact(&self) -> Result<(), StoreError> {
        self.catalogue.compact()
    }

    pub(crate) fn shared(&self) -> &LeasedRoot {
        &self.shared
    }
}
