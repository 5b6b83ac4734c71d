//! A disk that fails on request, for the sweep in which every operation fails once.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::{Disk, DiskFile, DiskRoom, DiskStat, Folder, Lease, Name, Result};

/// Behaviour instead of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Returns this error.
    Error(Errno),
    /// Reads and writes do only half of the request (at least one byte); other operations are done.
    Short,
    /// Reads and writes do nothing and report no error; other operations are done.
    Stuck,
}

/// State of an operation that returns an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The operation was not done.
    Before,
    /// The operation was done.
    After,
}

/// A planned fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Number of the operation that fails, counted from 0 over the disk and all of its files.
    pub nth: u64,
    /// True if all later operations fail, too.
    pub for_ever: bool,
    /// Behaviour of the failing operation.
    pub kind: FaultKind,
    /// State of the failing operation.
    pub when: When,
}

impl Fault {
    /// Returns all faults of these kinds that a life of this many operations can meet: once and for ever, before and
    /// after the operation was done.
    pub fn each(kinds: &[FaultKind], operations: u64) -> impl Iterator<Item = Self> {
        kinds.iter().flat_map(move |&kind| {
            (0..operations).flat_map(move |nth| {
                [When::Before, When::After]
                    .into_iter()
                    .flat_map(move |when| [false, true].map(|for_ever| Self { nth, for_ever, kind, when }))
            })
        })
    }
}

/// Any disk, with a fault.
#[derive(Clone, Debug)]
pub struct FailingDisk {
    inner: Arc<dyn Disk>,
    plan: Arc<FaultPlan>,
}

#[derive(Debug)]
struct FaultPlan {
    fault: Option<Fault>,
    operations: AtomicU64,
}

impl FaultPlan {
    /// Returns the fault of the operation that begins now.
    fn next(&self) -> Option<Fault> {
        let operation = self.operations.fetch_add(1, Ordering::Relaxed);
        self.fault
            .filter(|fault| operation == fault.nth || (fault.for_ever && operation > fault.nth))
    }

    fn run<T>(&self, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.next() {
            Some(Fault {
                kind: FaultKind::Error(errno),
                when: When::Before,
                ..
            }) => Err(errno),
            Some(Fault {
                kind: FaultKind::Error(errno),
                when: When::After,
                ..
            }) => operation().and(Err(errno)),
            _ => operation(),
        }
    }

    /// Reads or writes `len` bytes, or as many of them as the fault permits.
    fn transfer(&self, len: usize, operation: impl FnOnce(usize) -> Result<usize>) -> Result<usize> {
        match self.next() {
            None => operation(len),
            Some(Fault {
                kind: FaultKind::Error(errno),
                when: When::Before,
                ..
            }) => Err(errno),
            Some(Fault {
                kind: FaultKind::Error(errno),
                when: When::After,
                ..
            }) => operation(len).and(Err(errno)),
            Some(Fault {
                kind: FaultKind::Short, ..
            }) => operation((len / 2).max(1).min(len)),
            Some(Fault {
                kind: FaultKind::Stuck, ..
            }) => Ok(0),
        }
    }
}

impl FailingDisk {
    /// Wraps `inner` with a fault; without one it only counts.
    pub fn new(inner: Arc<dyn Disk>, fault: Option<Fault>) -> Self {
        Self {
            inner,
            plan: Arc::new(FaultPlan {
                fault,
                operations: AtomicU64::new(0),
            }),
        }
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.plan.operations.load(Ordering::Relaxed)
    }

    fn file(&self, open: impl FnOnce() -> Result<Box<dyn DiskFile>>) -> Result<Box<dyn DiskFile>> {
        let inner = self.plan.run(open)?;
        Ok(Box::new(FailingFile {
            inner,
            plan: Arc::clone(&self.plan),
        }))
    }
}

impl Disk for FailingDisk {
    fn create(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        self.file(|| self.inner.create(name))
    }

    fn open_read(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        self.file(|| self.inner.open_read(name))
    }

    fn open_write(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        self.file(|| self.inner.open_write(name))
    }

    fn make_dir(&self, folder: Folder) -> Result<()> {
        self.plan.run(|| self.inner.make_dir(folder))
    }

    fn remove(&self, name: Name) -> Result<()> {
        self.plan.run(|| self.inner.remove(name))
    }

    fn remove_dir(&self, folder: Folder) -> Result<()> {
        self.plan.run(|| self.inner.remove_dir(folder))
    }

    fn rename(&self, from: Name, to: Name) -> Result<()> {
        self.plan.run(|| self.inner.rename(from, to))
    }

    fn list(&self, folder: Folder, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.plan.run(|| self.inner.list(folder, each))
    }

    fn stat(&self, name: Name) -> Result<DiskStat> {
        self.plan.run(|| self.inner.stat(name))
    }

    fn stat_root(&self) -> Result<DiskStat> {
        self.plan.run(|| self.inner.stat_root())
    }

    fn room(&self) -> Result<DiskRoom> {
        self.plan.run(|| self.inner.room())
    }

    fn lock(&self) -> Result<Box<dyn Lease>> {
        self.plan.run(|| self.inner.lock())
    }
}

#[derive(Debug)]
struct FailingFile {
    inner: Box<dyn DiskFile>,
    plan: Arc<FaultPlan>,
}

impl DiskFile for FailingFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.plan.transfer(bytes.len(), |len| self.inner.write_at(&bytes[..len], offset))
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        self.plan.transfer(bytes.len(), |len| self.inner.read_at(&mut bytes[..len], offset))
    }

    fn stat(&self) -> Result<DiskStat> {
        self.plan.run(|| self.inner.stat())
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.plan.run(|| self.inner.truncate(size))
    }

    fn set_read_only(&self) -> Result<()> {
        self.plan.run(|| self.inner.set_read_only())
    }

    fn forget_pages(&self) -> Result<()> {
        self.plan.run(|| self.inner.forget_pages())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { inner, plan } = *self;
        plan.run(|| inner.close())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }
}
