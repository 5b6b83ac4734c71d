//! Memory by the buffer protocol: exported by our objects, and borrowed from the caller's for one call.

use std::ffi::c_int;

use pyo3::{buffer::PyBuffer, exceptions::PyValueError, ffi, prelude::*};

/// Exports `bytes` of `owner` to `view`, for reading.
///
/// # Safety
/// `view` is the argument of `__getbuffer__`, and `bytes` stay in place and unchanged for as long as `owner` lives.
pub(crate) unsafe fn export(view: *mut ffi::Py_buffer, flags: c_int, owner: &Bound<'_, PyAny>, bytes: &[u8]) -> PyResult<()> {
    // SAFETY: the caller's; the view is to refer to nothing where this fails.
    unsafe { (*view).obj = std::ptr::null_mut() };
    let length = bytes.len() as ffi::Py_ssize_t;
    // SAFETY: the caller's. The view takes a reference to the owner, and is marked as read-only.
    let filled = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), bytes.as_ptr().cast_mut().cast(), length, 1, flags) };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// Bytes of an object of Python's, which is borrowed for as long as this lives.
pub(crate) struct ReadBuffer(PyBuffer<u8>);

impl ReadBuffer {
    /// Borrows the memory of `object`.
    ///
    /// # Errors
    /// `BufferError` or `ValueError` where `object` exports no bytes that lie in one piece.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(object)?;
        if buffer.is_c_contiguous() {
            Ok(Self(buffer))
        } else {
            Err(PyValueError::new_err("the bytes do not lie in one piece"))
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps them there for as long as the buffer is borrowed. Nobody writes to them
        // meanwhile: the package gives only what it has read, or the agent's memory, which is not used again while
        // anything refers to it.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}

/// Writable bytes of an object of Python's, which is borrowed for as long as this lives.
pub(crate) struct WriteBuffer(PyBuffer<u8>);

impl WriteBuffer {
    /// Borrows the memory of `object`, of `length` bytes.
    ///
    /// # Errors
    /// `BufferError` or `ValueError` where `object` exports no writable bytes in one piece, or another number of
    /// them.
    pub(crate) fn new(object: &Bound<'_, PyAny>, length: usize) -> PyResult<Self> {
        let buffer = PyBuffer::get(object)?;
        if buffer.readonly() || !buffer.is_c_contiguous() || buffer.len_bytes() != length {
            return Err(PyValueError::new_err(format!(
                "the result takes {length} writable bytes in one piece, and the buffer has {}",
                buffer.len_bytes()
            )));
        }
        Ok(Self(buffer))
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: the exporter keeps them there for as long as the buffer is borrowed. The package has just made them
        // for this call, so that nobody else uses them meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}
