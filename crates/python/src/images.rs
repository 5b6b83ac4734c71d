//! Images: bytes of a file become pixels in memory of the caller.

use crate::Memory;
use forebay_images::{Area, Cut, Cutter, Refusal};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use std::cell::RefCell;

thread_local! {
    static CUTTER: RefCell<Option<Cutter>> = const { RefCell::new(None) };
}

/// Left, top, width, height.
type Rectangle = (u32, u32, u32, u32);

fn area((left, top, width, height): Rectangle) -> Area {
    Area { left, top, width, height }
}

/// Width and height of a JPEG file that `cut_image` knows how to decode; None of any other.
#[pyfunction]
pub(crate) fn image_size(data: &[u8]) -> Option<(u32, u32)> {
    forebay_images::size(data).ok()
}

/// Decodes a part of a JPEG file, resizes it, and writes a window of that to `length` bytes at `address`, as planes of red, green and blue.
///
/// True if it did. False: the file is left to Pillow, and what stands at `address` means nothing.
#[pyfunction]
#[pyo3(signature = (data, part, resized, window, *, is_down_first, is_mirrored, address, length))]
#[expect(clippy::too_many_arguments, reason = "Python gives them by name, and nothing comes between")]
pub(crate) fn cut_image(
    py: Python<'_>,
    data: &[u8],
    part: Rectangle,
    resized: (u32, u32),
    window: Rectangle,
    is_down_first: bool,
    is_mirrored: bool,
    address: usize,
    length: usize,
) -> PyResult<bool> {
    let memory = Memory::new(address, length)?;
    let cut = Cut {
        part: area(part),
        resized,
        window: area(window),
        is_down_first,
        is_mirrored,
    };
    let outcome = py.detach(|| {
        CUTTER.with_borrow_mut(|cutter| {
            if cutter.is_none() {
                *cutter = Cutter::new();
            }
            cutter.as_mut().map(|cutter| cutter.cut(data, &cut, bytes_mut(memory)))
        })
    });
    match outcome {
        None => Err(PyMemoryError::new_err("no memory for a decompressor")),
        Some(Ok(())) => Ok(true),
        Some(Err(Refusal::Impossible)) => Err(PyValueError::new_err(format!(
            "part {part:?} of the image, resized to {resized:?}, of which {window:?}, into {length} bytes: that can't be"
        ))),
        Some(Err(_)) => Ok(false),
    }
}

pub(crate) fn bytes_mut<'a>(memory: Memory) -> &'a mut [u8] {
    if memory.length == 0 {
        return &mut [];
    }
    // SAFETY: the caller vouches for the memory until its call returns, nobody else uses it meanwhile, and no reference outlives that.
    unsafe { std::slice::from_raw_parts_mut(memory.address as *mut u8, memory.length) }
}
