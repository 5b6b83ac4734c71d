//! Memory of another process, mapped for reading before it is needed: to map a page takes about as long as to copy
//! it.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use forebay_agent::host::shared::SharedFile;
use pyo3::prelude::*;

use crate::{CallerMemory, fork::borrowed};

/// Its length is sealed, so that nobody can take it away from under this process.
#[pyclass(frozen)]
pub(crate) struct Mapped {
    length: usize,
    file: Mutex<Option<Arc<SharedFile>>>,
}

#[pymethods]
impl Mapped {
    /// Its length in bytes.
    #[getter]
    fn length(&self) -> usize {
        self.length
    }

    /// Returns whether a descriptor refers to this memory.
    fn is_of(&self, descriptor: i32) -> PyResult<bool> {
        let other = borrowed(descriptor)?;
        Ok(self.file().map(|file| file.is_of(other)).transpose()?.unwrap_or(false))
    }

    /// Unmaps it, once nobody reads there: for a thread of its own, since that takes about as long as to map it.
    fn close(&self, py: Python<'_>) {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| {
            if let Some(file) = &file {
                file.unmap_pages();
            }
            drop(file);
        });
    }
}

impl Mapped {
    /// All of a file that somebody has sent; none if its length could change.
    pub(crate) fn ahead(file: OwnedFd) -> Option<Self> {
        let file = SharedFile::received_ahead(file).ok()?;
        Some(Self {
            length: file.region().len(),
            file: Mutex::new(Some(Arc::new(file))),
        })
    }

    /// Returns the mapping, which lives as long as the result; `None` if it was closed.
    pub(crate) fn file(&self) -> Option<Arc<SharedFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns a range of a mapped file, if the file has it.
pub(crate) fn part(file: &SharedFile, offset: u64, length: usize) -> Option<CallerMemory> {
    let memory = CallerMemory {
        address: file.region().base().as_ptr() as usize,
        length: file.region().len(),
    };
    memory.part(usize::try_from(offset).ok()?, length).ok()
}
