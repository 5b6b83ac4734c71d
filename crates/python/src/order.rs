//! The order in which ranks use samples. Converts types; the order itself is `forebay_policy::order`'s.

use forebay_policy::order::{self, Order, OrderError, Permutation, Rest};
use pyo3::{exceptions::PyValueError, prelude::*};

/// How a dataset is dealt to ranks and batches: in every epoch alike.
#[pyclass(frozen)]
pub(crate) struct Deal(order::Deal);

#[pymethods]
impl Deal {
    #[new]
    fn new(samples: u64, world: u32, batch: u32, sampler_drop_last: bool, loader_drop_last: bool) -> PyResult<Self> {
        let samples = u32::try_from(samples).map_err(|_| to_python(OrderError::TooManySamples))?;
        order::Deal::new(samples, world, batch)
            .and_then(|deal| deal.sampler_drop_last(sampler_drop_last))
            .and_then(|deal| deal.loader_drop_last(loader_drop_last))
            .map(Self)
            .map_err(to_python)
    }

    /// Batches of each rank in an epoch.
    #[getter]
    fn iterations(&self) -> u32 {
        self.0.iterations()
    }
}

/// An epoch from a place in it on.
#[pyclass(frozen)]
pub(crate) struct Epoch(Rest);

#[pymethods]
impl Epoch {
    /// The permutation is that of `seed` and `epoch` together, or none.
    #[new]
    fn new(py: Python<'_>, deal: &Deal, shuffle: bool, seed: u64, epoch: u32, used: u64) -> Self {
        let permutation = if shuffle { Permutation::Torch } else { Permutation::Sequential };
        let order = Order {
            permutation,
            seed,
            deal: deal.0,
        };
        Self(py.detach(|| order.epoch(epoch).rest(used)))
    }

    /// Batches of each rank that are left.
    #[getter]
    fn iterations(&self) -> u32 {
        self.0.iterations()
    }

    /// A rank's samples in a step.
    fn batch(&self, rank: u32, iteration: u32) -> Vec<u32> {
        self.0.batch(rank, iteration).collect()
    }

    /// How many of them, at the end, are padding.
    fn padding_of(&self, rank: u32, iteration: u32) -> u32 {
        self.0.padding_of(rank, iteration)
    }

    /// Samples of the permutation that were used after so many more steps, by all ranks.
    fn used_after(&self, iterations: u32) -> u32 {
        self.0.used_after(iterations)
    }
}

/// All epochs of a dataset that lies in blocks, some of which are mixed at a time.
#[pyclass(frozen)]
pub(crate) struct Blocks(order::Blocks);

#[pymethods]
impl Blocks {
    /// They end at `ends`.
    #[new]
    fn new(deal: &Deal, ends: Vec<u32>, at_once: u32) -> PyResult<Self> {
        order::Blocks::new(deal.0, ends, at_once).map(Self).map_err(to_python)
    }

    /// One of the epochs, from a place in it on.
    fn epoch(&self, py: Python<'_>, seed: u64, epoch: u32, used: u64) -> Epoch {
        Epoch(py.detach(|| self.0.epoch(seed, epoch).rest(used)))
    }
}

/// What a sample's own chance is seeded with in an epoch.
#[pyfunction]
pub(crate) fn sample_key(seed: u64, epoch: u32, sample: u32) -> u64 {
    order::sample_key(seed, epoch, sample)
}

/// The same of many samples, each counted modulo 2^32.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's list is ours")]
#[expect(clippy::cast_sign_loss, reason = "the low bits are meant")]
pub(crate) fn sample_keys(seed: u64, epoch: u32, samples: Vec<i64>) -> Vec<u64> {
    samples
        .iter()
        .map(|&sample| order::sample_key(seed, epoch, sample as u32))
        .collect()
}

/// The value at an index below `len` of the permutation that `seed` keys.
#[pyfunction]
pub(crate) fn counter_at(len: u32, seed: u64, index: u32) -> PyResult<u32> {
    if index >= len {
        return Err(PyValueError::new_err(format!("index {index} of a permutation of {len}")));
    }
    Ok(order::Counter::new(len, seed).at(index))
}

fn to_python(error: OrderError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
