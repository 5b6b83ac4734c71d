//! From the bytes of a file to the pixels of a sample.

use crate::decode::{Decoder, KEPT_BYTES, PIXEL};
use crate::resample::{BEYOND, Lower, Narrow, PixelRows, Split, Taps, with_vectors};
use crate::{ImageRefusal, size};

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Number of columns before it.
    pub left: u32,
    /// Number of rows above it.
    pub top: u32,
    /// Number of columns.
    pub width: u32,
    /// Number of rows.
    pub height: u32,
}

impl Area {
    /// Returns whether it has pixels, all of them inside an image of this width and height.
    fn is_within(&self, (width, height): (u32, u32)) -> bool {
        let fits = |begin: u32, length: u32, end: u32| length > 0 && begin.checked_add(length).is_some_and(|last| last <= end);
        fits(self.left, self.width, width) && fits(self.top, self.height, height)
    }
}

/// A cut: a part of an image, resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// A part of the image.
    pub part: Area,
    /// Width and height to which the part is resized.
    pub resized: (u32, u32),
    /// Part of the resized part that is returned.
    pub window: Area,
    /// True if columns are resized before rows. It changes pixels by one level at most.
    pub is_down_first: bool,
    /// True if the result is mirrored, left to right.
    pub is_mirrored: bool,
}

/// A decoder and resizer with its memory; each thread has its own.
#[derive(Debug)]
pub struct Cutter {
    decoder: Decoder,
    resizer: Resizer,
}

impl Cutter {
    /// Creates a cutter; `None` if there is no memory.
    pub fn new() -> Option<Self> {
        Some(Self {
            decoder: Decoder::new()?,
            resizer: Resizer::default(),
        })
    }

    /// Writes the pixels of a cut: three planes, red, green and blue, of the window's rows. Grey levels are written
    /// three times.
    ///
    /// After a refusal the contents of `pixels` are undefined.
    pub fn cut(&mut self, data: &[u8], cut: &Cut, pixels: &mut [u8]) -> Result<(), ImageRefusal> {
        let size = size(data)?;
        let room = 3_usize.checked_mul(cut.window.width as usize * cut.window.height as usize);
        if !cut.part.is_within(size) || !cut.window.is_within(cut.resized) || room != Some(pixels.len()) {
            return Err(ImageRefusal::Impossible);
        }
        let used = self.resizer.prepare(cut);
        let decoded = self.decoder.decode(data, size, used)?;

        let stride = decoded.area.width as usize * PIXEL;
        let (above, before) = (used.top - decoded.area.top, used.left - decoded.area.left);
        let source = PixelRows {
            bytes: &decoded.bytes[above as usize * stride + before as usize * PIXEL..],
            stride,
        };
        self.resizer.resize(source, used, cut, pixels);
        Ok(())
    }
}

/// Memory of the resizer, kept from one image to the next.
#[derive(Debug, Default)]
struct Resizer {
    across: Taps,
    down: Taps,
    between: Vec<u8>,
    resized: Vec<u8>,
}

impl Resizer {
    /// Prepares for a cut, and returns the part of the image that it needs.
    fn prepare(&mut self, cut: &Cut) -> Area {
        let window = cut.window;
        self.across
            .fill(cut.part.width, cut.resized.0, window.left..window.left + window.width);
        self.across.spread();
        self.down
            .fill(cut.part.height, cut.resized.1, window.top..window.top + window.height);
        let (columns, rows) = (self.across.span(), self.down.span());
        Area {
            left: cut.part.left + columns.start,
            top: cut.part.top + rows.start,
            width: columns.end - columns.start,
            height: rows.end - rows.start,
        }
    }

    /// Computes the pixels of the cut from the pixels of that part.
    fn resize(&mut self, source: PixelRows<'_>, used: Area, cut: &Cut, pixels: &mut [u8]) {
        let (width, height) = (cut.window.width as usize, cut.window.height as usize);
        let (used_width, used_height) = (used.width as usize, used.height as usize);
        let (across, down, is_mirrored) = (&self.across, &self.down, cut.is_mirrored);
        let between = if cut.is_down_first {
            used_width * height
        } else {
            width * used_height
        } * PIXEL;
        self.between.resize(between + BEYOND, 0);
        self.resized.resize(width * height * PIXEL, 0);
        let target = &mut self.between[..between];
        if cut.is_down_first {
            with_vectors(Lower {
                source,
                width: used_width,
                down,
                target,
            });
            let source = PixelRows {
                bytes: &self.between,
                stride: used_width * PIXEL,
            };
            Narrow {
                source,
                across,
                is_mirrored,
                target: &mut self.resized,
            }
            .run();
        } else {
            Narrow {
                source,
                across,
                is_mirrored,
                target,
            }
            .run();
            let source = PixelRows {
                bytes: &self.between,
                stride: width * PIXEL,
            };
            with_vectors(Lower {
                source,
                width,
                down,
                target: &mut self.resized,
            });
        }
        with_vectors(Split {
            source: &self.resized,
            target: pixels,
        });
        // Memory that one large image needed is freed.
        for kept in [&mut self.between, &mut self.resized] {
            if kept.len() > KEPT_BYTES {
                *kept = Vec::new();
            }
        }
    }
}
