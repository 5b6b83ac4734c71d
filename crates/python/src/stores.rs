//! Objects of stores, as the loader reads them itself. Converts types and errors; what is done is in `forebay_objects`.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use forebay_objects::{Error, Opened, Stores};
use pyo3::{
    exceptions::{PyEOFError, PyOSError, PyValueError},
    prelude::*,
    types::PyBytes,
};
use rustix::io::Errno;

/// Variables of the environment that lead to stores.
#[pyfunction]
pub(crate) fn store_variables() -> Vec<&'static str> {
    forebay_objects::VARIABLES.to_vec()
}

/// All stores that are reached by one environment. Connections are kept: a process that was forked needs one of its own.
#[pyclass(frozen)]
pub(crate) struct ObjectStores(Stores);

#[pymethods]
impl ObjectStores {
    /// `variables`: of the environment, those of `store_variables()` that are set.
    #[new]
    fn new(variables: BTreeMap<String, String>) -> Self {
        Self(Stores::new(variables))
    }

    /// Bytes of the object at `s3://BUCKET/KEY`, and the mark of its version.
    fn version(&self, py: Python<'_>, object: &str) -> PyResult<(u64, u64)> {
        let version = py.detach(|| self.0.version(object)).map_err(to_python)?;
        Ok((version.size, version.mark))
    }

    /// Names, in no particular order, of what lies directly below `s3://BUCKET/PREFIX` and has objects below it.
    fn folders(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<String>> {
        py.detach(|| self.0.folders(prefix)).map_err(to_python)
    }

    /// All objects below `s3://BUCKET/PREFIX`, in no particular order: key, bytes, and mark of the version.
    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<(String, u64, u64)>> {
        let objects = py.detach(|| self.0.list(prefix)).map_err(to_python)?;
        let told = objects.into_iter().map(|(object, version)| {
            let shown = object.shown();
            let key = object
                .key
                .map_err(|_| PyValueError::new_err(format!("{prefix}: the key {shown} is no UTF-8")))?;
            Ok((key, version.size, version.mark))
        });
        told.collect()
    }

    /// Asks for `length` bytes from `offset` on of the object at `s3://BUCKET/KEY`, or for all up to its end, of the version with this mark; with 0 of the one that is there.
    #[pyo3(signature = (object, offset, length=None, mark=0))]
    fn open(&self, py: Python<'_>, object: &str, offset: u64, length: Option<u64>, mark: u64) -> PyResult<ObjectRange> {
        let opened = py.detach(|| self.0.open(object, offset, length, (mark != 0).then_some(mark)));
        let opened = opened.map_err(to_python)?;
        let length = opened.bytes();
        Ok(ObjectRange {
            length,
            opened: Mutex::new(Some(opened)),
        })
    }
}

/// A range of an object whose bytes are on their way.
#[pyclass(frozen)]
pub(crate) struct ObjectRange {
    #[pyo3(get)]
    length: u64,
    opened: Mutex<Option<Opened>>,
}

#[pymethods]
impl ObjectRange {
    /// Its bytes; once.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let opened = opened.ok_or_else(|| PyValueError::new_err("this range was read already"))?;
        let length = usize::try_from(self.length).map_err(|_| PyOSError::new_err(Errno::FBIG.raw_os_error()))?;
        PyBytes::new_with(py, length, |bytes| py.detach(|| opened.read(bytes)).map_err(to_python))
    }
}

/// As a file system would have it, where it could.
fn to_python(error: Error) -> PyErr {
    let os_error = |errno: Errno, why: String, object: String| PyOSError::new_err((errno.raw_os_error(), why, object));
    match error {
        Error::Missing { object } => os_error(Errno::NOENT, "there is no such object".into(), object),
        Error::Denied { object, why } => os_error(Errno::ACCESS, why, object),
        Error::Changed { object } => os_error(
            Errno::STALE,
            "it has changed since it was listed or first read; begin again with what is there now".into(),
            object,
        ),
        Error::Store { object, why } => os_error(Errno::IO, why, object),
        Error::Disk { path, source, .. } => {
            let errno = Errno::from_io_error(&source).unwrap_or(Errno::IO);
            os_error(errno, source.to_string(), path.display().to_string())
        }
        Error::Short { .. } => PyEOFError::new_err(error.to_string()),
        error => PyValueError::new_err(error.to_string()),
    }
}
