//! Entries that tests publish.

use forebay_contract::{Attributes, Entry, FileTime, Identity};

/// Returns a file time.
pub(crate) const fn time(sec: i64, nsec: u32) -> FileTime {
    FileTime { sec, nsec }
}

/// Returns the entry of version `version` of the file called `number`; every field follows from the two.
pub(crate) fn entry(directory: u32, name: &[u8], number: u64, version: u64) -> Entry<'_> {
    let mixed = number.wrapping_mul(0x9E37_79B9).wrapping_add(version);
    Entry {
        directory,
        name,
        identity: Identity {
            dev: 7,
            ino: number + 1,
            size: mixed,
            mtime: time(version as i64, (mixed % 1_000_000_000) as u32),
            ctime: time(version as i64 + 1, (mixed % 999_999_937) as u32),
        },
        attributes: Attributes {
            mode: 0o100_644,
            uid: 1000,
            gid: 1000 + (number % 3) as u32,
            nlink: 1,
            blksize: 4096,
            blocks: mixed % 1024,
        },
        copy: version << 32 | number,
        tier: 0,
        copy_ino: version << 32 | number,
        copy_ctime: time(mixed as i64, 5),
        plain: true,
        inserted_at: 0,
        checked_at: version + 1,
    }
}
