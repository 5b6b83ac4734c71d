//! Calls that the main thread makes between two instructions of its program, as it runs handlers of signals there.

use std::ffi::{c_int, c_void};

use pyo3::{ffi, prelude::*};

/// Asks the main thread to call `function` between two instructions of its program: soon, unless it is in a long
/// native call. Errors of `function`, or of a signal handler meanwhile, are raised there. Returns false, without a
/// call, if too many calls are pending.
#[pyfunction]
pub(crate) fn between_instructions(function: Bound<'_, PyAny>) -> bool {
    let function = function.into_ptr();
    // SAFETY: the interpreter's lock is held, and the reference is the call's from here on.
    let is_queued = unsafe { ffi::Py_AddPendingCall(Some(run), function.cast()) } == 0;
    if !is_queued {
        // SAFETY: as above; there is no call, so nobody has taken the reference.
        unsafe { ffi::Py_DECREF(function) };
    }
    is_queued
}

/// The call. By the C interface alone: a panic must not come out of here.
extern "C" fn run(function: *mut c_void) -> c_int {
    let function: *mut ffi::PyObject = function.cast();
    // SAFETY: the interpreter calls this with its lock held, once, with the reference that `between_instructions`
    // gave up.
    let result = unsafe {
        let result = ffi::PyObject_CallNoArgs(function);
        ffi::Py_DECREF(function);
        result
    };
    if result.is_null() {
        // With an error set: the interpreter raises it in the program.
        return -1;
    }
    // SAFETY: a new reference, which is this function's.
    unsafe { ffi::Py_DECREF(result) };
    0
}
