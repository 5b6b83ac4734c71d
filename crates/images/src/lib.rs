//! Parts of JPEG images, decoded, resized and mirrored in one go: from bytes to pixels, without I/O.
//!
//! Two things are promised. The pixels are those that Pillow gives for the same cut (`crop`, `resize` by its bilinear filter, `transpose`),
//! bit for bit. And what this crate can't do so, or what is amiss, it refuses with a reason and leaves to Pillow: there is no case in which
//! it gives other pixels.
//!
//! What makes it faster is what it leaves out. Blocks beside the cut are decompressed but not turned into pixels, rows below it are not read
//! at all, and nothing goes through memory that is not used. Decoding is libjpeg-turbo's; resizing is done here, since bit for bit means
//! Pillow's own fixed-point arithmetic, which no library has.

mod cut;
mod decode;
mod resample;
mod survey;

pub use cut::{Area, Cut, Cutter};
pub use survey::size;

/// Why an image was not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No JPEG file, or of a kind that is rare: see [`size`].
    Foreign,
    /// So many pixels that Pillow has something to say about it.
    Large,
    /// It ends early, or something in it is not as it should be.
    Damaged,
    /// The cut does not lie within the image, or the pixels do not fit into the memory for them: the caller is wrong.
    Impossible,
}
