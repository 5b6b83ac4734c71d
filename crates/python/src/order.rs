//! The order in which ranks use samples. Converts types; `forebay_policy::order` computes the order.

use forebay_policy::order::{self, Order, OrderError, Permutation, Rest};
use pyo3::{exceptions::PyValueError, prelude::*};

/// The deal of a dataset to ranks and batches, equal in every epoch.
#[pyclass(frozen)]
pub(crate) struct DatasetDeal(order::Deal);

#[pymethods]
impl DatasetDeal {
    #[new]
    fn new(samples: u64, world: u32, batch: u32, sampler_drop_last: bool, loader_drop_last: bool) -> PyResult<Self> {
        let samples = u32::try_from(samples).map_err(|_| to_python(OrderError::TooManySamples))?;
        order::Deal::new(samples, world, batch)
            .and_then(|deal| deal.sampler_drop_last(sampler_drop_last))
            .and_then(|deal| deal.loader_drop_last(loader_drop_last))
            .map(Self)
            .map_err(to_python)
    }

    /// The number of batches of each rank in an epoch.
    #[getter]
    fn iterations(&self) -> u32 {
        self.0.iterations()
    }
}

/// The rest of an epoch from some place on.
#[pyclass(frozen)]
pub(crate) struct RestOfEpoch(Rest);

#[pymethods]
impl RestOfEpoch {
    /// Permutes the dataset by `seed` and `epoch` together, unless `shuffle` is false.
    #[new]
    fn new(py: Python<'_>, deal: &DatasetDeal, shuffle: bool, seed: u64, epoch: u32, used: u64) -> Self {
        let permutation = if shuffle { Permutation::Torch } else { Permutation::Sequential };
        let order = Order {
            permutation,
            seed,
            deal: deal.0,
        };
        Self(py.detach(|| order.epoch(epoch).rest(used)))
    }

    /// The number of batches of each rank that are left.
    #[getter]
    fn iterations(&self) -> u32 {
        self.0.iterations()
    }

    /// Returns a rank's samples in a step.
    fn batch(&self, rank: u32, iteration: u32) -> Vec<u32> {
        self.0.batch(rank, iteration).collect()
    }

    /// Returns the number of samples at the end of a rank's batch that are padding.
    fn padding_of(&self, rank: u32, iteration: u32) -> u32 {
        self.0.padding_of(rank, iteration)
    }

    /// Returns the samples of the permutation that all ranks have used after that many more steps.
    fn used_after(&self, iterations: u32) -> u32 {
        self.0.used_after(iterations)
    }
}

/// The epochs of a dataset in blocks, some of which are mixed at a time.
#[pyclass(frozen)]
pub(crate) struct BlockOrder(order::Blocks);

#[pymethods]
impl BlockOrder {
    /// Takes the end of each block.
    #[new]
    fn new(deal: &DatasetDeal, ends: Vec<u32>, at_once: u32) -> PyResult<Self> {
        order::Blocks::new(deal.0, ends, at_once).map(Self).map_err(to_python)
    }

    /// Returns the rest of an epoch from some place on.
    fn epoch(&self, py: Python<'_>, seed: u64, epoch: u32, used: u64) -> RestOfEpoch {
        RestOfEpoch(py.detach(|| self.0.epoch(seed, epoch).rest(used)))
    }
}

/// Returns the key that seeds a sample's random numbers in an epoch.
#[pyfunction]
pub(crate) fn sample_key(seed: u64, epoch: u32, sample: u32) -> u64 {
    order::sample_key(seed, epoch, sample)
}

/// Returns the keys that seed the random numbers of samples in an epoch; indices count modulo 2^32.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's list is ours")]
#[expect(clippy::cast_sign_loss, reason = "the low bits are meant")]
pub(crate) fn sample_keys(seed: u64, epoch: u32, samples: Vec<i64>) -> Vec<u64> {
    samples
        .iter()
        .map(|&sample| order::sample_key(seed, epoch, sample as u32))
        .collect()
}

/// Returns the value at an index below `len` of the permutation that `seed` keys.
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
