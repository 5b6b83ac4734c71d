//! A rank of a loader that the loader agent serves. Converts types; the protocol is in `forebay_agent::samples`.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    os::fd::IntoRawFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use forebay_agent::samples::{SampleStatus, client, protocol::Variables, table::Table, worker};
use forebay_contract::request_ring::RankDecoding;
use pyo3::{
    exceptions::{PyException, PyOSError, PyValueError},
    ffi,
    prelude::*,
    types::PyBytes,
};

use crate::{
    buffers::export,
    errors::to_python,
    fork::{borrowed, duration},
    loader_batch::{LoaderBatch, ServedRank},
};

/// The extents of a dataset's samples, which are added in order.
#[pyclass(frozen)]
pub(crate) struct LoaderTable(Mutex<Table>);

#[pymethods]
impl LoaderTable {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// Adds the next sample, which reaches up to the file's end if there is no length. Returns the number of its
    /// extent.
    #[pyo3(signature = (path, offset, length=None, mark=0))]
    fn add(&self, path: &[u8], offset: u64, length: Option<u64>, mark: u64) -> PyResult<u32> {
        let added = self.table().add(path, offset, length, mark);
        added.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Adds the next `rows` samples, which lie one after the other from `offset` on, each of `row_bytes` bytes.
    #[pyo3(signature = (path, offset, row_bytes, rows, mark=0))]
    fn add_rows(&self, py: Python<'_>, path: &[u8], offset: u64, row_bytes: u64, rows: u32, mark: u64) -> PyResult<()> {
        let end = u64::from(rows).checked_mul(row_bytes).and_then(|bytes| bytes.checked_add(offset));
        if row_bytes == 0 || end.is_none() {
            return Err(PyValueError::new_err(format!("{rows} rows of {row_bytes} bytes from {offset} on")));
        }
        let added = py.detach(|| {
            let mut table = self.table();
            let add = |row| table.add(path, offset + row * row_bytes, Some(row_bytes), mark).map(drop);
            (0..u64::from(rows)).try_for_each(add)
        });
        added.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Returns the numbers of the extents of these samples, each located by `locate` now; `None` where no sample
    /// lies, or where `locate` fails. `encoded` makes bytes of a path; it is called once for equal path objects that
    /// follow each other.
    #[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's list is ours")]
    fn find_all<'py>(
        &self,
        samples: Vec<Bound<'py, PyAny>>,
        locate: &Bound<'py, PyAny>,
        encoded: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Option<u32>>> {
        let mut paths: Vec<(Bound<'py, PyAny>, Bound<'py, PyBytes>)> = Vec::new();
        let mut located = |sample: &Bound<'py, PyAny>| -> PyResult<(usize, u64, Option<u64>, u64)> {
            let (path, offset, length, mark): (Bound<'py, PyAny>, u64, Option<u64>, u64) = locate.call1((sample,))?.extract()?;
            if !paths.last().is_some_and(|(last, _)| last.is(&path)) {
                let bytes = encoded.call1((&path,))?.cast_into::<PyBytes>()?;
                paths.push((path, bytes));
            }
            Ok((paths.len() - 1, offset, length, mark))
        };
        let places = samples.iter().map(|sample| none_if_wrong(sample.py(), located(sample)));
        let places = places.collect::<PyResult<Vec<_>>>()?;
        let borrowed = |(path, offset, length, mark): (usize, _, _, _)| (paths[path].1.as_bytes(), offset, length, mark);
        // Only now: with the table locked nothing of Python's may run, for another thread may wait for the table
        // there.
        Ok(self.table().find_all(places.into_iter().map(|place| place.map(borrowed))))
    }

    /// Returns true if some of the files are objects of stores.
    #[getter]
    fn has_objects(&self) -> bool {
        self.table().has_objects()
    }

    /// The number of different extents.
    #[getter]
    fn extents(&self) -> u32 {
        self.table().extents()
    }

    /// The digest of all extents, in the order of their samples.
    #[getter]
    fn digest(&self) -> String {
        self.table().digest()
    }

    /// Returns a sealed descriptor of the whole table, which the caller closes.
    fn seal(&self, py: Python<'_>) -> PyResult<i32> {
        let sealed = py.detach(|| self.table().seal());
        let failed = |error: std::io::Error| PyOSError::new_err((error.raw_os_error(), error.to_string()));
        Ok(sealed.map_err(failed)?.into_raw_fd())
    }
}

impl LoaderTable {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank that waits for the others of its node.
#[pyclass(frozen)]
pub(crate) struct LoaderRegistering(Mutex<Option<client::Registering>>);

#[pymethods]
impl LoaderRegistering {
    /// Registers a rank with `settings` as JSON. The first rank of the node adds `extents`, a descriptor that stays
    /// the caller's, and the `variables` that lead to the stores of objects among them.
    #[new]
    #[pyo3(signature = (directory, settings, extents=None, variables=None))]
    #[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's path is ours")]
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        settings: &str,
        extents: Option<i32>,
        variables: Option<BTreeMap<String, String>>,
    ) -> PyResult<Self> {
        let extents = extents.map(borrowed).transpose()?;
        let variables = Variables(variables.unwrap_or_default());
        let begun = py.detach(|| client::Registering::begin(Path::new(&directory), settings, extents, variables));
        Ok(Self(Mutex::new(Some(begun.map_err(to_python)?))))
    }

    /// Blocks until all ranks of the node have registered, at most `wait_s` seconds. Returns the rank, once; `None`
    /// if some are missing.
    fn wait(&self, py: Python<'_>, wait_s: f64) -> PyResult<Option<LoaderRank>> {
        let wait = duration(wait_s)?;
        let waited = py.detach(|| {
            let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(registering) = place.take() else { return Ok(None) };
            registering.wait(wait).map(|waited| match waited {
                Ok(rank) => Some(rank),
                Err(registering) => {
                    *place = Some(registering);
                    None
                }
            })
        });
        Ok(waited.map_err(to_python)?.map(|rank| LoaderRank(Arc::new(ServedRank::new(rank)))))
    }
}

/// A rank of a loader, for as long as this object, or anything that refers to the agent's memory, lives.
#[pyclass(frozen, weakref)]
pub(crate) struct LoaderRank(Arc<ServedRank>);

impl LoaderRank {
    pub(crate) fn rank(&self) -> &client::LoaderRank {
        &self.0.rank
    }
}

#[pymethods]
impl LoaderRank {
    /// Requests that fit on the ring at the same time.
    #[getter]
    fn slots(&self) -> u32 {
        self.0.rank.slots()
    }

    /// Notes on the loader, for a person.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.rank.notes().to_vec()
    }

    /// Views and loans that refer to the agent's memory.
    #[getter]
    fn references(&self) -> usize {
        self.0.references()
    }

    /// Requests that were passed on and are not given back.
    #[getter]
    fn open(&self) -> usize {
        self.0.open()
    }

    /// Makes a batch of these extents, in the order of their use; `None` stands for a sample that the rank is to read
    /// itself. Nothing is passed on yet.
    fn batch(&self, extents: Vec<Option<u32>>) -> LoaderBatch {
        LoaderBatch::new(Arc::clone(&self.0), extents)
    }

    /// Makes a batch of rows, whose extents have their own numbers: see `batch`. Rows beyond `count` are the rank's
    /// to read.
    fn row_batch(&self, rows: Vec<i64>, count: u32) -> LoaderBatch {
        let extent = |row| u32::try_from(row).ok().filter(|row| *row < count);
        LoaderBatch::new(Arc::clone(&self.0), rows.into_iter().map(extent).collect())
    }

    /// Begins an epoch, by its number in the order. Returns its number on the ring, which the other functions take.
    fn begin_epoch(&self, number: u32) -> u32 {
        self.0.rank.begin_epoch(number)
    }

    /// Begins a step.
    fn begin_step(&self, epoch: u32, iteration: u32) {
        self.0.rank.begin_step(epoch, iteration);
    }

    /// Tells the agent the seconds in which one thread of this rank decodes a sample, the mean size of these samples,
    /// and the rank's own threads; 0 threads if it decodes in processes.
    fn set_decoding(&self, seconds: f64, sample_bytes: u64, threads: u32) -> PyResult<()> {
        self.0.rank.set_decoding(RankDecoding {
            sample_ns: u64::try_from(duration(seconds)?.as_nanos()).unwrap_or(u64::MAX),
            sample_bytes: u32::try_from(sample_bytes).unwrap_or(u32::MAX),
            threads,
        });
        Ok(())
    }

    /// Returns the number of threads with which this rank is to decode; `None` if the agent has chosen none.
    fn decoders(&self) -> Option<u32> {
        self.0.rank.decoders()
    }

    /// Returns what a worker process needs to find this rank's ring and the agent's memory: see `LoaderWorker`.
    fn seat(&self) -> PyResult<SeatParts> {
        let worker::Seat { rank, agent, ring, arena } = self.0.rank.seat()?;
        Ok((rank, agent, ring, arena))
    }

    /// Returns the reason why the rank reads by itself; `None` as long as there is an agent.
    fn lost(&self) -> Option<String> {
        self.0.rank.lost()
    }

    /// Returns the ranks of this loader and node that are gone.
    fn gone(&self) -> Vec<u32> {
        self.0.rank.gone()
    }

    /// Tells the agent why this loader does not share its samples with the other nodes of the job.
    fn alone(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        py.detach(|| self.0.rank.alone(why)).map_err(to_python)
    }

    /// Returns the agent's counts by name: of all ranks of the node, and of this one (`rank_...`); `None` where there
    /// is no agent any more.
    fn figures(&self, py: Python<'_>) -> Option<Vec<(&'static str, u64)>> {
        let (figures, of_rank) = py.detach(|| self.0.rank.figures())?;
        Some([&figures.named()[..], &of_rank.named()].concat())
    }
}

/// The processes of a rank and of its agent (0 if that is unknown), and for ring and arena the rank's descriptor and
/// the file's number.
type SeatParts = (i32, i32, (i32, u64), (i32, u64));

/// A worker process of a rank, which sees the agent's answers to the rank. The memory is mapped for as long as the
/// object lives.
#[pyclass(frozen)]
pub(crate) struct LoaderWorker(worker::Worker);

#[pymethods]
impl LoaderWorker {
    /// Takes what a rank's `seat()` has returned.
    #[new]
    fn new(seat: SeatParts) -> PyResult<Self> {
        let (rank, agent, ring, arena) = seat;
        worker::Worker::new(&worker::Seat { rank, agent, ring, arena })
            .map(Self)
            .map_err(to_python)
    }

    /// Exports the agent's memory, in which samples are found by the offsets of `wait`.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let arena = slf.get().0.arena();
        let bytes = arena.bytes(0, arena.len() as u64).unwrap_or_default();
        // SAFETY: Python's view, and memory that stays mapped for as long as the object lives. A worker looks only at
        // what its rank has lent it, which the agent leaves as it is meanwhile.
        unsafe { export(view, flags, slf.as_any(), bytes) }
    }

    /// Blocks until it is known what has become of a request of the rank's, at most `wait_s` seconds. Returns offset
    /// and length of the sample in bytes; `None` while nothing has come; an offset below 0 where the worker is to
    /// read the source itself.
    fn wait(&self, py: Python<'_>, number: u64, wait_s: f64) -> PyResult<Option<(i64, usize)>> {
        let mut told = self.0.look(number);
        if told == SampleStatus::Pending && wait_s > 0.0 {
            let wait = duration(wait_s)?;
            told = py.detach(|| self.0.wait(number, wait));
        }
        Ok(match told {
            SampleStatus::Pending => None,
            SampleStatus::Ready { offset, length } => Some((offset as i64, length as usize)),
            SampleStatus::ReadYourself => Some((-1, 0)),
        })
    }

    /// Tells the rank that this worker is done with the batch whose loan has this mark.
    fn done(&self, mark: u64) {
        self.0.done(mark);
    }

    /// Returns the reason why the worker reads by itself; `None` as long as there is an agent.
    fn lost(&self) -> Option<String> {
        self.0.lost()
    }
}

/// Turns an `Exception` into `None`; anything else, such as an interrupt, is raised on.
fn none_if_wrong<T>(py: Python<'_>, found: PyResult<T>) -> PyResult<Option<T>> {
    match found {
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        found => found.map(Some),
    }
}
