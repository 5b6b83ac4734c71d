//! Memory for a copy: shared, backed and touched before it is needed, sealed once it is filled.

use std::{
    ffi::c_void,
    os::fd::{IntoRawFd, OwnedFd},
    ptr,
    sync::{Arc, Mutex, PoisonError},
};

use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create},
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
    process::{Pid, getpid},
};

/// The least size of a page in bytes.
const PAGE_BYTES: usize = 4096;

/// New shared memory that can be written to at `address`, until it is sealed. It is freed with the object.
#[pyclass(frozen, weakref)]
pub(crate) struct Reserved(Mutex<Option<ReservedMapping>>);

/// A file in memory without a name, and its mapping.
struct ReservedMapping {
    file: OwnedFd,
    memory: Arc<WritableMapping>,
}

/// A mapping for writing. The address is a number, so that threads may share it.
struct WritableMapping {
    address: usize,
    length: usize,
    /// Process that has the mapping: a forked one has only the descriptor.
    process: Pid,
}

/// Reserved memory for a thread of ours: as long as the thread has it, it is mapped, and can't be sealed.
pub(crate) struct MappedTarget(Arc<WritableMapping>);

impl forebay_tensorflow::Target for MappedTarget {
    fn address(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let is_within = offset <= self.0.length && length <= self.0.length - offset;
        is_within.then_some((self.0.address + offset) as *mut u8)
    }
}

#[pymethods]
impl Reserved {
    /// Reserves `length` bytes immediately. This fails if memory is short, while a page that is missing later would
    /// be a signal.
    #[new]
    fn new(py: Python<'_>, length: usize) -> PyResult<Self> {
        let mapped = py.detach(|| ReservedMapping::new(length)).map_err(to_python)?;
        Ok(Self(Mutex::new(Some(mapped))))
    }

    /// Address at which the memory can be written.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|mapped| mapped.memory.address)
            .ok_or_else(is_sealed)
    }

    /// The length in bytes.
    #[getter]
    fn length(&self) -> PyResult<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|mapped| mapped.memory.length)
            .ok_or_else(is_sealed)
    }

    /// Frees the memory now. In a process that was forked this closes the descriptor, which would keep the memory.
    fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Seals the first `length` bytes against any change. Returns a descriptor of them, which the caller closes.
    fn seal(&self, py: Python<'_>, length: usize) -> PyResult<i32> {
        let mapped = self.0.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(is_sealed)?;
        py.detach(|| mapped.seal(length)).map(IntoRawFd::into_raw_fd).map_err(to_python)
    }
}

impl Reserved {
    /// Returns the memory for a thread of ours.
    pub(crate) fn target(&self) -> PyResult<MappedTarget> {
        let mapped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mapped = mapped.as_ref().ok_or_else(is_sealed)?;
        Ok(MappedTarget(Arc::clone(&mapped.memory)))
    }
}

impl ReservedMapping {
    fn new(length: usize) -> Result<Self, Errno> {
        let (file, address) = fresh("forebay-capture", length)?;
        let memory = Arc::new(WritableMapping {
            address: address as usize,
            length,
            process: getpid(),
        });
        let mapped = Self { file, memory };
        // A mapping that a forked worker inherited would keep the file from being sealed.
        // SAFETY: of this mapping alone, to which nobody has an address yet.
        unsafe { madvise(address, length, Advice::LinuxDontFork)? };
        // SAFETY: as above; each byte of it is zero.
        unsafe { touch(address, length) };
        Ok(mapped)
    }

    fn seal(self, length: usize) -> Result<OwnedFd, Errno> {
        if length > self.memory.length {
            return Err(Errno::INVAL);
        }
        let file = self
            .file
            .try_clone()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        // A file that is mapped for writing can't be sealed.
        drop(self);
        ftruncate(&file, length as u64)?;
        fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
        Ok(file)
    }
}

impl Drop for WritableMapping {
    fn drop(&mut self) {
        // In a forked process something else may lie at that address.
        if self.process == getpid() {
            // SAFETY: this mapping was made for `new`; callers know that its address is valid only as long as the
            // object.
            let _ = unsafe { munmap(self.address as *mut _, self.length) };
        }
    }
}

/// Makes a file in memory without a name, with all of its pages. Returns it and its mapping for writing, which the
/// caller unmaps.
pub(crate) fn fresh(name: &str, length: usize) -> Result<(OwnedFd, *mut c_void), Errno> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let address = unsafe { mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0)? };
    Ok((file, address))
}

/// Touches all pages of a new mapping.
///
/// # Safety
/// `length` bytes at `address` are a mapping whose file has its pages, all bytes are zero, and nobody else uses it
/// yet.
pub(crate) unsafe fn touch(address: *mut c_void, length: usize) {
    // SAFETY: the caller's.
    if unsafe { madvise(address, length, Advice::LinuxPopulateWrite) }.is_err() {
        // A kernel before 5.14.
        for page in (0..length).step_by(PAGE_BYTES) {
            // SAFETY: the caller's; within the mapping.
            unsafe { address.cast::<u8>().add(page).write_volatile(0) };
        }
    }
}

fn is_sealed() -> PyErr {
    PyValueError::new_err("the memory is sealed")
}

pub(crate) fn to_python(errno: Errno) -> PyErr {
    PyOSError::new_err((errno.raw_os_error(), std::io::Error::from(errno).to_string()))
}
