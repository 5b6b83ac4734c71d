//! Copies of the elements that two parts of one tensor have in common.

use forebay_agent::host::shared::SharedFile;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

use crate::{CallerMemory, fork, mapped, one_pass};

/// The first common element in a part of a tensor, and the steps of the part's dimensions, in elements. In the target
/// the first element counts from the beginning of its memory.
type Side = (usize, Vec<usize>);

/// A copy: offset and length of the source's entry in its file, in bytes; bytes of an element; the source; the target;
/// the sizes of what both have in common.
type BoxCopy = ((u64, usize), usize, Side, Side, Vec<usize>);

/// Copies elements of entries in the sealed file `descriptor` to memory, an address and a length. Returns the digest of
/// each whole entry.
#[pyfunction]
pub(crate) fn copy_boxes(
    py: Python<'_>,
    descriptor: i32,
    target: (usize, usize),
    copies: Vec<BoxCopy>,
) -> PyResult<Vec<Bound<'_, PyBytes>>> {
    let target = CallerMemory::new(target.0, target.1)?;
    let file = fork::borrowed(descriptor)?.try_clone_to_owned()?;
    let file = py.detach(|| SharedFile::received_ahead(file))?;
    let mut digests = Vec::with_capacity(copies.len());
    for ((offset, length), element, from, to, shape) in copies {
        let entry = mapped::part(&file, offset, length)
            .ok_or_else(|| PyValueError::new_err(format!("no {length} bytes are at {offset} of the file")))?;
        let digest = py.detach(|| {
            copy_common(entry, target, element, (&from, &to), &shape)?;
            Ok::<_, PyErr>(one_pass::of(entry))
        })?;
        digests.push(PyBytes::new(py, &digest.to_be_bytes()));
        py.check_signals()?;
    }
    Ok(digests)
}

/// Copies run by run: elements that lie next to each other on both sides.
fn copy_common(source: CallerMemory, target: CallerMemory, element: usize, (from, to): (&Side, &Side), shape: &[usize]) -> PyResult<()> {
    if from.1.len() != shape.len() || to.1.len() != shape.len() {
        return Err(PyValueError::new_err(format!(
            "{} dimensions have other numbers of steps",
            shape.len()
        )));
    }
    if shape.contains(&0) {
        return Ok(());
    }
    let (mut run, mut outer) = (1_usize, shape.len());
    while outer > 0 && (shape[outer - 1] == 1 || (from.1[outer - 1] == run && to.1[outer - 1] == run)) {
        outer -= 1;
        run = run.saturating_mul(shape[outer]);
    }
    let bytes = run.saturating_mul(element);
    let mut index = vec![0; outer];
    loop {
        let offset = |(start, steps): &Side| {
            let element_at = |sum: usize, (at, step): (&usize, &usize)| sum.saturating_add(at.saturating_mul(*step));
            index.iter().zip(steps).fold(*start, element_at).saturating_mul(element)
        };
        // Each run is checked against both memories: the numbers come from a state that is not trusted.
        one_pass::copy(source.part(offset(from), bytes)?, target.part(offset(to), bytes)?);
        let Some(dimension) = (0..outer).rev().find(|dimension| index[*dimension] + 1 < shape[*dimension]) else {
            return Ok(());
        };
        index[dimension] += 1;
        index[dimension + 1..].fill(0);
    }
}
