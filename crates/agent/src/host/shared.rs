//! Files that several processes map. The one place of this crate that holds unsafe code.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    ptr::NonNull,
    thread,
    time::Duration,
};

use forebay_contract::Region;
use rustix::{
    fs::{self, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags},
    mm::{self, MapFlags, ProtFlags},
};

/// What keeps a file's length as it is.
pub const LENGTH_SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// A mapped file, unmapped when dropped.
#[derive(Debug)]
pub struct SharedFile {
    file: OwnedFd,
    region: Region<'static>,
}

impl SharedFile {
    /// Creates a file of `len` zero bytes that must not exist yet, mode 0600, and maps it for writing. All of it is backed by memory
    /// (or disk) at once: to touch a hole that can't be filled would be a SIGBUS, in somebody's program.
    ///
    /// # Errors
    /// Also when there is no room for it (a small `/dev/shm`, as containers have).
    pub fn create(path: &Path, len: usize) -> io::Result<Self> {
        let shared = Self::create_sparse(path, len)?;
        shared.reserve(0, len as u64)?;
        Ok(shared)
    }

    /// As [`Self::create`], without backing: [`Self::reserve`] must be called for each part before it is touched.
    pub(crate) fn create_sparse(path: &Path, len: usize) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        fs::ftruncate(&file, len as u64)?;
        Self::map(file, len)
    }

    /// Backs a part of the file. What it holds is not changed, unless the file system can't do this: then it is zeroed, which it
    /// must be already.
    pub(crate) fn reserve(&self, from: u64, len: u64) -> io::Result<()> {
        match fs::fallocate(&self.file, FallocateFlags::empty(), from, len) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                let zeros = [0; 4096];
                for at in (from..from + len).step_by(zeros.len()) {
                    let piece = zeros.len().min((from + len - at) as usize);
                    rustix::io::pwrite(&self.file, &zeros[..piece], at)?;
                }
                Ok(())
            }
            result => Ok(result?),
        }
    }

    /// Maps an existing file for writing.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        let len = usize::try_from(fs::fstat(&file)?.st_size).map_err(io::Error::other)?;
        Self::map(file, len)
    }

    /// A file of `len` zero bytes in memory, without a name, to be sent to others. Its length can't be changed.
    pub(crate) fn anonymous(name: &str, len: usize) -> io::Result<Self> {
        let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fs::ftruncate(&file, len as u64)?;
        let shared = Self::map(file, len)?;
        shared.reserve(0, len as u64)?;
        fs::fcntl_add_seals(&shared.file, LENGTH_SEALS)?;
        Ok(shared)
    }

    /// The same, to be read by those to whom it is sent, and written to by nobody but us. [`Self::reserve`] must be called for each part before it is touched.
    pub(crate) fn anonymous_for_readers(name: &str, len: usize) -> io::Result<Self> {
        let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fs::ftruncate(&file, len as u64)?;
        let shared = Self::map(file, len)?;
        // Before Linux 5.1 there is no such seal; readers map it for reading all the same.
        let _ = fs::fcntl_add_seals(&shared.file, SealFlags::FUTURE_WRITE);
        fs::fcntl_add_seals(&shared.file, LENGTH_SEALS)?;
        Ok(shared)
    }

    /// Maps such a file that somebody has sent.
    ///
    /// # Errors
    /// As [`Self::received`].
    pub(crate) fn received_for_reading(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::check_length(&file, len)?;
        Self::map_as(file, len, ProtFlags::READ)
    }

    /// Maps a file of another process for reading, all of it.
    ///
    /// # Errors
    /// Also when that could still change it: what is read twice must be the same.
    pub(crate) fn received_sealed(file: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(fs::fstat(&file)?.st_size).map_err(io::Error::other)?;
        if !fs::fcntl_get_seals(&file)?.contains(LENGTH_SEALS | SealFlags::WRITE) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map_as(file, len, ProtFlags::READ)
    }

    /// Maps such a file that somebody has sent.
    ///
    /// # Errors
    /// Also when it is shorter, or could become so: to touch what is not there would be a SIGBUS.
    pub(crate) fn received(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::check_length(&file, len)?;
        Self::map(file, len)
    }

    /// Maps such a file for reading, all of it, and has its pages mapped before they are needed.
    ///
    /// # Errors
    /// As [`Self::received`].
    pub fn received_ahead(file: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(fs::fstat(&file)?.st_size).map_err(io::Error::other)?;
        let shared = Self::received_for_reading(file, len)?;
        // A kernel before 5.14 maps each page when it is read.
        // SAFETY: of this mapping alone, whose content stays as it is.
        let _ = unsafe { mm::madvise(shared.region.base().as_ptr().cast(), len, mm::Advice::LinuxPopulateRead) };
        Ok(shared)
    }

    /// Has its pages unmapped, some at a time and without haste, before it goes: who unmaps holds up whoever else in this process maps or unmaps memory, and for
    /// as long as he is without a processor meanwhile.
    pub fn unmap_pages(&self) {
        const PART_BYTES: usize = 4 << 20;
        const PAUSE: Duration = Duration::from_millis(1);
        let (base, len) = (self.region.base().as_ptr(), self.region.len());
        for from in (0..len).step_by(PART_BYTES) {
            let part = base.wrapping_add(from).cast();
            // SAFETY: of this mapping alone, which is of a file: what is read there again is mapped again.
            let _ = unsafe { mm::madvise(part, PART_BYTES.min(len - from), mm::Advice::LinuxDontNeed) };
            thread::sleep(PAUSE);
        }
    }

    /// Whether a descriptor is of the same file.
    ///
    /// # Errors
    /// It is of none.
    pub fn is_of(&self, other: BorrowedFd<'_>) -> io::Result<bool> {
        let (ours, theirs) = (fs::fstat(&self.file)?, fs::fstat(other)?);
        Ok((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino))
    }

    fn check_length(file: &OwnedFd, len: usize) -> io::Result<()> {
        let is_long = fs::fstat(file)?.st_size as u64 >= len as u64;
        if !is_long || !fs::fcntl_get_seals(file)?.contains(LENGTH_SEALS) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    }

    /// The file, to be sent.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn map(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::map_as(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_as(file: OwnedFd, len: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice; it lives until `drop`.
        let address = unsafe { mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file.as_fd(), 0)? };
        let base = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mmap gave a null address"))?;
        // SAFETY: mapped for `len` bytes, writable but where nothing is stored to; `region` is only lent for the lifetime of `self`.
        let region = unsafe { Region::new(base, len) };
        Ok(Self { file, region })
    }

    /// The mapped bytes.
    pub fn region(&self) -> Region<'_> {
        self.region
    }

    /// The mapped bytes, for a value that is kept beside this file and dropped before it.
    pub(crate) fn region_beside(&self) -> Region<'static> {
        self.region
    }

    /// The mapped bytes for as long as the process lives; the mapping is never undone.
    pub fn leak(self) -> Region<'static> {
        std::mem::ManuallyDrop::new(self).region
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `map`, and no region outlives `self`.
        let _ = unsafe { mm::munmap(self.region.base().as_ptr().cast(), self.region.len()) };
    }
}

/// `cachestat(2)`: which part of a range of a file is in the page cache, in bytes; rounded up to whole pages, at most `len`.
/// `None` where the kernel has no such call or refuses it.
pub(crate) fn cached_bytes(descriptor: BorrowedFd<'_>, from: u64, len: u64) -> Option<u64> {
    /// The same number on every architecture (Linux 6.5).
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [from, len];
    let mut found = [0u64; 5];
    // SAFETY: both structures are arrays of u64 by the kernel's ABI (cachestat_range, cachestat), alive during the call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, descriptor.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    (result == 0).then(|| (found[0] * rustix::param::page_size() as u64).min(len))
}

/// Which pages of a file are to be written to its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirtyPages {
    /// Pages that the kernel keeps under the file itself. A file without any costs no request to the file system.
    Own,
    /// Pages of the file below it as well (overlayfs), at the price of a request to the file system.
    Lower,
}

/// Writes a file's dirty pages to its file system, and returns when they are there: a write through a mapping to a page that is dirty
/// moves no time of the file, one to a clean page does.
pub(crate) fn write_back(descriptor: BorrowedFd<'_>, pages: DirtyPages) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: no memory is passed.
    if pages == DirtyPages::Own && unsafe { libc::sync_file_range(descriptor.as_raw_fd(), 0, 0, flags) } == 0 {
        return Ok(());
    }
    // Also where a sandbox has no such call.
    Ok(fs::fdatasync(descriptor)?)
}

/// Sets the calling thread's niceness. Threads have their own on Linux.
pub(crate) fn set_thread_nice(nice: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

/// Raises the limit of descriptors as far as it goes; gives it.
pub(crate) fn raise_descriptor_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).is_ok() {
        return limit.maximum.unwrap_or(1 << 20);
    }
    limit.current.unwrap_or(1024)
}
