//! Copy of a directory in a tier: a header, followed by the entries as the kernel returns them (`getdents64`).
//!
//! On all supported machines libc lays out `struct dirent` in this way, so the preload library returns entries in
//! place. A cached directory is a copy with a record under the directory's name. The record's size is that of the copy,
//! since a directory's `st_size` says nothing about its contents; the header keeps `st_size` for `stat`.

use crate::{digest::layout, hash::hash_bytes};

const MAGIC: u64 = u64::from_le_bytes(*b"FBLIST\0\x01");
const SEED: u64 = 0x6C69_7374_696E_672E;
/// Length of the header in bytes; entries begin at multiples of eight.
pub const HEADER_BYTES: usize = size_of::<CachedDirectoryHeader>();
/// Length in bytes of the longest entry, with a name of 255 bytes. It fits into a `struct dirent`.
pub const ENTRY_BYTES_MAX: usize = 280;
/// Length in bytes of the shortest entry, with a name of one byte.
pub const ENTRY_BYTES_MIN: usize = 24;
/// Position of `d_off` in an entry, eight bytes long; the inode stands before it.
pub const OFFSET_AT: usize = 8;
/// Position of the entry's length, two bytes long, behind `d_off`.
pub const LENGTH_AT: usize = 16;
const KIND_AT: usize = 18;
const NAME_AT: usize = 19;
const NAME_BYTES_MAX: usize = 255;

/// Layout that the preload library and the agent share.
pub(crate) const LAYOUT: &[&[u64]] = &[
    layout!(CachedDirectoryHeader: magic, directory_size, bytes, checksum),
    &[
        MAGIC,
        SEED,
        ENTRY_BYTES_MAX as u64,
        ENTRY_BYTES_MIN as u64,
        OFFSET_AT as u64,
        LENGTH_AT as u64,
        KIND_AT as u64,
        NAME_AT as u64,
    ],
];

/// CachedDirectoryHeader of a cached directory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedDirectoryHeader {
    magic: u64,
    directory_size: u64,
    bytes: u64,
    checksum: u64,
}

impl CachedDirectoryHeader {
    /// Creates the header of these entries, for a directory whose own size (`st_size`) is `directory_size` bytes.
    pub fn of(directory_size: u64, entries: &[u8]) -> Self {
        Self {
            magic: MAGIC,
            directory_size,
            bytes: entries.len() as u64,
            checksum: hash_bytes(SEED, entries),
        }
    }

    /// Returns the header's bytes, as they are stored.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let words = [self.magic, self.directory_size, self.bytes, self.checksum];
        let mut bytes = [0; HEADER_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Parses the header of a copy that begins with `bytes`; `None` if it is not a cached directory.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |nth: usize| Some(u64::from_le_bytes(bytes.get(nth * 8..nth * 8 + 8)?.try_into().ok()?));
        let header = Self {
            magic: word(0)?,
            directory_size: word(1)?,
            bytes: word(2)?,
            checksum: word(3)?,
        };
        (header.magic == MAGIC).then_some(header)
    }

    /// Returns whether the header was made for these entries.
    pub fn is_of(&self, entries: &[u8]) -> bool {
        self.bytes == entries.len() as u64 && self.checksum == hash_bytes(SEED, entries)
    }

    /// Returns the directory's own size in bytes, as `stat` reports it.
    pub const fn directory_size(&self) -> u64 {
        self.directory_size
    }
}

/// Returns the names in a cached directory's entries, up to the first entry that is not laid out as
/// [`CachedDirectoryEntry::write`] does.
pub fn names(entries: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = entries;
    core::iter::from_fn(move || {
        let len = usize::from(u16::from_le_bytes(rest.get(LENGTH_AT..LENGTH_AT + 2)?.try_into().ok()?));
        let (entry, behind) = rest.split_at_checked(len.max(ENTRY_BYTES_MIN))?;
        rest = behind;
        let name = entry.get(NAME_AT..)?;
        name.get(..name.iter().position(|byte| *byte == 0)?)
    })
}

/// One entry to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedDirectoryEntry<'a> {
    /// `d_ino`.
    pub inode: u64,
    /// `d_off`: the position from which reading goes on after this entry.
    pub offset: u64,
    /// `d_type`.
    pub kind: u8,
    /// `d_name`, without a NUL.
    pub name: &'a [u8],
}

impl CachedDirectoryEntry<'_> {
    /// Writes the entry in the kernel's form to the start of `room`. Returns its length, or `None` for a name that no
    /// directory can hold.
    pub fn write(&self, room: &mut [u8; ENTRY_BYTES_MAX]) -> Option<usize> {
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || self.name.contains(&0) || self.name.contains(&b'/') {
            return None;
        }
        let len = (NAME_AT + self.name.len() + 1).next_multiple_of(8);
        let entry = room.get_mut(..len)?;
        entry.fill(0);
        let parts: [(usize, &[u8]); 5] = [
            (0, &self.inode.to_le_bytes()),
            (OFFSET_AT, &self.offset.to_le_bytes()),
            (LENGTH_AT, &(len as u16).to_le_bytes()),
            (KIND_AT, &[self.kind]),
            (NAME_AT, self.name),
        ];
        for (at, bytes) in parts {
            entry.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
        }
        Some(len)
    }
}

const _: () = assert!(NAME_AT + NAME_BYTES_MAX < ENTRY_BYTES_MAX && ENTRY_BYTES_MAX.is_multiple_of(8));
const _: () = assert!(HEADER_BYTES.is_multiple_of(8));
