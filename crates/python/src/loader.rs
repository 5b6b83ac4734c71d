//! A rank of a loader before the loader agent. Converts types; what is said is in `forebay_agent::samples`.

use std::{
    collections::BTreeMap,
    os::fd::IntoRawFd,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use forebay_agent::samples::{Told, client, protocol::Variables, table::Table, worker};
use pyo3::{
    exceptions::{PyException, PyOSError, PyValueError},
    prelude::*,
    types::PyBytes,
};

use crate::{
    Memory,
    fork::{borrowed, duration, to_python},
    images::bytes_mut,
};

/// Where the samples of a dataset lie, told one after the other.
#[pyclass(frozen)]
pub(crate) struct LoaderTable(Mutex<Table>);

#[pymethods]
impl LoaderTable {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// The next sample lies there, up to the file's end if there is no length; the number of its extent.
    #[pyo3(signature = (path, offset, length=None, mark=0))]
    fn add(&self, path: &[u8], offset: u64, length: Option<u64>, mark: u64) -> PyResult<u32> {
        let added = self.table().add(path, offset, length, mark);
        added.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The next so many samples lie one after the other from an offset on, each of `row_bytes` bytes.
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

    /// The numbers of the extents of these samples, each where `locate` says that it lies now; `None` where no sample lies, or that can't be said. `encoded` makes bytes of
    /// a path: of those that follow each other and are one object, once.
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
        // Only now: with the table locked nothing of Python's may run, for another thread may wait for the table there.
        Ok(self.table().find_all(places.into_iter().map(|place| place.map(borrowed))))
    }

    /// Whether some of the files are objects of stores.
    #[getter]
    fn has_objects(&self) -> bool {
        self.table().has_objects()
    }

    #[getter]
    fn extents(&self) -> u32 {
        self.table().extents()
    }

    /// Of all samples in their order.
    #[getter]
    fn digest(&self) -> String {
        self.table().digest()
    }

    /// A descriptor of it all, which is the caller's to close.
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
    /// `settings` as JSON; `extents` from the first rank of the node, a descriptor that stays the caller's; `variables` that lead to stores whose objects are
    /// among them.
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

    /// The rank, once all have come, waited for no longer than this; `None` if they have not. Nothing more comes of it after that.
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
        Ok(waited.map_err(to_python)?.map(LoaderRank))
    }
}

/// A rank of a loader, for as long as the object lives. Its memory is mapped as long, too.
#[pyclass(frozen, weakref)]
pub(crate) struct LoaderRank(client::Rank);

#[pymethods]
impl LoaderRank {
    /// Where the memory lies in which extents lie.
    #[getter]
    fn address(&self) -> usize {
        self.0.arena().base().as_ptr() as usize
    }

    /// Bytes of that memory.
    #[getter]
    fn length(&self) -> usize {
        self.0.arena().len()
    }

    /// Extents that can be asked for and not released at once.
    #[getter]
    fn slots(&self) -> u32 {
        self.0.slots()
    }

    /// What there is to say of the loader, for a person.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes().to_vec()
    }

    /// Asks for extents that a step will use, in the order of their use; the turn of the first, or `None` where some have to be released before.
    #[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's list is ours")]
    fn ask(&self, extents: Vec<u32>, epoch: u32, iteration: u32) -> Option<u64> {
        self.0.ask(&extents, epoch, iteration)
    }

    /// What has become of a use, waited for no longer than this: its offset and length in bytes; `None` while nothing has come; an offset below 0 where the rank is to
    /// read the source itself.
    fn wait(&self, py: Python<'_>, turn: u64, wait_s: f64) -> PyResult<Option<(i64, usize)>> {
        let look = || self.0.look(turn);
        told(py, wait_s, look, |wait| self.0.wait(turn, wait))
    }

    /// What there is of uses now: offset and length of each in bytes; `None` where nothing has come, or will, and where there is no use.
    fn look_all(&self, turns: Vec<Option<u64>>) -> Vec<Option<(u64, u32)>> {
        let mut told = self.0.look_all(turns.iter().copied().flatten()).into_iter();
        let mut of_next = || match told.next() {
            Some(Told::Ready { offset, length }) => Some((offset, length)),
            _ => None,
        };
        turns.into_iter().map(|turn| turn.and_then(|_| of_next())).collect()
    }

    /// Whether it is known of so many uses from the turn `first` on what has become of them, waited for no longer than this in all.
    fn wait_all(&self, py: Python<'_>, first: u64, count: u32, wait_s: f64) -> PyResult<bool> {
        let wait = duration(wait_s)?;
        Ok(py.detach(|| self.0.wait_all(first..first + u64::from(count), wait)))
    }

    /// Copies the extents of so many uses, each of `row_bytes` bytes, to memory of `length` bytes at `address`, one after the other. Gives the places of those, counted
    /// from 0, that the rank is to read itself.
    fn gather(&self, py: Python<'_>, first: u64, count: u32, row_bytes: usize, address: usize, length: usize) -> PyResult<Vec<u32>> {
        let memory = Memory::new(address, length)?;
        if row_bytes == 0 || (count as usize).checked_mul(row_bytes) != Some(length) {
            return Err(PyValueError::new_err(format!("{count} rows of {row_bytes} bytes, in {length}")));
        }
        Ok(py.detach(|| self.0.gather(first..first + u64::from(count), row_bytes, bytes_mut(memory))))
    }

    /// So many uses from a turn on are over: nobody looks at their bytes any more.
    fn release_all(&self, first: u64, count: u32) {
        self.0.release(first..first + u64::from(count));
    }

    /// Uses are over, but something refers to their bytes still.
    fn hold(&self, turns: Vec<u64>) {
        self.0.hold(turns);
    }

    /// Uses are over: nobody looks at their bytes any more.
    fn release(&self, turns: Vec<u64>) {
        self.0.release(turns);
    }

    /// The rank begins an epoch, by its number in the order; what it is called by the other functions.
    fn begin_epoch(&self, number: u32) -> u32 {
        self.0.begin_epoch(number)
    }

    /// The rank begins a step.
    fn begin_step(&self, epoch: u32, iteration: u32) {
        self.0.begin_step(epoch, iteration);
    }

    /// The rank's threads together take so many seconds to decode a sample.
    fn set_decoding(&self, seconds: f64) -> PyResult<()> {
        self.0.set_decoding(duration(seconds)?);
        Ok(())
    }

    /// Where worker processes find what this rank looks at: see `LoaderWorker`.
    fn seat(&self) -> PyResult<Seat> {
        let worker::Seat { rank, agent, board, arena } = self.0.seat()?;
        Ok((rank, agent, board, arena))
    }

    /// Whether the worker process that was given this use, which is not released, is done with it.
    fn is_done(&self, turn: u64) -> bool {
        self.0.is_done(turn)
    }

    /// Why the rank reads by itself; `None` as long as there is an agent.
    fn lost(&self) -> Option<String> {
        self.0.lost()
    }

    /// Ranks of this loader and node that are gone.
    fn gone(&self) -> Vec<u32> {
        self.0.gone()
    }

    /// What was done for all ranks of the node, and for this one (`rank_...`), by name; `None` where there is no agent any more.
    fn figures(&self, py: Python<'_>) -> Option<Vec<(&'static str, u64)>> {
        let (figures, of_rank) = py.detach(|| self.0.figures())?;
        Some([&figures.named()[..], &of_rank.named()].concat())
    }
}

/// A rank's process, its agent's or 0, and of board and arena the rank's descriptor and the file's number.
type Seat = (i32, i32, (i32, u64), (i32, u64));

/// A worker process of a rank, which sees what the agent answers the rank. The memory is mapped for as long as the object lives.
#[pyclass(frozen)]
pub(crate) struct LoaderWorker(worker::Worker);

#[pymethods]
impl LoaderWorker {
    /// Of a rank's `seat()`.
    #[new]
    fn new(seat: Seat) -> PyResult<Self> {
        let (rank, agent, board, arena) = seat;
        worker::Worker::new(&worker::Seat { rank, agent, board, arena })
            .map(Self)
            .map_err(to_python)
    }

    /// Where the memory lies in which extents lie.
    #[getter]
    fn address(&self) -> usize {
        self.0.arena().base().as_ptr() as usize
    }

    /// Bytes of that memory.
    #[getter]
    fn length(&self) -> usize {
        self.0.arena().len()
    }

    /// What has become of a use that the rank has given: as `LoaderRank.wait` tells it.
    fn wait(&self, py: Python<'_>, turn: u64, wait_s: f64) -> PyResult<Option<(i64, usize)>> {
        told(py, wait_s, || self.0.look(turn), |wait| self.0.wait(turn, wait))
    }

    /// What was given together with this use is looked at no more.
    fn done(&self, turn: u64) {
        self.0.done(turn);
    }

    /// Why the worker reads by itself; `None` as long as there is an agent.
    fn lost(&self) -> Option<String> {
        self.0.lost()
    }
}

/// `None` where Python has raised what a user's value may raise; anything else, such as an interrupt, is raised on.
fn none_if_wrong<T>(py: Python<'_>, found: PyResult<T>) -> PyResult<Option<T>> {
    match found {
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        found => found.map(Some),
    }
}

/// What is told at once, or else after a wait without the interpreter's lock.
fn told(
    py: Python<'_>,
    wait_s: f64,
    look: impl Fn() -> Told,
    wait: impl Fn(Duration) -> Told + Sync + Send,
) -> PyResult<Option<(i64, usize)>> {
    let mut told = look();
    if told == Told::Pending && wait_s > 0.0 {
        let wait_max = duration(wait_s)?;
        told = py.detach(|| wait(wait_max));
    }
    Ok(match told {
        Told::Pending => None,
        Told::Ready { offset, length } => Some((offset as i64, length as usize)),
        Told::ReadYourself => Some((-1, 0)),
    })
}
