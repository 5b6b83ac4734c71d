//! A rank of a job, and a rank of its clone, before the fork agent. Converts types; what is said is in
//! `forebay_agent::forks`.

use std::{
    os::fd::{BorrowedFd, IntoRawFd, OwnedFd},
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{errors::to_python, mapped::Mapped};
use forebay_agent::forks::client;
use pyo3::{exceptions::PyValueError, prelude::*};

/// A rank of a job that can be forked, for as long as the object lives.
#[pyclass(frozen, name = "Rank")]
pub(crate) struct ForkableRank(Mutex<client::ForkRank>);

#[pymethods]
impl ForkableRank {
    #[new]
    fn new(py: Python<'_>, directory: &str, job: &str, rank: u32, ranks: u32, rejoins: bool, shadow: u32) -> PyResult<Self> {
        let registered = py.detach(|| client::ForkRank::register(Path::new(directory), job, rank, ranks, rejoins, shadow));
        Ok(Self(Mutex::new(registered.map_err(to_python)?)))
    }

    /// Path of the job's secret.
    #[getter]
    fn secret(&self) -> String {
        let rank = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rank.secret().to_string_lossy().into_owned()
    }

    /// The forks for which the state has to be taken at this point, each with the number of steps after which
    /// `repeated` is to be called, or 0; whether the clones of all of these are waiting; and of others that will come
    /// within `sight` points the same, or None if there will be none. To make ready takes `ahead` points: rank 0
    /// announces no fork before, unless that was asked for at a step. A look into shared memory: the interpreter's
    /// lock is kept.
    #[pyo3(signature = (point, step, ahead=1, sight=1))]
    fn due(&self, point: u64, step: u64, ahead: u64, sight: u64) -> (Vec<(u64, u64)>, bool, Option<bool>) {
        let due = self.0.lock().unwrap_or_else(PoisonError::into_inner).due(point, step, ahead, sight);
        let forks = due.forks.into_iter().map(|wanted| (wanted.fork, wanted.shadow)).collect();
        (forks, due.is_awaited, due.near)
    }

    /// Returns whether the fork agent is running.
    fn is_served(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_served()
    }

    /// Says how many bytes the rank's state has, and that it calls `due` at its points; with a descriptor of what
    /// describes the state, which stays the caller's, if all ranks are to be compared.
    #[pyo3(signature = (length, text=None))]
    fn measured(&self, length: u64, text: Option<i32>) -> PyResult<()> {
        let text = text.map(borrowed).transpose()?;
        let rank = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rank.measured(length, text).map_err(to_python)
    }

    /// Hands over a state: descriptors of what describes it and of what was copied, both sealed, and where more is
    /// read in its place of the read lease, of the copy-on-write buffer, and of shared memory. They stay the caller's.
    fn offer(&self, py: Python<'_>, forks: Vec<u64>, epoch: u64, step: u64, state: Vec<i32>) -> PyResult<()> {
        let state: Vec<_> = state.into_iter().map(borrowed).collect::<PyResult<_>>()?;
        let offer = || {
            let rank = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            rank.offer(forks, epoch, step, &state)
        };
        py.detach(offer).map_err(to_python)
    }

    /// Says what the state is like, by a descriptor of what describes it, and in which memory large tensors lie, by
    /// theirs; all stay the caller's. Clones that wait get ready for it.
    fn lying(&self, py: Python<'_>, text: i32, memory: Vec<i32>) -> PyResult<()> {
        let descriptors = std::iter::once(text).chain(memory).map(borrowed);
        let descriptors: Vec<_> = descriptors.collect::<PyResult<_>>()?;
        let lying = || self.0.lock().unwrap_or_else(PoisonError::into_inner).lying(&descriptors);
        py.detach(lying).map_err(to_python)
    }

    /// Says what the rank has so many steps after these forks, with a descriptor of what describes it, which stays
    /// the caller's.
    fn repeated(&self, forks: Vec<u64>, text: i32) -> PyResult<()> {
        let rank = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rank.repeated(forks, borrowed(text)?).map_err(to_python)
    }

    /// Says why no state could be taken.
    fn withhold(&self, forks: Vec<u64>, why: &str) -> PyResult<()> {
        let rank = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rank.withhold(forks, why).map_err(to_python)
    }
}

/// A clone's name, its number as a reader, descriptors, and how many ranks the job has.
type Given = (String, u32, Vec<i32>, u32);

/// A rank of a clone that is to be, for as long as the object lives.
#[pyclass(frozen, name = "Taking")]
pub(crate) struct CloneRank(client::Taking);

#[pymethods]
impl CloneRank {
    #[new]
    fn new(py: Python<'_>, directory: &str, fork: u64, rank: u32, ranks: u32) -> PyResult<Self> {
        let begun = py.detach(|| client::Taking::begin(Path::new(directory), fork, rank, ranks));
        begun.map(Self).map_err(to_python)
    }

    /// A descriptor of what describes how the state will be, as far as that is known by now, for the caller to close;
    /// `None` if there is none.
    fn described_ahead(&self) -> PyResult<Option<i32>> {
        Ok(self.0.described_ahead()?.map(IntoRawFd::into_raw_fd))
    }

    /// Maps the memory in which the job's large tensors lie, as far as that is known by now; once. For a thread of
    /// its own, while the state is waited for: the interpreter's lock is released.
    fn map_ahead(&self, py: Python<'_>) -> Vec<Mapped> {
        py.detach(|| self.0.lying().into_iter().filter_map(Mapped::ahead).collect())
    }

    /// The clone's name, its number as a reader of the window, the descriptors of `Rank.offer`, which are the
    /// caller's to close, and how many ranks the job has; `None` if they have not come in time. Of another number of
    /// ranks than the clone's, the descriptors are two of rank 0's, and one for each other rank.
    fn state(&self, py: Python<'_>, wait_s: f64) -> PyResult<Option<Given>> {
        let wait = duration(wait_s)?;
        let taken = py.detach(|| self.0.state(wait)).map_err(to_python)?;
        let raw = |state: Vec<OwnedFd>| state.into_iter().map(IntoRawFd::into_raw_fd).collect();
        Ok(taken.map(|taken| (taken.name, taken.reader, raw(taken.state), taken.ranks)))
    }

    /// Says that the state is loaded and checked, with a descriptor of what describes it, which stays the caller's.
    fn loaded(&self, text: i32) -> PyResult<()> {
        self.0.loaded(borrowed(text)?).map_err(to_python)
    }

    /// Says why it could not be loaded.
    fn failed(&self, why: &str) -> PyResult<()> {
        self.0.failed(why).map_err(to_python)
    }

    /// Says what the rank has after the steps of its shadow verification, as `loaded`.
    fn repeated(&self, text: i32) -> PyResult<()> {
        self.0.repeated(borrowed(text)?).map_err(to_python)
    }

    /// Waits, at most this long, until all ranks of the clone have loaded their states and shadow verification
    /// begins.
    fn begins(&self, py: Python<'_>, wait_s: f64) -> PyResult<bool> {
        let wait = duration(wait_s)?;
        py.detach(|| self.0.begins(wait)).map_err(to_python)
    }

    /// Waits, at most this long, until the clone exists.
    fn exists(&self, py: Python<'_>, wait_s: f64) -> PyResult<bool> {
        let wait = duration(wait_s)?;
        py.detach(|| self.0.exists(wait)).map_err(to_python)
    }
}

/// A descriptor that the caller keeps open until its call returns.
pub(crate) fn borrowed<'a>(descriptor: i32) -> PyResult<BorrowedFd<'a>> {
    if descriptor < 0 {
        return Err(PyValueError::new_err(format!("invalid descriptor {descriptor}")));
    }
    // SAFETY: the caller keeps it open until its call returns, and it is not -1.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(format!("{seconds} s: {error}")))
}
