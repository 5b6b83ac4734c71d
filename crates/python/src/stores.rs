//! Objects of stores, for the loader's own reads. Converts types and errors; `forebay_objects` reads.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use forebay_objects::{Error, OpenedRange, Stores};
use pyo3::{
    exceptions::{PyEOFError, PyMemoryError, PyOSError, PyRuntimeError, PyValueError},
    prelude::*,
    types::PyBytes,
};
use rustix::{io::Errno, process::getpid, thread::gettid};

/// Time between two checks of the main thread for signals, while it waits for a store.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Returns the names of the environment variables that lead to stores.
#[pyfunction]
pub(crate) fn store_variables() -> Vec<&'static str> {
    forebay_objects::VARIABLES.to_vec()
}

/// All stores that one environment leads to. Connections are kept: a process that was forked needs an object of its
/// own.
#[pyclass(frozen)]
pub(crate) struct ObjectStores(Arc<Stores>);

#[pymethods]
impl ObjectStores {
    /// Takes the variables of `store_variables()` that are set.
    #[new]
    fn new(variables: BTreeMap<String, String>) -> Self {
        Self(Arc::new(Stores::new(variables)))
    }

    /// Ends all requests under way, which fail immediately, as later ones do.
    fn end(&self, py: Python<'_>) {
        py.detach(|| self.0.end());
    }

    /// True once requests were ended, by `end` or by a signal.
    #[getter]
    fn is_ended(&self) -> bool {
        self.0.is_ended()
    }

    /// Returns the length of the object at `s3://BUCKET/KEY`, and the mark of its version.
    fn version(&self, py: Python<'_>, object: String) -> PyResult<(u64, u64)> {
        let version = done(py, &self.0, move |stores| stores.version(&object))?;
        Ok((version.size, version.mark))
    }

    /// Returns the names of the folders directly below `s3://BUCKET/PREFIX`, in no particular order.
    fn folders(&self, py: Python<'_>, prefix: String) -> PyResult<Vec<String>> {
        done(py, &self.0, move |stores| stores.folders(&prefix))
    }

    /// Returns key, length and mark of the version of all objects below `s3://BUCKET/PREFIX`, in no particular order.
    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<(String, u64, u64)>> {
        let below = prefix.to_owned();
        let objects = done(py, &self.0, move |stores| stores.list(&below))?;
        let told = objects.into_iter().map(|(object, version)| {
            let shown = object.shown();
            let key = object
                .key
                .map_err(|_| PyValueError::new_err(format!("{prefix}: the key {shown} is not UTF-8")))?;
            Ok((key, version.size, version.mark))
        });
        told.collect()
    }

    /// Requests `length` bytes from `offset` on of the object at `s3://BUCKET/KEY`, or all up to its end. The object
    /// has to be of the version with this mark; 0 stands for the current version.
    #[pyo3(signature = (object, offset, length=None, mark=0))]
    fn open(&self, py: Python<'_>, object: String, offset: u64, length: Option<u64>, mark: u64) -> PyResult<ObjectRange> {
        let mark = (mark != 0).then_some(mark);
        let opened = done(py, &self.0, move |stores| stores.open(&object, offset, length, mark))?;
        let length = opened.bytes();
        Ok(ObjectRange {
            length,
            stores: Arc::clone(&self.0),
            opened: Mutex::new(Some(opened)),
        })
    }
}

/// A range of an object whose bytes are on their way.
#[pyclass(frozen)]
pub(crate) struct ObjectRange {
    #[pyo3(get)]
    length: u64,
    stores: Arc<Stores>,
    opened: Mutex<Option<OpenedRange>>,
}

#[pymethods]
impl ObjectRange {
    /// Blocks until all bytes have come, and returns them. It can be called once.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let opened = opened.ok_or_else(|| PyValueError::new_err("this range was read already"))?;
        let length = usize::try_from(self.length).map_err(|_| PyOSError::new_err(Errno::FBIG.raw_os_error()))?;
        if !is_main_thread() {
            return PyBytes::new_with(py, length, |bytes| py.detach(|| opened.read(bytes)).map_err(to_python));
        }
        // Another thread fills this memory, for as long as it takes.
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(length)
            .map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        let read = move |_: &Stores| {
            bytes.resize(length, 0);
            opened.read(&mut bytes).map(|()| bytes)
        };
        Ok(PyBytes::new(py, &done(py, &self.stores, read)?))
    }
}

/// Does the work, and waits for it. A store may be silent for minutes, and only the main thread hears of signals: so
/// it has another thread do the work. If the handler of a signal raises (Ctrl-C), all requests under way end, and the
/// error is the handler's.
fn done<T: Send + 'static>(
    py: Python<'_>,
    stores: &Arc<Stores>,
    work: impl FnOnce(&Stores) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    if !is_main_thread() {
        return py.detach(|| work(stores)).map_err(to_python);
    }
    let (tell, told) = mpsc::sync_channel(1);
    let theirs = Arc::clone(stores);
    let work = move || {
        // The receiver may have stopped waiting.
        let _ = tell.send(work(&theirs));
    };
    thread::Builder::new().name("forebay-object".into()).spawn(work)?;
    let told = Mutex::new(told);
    loop {
        let told = || told.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK_EVERY);
        match py.detach(told) {
            Ok(done) => return done.map_err(to_python),
            Err(RecvTimeoutError::Timeout) => py.check_signals().inspect_err(|_| stores.end())?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("reading an object has failed: this is a bug of Forebay's"));
            }
        }
    }
}

/// Returns true in the process's main thread, which is nearly always Python's, too.
fn is_main_thread() -> bool {
    gettid() == getpid()
}

/// Converts an error to the exception that a file system would raise, where it has one.
fn to_python(error: Error) -> PyErr {
    let os_error = |errno: Errno, why: String, object: String| PyOSError::new_err((errno.raw_os_error(), why, object));
    match error {
        Error::Missing { object } => os_error(Errno::NOENT, "there is no such object".into(), object),
        Error::Denied { object, why } => os_error(Errno::ACCESS, why, object),
        Error::Changed { object } => os_error(
            Errno::STALE,
            "it has changed since it was listed or first read; start again with its present version".into(),
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
