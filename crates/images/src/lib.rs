//! Parts of JPEG images, decoded, resized and mirrored in one step: from bytes to pixels, without I/O.
//!
//! It promises two things. The pixels are bit for bit those of Pillow for the same cut (`crop`, `resize` with its
//! bilinear filter, `transpose`). And an image that this crate can't decode so, or that is damaged, is refused with a
//! reason and left to Pillow. It never returns other pixels.
//!
//! It is faster since it does less. Blocks beside the cut are decompressed but not turned into pixels, rows below it
//! are not read at all, and only needed memory is touched. libjpeg-turbo decodes; resizing is done here, since bit for
//! bit means Pillow's own fixed-point arithmetic, which no library has.

mod cut;
mod decode;
mod resample;
mod survey;

pub use cut::{Area, Cut, Cutter};
pub use survey::size;

/// Reason why an image was not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageRefusal {
    /// It is not a JPEG file, or of a rare kind: see [`size`].
    Foreign,
    /// It has so many pixels that Pillow warns of it.
    Large,
    /// It ends early, or a part of it is invalid.
    Damaged,
    /// The cut is not inside the image, or its pixels do not fit into the memory for them: an error of the caller.
    Impossible,
}
