//! Mounts by device number. Device numbers change from mount to mount, so the catalogue names a source by its mount
//! source.

use std::collections::HashMap;

use forebay_store::SourceMount;

use crate::host::mountinfo::{self, MountLine};

/// Source of a mount, and its file system type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountSource {
    source: Vec<u8>,
    fs_type: Vec<u8>,
}

impl MountSource {
    /// Returns the mount source that the catalogue names.
    pub(crate) fn of(mount: &SourceMount<'_>) -> Self {
        Self {
            source: mount.source.to_vec(),
            fs_type: mount.fs_type.to_vec(),
        }
    }

    /// Returns the form that the catalogue stores.
    pub(crate) fn as_stored(&self) -> SourceMount<'_> {
        SourceMount {
            source: &self.source,
            fs_type: &self.fs_type,
        }
    }

    /// Returns true if the times of a directory change with each name that is added or removed, as POSIX demands. Most
    /// file systems over object stores invent such times, and SMB leaves them to the server, so only known FUSE file
    /// systems count.
    pub(crate) fn has_directory_times(&self) -> bool {
        match self.fs_type.as_slice() {
            b"fuseblk" | b"cifs" | b"smb3" => false,
            // Mounted without its kind; the source often tells it: `KIND:NAME`.
            b"fuse" => self.source.split(|byte| *byte == b':').next().is_some_and(is_known_fuse),
            kind => kind.strip_prefix(b"fuse.").is_none_or(is_known_fuse),
        }
    }

    /// Returns true if its files are in memory only. There a write through a mapping moves no time.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.fs_type.as_slice(), b"tmpfs" | b"ramfs" | b"hugetlbfs" | b"devtmpfs")
    }

    /// Returns true if the kernel keeps the pages of its files under files of other file systems.
    pub(crate) fn is_overlay(&self) -> bool {
        self.fs_type == b"overlay"
    }

    /// Returns true if the catalogue's mount is this one.
    pub(crate) fn is(&self, mount: &SourceMount<'_>) -> bool {
        self.source == mount.source && self.fs_type == mount.fs_type
    }
}

/// FUSE file systems that keep the times of directories.
const FUSE_WITH_TIMES: &[&[u8]] = &[b"ceph-fuse", b"fuse-overlayfs", b"glusterfs", b"juicefs", b"slowfs", b"sshfs"];

fn is_known_fuse(kind: &[u8]) -> bool {
    FUSE_WITH_TIMES.contains(&kind)
}

/// Type of the mount of files whose device number belongs to no mount.
const UNLISTED: &[u8] = b"unlisted";

/// MountTable by device number.
#[derive(Debug, Default)]
pub(crate) struct MountTable(HashMap<u64, MountSource>);

impl MountTable {
    /// Reads the current mounts.
    pub(crate) fn read() -> Self {
        Self(mountinfo::lines(&mountinfo::read()).map(|line| by_device(&line)).collect())
    }

    /// Returns the mount with this device number. Some file systems (btrfs, overlayfs) give files numbers that no mount
    /// has; the number itself then names the mount.
    pub(crate) fn of(&self, dev: u64) -> MountSource {
        let unlisted = || MountSource {
            source: dev.to_string().into_bytes(),
            fs_type: UNLISTED.to_vec(),
        };
        self.0.get(&dev).cloned().unwrap_or_else(unlisted)
    }

    /// Returns the mount with this device number, if one has it.
    pub(crate) fn find(&self, dev: u64) -> Option<&MountSource> {
        self.0.get(&dev)
    }

    /// Returns the current device number of a mount source.
    pub(crate) fn device_of(&self, source: &MountSource) -> Option<u64> {
        if source.fs_type == UNLISTED {
            return std::str::from_utf8(&source.source).ok()?.parse().ok();
        }
        self.0.iter().find(|(_, mount)| *mount == source).map(|found| *found.0)
    }
}

/// Returns the device number of a mount and its source.
fn by_device(line: &MountLine<'_>) -> (u64, MountSource) {
    let (source, fs_type) = (line.source, line.fs_type);
    (line.dev, MountSource::of(&SourceMount { source, fs_type }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_of_mountinfo() {
        let text = b"nonsense\n62 29 0:45 / /lustre rw,relatime shared:3 - fuse.glusterfs 10.0.0.1:/pfs rw,user_id=0\n";
        let mounts: Vec<_> = mountinfo::lines(text).map(|line| by_device(&line)).collect();
        let [(dev, mount)] = mounts.as_slice() else { panic!("{mounts:?}") };
        assert_eq!(*dev, rustix::fs::makedev(0, 45));
        assert_eq!(mount.source, b"10.0.0.1:/pfs");
    }

    #[test]
    fn directories_of_object_stores_have_no_times_to_go_by() {
        let has_times_of = |source: &str, kind: &str| {
            let (source, fs_type) = (source.as_bytes(), kind.as_bytes());
            MountSource::of(&SourceMount { source, fs_type }).has_directory_times()
        };
        let has_times = |kind: &str| has_times_of("data", kind);
        for kind in [
            "nfs4",
            "lustre",
            "ceph",
            "ext4",
            "overlay",
            "fuse.glusterfs",
            "fuse.slowfs",
            "unlisted",
        ] {
            assert!(has_times(kind), "{kind}");
        }
        for kind in [
            "fuse",
            "fuse.mountpoint-s3",
            "fuse.gcsfuse",
            "fuse.glusterfs2",
            "fuseblk",
            "cifs",
            "smb3",
        ] {
            assert!(!has_times(kind), "{kind}");
        }
        assert!(has_times_of("slowfs:/data", "fuse"));
        assert!(!has_times_of("bucket:/data", "fuse"));
    }
}
