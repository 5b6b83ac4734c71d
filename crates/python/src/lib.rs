//! `forebay._core`: what the Python package has to do natively. Converts types, releases the interpreter's lock, maps
//! errors; nothing else: no policy, no framework's name and no default value belongs here.
//!
//! The loader's memory is held by object, through the buffer protocol (`buffers`). The memory of tensors is named by
//! address and length, since a tensor exports no buffer for half of its types: those functions trust their caller,
//! the package itself, that the memory is there and stays there until they return. The module is private for that
//! reason.

mod agents;
mod boxes;
mod buffers;
mod choices;
mod early;
mod errors;
mod fork;
mod images;
mod loader;
mod loader_batch;
mod look;
mod mapped;
mod memory;
mod nodes;
mod one_pass;
mod order;
mod pending;
mod pieces;
mod shared;
mod spans;
mod startup;
mod state;
mod stores;
mod tensors;
mod window;

use forebay_agent::host::memory::Gauge;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// After so many bytes, or one piece of work, it is looked whether a signal has come: a hundredth of a second.
const SIGNALS_EVERY_BYTES: usize = 64 << 20;

/// Memory of the caller: it is readable, or writable where a function says so, until the call returns.
#[derive(Clone, Copy, Debug)]
struct CallerMemory {
    address: usize,
    length: usize,
}

impl CallerMemory {
    /// Refuses what no allocation can be: an address of nought with bytes behind it, or an end beyond the address
    /// space.
    fn new(address: usize, length: usize) -> PyResult<Self> {
        let possible = isize::try_from(length).is_ok() && address.checked_add(length).is_some();
        if (address == 0 && length > 0) || !possible {
            return Err(PyValueError::new_err(format!(
                "no memory of {length} bytes can be at address {address:#x}"
            )));
        }
        Ok(Self { address, length })
    }

    /// Returns a part of the memory.
    fn part(self, offset: usize, length: usize) -> PyResult<Self> {
        if offset > self.length || length > self.length - offset {
            return Err(PyValueError::new_err(format!(
                "no {length} bytes are at {offset} of {} bytes",
                self.length
            )));
        }
        Ok(Self {
            address: self.address + offset,
            length,
        })
    }

    fn overlaps(self, other: Self) -> bool {
        self.address < other.end() && other.address < self.end()
    }

    fn end(self) -> usize {
        self.address + self.length
    }
}

/// XXH3-128 of `length` bytes at `address`, as 32 hexadecimal digits.
#[pyfunction]
fn digest(py: Python<'_>, address: usize, length: usize) -> PyResult<String> {
    let memory = CallerMemory::new(address, length)?;
    Ok(hexadecimal(py.detach(|| one_pass::of(memory))))
}

/// Bytes that this process may still use before memory is short: of the machine and of all its control groups the
/// least.
#[pyfunction]
fn memory_left(py: Python<'_>) -> u64 {
    py.detach(|| Gauge::find().look().memory.free_bytes)
}

/// Returns a digest in hexadecimal digits, as `forebay ls` shows checksums.
fn hexadecimal(digest: u128) -> String {
    format!("{digest:032x}")
}

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::agents::{start_fork_agent, start_loader_agent};
    #[pymodule_export]
    use super::boxes::copy_boxes;
    #[pymodule_export]
    use super::choices::{loader_policies, loader_schedules};
    #[pymodule_export]
    use super::early::{EarlyCopy, FinalWatch, register_final_op};
    #[pymodule_export]
    use super::errors::{AgentLostError, AgentRefusedError, AgentSilentError};
    #[pymodule_export]
    use super::fork::{CloneRank, ForkableRank};
    #[pymodule_export]
    use super::images::{cut_image, image_size};
    #[pymodule_export]
    use super::loader::{LoaderRank, LoaderRegistering, LoaderTable, LoaderWorker};
    #[pymodule_export]
    use super::loader_batch::{LoaderBatch, LoaderLoan, SampleBytes};
    #[pymodule_export]
    use super::look::Look;
    #[pymodule_export]
    use super::mapped::Mapped;
    #[pymodule_export]
    use super::memory::Reserved;
    #[pymodule_export]
    use super::nodes::{LoaderNodes, NodeSettings, mpich_job};
    #[pymodule_export]
    use super::order::{BlockOrder, DatasetDeal, RestOfEpoch, counter_at, sample_key, sample_keys};
    #[pymodule_export]
    use super::pending::between_instructions;
    #[pymodule_export]
    use super::pieces::PieceDigests;
    #[pymodule_export]
    use super::shared::Shared;
    #[pymodule_export]
    use super::spans::{Spans, digests, fill, overlapping, pack};
    #[pymodule_export]
    use super::startup::{tell_first_batch, tell_first_step};
    #[pymodule_export]
    use super::state::{StateSection, read_manifest, read_schema, read_state, write_manifest, write_schema, write_state};
    #[pymodule_export]
    use super::stores::{ObjectRange, ObjectStores, store_variables};
    #[pymodule_export]
    use super::tensors::KnownTensors;
    #[pymodule_export]
    use super::window::{Reading, Window};
    #[pymodule_export]
    use super::{digest, memory_left};
}
