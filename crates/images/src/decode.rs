//! Decodes a part of an image by libjpeg-turbo.

use crate::resample::BEYOND;
use crate::{Area, ImageRefusal};
use std::ffi::c_int;
use std::ptr::NonNull;
use turbojpeg_sys as tj;

/// Bytes of a pixel: red, green, blue, and an unused one, so that a pixel is one machine word.
pub(crate) const PIXEL: usize = 4;

/// Margin, in pixels, with which a part is decoded so that it equals the same part of the whole image: a chroma sample
/// spreads over up to four columns and over their neighbours.
const MARGIN: u32 = 4;

/// Memory that is kept from one image to the next, in bytes. More, which one large image needed, is freed.
pub(crate) const KEPT_BYTES: usize = 16 << 20;

/// A decompressor and its memory.
#[derive(Debug)]
pub(crate) struct Decoder {
    handle: NonNull<std::ffi::c_void>,
    pixels: Vec<u8>,
}

// SAFETY: an instance of TurboJPEG belongs to no thread. Two threads must not use it at the same time, and every use
// takes `&mut self`.
unsafe impl Send for Decoder {}

/// Pixels of a part of an image, row by row without gaps.
#[derive(Debug)]
pub(crate) struct Pixels<'a> {
    /// Position in the image: the requested part, and perhaps more on each side.
    pub(crate) area: Area,
    /// The pixels, followed by `BEYOND` undefined bytes.
    pub(crate) bytes: &'a [u8],
}

impl Decoder {
    /// Creates a decoder; `None` if there is no memory.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: it takes any value.
        let handle = NonNull::new(unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) })?;
        let mut decoder = Self {
            handle,
            pixels: Vec::new(),
        };
        // An image that would cause a warning is left to Pillow.
        decoder.set(tj::TJPARAM_TJPARAM_STOPONWARNING, 1);
        Some(decoder)
    }

    /// Decodes at least `part` of an image of that size.
    pub(crate) fn decode(&mut self, data: &[u8], size: (u32, u32), part: Area) -> Result<Pixels<'_>, ImageRefusal> {
        // SAFETY: handle and bytes are there until it returns.
        let status = unsafe { tj::tj3DecompressHeader(self.handle.as_ptr(), data.as_ptr(), data.len() as _) };
        let told = (
            self.get(tj::TJPARAM_TJPARAM_JPEGWIDTH) as u32,
            self.get(tj::TJPARAM_TJPARAM_JPEGHEIGHT) as u32,
        );
        if status != 0 || told != size {
            return Err(ImageRefusal::Damaged);
        }
        let subsampling = self.get(tj::TJPARAM_TJPARAM_SUBSAMP);
        // Types without a name can't be decoded in part.
        let block = *BLOCK_WIDTHS.get(subsampling as usize).ok_or(ImageRefusal::Foreign)?;
        let area = widened(part, size, block);

        let bytes = area.width as usize * area.height as usize * PIXEL + BEYOND;
        // Memory that exists need not be zeroed again.
        if bytes > self.pixels.len() || self.pixels.len() > KEPT_BYTES {
            self.pixels = vec![0; bytes];
        }
        let region = tj::tjregion {
            x: area.left as c_int,
            y: area.top as c_int,
            w: area.width as c_int,
            h: area.height as c_int,
        };
        let format = tj::TJPF_TJPF_RGBX as c_int;
        // SAFETY: handle and bytes are there until it returns. It writes as many rows of as many pixels as the region
        // has, each right after the one before (pitch 0), and there is room for them.
        let status = unsafe {
            match tj::tj3SetCroppingRegion(self.handle.as_ptr(), region) {
                0 => tj::tj3Decompress8(
                    self.handle.as_ptr(),
                    data.as_ptr(),
                    data.len() as _,
                    self.pixels.as_mut_ptr(),
                    0,
                    format,
                ),
                refused => refused,
            }
        };
        if status != 0 {
            return Err(ImageRefusal::Damaged);
        }
        Ok(Pixels {
            area,
            bytes: &self.pixels[..bytes],
        })
    }

    fn set(&mut self, parameter: tj::TJPARAM, value: c_int) {
        // SAFETY: any parameter and value may be given; invalid ones are refused.
        let status = unsafe { tj::tj3Set(self.handle.as_ptr(), parameter as c_int, value) };
        debug_assert_eq!(status, 0, "TurboJPEG knows the parameter");
    }

    fn get(&mut self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: any parameter may be queried; for unknown ones the result is -1.
        unsafe { tj::tj3Get(self.handle.as_ptr(), parameter as c_int) }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: it came from tj3Init, and nobody uses it any more.
        unsafe { tj::tj3Destroy(self.handle.as_ptr()) };
    }
}

/// Width in pixels of a group of blocks that are coded together, by subsampling (TJSAMP): 4:4:4, 4:2:2, 4:2:0, grey,
/// 4:4:0, 4:1:1, 4:4:1.
const BLOCK_WIDTHS: [u32; 7] = [8, 16, 16, 8, 8, 32, 8];

/// Returns the part with its margins, inside the image, beginning with a whole block.
fn widened(part: Area, (width, height): (u32, u32), block: u32) -> Area {
    let left = part.left.saturating_sub(MARGIN) / block * block;
    let top = part.top.saturating_sub(MARGIN);
    let right = (part.left + part.width + MARGIN).min(width);
    let bottom = (part.top + part.height + MARGIN).min(height);
    Area {
        left,
        top,
        width: right - left,
        height: bottom - top,
    }
}
