//! Files that several processes map.

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

/// Seals that fix a file's length.
pub const LENGTH_SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// A mapped file, unmapped when dropped.
#[derive(Debug)]
pub struct SharedFile {
    file: OwnedFd,
    region: Region<'static>,
}

impl SharedFile {
    /// Creates a file of `len` zero bytes that must not exist yet, mode 0600, and maps it for writing. Memory (or disk)
    /// for all of it is reserved immediately: an access to a hole that can't be filled would be a SIGBUS in a program.
    ///
    /// # Errors
    /// Also if there is no room for it (a small `/dev/shm`, as containers have).
    pub fn create(path: &Path, len: usize) -> io::Result<Self> {
        let shared = Self::create_sparse(path, len)?;
        shared.reserve(0, len as u64)?;
        Ok(shared)
    }

    /// Creates a file like [`Self::create`], but reserves no memory. Call [`Self::reserve`] for each part before it is
    /// accessed.
    pub(crate) fn create_sparse(path: &Path, len: usize) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        fs::ftruncate(&file, len as u64)?;
        Self::map(file, len)
    }

    /// Reserves memory for a part of the file, which must be zero: a file system without reservation gets zeros
    /// written.
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

    /// Creates a file of `len` zero bytes in memory, without a name, to be sent to other processes. Its length is
    /// sealed.
    pub(crate) fn anonymous(name: &str, len: usize) -> io::Result<Self> {
        let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fs::ftruncate(&file, len as u64)?;
        let shared = Self::map(file, len)?;
        shared.reserve(0, len as u64)?;
        fs::fcntl_add_seals(&shared.file, LENGTH_SEALS)?;
        Ok(shared)
    }

    /// Creates a nameless file in memory that receivers can read and only this mapping can write. Call
    /// [`Self::reserve`] for each part before it is accessed.
    pub(crate) fn anonymous_for_readers(name: &str, len: usize) -> io::Result<Self> {
        let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fs::ftruncate(&file, len as u64)?;
        let shared = Self::map(file, len)?;
        // Before Linux 5.1 there is no such seal; readers map it for reading all the same.
        let _ = fs::fcntl_add_seals(&shared.file, SealFlags::FUTURE_WRITE);
        fs::fcntl_add_seals(&shared.file, LENGTH_SEALS)?;
        Ok(shared)
    }

    /// Maps a received file of sealed length for writing.
    ///
    /// # Errors
    /// Like [`Self::received`].
    pub(crate) fn received_for_reading(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::check_length(&file, len)?;
        Self::map_as(file, len, ProtFlags::READ)
    }

    /// Maps a whole file of another process for reading.
    ///
    /// # Errors
    /// Also if the other process could still change it: two reads must give the same bytes.
    pub(crate) fn received_sealed(file: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(fs::fstat(&file)?.st_size).map_err(io::Error::other)?;
        if !fs::fcntl_get_seals(&file)?.contains(LENGTH_SEALS | SealFlags::WRITE) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map_as(file, len, ProtFlags::READ)
    }

    /// Maps a received file of sealed length for reading.
    ///
    /// # Errors
    /// Also if it is shorter, or could become shorter: an access past its end would be a SIGBUS.
    pub(crate) fn received(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::check_length(&file, len)?;
        Self::map(file, len)
    }

    /// Maps a whole received file of sealed length for reading, and maps its pages before they are needed.
    ///
    /// # Errors
    /// Like [`Self::received`].
    pub fn received_ahead(file: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(fs::fstat(&file)?.st_size).map_err(io::Error::other)?;
        let shared = Self::received_for_reading(file, len)?;
        // A kernel before 5.14 maps each page when it is read.
        // SAFETY: of this mapping alone, whose content stays as it is.
        let _ = unsafe { mm::madvise(shared.region.base().as_ptr().cast(), len, mm::Advice::LinuxPopulateRead) };
        Ok(shared)
    }

    /// Unmaps the pages slowly, some at a time, before the value is dropped. A thread that unmaps memory blocks all
    /// threads of the process that map or unmap memory, even while it has no processor.
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

    /// Returns true if a descriptor refers to this file.
    ///
    /// # Errors
    /// If the descriptor refers to no file.
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

    /// Returns the file, to be sent.
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
        // SAFETY: mapped for `len` bytes, writable but where nothing is stored to; `region` is only lent for the
        // lifetime of `self`.
        let region = unsafe { Region::new(base, len) };
        Ok(Self { file, region })
    }

    /// Returns the mapped bytes.
    pub fn region(&self) -> Region<'_> {
        self.region
    }

    /// Returns the mapped bytes, for a value that is kept beside this file and dropped before it.
    pub(crate) fn region_beside(&self) -> Region<'static> {
        self.region
    }

    /// Returns the mapped bytes for the lifetime of the process; the mapping is never undone.
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

/// Writes bytes to sealed memory, to be sent to another process: [`SharedFile::received_sealed`] maps it.
///
/// # Errors
/// There is no memory for them.
pub(crate) fn seal(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
        rest = rest.get(written..).unwrap_or_default();
    }
    fs::fcntl_add_seals(&file, LENGTH_SEALS | SealFlags::WRITE)?;
    Ok(file)
}

/// Returns the bytes of a range of a file that are in the page cache (`cachestat(2)`), rounded up to whole pages, at
/// most `len`. `None` where the kernel lacks or refuses the call.
pub(crate) fn cached_bytes(descriptor: BorrowedFd<'_>, from: u64, len: u64) -> Option<u64> {
    /// Number of the call, which is the same on all architectures (Linux 6.5).
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [from, len];
    let mut found = [0u64; 5];
    // SAFETY: both structures are arrays of u64 by the kernel's ABI (cachestat_range, cachestat), alive during the
    // call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, descriptor.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    (result == 0).then(|| (found[0] * rustix::param::page_size() as u64).min(len))
}

/// Pages of a file to write to its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirtyPages {
    /// Pages that the kernel keeps under the file itself. A file without any costs no request to the file system.
    Own,
    /// Pages of the file below it as well (overlayfs), at the price of a request to the file system.
    Lower,
}

/// Writes a file's dirty pages to its file system and waits for it. A write through a mapping to a dirty page moves no
/// time of the file; a write to a clean page does.
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

/// Raises the limit of descriptors as far as possible, and returns it.
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
