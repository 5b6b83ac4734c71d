//! Images: the bytes of a file become pixels in a buffer of the caller's.

use std::cell::RefCell;

use forebay_images::{Area, Cut, Cutter, ImageRefusal};
use pyo3::{
    exceptions::{PyMemoryError, PyValueError},
    prelude::*,
};

use crate::buffers::{ReadBuffer, WriteBuffer};

/// Red, green and blue.
const PLANES: usize = 3;

thread_local! {
    static CUTTER: RefCell<Option<Cutter>> = const { RefCell::new(None) };
}

/// Left, top, width, height.
type Rectangle = (u32, u32, u32, u32);

fn area((left, top, width, height): Rectangle) -> Area {
    Area { left, top, width, height }
}

/// Returns width and height of a JPEG file that `cut_image` can decode, `None` for any other file.
#[pyfunction]
pub(crate) fn image_size(data: &Bound<'_, PyAny>) -> PyResult<Option<(u32, u32)>> {
    Ok(forebay_images::size(ReadBuffer::new(data)?.bytes()).ok())
}

/// Decodes a part of a JPEG file, resizes it, and writes a window of that to the buffer `pixels`, as planes of red,
/// green and blue.
///
/// Returns false where the file is left to Pillow; then `pixels` hold nothing useful.
#[pyfunction]
#[pyo3(signature = (data, part, resized, window, pixels, *, is_down_first, is_mirrored))]
#[expect(clippy::too_many_arguments, reason = "Python gives them by name, and nothing comes between")]
pub(crate) fn cut_image(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    part: Rectangle,
    resized: (u32, u32),
    window: Rectangle,
    pixels: &Bound<'_, PyAny>,
    is_down_first: bool,
    is_mirrored: bool,
) -> PyResult<bool> {
    let data = ReadBuffer::new(data)?;
    let mut pixels = WriteBuffer::new(pixels, (window.2 as usize).saturating_mul(window.3 as usize).saturating_mul(PLANES))?;
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
            cutter.as_mut().map(|cutter| cutter.cut(data.bytes(), &cut, pixels.bytes_mut()))
        })
    });
    match outcome {
        None => Err(PyMemoryError::new_err("no memory for a decompressor")),
        Some(Ok(())) => Ok(true),
        Some(Err(ImageRefusal::Impossible)) => Err(PyValueError::new_err(format!(
            "impossible cut: part {part:?} of the image, resized to {resized:?}, of which {window:?}"
        ))),
        Some(Err(_)) => Ok(false),
    }
}
