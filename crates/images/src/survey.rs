//! Reads the markers of a JPEG file before its pixels begin. Decodes nothing.

use crate::ImageRefusal;

/// Number of pixels above which Pillow warns of a small file that unpacks to a lot, or refuses it.
const PIXELS_MAX: u64 = (1 << 30) / 4 / 3;

const SOI: u8 = 0xD8;
const EOI: u8 = 0xD9;
const SOS: u8 = 0xDA;

/// Returns width and height, in pixels, of an image that `Cutter` can decode.
///
/// It can decode an image of 8 bits and one or three components (grey levels or colours, not the four of printing),
/// Huffman coded, sequential or progressive, that is not truncated.
pub fn size(data: &[u8]) -> Result<(u32, u32), ImageRefusal> {
    // Pillow tells JPEG files from others in this way.
    if !data.starts_with(&[0xFF, SOI, 0xFF]) {
        return Err(ImageRefusal::Foreign);
    }
    let mut rest = &data[2..];
    let mut frame = None;
    loop {
        let (marker, payload, after) = segment(rest).ok_or(ImageRefusal::Damaged)?;
        match marker {
            // The frames of baseline, extended sequential and progressive files.
            0xC0..=0xC2 if frame.is_none() => frame = Some(frame_size(payload)?),
            // Two frames; lossless, hierarchical and arithmetically coded ones.
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCF => return Err(ImageRefusal::Foreign),
            SOS => {
                let size = frame.ok_or(ImageRefusal::Damaged)?;
                return if has_end(after) { Ok(size) } else { Err(ImageRefusal::Damaged) };
            }
            _ => {}
        }
        rest = after;
    }
}

/// Splits off the next marker and its payload from the rest.
fn segment(data: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&first, mut rest) = data.split_first()?;
    if first != 0xFF {
        return None;
    }
    // Any number of these bytes may precede a marker.
    while let Some((0xFF, after)) = rest.split_first() {
        rest = after;
    }
    let (&marker, rest) = rest.split_first()?;
    // A marker without a length is invalid before the first scan.
    if matches!(marker, 0x00 | 0x01 | 0xD0..=EOI) {
        return None;
    }
    let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    let (segment, after) = rest.split_at_checked(length)?;
    Some((marker, segment.get(2..)?, after))
}

fn frame_size(payload: &[u8]) -> Result<(u32, u32), ImageRefusal> {
    let &[precision, h1, h0, w1, w0, components, ..] = payload else {
        return Err(ImageRefusal::Damaged);
    };
    let (width, height) = (u16::from_be_bytes([w1, w0]), u16::from_be_bytes([h1, h0]));
    if precision != 8 || !matches!(components, 1 | 3) || width == 0 || height == 0 {
        return Err(ImageRefusal::Foreign);
    }
    if u64::from(width) * u64::from(height) > PIXELS_MAX {
        return Err(ImageRefusal::Large);
    }
    Ok((width.into(), height.into()))
}

/// Returns whether the end of an image is there. Data behind it, such as an embedded film, does not matter. The two
/// bytes can't occur within the pixels of a sequential file.
fn has_end(scan: &[u8]) -> bool {
    scan.windows(2).rev().any(|two| two == [0xFF, EOI])
}
