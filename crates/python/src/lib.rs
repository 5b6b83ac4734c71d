//! `forebay._core`: what the Python package has to do natively. Converts types, releases the interpreter's lock, maps errors; nothing else:
//! no policy, no framework's name and no default value belongs here.
//!
//! Memory is named by address and length, not by object: the stable ABI has the buffer protocol only from Python 3.11 on, and a
//! tensor offers none for half of its types. So each function trusts its caller, the package itself, that the memory is there and stays
//! there until it returns. The module is private for that reason.

mod fork;
mod images;
mod loader;
mod look;
mod mapped;
mod memory;
mod one_pass;
mod order;
mod pending;
mod pieces;
mod shared;
mod stores;
mod tensors;
mod window;

use std::io;

use forebay_agent::memory::Gauge;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// After so many bytes, or one piece of work, it is looked whether a signal has come: a hundredth of a second.
const SIGNALS_EVERY_BYTES: usize = 64 << 20;

/// Memory of the caller: it is readable, or writable where a function says so, until the call returns.
#[derive(Clone, Copy, Debug)]
struct Memory {
    address: usize,
    length: usize,
}

impl Memory {
    /// Refuses what no allocation can be: an address of nought with bytes behind it, or an end beyond the address space.
    fn new(address: usize, length: usize) -> PyResult<Self> {
        let possible = isize::try_from(length).is_ok() && address.checked_add(length).is_some();
        if (address == 0 && length > 0) || !possible {
            return Err(PyValueError::new_err(format!(
                "no memory of {length} bytes can be at address {address:#x}"
            )));
        }
        Ok(Self { address, length })
    }

    /// So many bytes of it, from an offset on.
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
        self.address < other.address + other.length && other.address < self.address + self.length
    }
}

/// XXH3-128 of `length` bytes at `address`, as 32 hexadecimal digits.
#[pyfunction]
fn digest(py: Python<'_>, address: usize, length: usize) -> PyResult<String> {
    let memory = Memory::new(address, length)?;
    Ok(hexadecimal(py.detach(|| one_pass::of(memory))))
}

/// The digests of memory at so many addresses and of such lengths. The interpreter's lock is let go of seldom.
#[pyfunction]
fn digests(py: Python<'_>, memory: Vec<(usize, usize)>) -> PyResult<Vec<String>> {
    let memory = memory.into_iter().map(|(address, length)| Memory::new(address, length));
    let memory: Vec<_> = memory.collect::<PyResult<_>>()?;
    digested(py, &memory, |memory| memory.length, |memory| one_pass::of(*memory))
}

/// The digests that `one` gives of pieces of work of so many bytes. In between, what signals ask for is done.
fn digested<T: Sync>(py: Python<'_>, work: &[T], bytes: impl Fn(&T) -> usize, one: impl Fn(&T) -> u128 + Sync) -> PyResult<Vec<String>> {
    let mut found = Vec::with_capacity(work.len());
    let mut left = work;
    while !left.is_empty() {
        let mut room = SIGNALS_EVERY_BYTES;
        let fits = |piece: &&T| {
            let was_room = room > 0;
            room = room.saturating_sub(bytes(piece));
            was_room
        };
        let (now, later) = left.split_at(left.iter().take_while(fits).count());
        found.extend(py.detach(|| now.iter().map(&one).collect::<Vec<_>>()));
        py.check_signals()?;
        left = later;
    }
    Ok(found.into_iter().map(hexadecimal).collect())
}

/// Copies memory into the `length` bytes at `target`: parts of an address, a length, and an offset to which they go. Gives the digest of what then stands there of
/// each part, in one pass over memory. The interpreter's lock is let go of seldom: each time it may be long in coming back.
#[pyfunction]
fn pack(py: Python<'_>, target: usize, length: usize, parts: Vec<(usize, usize, usize)>) -> PyResult<Vec<String>> {
    let target = Memory::new(target, length)?;
    let copies = parts.into_iter().map(|(address, length, offset)| {
        let source = Memory::new(address, length)?;
        let part = target.part(offset, length)?;
        if source.overlaps(target) {
            return Err(PyValueError::new_err("source and target overlap"));
        }
        Ok((source, part))
    });
    let copies: Vec<_> = copies.collect::<PyResult<_>>()?;
    digested(
        py,
        &copies,
        |(_, part)| part.length,
        |(source, part)| one_pass::of_copy(*source, *part),
    )
}

/// Reads parts of the open file `descriptor`, each from an offset to an address, so many bytes. Gives the digest of what then stands there of each part, in one
/// pass over memory. The interpreter's lock is let go of once for all.
///
/// The file is read, not mapped: whoever else holds it can change what is read, but not take memory away from under this process.
#[pyfunction]
fn read_and_digest(py: Python<'_>, descriptor: i32, parts: Vec<(u64, usize, usize)>) -> PyResult<Vec<String>> {
    let file = fork::borrowed(descriptor)?;
    let reads = parts
        .into_iter()
        .map(|(offset, address, length)| Ok((offset, Memory::new(address, length)?)));
    let reads: Vec<_> = reads.collect::<PyResult<_>>()?;
    let digests = py.detach(|| {
        reads
            .into_iter()
            .map(|(offset, target)| one_pass::of_read(file, offset, target))
            .collect::<io::Result<Vec<_>>>()
    })?;
    Ok(digests.into_iter().map(hexadecimal).collect())
}

/// Bytes that this process may still use before memory is short: of the machine and of all its control groups the least.
#[pyfunction]
fn memory_left(py: Python<'_>) -> u64 {
    py.detach(|| Gauge::find().look().memory.free_bytes)
}

/// As `forebay ls` shows checksums, too.
fn hexadecimal(digest: u128) -> String {
    format!("{digest:032x}")
}

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::fork::{Rank, Taking};
    #[pymodule_export]
    use super::images::{cut_image, image_size};
    #[pymodule_export]
    use super::loader::{LoaderRank, LoaderRegistering, LoaderTable, LoaderWorker};
    #[pymodule_export]
    use super::look::Look;
    #[pymodule_export]
    use super::mapped::Mapped;
    #[pymodule_export]
    use super::memory::Reserved;
    #[pymodule_export]
    use super::order::{Blocks, Deal, Epoch, counter_at, sample_key, sample_keys};
    #[pymodule_export]
    use super::pending::between_instructions;
    #[pymodule_export]
    use super::pieces::Pieces;
    #[pymodule_export]
    use super::shared::Shared;
    #[pymodule_export]
    use super::stores::{ObjectRange, ObjectStores, store_variables};
    #[pymodule_export]
    use super::tensors::tensor_facts;
    #[pymodule_export]
    use super::window::{Reading, Window};
    #[pymodule_export]
    use super::{digest, digests, memory_left, pack, read_and_digest};
}
