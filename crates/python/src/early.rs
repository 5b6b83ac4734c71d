//! Tensors that are copied while the step that computes them goes on.

use std::{ffi::CString, sync::Arc};

use forebay_tensorflow as tensorflow;
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyBytes,
};

use crate::memory::Reserved;

/// Adds the operation that marks final variables to the framework that is loaded in `library`, and returns its name.
#[pyfunction]
pub(crate) fn register_final_op(library: &str) -> PyResult<&'static str> {
    let library = CString::new(library).map_err(|error| PyValueError::new_err(error.to_string()))?;
    tensorflow::register(&library).map_err(|missing| PyRuntimeError::new_err(missing.to_string()))?;
    Ok(tensorflow::OP.to_str().unwrap_or_default())
}

/// The marked variables of one train function.
#[pyclass(frozen)]
pub(crate) struct FinalWatch(Arc<tensorflow::Watch>);

#[pymethods]
impl FinalWatch {
    #[new]
    fn new() -> Self {
        Self(tensorflow::Watch::new())
    }

    /// The operation's attribute for a variable.
    fn token(&self, variable: u32) -> i64 {
        self.0.token(variable)
    }

    /// Has the next step hand over so many variables, each at its last of `repeats` marks.
    fn arm(&self, variables: usize, repeats: u32) -> EarlyCopy {
        EarlyCopy(self.0.arm(variables, repeats))
    }

    /// Notes that the step has ended.
    fn disarm(&self) {
        self.0.disarm();
    }
}

/// The variables of one step, and their copies. References go with the object, or with `finish`.
#[pyclass(frozen)]
pub(crate) struct EarlyCopy(Arc<tensorflow::EarlyCopy>);

#[pymethods]
impl EarlyCopy {
    /// Begins to copy in a thread of its own, each variable to its offset in the memory; returns whether there is one.
    fn copy(&self, memory: &Reserved, offsets: Vec<usize>) -> PyResult<bool> {
        Ok(self.0.copy(memory.target()?, offsets))
    }

    /// Bytes that were copied so far.
    #[getter]
    fn copied_bytes(&self) -> usize {
        self.0.copied_bytes()
    }

    /// Ends the copy: see `forebay_tensorflow::EarlyCopy::finish`. Digests have 16 bytes.
    #[expect(clippy::needless_pass_by_value, reason = "Python's list becomes a vector of ours")]
    fn finish<'py>(&self, py: Python<'py>, now: Vec<(usize, usize, usize)>) -> Vec<(usize, Bound<'py, PyBytes>)> {
        let found = py.detach(|| self.0.finish(&now));
        found
            .into_iter()
            .map(|(variable, digest)| (variable, PyBytes::new(py, &digest.to_be_bytes())))
            .collect()
    }
}

impl Drop for EarlyCopy {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
