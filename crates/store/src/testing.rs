//! Tools for tests of this crate and of those above it: a source in memory, and the suite that every [`Disk`] passes.

use std::sync::{Mutex, PoisonError};

use forebay_contract::{Attributes, FileTime, Identity};
use rustix::io::Errno;

use crate::disk::{self, Disk, Folder, Name};
use crate::source::{CopySource, SourceStat, StatFrom};

/// A source file in memory.
#[derive(Debug)]
pub struct MemorySource {
    content: Mutex<Vec<u8>>,
    stat: Mutex<SourceStat>,
    /// Largest result of one read in bytes, to force short reads.
    pub read_bytes_max: usize,
    /// Error that every read returns, if set.
    pub fault: Mutex<Option<Errno>>,
}

fn guard<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemorySource {
    /// Creates a file with this inode and content.
    pub fn new(ino: u64, content: &[u8]) -> Self {
        let time = FileTime {
            sec: 1_700_000_000,
            nsec: 5,
        };
        let identity = Identity {
            dev: 77,
            ino,
            size: content.len() as u64,
            mtime: time,
            ctime: time,
        };
        let attributes = Attributes {
            mode: 0o100_644,
            uid: 1000,
            gid: 100,
            nlink: 1,
            blksize: 4096,
            blocks: 8,
        };
        Self {
            content: Mutex::new(content.to_vec()),
            stat: Mutex::new(SourceStat { identity, attributes }),
            read_bytes_max: usize::MAX,
            fault: Mutex::new(None),
        }
    }

    /// Returns its present identity.
    pub fn identity(&self) -> Identity {
        guard(&self.stat).identity
    }

    /// Replaces the content, as a program that writes the source would; `fstat` reports `size_seen` from now on.
    pub fn change(&self, content: &[u8], size_seen: u64) {
        *guard(&self.content) = content.to_vec();
        let mut stat = guard(&self.stat);
        stat.identity.size = size_seen;
        stat.identity.mtime.nsec += 1;
        stat.identity.ctime.nsec += 1;
    }

    /// Truncates the content while `fstat` still reports the old size, as a server that lost the file's tail does.
    pub fn cut(&self, size: usize) {
        guard(&self.content).truncate(size);
    }
}

impl CopySource for MemorySource {
    fn stat(&self, _: StatFrom) -> disk::Result<SourceStat> {
        Ok(*guard(&self.stat))
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> disk::Result<usize> {
        if let Some(errno) = *guard(&self.fault) {
            return Err(errno);
        }
        let content = guard(&self.content);
        let from = content.get(offset as usize..).unwrap_or_default();
        let read = from.len().min(bytes.len()).min(self.read_bytes_max);
        bytes[..read].copy_from_slice(&from[..read]);
        Ok(read)
    }

    fn forget_pages(&self, _: u64) -> disk::Result<()> {
        Ok(())
    }
}

fn entries(disk: &dyn Disk, folder: Folder) -> Vec<Vec<u8>> {
    let mut entries = Vec::new();
    disk.list(folder, &mut |entry| entries.push(entry.to_vec()))
        .expect("an existing folder is listed");
    entries.sort();
    entries
}

const OBJECT: Name = Name::Object(0x0123_4567_89ab_cdef);

/// Checks the behaviour that every disk must have. `disk` is empty, and is empty again at the end except for the lease.
///
/// # Panics
///
/// The disk behaves otherwise.
pub fn disk_conformance(disk: &dyn Disk) {
    names_and_folders(disk);
    files(disk);
    replacing(disk);
    leasing(disk);
    let room = disk.room().expect("room is told");
    assert!(room.free_bytes <= room.total_bytes && room.total_bytes > 0 && room.free_inodes <= room.total_inodes);
}

fn names_and_folders(disk: &dyn Disk) {
    assert_eq!(disk.create(OBJECT).expect_err("its folder is missing"), Errno::NOENT);
    assert_eq!(disk.make_dir(Folder::Shard(0xef)).expect_err("its folder is missing"), Errno::NOENT);
    assert_eq!(disk.list(Folder::Objects, &mut |_| {}).expect_err("it is missing"), Errno::NOENT);
    disk.make_dir(Folder::Objects).expect("objects can be made");
    disk.make_dir(Folder::Shard(0xef)).expect("a shard can be made");
    assert_eq!(disk.make_dir(Folder::Objects).expect_err("it is there"), Errno::EXIST);
    assert_eq!(entries(disk, Folder::Root), [b"objects".to_vec()]);
    assert_eq!(entries(disk, Folder::Objects), [b"ef".to_vec()]);
    assert_eq!(disk.remove_dir(Folder::Objects).expect_err("it is not empty"), Errno::NOTEMPTY);
    assert!(disk.remove_dir(Folder::Root).is_err(), "the root stays");
}

fn files(disk: &dyn Disk) {
    assert_eq!(disk.open_read(OBJECT).expect_err("it is missing"), Errno::NOENT);
    assert_eq!(disk.open_write(OBJECT).expect_err("it is missing"), Errno::NOENT);
    assert_eq!(disk.stat(OBJECT).expect_err("it is missing"), Errno::NOENT);
    assert_eq!(disk.remove(OBJECT).expect_err("it is missing"), Errno::NOENT);
    let file = disk.create(OBJECT).expect("a copy can be made");
    assert_eq!(disk.create(OBJECT).expect_err("it is there"), Errno::EXIST);
    disk::write_all_at(&*file, b"hello world", 0).expect("it can be written");
    disk::write_all_at(&*file, b"W", 6).expect("anywhere");
    let mut bytes = [0; 32];
    assert_eq!(disk::read_full_at(&*file, &mut bytes, 6).expect("it can be read"), 5);
    assert_eq!(&bytes[..5], b"World");
    assert_eq!(
        disk::read_full_at(&*file, &mut bytes, 400).expect("past its end there is nothing"),
        0
    );
    file.set_read_only().expect("it can be made read-only");
    let by_file = file.stat().expect("it has a stat");
    assert_eq!(by_file, disk.stat(OBJECT).expect("by name too"));
    assert_eq!((by_file.mode & 0o7777, by_file.identity.size), (0o400, 11));
    let reader = disk.open_read(OBJECT).expect("it can be opened again");
    reader.forget_pages().expect("a reader can have its pages forgotten");
    assert!(
        reader.write_at(b"x", 0).is_err() && reader.truncate(0).is_err(),
        "a reader cannot write"
    );
    file.close().expect("it can be closed");
    assert_eq!(entries(disk, Folder::Shard(0xef)), [b"0123456789abcdef".to_vec()]);
    disk.remove(OBJECT).expect("it can be removed");
    assert_eq!(
        disk::read_full_at(&*reader, &mut bytes, 0).expect("what is open stays readable"),
        11
    );
    assert!(!entries(disk, Folder::Shard(0xef)).contains(&b"0123456789abcdef".to_vec()));
    drop(reader);
    // Some file systems (NFS, FUSE) rename a removed file while it is open; it disappears a moment after it was closed.
    for _ in 0..crate::limits::HIDDEN_ATTEMPTS_MAX {
        if entries(disk, Folder::Shard(0xef)).is_empty() {
            break;
        }
        std::thread::sleep(crate::limits::HIDDEN_PAUSE);
    }
    disk.remove_dir(Folder::Shard(0xef)).expect("an empty shard can be removed");
    disk.remove_dir(Folder::Objects).expect("empty objects can be removed");
}

fn replacing(disk: &dyn Disk) {
    for (name, content) in [(Name::Catalogue, b"old".as_slice()), (Name::CatalogueNew, b"newer")] {
        let file = disk.create(name).expect("it can be made");
        disk::write_all_at(&*file, content, 0).expect("it can be written");
        assert_eq!(file.stat().expect("it has a stat").mode & 0o7777, 0o600);
    }
    disk.rename(Name::CatalogueNew, Name::Catalogue)
        .expect("it can be put in the other's place");
    assert_eq!(entries(disk, Folder::Root), [b"catalogue".to_vec()]);
    let file = disk.open_write(Name::Catalogue).expect("it can be opened for writing");
    file.truncate(3).expect("it can be cut");
    let mut bytes = [0; 8];
    assert_eq!(disk::read_full_at(&*file, &mut bytes, 0).expect("it can be read"), 3);
    assert_eq!(&bytes[..3], b"new");
    assert!(disk.rename(Name::Catalogue, OBJECT).is_err(), "only within the root");
    disk.remove(Name::Catalogue).expect("it can be removed");
}

fn leasing(disk: &dyn Disk) {
    let lease = disk.lock().expect("it is free");
    assert_eq!(disk.lock().expect_err("it is held"), Errno::WOULDBLOCK);
    drop(lease);
    drop(disk.lock().expect("it is free again"));
}
