//! A slow disk, for tests of a tier that is slower than its source (F12).

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::{Disk, DiskFile, DiskRoom, DiskStat, Folder, Lease, Name, Result};

/// Speed of a slow disk.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// Delay of each operation, in microseconds.
    pub latency_us: u64,
    /// Bytes read or written a second by one caller.
    pub bytes_per_s: u64,
}

impl Throttle {
    fn wait(self, bytes: usize) {
        let transfer_us = (bytes as u64).saturating_mul(1_000_000) / self.bytes_per_s.max(1);
        std::thread::sleep(Duration::from_micros(self.latency_us + transfer_us));
    }
}

/// Any disk, slower.
#[derive(Clone, Debug)]
pub struct ThrottledDisk {
    inner: Arc<dyn Disk>,
    throttle: Throttle,
}

impl ThrottledDisk {
    /// Wraps `inner`, and slows it down.
    pub fn new(inner: Arc<dyn Disk>, throttle: Throttle) -> Self {
        Self { inner, throttle }
    }

    fn slowly<T>(&self, operation: impl FnOnce(&dyn Disk) -> Result<T>) -> Result<T> {
        self.throttle.wait(0);
        operation(&*self.inner)
    }

    fn wrap(&self, file: Result<Box<dyn DiskFile>>) -> Result<Box<dyn DiskFile>> {
        let throttle = self.throttle;
        file.map(|inner| Box::new(ThrottledFile { inner, throttle }) as Box<dyn DiskFile>)
    }
}

impl Disk for ThrottledDisk {
    fn create(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        self.wrap(self.slowly(|disk| disk.create(name)))
    }

    fn open_read(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        self.wrap(self.slowly(|disk| disk.open_read(name)))
    }

    fn open_write(&self, name: Name) -> Result<Box<dyn DiskFile>> {
        self.wrap(self.slowly(|disk| disk.open_write(name)))
    }

    fn make_dir(&self, folder: Folder) -> Result<()> {
        self.slowly(|disk| disk.make_dir(folder))
    }

    fn remove(&self, name: Name) -> Result<()> {
        self.slowly(|disk| disk.remove(name))
    }

    fn remove_dir(&self, folder: Folder) -> Result<()> {
        self.slowly(|disk| disk.remove_dir(folder))
    }

    fn rename(&self, from: Name, to: Name) -> Result<()> {
        self.slowly(|disk| disk.rename(from, to))
    }

    fn list(&self, folder: Folder, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.slowly(|disk| disk.list(folder, each))
    }

    fn stat(&self, name: Name) -> Result<DiskStat> {
        self.slowly(|disk| disk.stat(name))
    }

    fn stat_root(&self) -> Result<DiskStat> {
        self.slowly(|disk| disk.stat_root())
    }

    fn room(&self) -> Result<DiskRoom> {
        self.slowly(|disk| disk.room())
    }

    fn lock(&self) -> Result<Box<dyn Lease>> {
        self.slowly(|disk| disk.lock())
    }
}

#[derive(Debug)]
struct ThrottledFile {
    inner: Box<dyn DiskFile>,
    throttle: Throttle,
}

impl DiskFile for ThrottledFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.throttle.wait(bytes.len());
        self.inner.write_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        self.throttle.wait(bytes.len());
        self.inner.read_at(bytes, offset)
    }

    fn stat(&self) -> Result<DiskStat> {
        self.throttle.wait(0);
        self.inner.stat()
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.throttle.wait(0);
        self.inner.truncate(size)
    }

    fn set_read_only(&self) -> Result<()> {
        self.throttle.wait(0);
        self.inner.set_read_only()
    }

    fn forget_pages(&self) -> Result<()> {
        self.throttle.wait(0);
        self.inner.forget_pages()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.throttle.wait(0);
        self.inner.close()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }
}
