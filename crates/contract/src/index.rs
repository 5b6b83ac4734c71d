//! The index: maps a path, as spelled, to its copy; and a copy's inode back to its source.
//!
//! One file, `index.GEN`: header, two hash tables of slots, records, directories, classes, names. Only the agent
//! writes. A slot is one word, (tag, record number + 1), stored after its record is complete. Afterwards only a
//! record's state and the time of its check change, and its place is not used again in the same file. So readers need
//! no lock, and never see half a record.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};

use crate::{
    Attributes, CONTRACT_VERSION, FileTime, Identity, TIERS_MAX,
    digest::layout,
    hash::{hash_bytes, hash_pair},
    identity::is_directory,
    region::{Plain, Region},
};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"FBINDX\0\x01");
pub(crate) const HEADER_BYTES: u64 = 4096;
/// Longest path of a tier's object directory, in bytes.
pub const TIER_PATH_BYTES_MAX: usize = 360;
/// Longest run of slots that a look-up searches; the writer grows the table before a run gets longer.
pub(crate) const PROBES_MAX: u64 = 512;

/// Record states.
pub(crate) const LIVE: u32 = 1;
pub(crate) const DETACHED: u32 = 2;
pub(crate) const DEAD: u32 = 3;

/// Layout that the preload library and the agent share.
pub(crate) const LAYOUT: &[&[u64]] = &[
    layout!(IndexHeader: magic, version, generation, seed, slots, path_slots_at, inode_slots_at, records, records_at, directories, directories_at,
        classes, classes_at, names, names_at, tier_count, tiers),
    layout!(Tier: dev, path_len, path),
    layout!(Class: dev, mode, uid, gid, nlink, blksize, reserved),
    layout!(Directory: path_at, path_len, dev, ino, swept_at, way_checked_at),
    layout!(Record: checked_at, inserted_at, copy, copy_ino, copy_ctime_sec, ino, size, mtime_sec, ctime_sec, blocks, copy_ctime_nsec,
        mtime_nsec, ctime_nsec, name_at, directory, class, state, name_len, tier, plain),
    &[
        MAGIC,
        HEADER_BYTES,
        PROBES_MAX,
        LIVE as u64,
        DETACHED as u64,
        DEAD as u64,
        TIERS_MAX as u64,
    ],
];

/// A tier, as the preload library needs it to open copies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tier {
    dev: u64,
    path_len: u64,
    path: [u8; TIER_PATH_BYTES_MAX],
}

impl Tier {
    /// Creates a tier from its device number and the absolute path of its directory of objects. Returns `None` if the
    /// path is too long.
    pub fn new(dev: u64, objects: &[u8]) -> Option<Self> {
        let mut path = [0; TIER_PATH_BYTES_MAX];
        path.get_mut(..objects.len())?.copy_from_slice(objects);
        Some(Self {
            dev,
            path_len: objects.len() as u64,
            path,
        })
    }

    /// Device number of the file system that the tier is on.
    pub const fn dev(&self) -> u64 {
        self.dev
    }

    /// Absolute path of the directory of objects.
    pub fn objects(&self) -> &[u8] {
        self.path.get(..self.path_len as usize).unwrap_or(&[])
    }
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct IndexHeader {
    pub(crate) magic: AtomicU64,
    pub(crate) version: u64,
    pub(crate) generation: u64,
    pub(crate) seed: u64,
    pub(crate) slots: u64,
    pub(crate) path_slots_at: u64,
    pub(crate) inode_slots_at: u64,
    pub(crate) records: u64,
    pub(crate) records_at: u64,
    pub(crate) directories: u64,
    pub(crate) directories_at: u64,
    pub(crate) classes: u64,
    pub(crate) classes_at: u64,
    pub(crate) names: u64,
    pub(crate) names_at: u64,
    pub(crate) tier_count: u64,
    pub(crate) tiers: [Tier; TIERS_MAX],
}

// SAFETY: integers, atomics and byte arrays; every bit pattern is a value.
unsafe impl Plain for IndexHeader {}
const _: () = assert!(size_of::<IndexHeader>() as u64 <= HEADER_BYTES);

/// Attributes that many source files have in common, stored once.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Device number of the source.
    pub dev: u64,
    /// `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u32,
    /// Preferred I/O size.
    pub blksize: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: integers only.
unsafe impl Plain for Class {}

/// A directory as spelled.
#[repr(C)]
#[derive(Debug)]
pub struct Directory {
    pub(crate) path_at: u32,
    pub(crate) path_len: u32,
    pub(crate) dev: AtomicU64,
    pub(crate) ino: AtomicU64,
    pub(crate) swept_at: AtomicU64,
    pub(crate) way_checked_at: AtomicU64,
}

// SAFETY: integers and atomics.
unsafe impl Plain for Directory {}

impl Directory {
    /// Returns the start of the last complete sweep, `CLOCK_BOOTTIME` in nanoseconds; 0: never swept.
    #[inline]
    pub fn swept_at(&self) -> u64 {
        self.swept_at.load(Acquire)
    }

    /// Returns the start of the last look that found the path leading to the same directory as before; 0: none. It
    /// overrules an older invalidation epoch: some directory was renamed or a link changed, but not on this path.
    #[inline]
    pub fn way_checked_at(&self) -> u64 {
        self.way_checked_at.load(Acquire)
    }

    /// Returns the directory's own device number.
    pub fn dev(&self) -> u64 {
        self.dev.load(Relaxed)
    }

    /// Returns the directory's own inode.
    pub fn ino(&self) -> u64 {
        self.ino.load(Relaxed)
    }
}

/// A name and the copy that it leads to.
#[repr(C)]
#[derive(Debug)]
pub struct Record {
    pub(crate) checked_at: AtomicU64,
    pub(crate) inserted_at: AtomicU64,
    pub(crate) copy: u64,
    pub(crate) copy_ino: u64,
    pub(crate) copy_ctime_sec: i64,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) mtime_sec: i64,
    pub(crate) ctime_sec: i64,
    pub(crate) blocks: u64,
    pub(crate) copy_ctime_nsec: u32,
    pub(crate) mtime_nsec: u32,
    pub(crate) ctime_nsec: u32,
    pub(crate) name_at: u32,
    pub(crate) directory: u32,
    pub(crate) class: u32,
    pub(crate) state: AtomicU32,
    pub(crate) name_len: u16,
    pub(crate) tier: u8,
    pub(crate) plain: u8,
}

// SAFETY: integers and atomics.
unsafe impl Plain for Record {}
const _: () = assert!(size_of::<Record>() == 112);

impl Record {
    /// Returns the time at which the name last led to this version, `CLOCK_BOOTTIME` in nanoseconds; 0: recovered, not
    /// yet checked.
    #[inline]
    pub fn checked_at(&self) -> u64 {
        self.checked_at.load(Acquire)
    }

    /// Returns the time from which sweeps of the directory compare this record; `u64::MAX` during its insertion.
    #[inline]
    pub fn inserted_at(&self) -> u64 {
        self.inserted_at.load(Acquire)
    }

    /// Returns the copy's number, which is its name in the tier.
    pub const fn copy(&self) -> u64 {
        self.copy
    }

    /// Returns the inode of the copy.
    pub const fn copy_ino(&self) -> u64 {
        self.copy_ino
    }

    /// Returns the last change of the copy's inode.
    pub const fn copy_ctime(&self) -> FileTime {
        FileTime {
            sec: self.copy_ctime_sec,
            nsec: self.copy_ctime_nsec,
        }
    }

    /// Returns the number of the tier that holds the copy.
    pub const fn tier(&self) -> usize {
        self.tier as usize
    }

    /// Returns the size in bytes of a file's copy; a cached directory has a size of its own.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns whether the path leads to the file without a symbolic link. Such a path changes its target only with its
    /// directory.
    pub const fn is_plain(&self) -> bool {
        self.plain != 0
    }

    /// Returns the number of the spelled directory.
    pub const fn directory(&self) -> u32 {
        self.directory
    }

    /// Returns whether the copy may be opened.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.state.load(Acquire) == LIVE
    }

    /// Returns whether the record was written; records fill from the front.
    pub fn is_written(&self) -> bool {
        self.state.load(Acquire) != 0
    }

    /// Returns whether the copy is still there, though perhaps not usable until its name was checked again.
    pub fn is_kept(&self) -> bool {
        matches!(self.state.load(Acquire), LIVE | DETACHED)
    }
}

/// Read access to an index file.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    pub(crate) region: Region<'a>,
    pub(crate) header: &'a IndexHeader,
}

impl<'a> Index<'a> {
    /// Opens an index that the agent created. Returns `None` if it is invalid, of another version, or shorter than its
    /// header says.
    pub fn open(region: Region<'a>) -> Option<Self> {
        let header: &IndexHeader = region.at(0)?;
        let ours = header.magic.load(Acquire) == MAGIC && header.version == u64::from(CONTRACT_VERSION);
        let whole = header.names_at.checked_add(header.names)? <= region.len() as u64 && header.slots.is_power_of_two();
        (ours && whole).then_some(Self { region, header })
    }

    /// Returns the generation of this file.
    pub const fn generation(&self) -> u64 {
        self.header.generation
    }

    /// Returns the tiers, top first.
    pub fn tiers(&self) -> &'a [Tier] {
        self.header.tiers.get(..self.header.tier_count as usize).unwrap_or(&[])
    }

    /// Returns a record by its number.
    #[inline]
    pub fn record(&self, number: u32) -> Option<&'a Record> {
        if u64::from(number) >= self.header.records {
            return None;
        }
        self.region.element(self.header.records_at, u64::from(number))
    }

    /// Returns a directory by its number.
    #[inline]
    pub fn directory(&self, number: u32) -> Option<&'a Directory> {
        if u64::from(number) >= self.header.directories {
            return None;
        }
        self.region.element(self.header.directories_at, u64::from(number))
    }

    /// Returns the path of a directory as spelled, without a final slash (empty for the root).
    pub fn directory_path(&self, directory: &Directory) -> Option<&'a [u8]> {
        self.name(directory.path_at, directory.path_len)
    }

    /// Returns the last component of a record's path.
    pub fn record_name(&self, record: &Record) -> Option<&'a [u8]> {
        self.name(record.name_at, u32::from(record.name_len))
    }

    /// Returns the version of the source that a record's copy holds.
    pub fn identity(&self, record: &Record) -> Option<Identity> {
        Some(Identity {
            dev: self.class(record)?.dev,
            ino: record.ino,
            size: record.size,
            mtime: FileTime {
                sec: record.mtime_sec,
                nsec: record.mtime_nsec,
            },
            ctime: FileTime {
                sec: record.ctime_sec,
                nsec: record.ctime_nsec,
            },
        })
    }

    /// Returns the source's attributes beyond its identity.
    pub fn attributes(&self, record: &Record) -> Option<Attributes> {
        let class = self.class(record)?;
        Some(Attributes {
            mode: class.mode,
            uid: class.uid,
            gid: class.gid,
            nlink: class.nlink,
            blksize: class.blksize,
            blocks: record.blocks,
        })
    }

    /// Returns whether a record's copy is a cached directory.
    pub fn is_cached_directory(&self, record: &Record) -> bool {
        self.class(record).is_some_and(|class| is_directory(class.mode))
    }

    /// Returns whether `now`, as reported at the source for a name, is the version that a record's copy holds. The size
    /// of a directory is ignored: its times tell more, and the record holds the size of the cached directory instead.
    pub fn is_version(&self, record: &Record, now: &Identity) -> bool {
        let size = if self.is_cached_directory(record) { record.size } else { now.size };
        self.identity(record) == Some(Identity { size, ..*now })
    }

    /// Returns the live record of an absolute path, with its number.
    #[inline]
    pub fn find(&self, path: &[u8]) -> Option<(u32, &'a Record)> {
        let (directory, name) = split(path)?;
        let hash = hash_bytes(self.header.seed, path);
        self.probe(self.header.path_slots_at, hash, |_, record| {
            record.is_live() && self.is_named(record, directory, name)
        })
    }

    /// Returns the record of an absolute path with its number, even if its copy is kept but not usable; called by the
    /// agent.
    pub fn find_kept(&self, path: &[u8]) -> Option<(u32, &'a Record)> {
        let (directory, name) = split(path)?;
        let hash = hash_bytes(self.header.seed, path);
        self.probe(self.header.path_slots_at, hash, |_, record| {
            record.is_kept() && self.is_named(record, directory, name)
        })
    }

    /// Returns a record whose copy is the file with this device, inode and ctime. The record may be dead: the
    /// descriptor that the caller asks about may have been opened long ago.
    #[inline]
    pub fn find_copy(&self, dev: u64, ino: u64, ctime: FileTime) -> Option<(u32, &'a Record)> {
        let tier = self.tiers().iter().position(|tier| tier.dev == dev)?;
        let hash = hash_pair(self.header.seed, tier_key(tier), ino);
        let same_device = |record: &Record| self.tiers().get(record.tier()).is_some_and(|t| t.dev == dev);
        // Tiers on the same device share the first one's key, see `tier_key` in the writer.
        self.probe(self.header.inode_slots_at, hash, |_, r| {
            r.copy_ino == ino && r.copy_ctime() == ctime && same_device(r)
        })
    }

    #[inline]
    pub(crate) fn probe(&self, slots_at: u64, hash: u64, mut accept: impl FnMut(u32, &Record) -> bool) -> Option<(u32, &'a Record)> {
        let mask = self.header.slots - 1;
        let tag = hash >> 32;
        for step in 0..PROBES_MAX {
            let slot = self
                .region
                .element::<AtomicU64>(slots_at, hash.wrapping_add(step) & mask)?
                .load(Acquire);
            if slot == 0 {
                return None;
            }
            if slot >> 32 != tag {
                continue;
            }
            let number = (slot as u32).wrapping_sub(1);
            if let Some(record) = self.record(number)
                && accept(number, record)
            {
                return Some((number, record));
            }
        }
        None
    }

    #[inline]
    pub(crate) fn is_named(&self, record: &Record, directory: &[u8], name: &[u8]) -> bool {
        self.record_name(record) == Some(name) && self.directory(record.directory).and_then(|d| self.directory_path(d)) == Some(directory)
    }

    fn class(&self, record: &Record) -> Option<&'a Class> {
        if u64::from(record.class) >= self.header.classes {
            return None;
        }
        self.region.element(self.header.classes_at, u64::from(record.class))
    }

    fn name(&self, at: u32, len: u32) -> Option<&'a [u8]> {
        if u64::from(at) + u64::from(len) > self.header.names {
            return None;
        }
        self.region.bytes(self.header.names_at + u64::from(at), u64::from(len))
    }
}

/// Returns the key of a tier in the table of inodes.
pub(crate) const fn tier_key(first_tier_on_device: usize) -> u64 {
    first_tier_on_device as u64 + 1
}

/// Splits an absolute path into directory (without its final slash) and last component. Returns `None` if either is
/// invalid.
#[inline]
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    let (directory, rest) = path.split_at_checked(slash)?;
    let name = rest.get(1..)?;
    (path.first() == Some(&b'/') && !name.is_empty() && name != b"." && name != b"..").then_some((directory, name))
}

/// Writes `OBJECTS/XX/ID` with a final NUL. Returns its length without the NUL, or `None` if it does not fit.
pub fn object_path(objects: &[u8], copy: u64, out: &mut [u8]) -> Option<usize> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let len = objects.len() + 20;
    let mut to = out.get_mut(..=len)?.iter_mut();
    let digit = |shift: u32| DIGITS.get((copy >> shift & 15) as usize).copied().unwrap_or(b'0');
    let mut tail = [b'/'; 21];
    for (place, shift) in tail.iter_mut().skip(1).zip([4, 0]) {
        *place = digit(shift);
    }
    for (place, shift) in tail.iter_mut().skip(4).zip((0..16).rev()) {
        *place = digit(shift * 4);
    }
    tail[20] = 0;
    for byte in objects.iter().chain(&tail) {
        *to.next()? = *byte;
    }
    Some(len)
}
