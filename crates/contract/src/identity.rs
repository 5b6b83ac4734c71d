//! Identity and attributes of a file, by which a version is recognised.

/// A file time: seconds and nanoseconds since the epoch, as the kernel gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct FileTime {
    /// Seconds; may be negative.
    pub sec: i64,
    /// Nanoseconds, below 1e9.
    pub nsec: u32,
}

/// Identity of one version of a source file. Equal identities are taken to be equal bytes, which is as exact as the
/// time stamps of the source's file system (promise P3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number (`st_dev`), which changes with each mount.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last change of the contents.
    pub mtime: FileTime,
    /// Last change of the inode.
    pub ctime: FileTime,
}

/// Values that `fstat` reports of a source file beyond its identity; a redirected descriptor reports them, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// File type and permission bits (`st_mode`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Allocated 512-byte blocks.
    pub blocks: u64,
}

impl Attributes {
    /// Returns whether this is a directory, whose copy is a cached directory.
    pub const fn is_directory(&self) -> bool {
        is_directory(self.mode)
    }
}

/// Returns whether a mode is a directory's.
pub(crate) const fn is_directory(mode: u32) -> bool {
    mode & 0o170_000 == 0o040_000
}
