//! F16: the missing feature of a file system is found before a tier is made on it, and named.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_policy::Space;
use forebay_store::disk::{self, Disk, DiskFile, DiskRoom, DiskStat, FailingDisk, Fault, FaultKind, Folder, Lease, MemoryDisk, Name, When};
use forebay_store::{BootId, Lack, Secret, StoreError, Tier, probe};
use rustix::io::Errno;

/// A disk in memory with one oddity, which mostly shows without an error, as in such file systems.
#[derive(Clone, Debug)]
struct OddDisk {
    inner: MemoryDisk,
    lacks: Option<Lack>,
    error: Option<Errno>,
}

impl OddDisk {
    fn lacks(&self, lack: Lack) -> bool {
        self.lacks == Some(lack)
    }

    /// Returns an error if the oddity shows as one.
    fn or_error<T>(&self, lack: Lack, operation: impl FnOnce() -> disk::Result<T>) -> disk::Result<T> {
        match self.error {
            Some(errno) if self.lacks(lack) => Err(errno),
            _ => operation(),
        }
    }

    fn seen(&self, mut stat: DiskStat, is_by_name: bool) -> DiskStat {
        if self.lacks(Lack::Permissions) {
            stat.mode |= 0o055;
        }
        if self.lacks(Lack::Identity) && is_by_name {
            stat.identity.ino += 1;
        }
        stat
    }

    fn file(&self, name: Name, inner: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        let disk = self.clone();
        Box::new(OddFile { disk, name, inner })
    }
}

impl Disk for OddDisk {
    fn create(&self, name: Name) -> disk::Result<Box<dyn DiskFile>> {
        let create = || self.inner.create(name);
        let file = if matches!(name, Name::Object(_)) {
            self.or_error(Lack::Permissions, create)?
        } else {
            create()?
        };
        Ok(self.file(name, file))
    }

    fn open_read(&self, name: Name) -> disk::Result<Box<dyn DiskFile>> {
        Ok(self.file(name, self.inner.open_read(name)?))
    }

    fn open_write(&self, name: Name) -> disk::Result<Box<dyn DiskFile>> {
        Ok(self.file(name, self.inner.open_write(name)?))
    }

    fn make_dir(&self, folder: Folder) -> disk::Result<()> {
        self.inner.make_dir(folder)
    }

    fn remove(&self, name: Name) -> disk::Result<()> {
        self.inner.remove(name)
    }

    fn remove_dir(&self, folder: Folder) -> disk::Result<()> {
        self.inner.remove_dir(folder)
    }

    fn rename(&self, from: Name, to: Name) -> disk::Result<()> {
        if self.lacks(Lack::Rename) && self.error.is_none() {
            return Ok(());
        }
        self.or_error(Lack::Rename, || self.inner.rename(from, to))
    }

    fn list(&self, folder: Folder, each: &mut dyn FnMut(&[u8])) -> disk::Result<()> {
        let folds = self.lacks(Lack::Names);
        self.inner.list(folder, &mut |name| {
            each(&if folds { name.to_ascii_uppercase() } else { name.to_vec() });
        })
    }

    fn stat(&self, name: Name) -> disk::Result<DiskStat> {
        Ok(self.seen(self.inner.stat(name)?, true))
    }

    fn stat_root(&self) -> disk::Result<DiskStat> {
        self.inner.stat_root()
    }

    fn room(&self) -> disk::Result<DiskRoom> {
        let mut room = self.inner.room()?;
        if self.lacks(Lack::Size) {
            room.total_bytes = 0;
        }
        Ok(room)
    }

    fn lock(&self) -> disk::Result<Box<dyn Lease>> {
        if self.lacks(Lack::Locks) && self.error.is_none() {
            return Ok(Box::new(Granted));
        }
        self.or_error(Lack::Locks, || self.inner.lock())
    }
}

#[derive(Debug)]
struct Granted;

impl Lease for Granted {}

#[derive(Debug)]
struct OddFile {
    disk: OddDisk,
    name: Name,
    inner: Box<dyn DiskFile>,
}

impl DiskFile for OddFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> disk::Result<usize> {
        self.inner.write_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> disk::Result<usize> {
        if self.disk.lacks(Lack::Unlinked) && self.disk.inner.stat(self.name).is_err() {
            return Err(Errno::STALE);
        }
        let read = self.inner.read_at(bytes, offset)?;
        if self.disk.lacks(Lack::Content) {
            bytes[..read].fill(0);
        }
        Ok(read)
    }

    fn stat(&self) -> disk::Result<DiskStat> {
        Ok(self.disk.seen(self.inner.stat()?, false))
    }

    fn truncate(&self, size: u64) -> disk::Result<()> {
        self.inner.truncate(size)
    }

    fn set_read_only(&self) -> disk::Result<()> {
        self.inner.set_read_only()
    }

    fn forget_pages(&self) -> disk::Result<()> {
        self.inner.forget_pages()
    }

    fn close(self: Box<Self>) -> disk::Result<()> {
        self.inner.close()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn open(disk: Arc<dyn Disk>) -> Result<Tier, StoreError> {
    let quota = Space {
        bytes: 1 << 20,
        inodes: 1000,
    };
    let secret = Secret::from_bytes([7; 32]);
    Tier::open_on(disk, PathBuf::from("/scratch/forebay-0"), quota, &secret, BootId([1; 16]))
}

fn memory() -> MemoryDisk {
    MemoryDisk::new(1 << 20, 1000)
}

#[test]
fn f16_what_is_lacking_is_named_and_no_tier_is_made() {
    let silent = [
        Lack::Locks,
        Lack::Permissions,
        Lack::Identity,
        Lack::Unlinked,
        Lack::Rename,
        Lack::Names,
        Lack::Content,
        Lack::Size,
    ];
    let told = [
        (Lack::Locks, Errno::NOSYS),
        (Lack::Locks, Errno::NOLCK),
        (Lack::Permissions, Errno::PERM),
        (Lack::Rename, Errno::OPNOTSUPP),
    ];
    let cases = silent
        .map(|lack| (lack, None))
        .into_iter()
        .chain(told.map(|(lack, errno)| (lack, Some(errno))));
    for (lack, error) in cases {
        let inner = memory();
        let lacks = Some(lack);
        let refused = open(Arc::new(OddDisk {
            inner: inner.clone(),
            lacks,
            error,
        }));
        let error = refused.expect_err("it can't hold copies");
        assert!(matches!(&error, StoreError::Unfit { path, lack: found } if path == Path::new("/scratch") && *found == lack));
        let line = error.to_string();
        assert!(
            line.starts_with("/scratch can't hold copies: its file system ") && line.contains(&lack.to_string()),
            "{line}"
        );
        assert!(
            inner.names().iter().all(|name| *name == Name::Lease),
            "{lack:?} left {:?}",
            inner.names()
        );
    }
}

#[test]
fn f16_a_file_system_that_lacks_nothing_is_left_as_it_was() {
    let inner = memory();
    let odd = OddDisk {
        inner: inner.clone(),
        lacks: None,
        error: None,
    };
    drop(open(Arc::new(odd)).expect("opens"));
    assert_eq!(inner.names(), [Name::Lease, Name::Format]);
    // And it is not checked again.
    let counting = FailingDisk::new(inner.after_crash(), None);
    drop(open(Arc::new(counting.clone())).expect("opens again"));
    assert!(counting.operations() < 10, "{} operations", counting.operations());
}

#[test]
fn f16_a_failing_device_is_no_lack_and_the_next_opening_is_well() {
    let counting = FailingDisk::new(Arc::new(memory()), None);
    drop(open(Arc::new(counting.clone())).expect("opens"));
    for nth in 0..counting.operations() {
        for errno in [Errno::IO, Errno::NOSPC, Errno::ROFS] {
            for when in [When::Before, When::After] {
                let inner = memory();
                let fault = Fault {
                    nth,
                    for_ever: false,
                    kind: FaultKind::Error(errno),
                    when,
                };
                // It opens only if nothing but the cleaning up after the check fails; what is left is reaped.
                if let Err(error) = open(Arc::new(FailingDisk::new(Arc::new(inner.clone()), Some(fault)))) {
                    assert!(!matches!(error, StoreError::Unfit { .. }), "{nth}: {error}");
                }
                let tier = open(inner.after_crash()).expect("nothing is in the way of the next opening");
                assert!(tier.room().expect("it has room").bytes > 0);
            }
        }
    }
}

#[test]
fn f16_a_directory_is_tried_and_left_as_it_was() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let uid = rustix::process::geteuid().as_raw();
    let entries = || std::fs::read_dir(dir.path()).expect("it is there").count();
    assert_eq!(probe(dir.path(), uid).expect("it can be tried"), None);
    assert_eq!(entries(), 0);
    assert!(probe(&dir.path().join("nowhere"), uid).is_err());
    let secret = Secret::from_bytes([7; 32]);
    let tier = Tier::open(dir.path(), Space { bytes: 1, inodes: 1 }, &secret, uid).expect("opens");
    assert_eq!(probe(dir.path(), uid).expect("a tier in use is left alone"), None);
    assert_eq!(entries(), 1);
    drop(tier);
}
