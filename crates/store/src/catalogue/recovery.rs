//! Recovery of copies that earlier openings published, directory by directory in any order.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_contract::{Attributes, Identity};
use rustix::io::Errno;

use super::SourceMount;
use super::record::{CatalogueRecord, EntryRecord, Frames, TagKey};
use super::scan::{RecordPosition, Scan};
use crate::disk::{self, DiskFile};
use crate::error::StoreError;
use crate::limits;

/// Copies that a catalogue lists, by their part of `objects`.
#[derive(Clone, Debug, Default)]
pub struct KnownCopies(Vec<u64>);

impl KnownCopies {
    fn key(id: u64) -> (u8, u64) {
        (id as u8, id)
    }

    /// Returns the copies of one part, sorted.
    pub(crate) fn of_shard(&self, shard: u8) -> &[u64] {
        let start = self.0.partition_point(|id| Self::key(*id).0 < shard);
        let from = self.0.get(start..).unwrap_or_default();
        from.get(..from.partition_point(|id| Self::key(*id).0 == shard)).unwrap_or_default()
    }
}

impl FromIterator<u64> for KnownCopies {
    fn from_iter<T: IntoIterator<Item = u64>>(ids: T) -> Self {
        let mut ids: Vec<u64> = ids.into_iter().collect();
        ids.sort_unstable_by_key(|id| Self::key(*id));
        ids.shrink_to_fit();
        Self(ids)
    }
}

/// An item of the recovery.
#[derive(Clone, Copy, Debug)]
pub enum CatalogueItem<'a> {
    /// A copy.
    Copy(&'a CatalogueCopy<'a>),
    /// A further path of a copy that was reported before.
    Alias(CatalogueAlias<'a>),
}

/// A copy of an earlier opening. Its file may be missing, which shows when it is opened or reaped.
#[derive(Clone, Copy, Debug)]
pub struct CatalogueCopy<'a> {
    /// Name of the copy in the tier.
    pub id: u64,
    /// Directory of the source file, as spelled.
    pub dir: &'a Arc<[u8]>,
    /// Name of the source file in its directory.
    pub name: &'a [u8],
    /// Mount of the source.
    pub mount: SourceMount<'a>,
    /// Version that was copied; its `dev` is 0, since device numbers change with each mount.
    pub identity: Identity,
    /// Attributes that `fstat` reported of it besides.
    pub attributes: Attributes,
    /// Identity of the copy itself, with the tier's present device.
    pub object: Identity,
    /// XXH3-128 checksum of the copy.
    pub checksum: u128,
    /// Time of its publication, in Unix seconds.
    pub created_unix_s: i64,
    /// Last use of a copy of that directory, or the time of its publication, in Unix seconds.
    pub last_used_unix_s: i64,
    /// True if the copy was written or verified in this boot. Any other needs [`crate::Tier::verify`] before it is
    /// used.
    pub trusted: bool,
}

impl CatalogueCopy<'_> {
    /// Returns whether it is a cached directory.
    pub fn is_cached_directory(&self) -> bool {
        self.attributes.is_directory()
    }
}

/// A further path of a recovered copy.
#[derive(Clone, Copy, Debug)]
pub struct CatalogueAlias<'a> {
    /// Name of the copy in the tier.
    pub id: u64,
    /// Inode of the source file.
    pub ino: u64,
    /// Directory, as spelled.
    pub dir: &'a Arc<[u8]>,
    /// Name in the directory.
    pub name: &'a [u8],
    /// Last use of a copy of that directory, in Unix seconds; 0 if there was none.
    pub last_used_unix_s: i64,
}

/// Result of the recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Number of copies that the catalogue lists.
    pub copies: u64,
    /// Sizes of the copies, in bytes.
    pub bytes: u64,
    /// Number of bytes at the end of the catalogue that were incomplete, altered or foreign, and were cut off.
    pub torn_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DirectoryProgress {
    #[default]
    Nothing,
    /// The copies whose first path is in it are reported; its further paths are not.
    Copies,
    All,
}

/// A recovery in progress: it reports each directory once.
#[derive(Debug)]
pub struct Recovery {
    /// Path of the catalogue, for messages.
    path: PathBuf,
    file: Box<dyn DiskFile>,
    key: TagKey,
    scan: Box<Scan>,
    /// Present device number of the tier.
    dev: u64,
    /// Live records only, by directory and offset.
    entries: Vec<RecordPosition>,
    aliases: Vec<RecordPosition>,
    /// Copies that have further paths.
    aliased: HashMap<u64, RecordPosition>,
    told: HashMap<u32, DirectoryProgress>,
    report: RecoveryReport,
}

impl Recovery {
    pub(super) fn new(path: PathBuf, file: Box<dyn DiskFile>, key: TagKey, mut scan: Box<Scan>, dev: u64) -> Result<Self, StoreError> {
        let mut positions = std::mem::take(&mut scan.positions);
        let (mut entries, mut aliases) = (std::mem::take(&mut positions.entries), std::mem::take(&mut positions.aliases));
        scan.positions = positions;
        let dead = dead_bytes(&*file, &key, &scan, &entries).map_err(|errno| StoreError::tier(&path, "read", errno))?;
        let bytes = scan.entry_bytes.saturating_sub(dead);
        for kept in [&mut entries, &mut aliases] {
            kept.retain(|place| scan.is_live(place.id) && scan.dirs.bytes_of(place.dir).is_some());
            kept.sort_unstable_by_key(|place| (place.dir, place.at));
            kept.shrink_to_fit();
        }
        let mut aliased: HashMap<u64, RecordPosition> = aliases.iter().map(|alias| (alias.id, *alias)).collect();
        if !aliased.is_empty() {
            let with_aliases = entries.iter().filter(|entry| aliased.contains_key(&entry.id));
            aliased = with_aliases.map(|entry| (entry.id, *entry)).collect();
        }
        let told = entries
            .iter()
            .chain(&aliases)
            .map(|place| (place.dir, DirectoryProgress::Nothing))
            .collect();
        let report = RecoveryReport {
            copies: entries.len() as u64,
            bytes,
            torn_bytes: scan.torn_bytes,
        };
        Ok(Self {
            path,
            file,
            key,
            scan,
            dev,
            entries,
            aliases,
            aliased,
            told,
            report,
        })
    }

    /// Returns the numbers of this recovery.
    pub const fn report(&self) -> RecoveryReport {
        self.report
    }

    /// Returns number and spelled path of each directory with something to report, in the order of their first records.
    pub fn directories(&self) -> Vec<(u32, Arc<[u8]>)> {
        let named = |dir: &u32| Some((*dir, Arc::clone(self.scan.dirs.bytes_of(*dir)?)));
        let mut directories: Vec<_> = self.told.keys().filter_map(named).collect();
        directories.sort_unstable_by_key(|(dir, _)| *dir);
        directories
    }

    /// Returns the number of a directory with something to report.
    pub fn directory(&self, path: &[u8]) -> Option<u32> {
        self.scan.dirs.id_of(path).filter(|dir| self.told.contains_key(dir))
    }

    /// Reports each copy whose first path is in a directory, and then the further paths in it. For a further path of a
    /// copy in another directory it first reports the copies of that directory, so that the path follows its copy.
    /// Nothing is reported twice.
    pub fn tell(&mut self, dir: u32, each: &mut dyn FnMut(CatalogueItem<'_>)) -> Result<(), StoreError> {
        if self.told.get(&dir).is_none_or(|told| *told == DirectoryProgress::All) {
            return Ok(());
        }
        self.tell_copies(dir, each)?;
        self.tell_aliases(dir, each)?;
        self.told.insert(dir, DirectoryProgress::All);
        Ok(())
    }

    /// Returns the copies that the catalogue lists, reported or not: for [`crate::Tier::reap`].
    pub fn into_known(self) -> KnownCopies {
        self.entries.into_iter().map(|place| place.id).collect()
    }

    fn error(&self, errno: Errno) -> StoreError {
        StoreError::tier(&self.path, "read", errno)
    }

    fn tell_copies(&mut self, dir: u32, each: &mut dyn FnMut(CatalogueItem<'_>)) -> Result<(), StoreError> {
        let Some(told) = self.told.get_mut(&dir).filter(|told| **told == DirectoryProgress::Nothing) else {
            return Ok(());
        };
        *told = DirectoryProgress::Copies;
        let mut frames = self.frames();
        for place in &self.entries[range_of(&self.entries, dir)] {
            let record = frames.read_at(u64::from(place.at)).map_err(|errno| self.error(errno))?;
            if let Some(CatalogueRecord::Entry(entry)) = record {
                self.tell_entry(&entry, place.at, each);
            }
        }
        Ok(())
    }

    fn tell_entry(&self, entry: &EntryRecord<'_>, at: u32, each: &mut dyn FnMut(CatalogueItem<'_>)) {
        let scan = &self.scan;
        let Some((dir, mount)) = scan.dirs.bytes_of(entry.dir).zip(scan.mounts.bytes_of(entry.mount)) else {
            return;
        };
        let split = mount.iter().position(|byte| *byte == 0).unwrap_or(mount.len());
        let used = scan.used.get(&entry.dir).copied().unwrap_or(entry.created_unix_s);
        each(CatalogueItem::Copy(&CatalogueCopy {
            id: entry.id,
            dir,
            name: entry.name,
            mount: SourceMount {
                source: &mount[..split],
                fs_type: mount.get(split + 1..).unwrap_or_default(),
            },
            identity: entry.identity(),
            attributes: entry.attributes,
            object: entry.object(self.dev),
            checksum: entry.checksum(),
            created_unix_s: entry.created_unix_s,
            last_used_unix_s: used.max(entry.created_unix_s),
            trusted: scan.positions.is_of_this_boot(at) || scan.verified().binary_search(&entry.id).is_ok(),
        }));
    }

    fn tell_aliases(&mut self, dir: u32, each: &mut dyn FnMut(CatalogueItem<'_>)) -> Result<(), StoreError> {
        for nth in range_of(&self.aliases, dir) {
            let alias = self.aliases[nth];
            let Some(copy) = self.aliased.get(&alias.id).copied() else {
                continue;
            };
            self.tell_copies(copy.dir, each)?;
            let ino = match self.frames().read_at(u64::from(copy.at)).map_err(|errno| self.error(errno))? {
                Some(CatalogueRecord::Entry(entry)) => entry.identity().ino,
                _ => continue,
            };
            let mut frames = self.frames();
            let record = frames.read_at(u64::from(alias.at)).map_err(|errno| self.error(errno))?;
            if let (Some(CatalogueRecord::Alias { id, name, .. }), Some(path)) = (record, self.scan.dirs.bytes_of(dir)) {
                each(CatalogueItem::Alias(CatalogueAlias {
                    id,
                    ino,
                    dir: path,
                    name,
                    last_used_unix_s: self.scan.used.get(&dir).copied().unwrap_or(0),
                }));
            }
        }
        Ok(())
    }

    fn frames(&self) -> Frames<'_> {
        Frames::scattered(&*self.file, &self.key, self.scan.end, limits::SCATTERED_PIECE_BYTES)
    }
}

/// Returns the range of a directory's records.
fn range_of(positions: &[RecordPosition], dir: u32) -> Range<usize> {
    let start = positions.partition_point(|place| place.dir < dir);
    start..start + positions[start..].partition_point(|place| place.dir == dir)
}

/// Returns the bytes of the removed copies, whose sizes are only in their own records.
fn dead_bytes(file: &dyn DiskFile, key: &TagKey, scan: &Scan, entries: &[RecordPosition]) -> disk::Result<u64> {
    let mut frames = Frames::scattered(file, key, scan.end, limits::SCATTERED_PIECE_BYTES);
    let mut bytes = 0_u64;
    for place in entries.iter().filter(|place| !scan.is_live(place.id)) {
        if let Some(CatalogueRecord::Entry(entry)) = frames.read_at(u64::from(place.at))? {
            bytes = bytes.saturating_add(entry.size);
        }
    }
    Ok(bytes)
}
