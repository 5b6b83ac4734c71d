//! Digests of what comes piece by piece, of many tensors alternately: there is never room for all of one in the memory
//! that it passes through.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_digest::{Digest, END_BYTES, STRETCH_BYTES};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

use crate::{CallerMemory, fork, one_pass};

/// Digests of tensors that arrive in pieces, numbered from 0 on. The pieces of one tensor come in their order; all
/// but the last are a multiple of `STRETCH_BYTES`, and the last has at least `END_BYTES`, or the whole tensor.
#[pyclass(frozen, name = "Pieces")]
pub(crate) struct PieceDigests(Mutex<Vec<Coming>>);

enum Coming {
    Some(Digest),
    All(u128),
}

#[pymethods]
impl PieceDigests {
    #[new]
    fn new(lengths: Vec<usize>) -> Self {
        let digests = lengths.into_iter().map(Digest::new).map(Coming::Some);
        Self(Mutex::new(digests.collect()))
    }

    /// Digests pieces: a number, an address, and a length.
    fn see(&self, py: Python<'_>, pieces: Vec<(usize, usize, usize)>) -> PyResult<()> {
        py.detach(|| {
            let mut coming = self.coming();
            pieces.into_iter().try_for_each(|(number, address, length)| {
                let piece = CallerMemory::new(address, length)?;
                next(&mut coming, number, length)?.come(piece, |digest| digest.see(one_pass::bytes(piece)));
                Ok(())
            })
        })
    }

    /// Copies pieces: a number, an address, a length, and the address to which they go. What is digested is the copy.
    fn copy(&self, py: Python<'_>, pieces: Vec<(usize, usize, usize, usize)>) -> PyResult<()> {
        py.detach(|| {
            let mut coming = self.coming();
            pieces.into_iter().try_for_each(|(number, address, length, target)| {
                let (source, target) = (CallerMemory::new(address, length)?, CallerMemory::new(target, length)?);
                next(&mut coming, number, length)?.come(target, |digest| one_pass::copy_next(digest, source, target));
                Ok(())
            })
        })
    }

    /// Reads pieces of the open file `descriptor`: a number, an offset there, and an address and a length to which
    /// they go.
    fn read(&self, py: Python<'_>, descriptor: i32, pieces: Vec<(usize, u64, usize, usize)>) -> PyResult<()> {
        let file = fork::borrowed(descriptor)?;
        py.detach(|| {
            let mut coming = self.coming();
            pieces.into_iter().try_for_each(|(number, offset, address, length)| {
                let target = CallerMemory::new(address, length)?;
                let next = next(&mut coming, number, length)?;
                one_pass::fill(file, offset, target)?;
                next.come(target, |digest| digest.see(one_pass::bytes(target)));
                Ok(())
            })
        })
    }

    /// Returns the digests of all tensors, each of which has arrived; 16 bytes each.
    fn digests<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let found = self.coming();
        let found = found.iter().enumerate().map(|(number, coming)| match coming {
            Coming::All(digest) => Ok(PyBytes::new(py, &digest.to_be_bytes())),
            Coming::Some(_) => Err(PyValueError::new_err(format!("number {number} has not come as a whole"))),
        });
        found.collect()
    }
}

impl PieceDigests {
    fn coming(&self) -> MutexGuard<'_, Vec<Coming>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tensor that receives the next piece of this length.
fn next(coming: &mut [Coming], number: usize, length: usize) -> PyResult<NextPiece<'_>> {
    let refused = || PyValueError::new_err(format!("number {number} can't have a piece of {length} bytes"));
    match coming.get_mut(number) {
        Some(coming @ Coming::Some(_)) => NextPiece::new(coming, length).ok_or_else(refused),
        _ => Err(refused()),
    }
}

struct NextPiece<'a>(&'a mut Coming, Digest);

impl<'a> NextPiece<'a> {
    fn new(coming: &'a mut Coming, length: usize) -> Option<Self> {
        let Coming::Some(digest) = *coming else { return None };
        let left = digest.left();
        let is_last = length == left && (digest.had() == 0 || length >= END_BYTES);
        let is_one_of_several = length < left && length > 0 && length.is_multiple_of(STRETCH_BYTES);
        (is_last || is_one_of_several).then_some(Self(coming, digest))
    }

    /// It comes, and lies in `piece` afterwards.
    fn come(self, piece: CallerMemory, by: impl FnOnce(&mut Digest)) {
        let Self(coming, mut digest) = self;
        by(&mut digest);
        *coming = match digest.left() {
            0 => Coming::All(digest.finish(one_pass::bytes(piece))),
            _ => Coming::Some(digest),
        };
    }
}
