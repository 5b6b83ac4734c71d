//! Memory of many entries of a state at once: digested, copied, or filled, in one pass each. Described once, as long
//! as nothing lies elsewhere; what is done with it takes no step of Python's for each.

use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

use crate::{CallerMemory, SIGNALS_EVERY_BYTES, fork, one_pass};

const DIGEST_BYTES: usize = 16;

/// Entries of a section in memory: number, address, length, and offset in a capture, relative to the section's
/// beginning.
#[pyclass(frozen)]
pub(crate) struct Spans(Vec<Span>);

#[derive(Clone, Copy)]
struct Span {
    number: usize,
    memory: CallerMemory,
    offset: usize,
}

#[pymethods]
impl Spans {
    #[new]
    fn new(spans: Vec<(usize, usize, usize, usize)>) -> PyResult<Self> {
        let spans = spans.into_iter().map(|(number, address, length, offset)| {
            let memory = CallerMemory::new(address, length)?;
            Ok(Span { number, memory, offset })
        });
        spans.collect::<PyResult<_>>().map(Self)
    }
}

/// A section's spans, the offset at which a capture has the first of its entries, and that one's number among all.
type Of<'py> = (Bound<'py, Spans>, usize, usize);

/// The digests of memory, at their places among those of `count` entries, 16 bytes each; of all others nought. The
/// interpreter's lock is released seldom.
#[pyfunction]
pub(crate) fn digests<'py>(py: Python<'py>, count: usize, of: Vec<Of<'py>>) -> PyResult<Bound<'py, PyBytes>> {
    let work = of.into_iter().flat_map(all).map(|span| Ok((span, ())));
    digested(py, count, work, |span, ()| Ok(one_pass::of(span.memory)))
}

/// Copies memory into the `length` bytes at `target`, each span to its offset there; gives the digests of what then
/// stands there, as `digests` does, in one pass over memory.
#[pyfunction]
pub(crate) fn pack<'py>(py: Python<'py>, target: usize, length: usize, count: usize, of: Vec<Of<'py>>) -> PyResult<Bound<'py, PyBytes>> {
    let target = CallerMemory::new(target, length)?;
    let work = of.into_iter().flat_map(all).map(|span| {
        let part = target.part(span.offset, span.memory.length)?;
        if span.memory.overlaps(target) {
            return Err(PyValueError::new_err("source and target overlap"));
        }
        Ok((span, part))
    });
    digested(py, count, work, |span, part| Ok(one_pass::of_copy(span.memory, part)))
}

/// Fills memory from the open file `descriptor`, each span from its offset there; gives the digests of what then
/// stands there, as `digests` does, in one pass over memory.
///
/// The file is read, not mapped: whoever else holds it can change what is read, but not take memory away from under
/// this process.
#[pyfunction]
pub(crate) fn fill<'py>(py: Python<'py>, descriptor: i32, count: usize, of: Vec<Of<'py>>) -> PyResult<Bound<'py, PyBytes>> {
    let file = fork::borrowed(descriptor)?;
    let work = of.into_iter().flat_map(all).map(|span| Ok((span, ())));
    digested(py, count, work, |span, ()| {
        Ok(one_pass::of_read(file, span.offset as u64, span.memory)?)
    })
}

/// Returns, for each section, the numbers of the spans that share memory with another span.
#[pyfunction]
pub(crate) fn overlapping(of: Vec<Bound<'_, Spans>>) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new(); of.len()];
    let with_section = |(section, spans): (usize, Bound<'_, Spans>)| -> Vec<_> {
        let of_section = spans.get().0.iter().filter(|span| span.memory.length > 0);
        of_section.map(|span| (span.memory, section, span.number)).collect()
    };
    let mut spans: Vec<_> = of.into_iter().enumerate().flat_map(with_section).collect();
    spans.sort_unstable_by_key(|(memory, ..)| memory.address);
    // Who reaches furthest of those before.
    let mut last: Option<(CallerMemory, usize, usize)> = None;
    for one in spans {
        if let Some(last) = last.filter(|last| last.0.overlaps(one.0)) {
            found[last.1].push(last.2);
            found[one.1].push(one.2);
        }
        last = last.filter(|last| last.0.end() >= one.0.end()).or(Some(one));
    }
    found
}

/// With offsets and numbers counted among all.
fn all((spans, start, first): Of<'_>) -> Vec<Span> {
    let moved = |span: &Span| Span {
        number: first.saturating_add(span.number),
        offset: start.saturating_add(span.offset),
        ..*span
    };
    spans.get().0.iter().map(moved).collect()
}

/// The digests that `one` gives. In between, what signals ask for is done.
fn digested<T: Copy + Sync + Send>(
    py: Python<'_>,
    count: usize,
    work: impl Iterator<Item = PyResult<(Span, T)>>,
    one: impl Fn(Span, T) -> PyResult<u128> + Sync,
) -> PyResult<Bound<'_, PyBytes>> {
    let work: Vec<_> = work.collect::<PyResult<_>>()?;
    if let Some((span, _)) = work.iter().find(|(span, _)| span.number >= count) {
        return Err(PyValueError::new_err(format!("there is no number {} of {count}", span.number)));
    }
    let mut found = vec![0; count * DIGEST_BYTES];
    let mut left = work.as_slice();
    while !left.is_empty() {
        let mut room = SIGNALS_EVERY_BYTES;
        let fits = |(span, _): &&(Span, T)| {
            let was_room = room > 0;
            room = room.saturating_sub(span.memory.length);
            was_room
        };
        let (now, later) = left.split_at(left.iter().take_while(fits).count());
        let found = &mut found;
        py.detach(|| {
            now.iter().try_for_each(|(span, with)| {
                let digest = one(*span, *with)?;
                found[span.number * DIGEST_BYTES..][..DIGEST_BYTES].copy_from_slice(&digest.to_be_bytes());
                Ok::<_, PyErr>(())
            })
        })?;
        py.check_signals()?;
        left = later;
    }
    Ok(PyBytes::new(py, &found))
}
