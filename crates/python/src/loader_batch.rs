//! The samples of a batch, requested from the loader agent, and the objects of Python's that refer to their bytes.
//!
//! The agent may use a sample's memory again once the batch is released and no view of the sample is left. Views end
//! wherever Python frees them, in the middle of any other call perhaps. So the locks of this file are held only while
//! the interpreter's lock is, and never while an object of Python's is made or freed: they are always free when they
//! are wanted, also in a process that was forked.

use std::{
    ffi::c_int,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use forebay_agent::samples::{SampleStatus, client};
use pyo3::{exceptions::PyIndexError, ffi, prelude::*, types::PyMemoryView};

use crate::{
    buffers::{WriteBuffer, export},
    fork::duration,
};

/// A rank that the agent serves, with what it has to tell the agent.
pub(crate) struct ServedRank {
    pub(crate) rank: client::LoaderRank,
    /// Sequence numbers of requests that are over, and of which the agent has not been told yet.
    finished: Mutex<Vec<u64>>,
    /// Views and loans that refer to the agent's memory.
    references: AtomicUsize,
    /// Requests that were passed on and that are not given back.
    open: AtomicUsize,
}

impl ServedRank {
    pub(crate) fn new(rank: client::LoaderRank) -> Self {
        Self {
            rank,
            finished: Mutex::default(),
            references: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        }
    }

    pub(crate) fn references(&self) -> usize {
        self.references.load(Relaxed)
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    fn finish(&self, numbers: impl IntoIterator<Item = u64>) {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).extend(numbers);
    }

    /// Tells the agent of all requests that are over.
    fn flush(&self) {
        let over = std::mem::take(&mut *self.finished.lock().unwrap_or_else(PoisonError::into_inner));
        if !over.is_empty() {
            self.open.fetch_sub(over.len(), Relaxed);
            self.rank.release(over);
        }
    }
}

struct RequestedBatch {
    rank: Arc<ServedRank>,
    state: Mutex<RequestState>,
}

#[derive(Default)]
struct RequestState {
    /// Extents by the agent's numbers; `None` of samples that the rank is to read itself.
    extents: Vec<Option<u32>>,
    /// Sequence numbers of the requests; `None` before a request is passed on, and once it is given back.
    numbers: Vec<Option<u64>>,
    /// Views of each sample.
    views: Vec<u32>,
    /// All views of the batch.
    viewed: u32,
    /// The first sample whose request was not passed on yet.
    next: usize,
    /// A worker process may look at all samples of the batch.
    is_lent: bool,
    is_released: bool,
}

impl RequestState {
    /// Takes out the requests that nobody looks at.
    fn unviewed(&mut self) -> Vec<u64> {
        let samples = self.numbers.iter_mut().zip(&self.views);
        samples
            .filter_map(|(number, views)| if *views == 0 { number.take() } else { None })
            .collect()
    }

    /// Returns stretches of samples whose sequence numbers follow each other, with the place of each stretch's first
    /// sample.
    fn runs(&self) -> Vec<(usize, Range<u64>)> {
        let mut runs: Vec<(usize, Range<u64>)> = Vec::new();
        for (place, number) in self.numbers.iter().enumerate() {
            let Some(number) = *number else { continue };
            match runs.last_mut() {
                Some((first, run)) if run.end == number && *first as u64 + (run.end - run.start) == place as u64 => run.end += 1,
                _ => runs.push((place, number..number + 1)),
            }
        }
        runs
    }
}

impl RequestedBatch {
    fn state(&self) -> MutexGuard<'_, RequestState> {
        // Nothing in it can be left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self, place: usize) -> PyResult<Option<u64>> {
        self.state()
            .numbers
            .get(place)
            .copied()
            .ok_or_else(|| PyIndexError::new_err(format!("no sample {place} in the batch")))
    }

    fn release(&self) {
        let mut state = self.state();
        if state.is_released {
            return;
        }
        state.is_released = true;
        // A worker may wait for answers: their places on the ring are not another's before it is done.
        if !state.is_lent {
            self.rank.finish(state.unviewed());
            // The views that are left keep their bytes, but hold nothing else up.
            if state.viewed > 0 {
                self.rank.rank.hold(state.numbers.iter().copied().flatten());
            }
        }
        self.rank.flush();
    }

    fn end_loan(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.is_lent) {
            self.rank.references.fetch_sub(1, Relaxed);
            if state.is_released {
                self.rank.finish(state.unviewed());
                self.rank.flush();
            }
        }
    }
}

impl Drop for RequestedBatch {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !state.is_released {
            let left = state.unviewed();
            self.rank.finish(left);
        }
        self.rank.flush();
    }
}

/// The samples of a batch, requested from the agent. What was passed on is given back once the batch is released, or
/// forgotten, and no view of it is left.
#[pyclass(frozen)]
pub(crate) struct LoaderBatch(Arc<RequestedBatch>);

impl LoaderBatch {
    pub(crate) fn new(rank: Arc<ServedRank>, extents: Vec<Option<u32>>) -> Self {
        let samples = extents.len();
        let state = RequestState {
            extents,
            numbers: vec![None; samples],
            views: vec![0; samples],
            ..RequestState::default()
        };
        Self(Arc::new(RequestedBatch {
            rank,
            state: Mutex::new(state),
        }))
    }
}

#[pymethods]
impl LoaderBatch {
    /// Passes requests on to the agent, at most `most` in a row, in the order of the samples. Returns false where the
    /// ring has no room for all of them.
    fn pass_on(&self, epoch: u32, iteration: u32, most: usize) -> bool {
        let RequestedBatch { rank, state } = &*self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.next < state.extents.len() && !state.is_released {
            let left = state.extents.iter().enumerate().skip(state.next);
            let row: Vec<(usize, u32)> = left
                .filter_map(|(place, extent)| extent.map(|extent| (place, extent)))
                .take(most.max(1))
                .collect();
            let extents: Vec<u32> = row.iter().map(|(_, extent)| *extent).collect();
            let Some((last, _)) = row.last().copied() else { break };
            let Some(first) = rank.rank.ask(&extents, epoch, iteration) else {
                return false;
            };
            rank.open.fetch_add(extents.len(), Relaxed);
            for (number, (place, _)) in (first..).zip(row) {
                state.numbers[place] = Some(number);
            }
            state.next = last + 1;
        }
        state.next = state.extents.len();
        true
    }

    /// The first sequence number of the requests that were passed on and not given back; `None` if there is no such
    /// request.
    #[getter]
    fn first(&self) -> Option<u64> {
        self.0.state().numbers.iter().copied().flatten().next()
    }

    /// Returns true if the last request was passed on, and is answered: most often all are, then.
    #[getter]
    fn is_answered(&self) -> bool {
        let last = self.0.state().numbers.last().copied().flatten();
        last.is_some_and(|number| self.0.rank.rank.look(number) != SampleStatus::Pending)
    }

    /// Leaves a sample to the rank, unless its request was passed on already.
    fn exclude(&self, place: usize) {
        if let Some(extent) = self.0.state().extents.get_mut(place) {
            *extent = None;
        }
    }

    /// Returns a view of each sample from `start` to `stop`, without waiting; `None` for samples of which the agent
    /// has nothing (yet), and for all once the batch is released.
    fn views<'py>(&self, py: Python<'py>, start: usize, stop: usize) -> PyResult<Vec<Option<Bound<'py, PyMemoryView>>>> {
        let batch = &self.0;
        let mut state = batch.state();
        let stop = stop.min(state.numbers.len());
        let start = start.min(stop);
        let mut told = batch
            .rank
            .rank
            .look_all(state.numbers[start..stop].iter().copied().flatten())
            .into_iter();
        let mut found: Vec<Option<SampleBytes>> = Vec::with_capacity(stop - start);
        for place in start..stop {
            let answer = state.numbers[place].and_then(|_| told.next());
            found.push(match answer {
                Some(SampleStatus::Ready { offset, length }) if !state.is_released => {
                    state.views[place] += 1;
                    state.viewed += 1;
                    batch.rank.references.fetch_add(1, Relaxed);
                    Some(SampleBytes {
                        batch: Arc::clone(batch),
                        place,
                        offset,
                        length,
                    })
                }
                _ => None,
            });
        }
        drop(state);
        let viewed = |bytes: SampleBytes| PyMemoryView::from(Bound::new(py, bytes)?.as_any());
        found.into_iter().map(|bytes| bytes.map(viewed).transpose()).collect()
    }

    /// Blocks until it is known what has become of a sample, at most `wait_s` seconds. Returns false while nothing
    /// has come.
    fn wait(&self, py: Python<'_>, place: usize, wait_s: f64) -> PyResult<bool> {
        let Some(number) = self.0.number(place)? else { return Ok(true) };
        let rank = &self.0.rank.rank;
        if rank.look(number) != SampleStatus::Pending {
            return Ok(true);
        }
        let wait = duration(wait_s)?;
        Ok(py.detach(|| rank.wait(number, wait)) != SampleStatus::Pending)
    }

    /// Blocks until it is known what has become of all samples that were passed on, at most `wait_s` seconds in all.
    fn wait_all(&self, py: Python<'_>, wait_s: f64) -> PyResult<bool> {
        let runs = self.0.state().runs();
        let until = std::time::Instant::now() + duration(wait_s)?;
        let wait = |(_, run): &(usize, Range<u64>)| {
            let left = until.saturating_duration_since(std::time::Instant::now());
            self.0.rank.rank.wait_all(run.clone(), left)
        };
        Ok(py.detach(|| runs.iter().all(wait)))
    }

    /// Copies all samples, each of `row_bytes` bytes, to the writable buffer `rows`, one after the other. Returns the
    /// places of those that the rank is to read itself.
    fn gather(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, row_bytes: usize) -> PyResult<Vec<usize>> {
        let (samples, runs) = {
            let state = self.0.state();
            (state.numbers.len(), state.runs())
        };
        let mut rows = WriteBuffer::new(rows, samples.saturating_mul(row_bytes))?;
        if row_bytes == 0 {
            return Ok((0..samples).collect());
        }
        let rows = rows.bytes_mut();
        let mut missing = vec![true; samples];
        py.detach(|| {
            for (first, run) in runs {
                let end = first + (run.end - run.start) as usize;
                missing[first..end].fill(false);
                for nth in self
                    .0
                    .rank
                    .rank
                    .gather(run, row_bytes, &mut rows[first * row_bytes..end * row_bytes])
                {
                    missing[first + nth as usize] = true;
                }
            }
        });
        Ok((0..samples).filter(|place| missing[*place]).collect())
    }

    /// Sequence numbers of the requests; `None` of samples that the rank is to read itself, or that are given back.
    #[getter]
    fn numbers(&self) -> Vec<Option<u64>> {
        self.0.state().numbers.clone()
    }

    /// Lends all samples to a worker process; `None` if none was passed on, or the batch is released.
    fn lend(&self) -> Option<LoaderLoan> {
        let mut state = self.0.state();
        let first = state.numbers.iter().copied().flatten().next();
        let mark = first.filter(|_| !state.is_released && !state.is_lent)?;
        state.is_lent = true;
        self.0.rank.references.fetch_add(1, Relaxed);
        Some(LoaderLoan {
            batch: Arc::clone(&self.0),
            mark,
        })
    }

    /// Releases the batch: its samples are looked at by nobody but those who have views.
    fn release(&self) {
        self.0.release();
    }
}

/// A batch that a worker process looks at, until this ends or is freed.
#[pyclass(frozen)]
pub(crate) struct LoaderLoan {
    batch: Arc<RequestedBatch>,
    mark: u64,
}

#[pymethods]
impl LoaderLoan {
    /// The sequence number by which the worker says that it is done.
    #[getter]
    fn mark(&self) -> u64 {
        self.mark
    }

    /// Returns true once the worker has said that it is done.
    #[getter]
    fn is_done(&self) -> bool {
        self.batch.rank.rank.is_done(self.mark)
    }

    /// Ends the loan: the worker looks at the batch no more.
    fn end(&self) {
        self.batch.end_loan();
    }
}

impl Drop for LoaderLoan {
    fn drop(&mut self) {
        self.batch.end_loan();
    }
}

/// The bytes of a sample in the agent's memory, which stay as they are for as long as this lives.
#[pyclass(frozen)]
pub(crate) struct SampleBytes {
    batch: Arc<RequestedBatch>,
    place: usize,
    offset: u64,
    length: u32,
}

#[pymethods]
impl SampleBytes {
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let bytes = this
            .batch
            .rank
            .rank
            .arena()
            .bytes(this.offset, u64::from(this.length))
            .unwrap_or_default();
        // SAFETY: Python's view. The rank, and so its mapping, lives as long as this object, and the agent leaves the
        // bytes as they are until they are given back, which is not before this object ends.
        unsafe { export(view, flags, slf.as_any(), bytes) }
    }
}

impl Drop for SampleBytes {
    fn drop(&mut self) {
        let rank = &self.batch.rank;
        rank.references.fetch_sub(1, Relaxed);
        let mut state = self.batch.state();
        state.viewed -= 1;
        state.views[self.place] -= 1;
        if !state.is_released || state.is_lent || state.views[self.place] > 0 {
            return;
        }
        rank.finish(state.numbers[self.place].take());
        // Views of a batch often end one after the other: the agent need be told only once. Where some of them stay,
        // it is told when another batch is released.
        if state.viewed == 0 {
            rank.flush();
        }
    }
}
