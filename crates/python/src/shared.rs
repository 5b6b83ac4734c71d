//! Memory in which a program's tensors lie while it trains, and which other processes can read. It has no name: it is
//! there as long as somebody has it mapped or open.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use forebay_agent::host::shared::LENGTH_SEALS;
use pyo3::{exceptions::PyValueError, prelude::*};
use rustix::{
    fs::{Mode, OFlags, SealFlags, fcntl_add_seals, open},
    io::Errno,
    mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap},
};

use crate::memory::{fresh, to_python, touch};

/// New memory at `address`, for this process to write to and for others to read by `descriptor`. It is unmapped with
/// the object.
#[pyclass(frozen, weakref)]
pub(crate) struct Shared {
    address: usize,
    length: usize,
    /// Read-only descriptor; none in a forked process.
    file: Mutex<Option<OwnedFd>>,
}

#[pymethods]
impl Shared {
    /// Takes `length` bytes, at once: where memory is short this fails, while a page that is missing later would be a
    /// signal.
    #[new]
    fn new(py: Python<'_>, length: usize) -> PyResult<Self> {
        py.detach(|| Self::of_length(length)).map_err(to_python)
    }

    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// Its length in bytes.
    #[getter]
    fn length(&self) -> usize {
        self.length
    }

    /// A descriptor for reading, which stays the object's.
    #[getter]
    fn descriptor(&self) -> PyResult<i32> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.as_ref()
            .map(AsRawFd::as_raw_fd)
            .ok_or_else(|| PyValueError::new_err("the memory belongs to the process that this one was forked from"))
    }

    /// In a process that was forked: what it writes from now on is its own, and it holds no descriptor.
    fn part(&self) -> PyResult<()> {
        let Some(file) = self.file.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: takes the place of this object's own mapping, with the same content; nobody else runs in a process
        // that has just been forked.
        let parted = unsafe { mmap(self.address as *mut _, self.length, protection, flags, &file, 0) };
        if parted.is_err() {
            // Where there is no memory for that it can't write at all: what it wrote would be its parent's.
            // SAFETY: of this object's own mapping.
            unsafe { mprotect(self.address as *mut _, self.length, MprotectFlags::READ) }.map_err(to_python)?;
        }
        parted.map(drop).map_err(to_python)
    }
}

impl Shared {
    fn of_length(length: usize) -> Result<Self, Errno> {
        let (file, address) = fresh("forebay-shared", length)?;
        let shared = Self {
            address: address as usize,
            length,
            file: Mutex::new(None),
        };
        // Where the machine has large pages for shared memory; refused or without effect elsewhere.
        // SAFETY: of this mapping alone.
        let _ = unsafe { madvise(address, length, Advice::LinuxHugepage) };
        // SAFETY: as above; nobody has its address yet, and each byte of it is zero.
        unsafe { touch(address, length) };
        // From now on only this mapping can write to it; a kernel before 5.1 does not know that seal.
        if fcntl_add_seals(&file, LENGTH_SEALS.union(SealFlags::FUTURE_WRITE)).is_err() {
            fcntl_add_seals(&file, LENGTH_SEALS)?;
        }
        *shared.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(for_reading(file));
        Ok(shared)
    }
}

/// Opens a file again: the rights of a descriptor are those of its opening. Without /proc it stays as it is; the
/// seal keeps others from writing.
fn for_reading(file: OwnedFd) -> OwnedFd {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap_or(file)
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this mapping was made for `of_length`; who uses its address keeps the object.
        let _ = unsafe { munmap(self.address as *mut _, self.length) };
    }
}
