//! Pillow's bilinear filter with its fixed-point arithmetic, bit for bit (`src/libImaging/Resample.c`).
//!
//! Each pixel is a weighted mean of the pixels that it covers. Each direction is done by itself and rounded to a byte
//! in between; the cut says which comes first. The loops have no branch and fixed widths, so that the compiler can use
//! vector instructions.

#![expect(
    clippy::inline_always,
    reason = "only inlined functions are compiled for the vectors of the function around it"
)]

use crate::decode::PIXEL;
use std::ops::Range;

/// Binary places of a weight: 8 are the byte's, 2 are spare.
const PLACES: u32 = 32 - 8 - 2;
const HALF: i32 = 1 << (PLACES - 1);

/// Binary places of a weight's lower half: both halves have 16 bits, and processors compute many products and sums of
/// such numbers in one step.
const LOW_PLACES: u32 = PLACES / 2;

/// Number of bytes whose sums are kept in registers.
const LANES: usize = 32;

/// Number of rows that are narrowed together.
const ROWS: usize = 4;

/// Number of pixels that are weighted together.
const QUAD: usize = 4;

/// Number of bytes that are read behind the last pixel; their values do not matter.
pub(crate) const BEYOND: usize = (QUAD - 1) * PIXEL;

/// PixelRows that are narrowed together.
#[derive(Clone, Copy, Debug)]
struct Block<'a> {
    bytes: &'a [u8],
    /// Start of each row; each has `length` bytes.
    begins: [usize; ROWS],
    length: usize,
}

impl<'a> Block<'a> {
    fn new(bytes: &'a [u8], begins: [usize; ROWS], length: usize) -> Self {
        assert!(
            begins.iter().all(|begin| begin + length <= bytes.len()),
            "a row ends beyond the pixels"
        );
        Self { bytes, begins, length }
    }

    /// Returns `count` quads of each row, from a byte on.
    fn quads(&self, from: usize, count: usize) -> [&'a [[u8; QUAD * PIXEL]]; ROWS] {
        self.begins
            .map(|begin| self.bytes[begin + from..][..count * QUAD * PIXEL].as_chunks().0)
    }
}

/// Weights of four pixels, one for each of their bytes in the order of [`Quad::lane`]. Their value is `high <<
/// LOW_PLACES | low`.
#[derive(Clone, Copy, Debug)]
struct Quad {
    high: [i16; QUAD * PIXEL],
    low: [i16; QUAD * PIXEL],
}

impl Quad {
    fn of(weights: [i32; QUAD]) -> Self {
        let of_lanes = |half: fn(i32) -> i16| std::array::from_fn(|lane| half(weights[Self::lane(lane) / PIXEL]));
        Self {
            high: of_lanes(|weight| (weight >> LOW_PLACES) as i16),
            low: of_lanes(|weight| (weight & ((1 << LOW_PLACES) - 1)) as i16),
        }
    }

    /// Returns the byte of four pixels that a lane holds: the same band of two neighbouring pixels stands side by side,
    /// for their sum.
    const fn lane(lane: usize) -> usize {
        let (pair, band, of_pair) = (lane / (2 * PIXEL), lane / 2 % PIXEL, lane % 2);
        (2 * pair + of_pair) * PIXEL + band
    }
}

/// Weights of the source's pixels for each pixel of a row or column.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    pixels: Vec<Tap>,
    // A multiple of four for each pixel: the last ones may be 0.
    weights: Vec<i32>,
    quads: Vec<Quad>,
    reaches: Vec<Reach>,
}

#[derive(Clone, Copy, Debug)]
struct Tap {
    /// First pixel of the source.
    first: usize,
    /// Index of its weight; those of the following pixels are behind it.
    begin: usize,
    /// Number of weights.
    count: usize,
}

/// Source range and weights of a pixel of a row, as the pass over many pixels needs them.
#[derive(Clone, Debug)]
struct Reach {
    /// First byte, counted from the first one that is used.
    from: usize,
    /// Range of its weights. The last may be followed by weights of 0.
    quads: Range<usize>,
}

impl Taps {
    /// Computes the weights for the pixels in `window`, when `source` pixels become `target` ones.
    pub(crate) fn fill(&mut self, source: u32, target: u32, window: Range<u32>) {
        let scale = f64::from(source) / f64::from(target);
        // The filter is a triangle that reaches one pixel of the larger size to each side.
        let reach = scale.max(1.0);
        let inverse = 1.0 / reach;
        self.pixels.clear();
        self.weights.clear();
        let mut shares = Vec::new();
        for pixel in window {
            let center = (f64::from(pixel) + 0.5) * scale;
            // The conversion truncates, and saturates at 0.
            let first = (center - reach + 0.5) as u32;
            let end = ((center + reach + 0.5) as u32).min(source);
            shares.clear();
            shares.extend((first..end).map(|x| {
                let distance = (f64::from(x) - center + 0.5) * inverse;
                (1.0 - distance.abs()).max(0.0)
            }));
            // In this order: sums of floating-point numbers depend on it.
            let sum: f64 = shares.iter().fold(0.0, |sum, share| sum + share);
            let begin = self.weights.len();
            self.pixels.push(Tap {
                first: first as usize,
                begin,
                count: shares.len(),
            });
            self.weights.extend(shares.iter().map(|share| fixed(share / sum)));
            self.weights.resize(self.weights.len().next_multiple_of(QUAD), 0);
        }
    }

    /// Computes `quads` and `reaches` from the weights.
    pub(crate) fn spread(&mut self) {
        let first_used = self.span().start as usize;
        self.quads.clear();
        self.quads.extend(self.weights.as_chunks().0.iter().copied().map(Quad::of));
        self.reaches.clear();
        self.reaches.extend(self.pixels.iter().map(|tap| Reach {
            from: (tap.first - first_used) * PIXEL,
            quads: tap.begin / QUAD..(tap.begin + tap.count).div_ceil(QUAD),
        }));
    }

    /// Returns the range of the source's pixels that have a weight.
    pub(crate) fn span(&self) -> Range<u32> {
        // Later pixels never begin or end before earlier ones.
        match (self.pixels.first(), self.pixels.last()) {
            (Some(first), Some(last)) => first.first as u32..(last.first + last.count) as u32,
            _ => 0..0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pixels.len()
    }

    /// Returns the first of the source's pixels for this pixel, and the weights of it and the following ones.
    fn get(&self, pixel: usize) -> (usize, &[i32]) {
        let Tap { first, begin, count } = self.pixels[pixel];
        (first, &self.weights[begin..begin + count])
    }
}

fn fixed(share: f64) -> i32 {
    (0.5 + share * f64::from(1 << PLACES)) as i32
}

fn byte(sum: i32) -> u8 {
    (sum >> PLACES).clamp(0, 255) as u8
}

/// PixelRows of pixels, from the first one that is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PixelRows<'a> {
    /// The rows, with `BEYOND` bytes more at the end: pixels are read four at a time.
    pub(crate) bytes: &'a [u8],
    /// Bytes from the beginning of a row to that of the next; more than the used ones.
    pub(crate) stride: usize,
}

/// The pass along rows.
#[derive(Debug)]
pub(crate) struct Narrow<'a> {
    pub(crate) source: PixelRows<'a>,
    pub(crate) across: &'a Taps,
    pub(crate) is_mirrored: bool,
    /// Room for as many rows, without gaps, of as many pixels as `across` is for.
    pub(crate) target: &'a mut [u8],
}

/// The pass along columns.
#[derive(Debug)]
pub(crate) struct Lower<'a> {
    pub(crate) source: PixelRows<'a>,
    /// Number of needed pixels of a row.
    pub(crate) width: usize,
    pub(crate) down: &'a Taps,
    /// Room for as many rows, without gaps, as `down` is for.
    pub(crate) target: &'a mut [u8],
}

/// Splits pixels into planes of red, green and blue.
#[derive(Debug)]
pub(crate) struct Split<'a> {
    pub(crate) source: &'a [u8],
    pub(crate) target: &'a mut [u8],
}

impl Narrow<'_> {
    pub(crate) fn run(self) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn with_avx2(narrow: Narrow<'_>) {
                narrow.with(|block, from, weights| means_avx2(block, from, weights));
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor supports it.
                return unsafe { with_avx2(self) };
            }
        }
        self.with(means);
    }

    #[inline(always)]
    fn with(self, means: impl Fn(Block<'_>, usize, &[Quad]) -> [[u8; PIXEL]; ROWS]) {
        let pixels = self.across.len();
        let target = self.target.as_chunks_mut::<PIXEL>().0;
        let rows = target.len() / pixels;
        let length = self.across.span().len() * PIXEL + BEYOND;
        let mut narrowed = vec![[[0; PIXEL]; ROWS]; pixels];
        for (begin, targets) in (0..rows).step_by(ROWS).zip(target.chunks_mut(ROWS * pixels)) {
            // The last row stands for the rows below it.
            let begins = std::array::from_fn(|nth| (begin + nth).min(rows - 1) * self.source.stride);
            let block = Block::new(self.source.bytes, begins, length);
            for (reach, narrowed) in self.across.reaches.iter().zip(&mut narrowed) {
                *narrowed = means(block, reach.from, &self.across.quads[reach.quads.clone()]);
            }
            for (nth, row) in targets.chunks_exact_mut(pixels).enumerate() {
                let narrowed = narrowed.iter().map(|pixel| pixel[nth]);
                if self.is_mirrored {
                    row.iter_mut().rev().zip(narrowed).for_each(|(target, pixel)| *target = pixel);
                } else {
                    row.iter_mut().zip(narrowed).for_each(|(target, pixel)| *target = pixel);
                }
            }
        }
    }
}

/// Returns the weighted means of pixels of several rows. The number of pixels varies, so the processor mispredicts the
/// end of the loop again and again; doing several rows together pays for that once.
fn means(block: Block<'_>, from: usize, weights: &[Quad]) -> [[u8; PIXEL]; ROWS] {
    block.quads(from, weights.len()).map(|quads| {
        let mut sums = [[0; PIXEL]; 2];
        for (bytes, Quad { high, low }) in quads.iter().zip(weights) {
            for (sums, weights) in sums.iter_mut().zip([high, low]) {
                for (lane, &weight) in weights.iter().enumerate() {
                    sums[lane / 2 % PIXEL] += i32::from(bytes[Quad::lane(lane)]) * i32::from(weight);
                }
            }
        }
        let [high, low] = sums;
        std::array::from_fn(|band| byte(HALF + (high[band] << LOW_PLACES) + low[band]))
    })
}

/// Returns the weighted means of pixels of several rows, with AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn means_avx2(block: Block<'_>, from: usize, weights: &[Quad]) -> [[u8; PIXEL]; ROWS] {
    use std::arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm_packus_epi16, _mm_storeu_si128, _mm256_add_epi32, _mm256_broadcastsi128_si256,
        _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_packs_epi32,
        _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srai_epi32,
    };
    // Byte that becomes each number of 16 bits; a negative one becomes 0.
    const BYTES: [i8; 2 * QUAD * PIXEL] = {
        let mut bytes = [-1; 2 * QUAD * PIXEL];
        let mut lane = 0;
        while lane < QUAD * PIXEL {
            bytes[2 * lane] = Quad::lane(lane) as i8;
            lane += 1;
        }
        bytes
    };
    // SAFETY: these are as many bytes as a vector has, and need no alignment.
    let order = unsafe { _mm256_loadu_si256(BYTES.as_ptr().cast()) };
    // One check for all four rows, which are equally long.
    assert!(from + weights.len() * QUAD * PIXEL <= block.length, "quads beyond the rows");
    let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
    for (nth, Quad { high, low }) in weights.iter().enumerate() {
        // SAFETY: these are as many bytes as a vector has, and need no alignment.
        let weights = [high, low].map(|half| unsafe { _mm256_loadu_si256(half.as_ptr().cast()) });
        for (sums, begin) in sums.iter_mut().zip(block.begins) {
            // SAFETY: `Block::new` has checked that the row is inside the bytes, and the assertion that these are
            // inside the row.
            let bytes = unsafe { _mm_loadu_si128(block.bytes.as_ptr().add(begin + from + nth * QUAD * PIXEL).cast()) };
            let numbers = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), order);
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(numbers, weights));
            }
        }
    }
    let [a, b, c, d] = sums.map(|[high, low]| _mm256_add_epi32(_mm256_slli_epi32::<{ LOW_PLACES as i32 }>(high), low));
    // Takes two rows: each has sums of its first pixels in the lower half and of the others in the upper one. The
    // levels of one row go to the lower half, those of the other to the upper one.
    let levels = |one: __m256i, other: __m256i| {
        let pairs = [
            _mm256_permute2x128_si256::<0x20>(one, other),
            _mm256_permute2x128_si256::<0x31>(one, other),
        ];
        let sums = _mm256_add_epi32(_mm256_add_epi32(pairs[0], pairs[1]), _mm256_set1_epi32(HALF));
        _mm256_srai_epi32::<{ PLACES as i32 }>(sums)
    };
    // Both clamp. Each half is packed by itself, so that the rows keep their order.
    let levels = _mm256_packs_epi32(levels(a, c), levels(b, d));
    let levels = _mm_packus_epi16(_mm256_castsi256_si128(levels), _mm256_extracti128_si256::<1>(levels));
    let mut means = [[0; PIXEL]; ROWS];
    // SAFETY: these are as many bytes as a vector has, and need no alignment.
    unsafe { _mm_storeu_si128(means.as_mut_ptr().cast(), levels) };
    means
}

/// VectorWork that is compiled once for each kind of vectors.
pub(crate) trait VectorWork {
    fn work(self);
}

impl VectorWork for Lower<'_> {
    #[inline(always)]
    fn work(self) {
        let first_used = self.down.span().start as usize;
        for (y, target) in self.target.chunks_exact_mut(self.width * PIXEL).enumerate() {
            let (first, weights) = self.down.get(y);
            let rows = &self.source.bytes[(first - first_used) * self.source.stride..];
            lower_row(rows, self.source.stride, weights, target);
        }
    }
}

/// Computes one row from several rows, the first of which has the first weight.
#[inline(always)]
fn lower_row(rows: &[u8], stride: usize, weights: &[i32], target: &mut [u8]) {
    let (blocks, rest) = target.as_chunks_mut::<LANES>();
    let begin = blocks.len() * LANES;
    for (block, target) in blocks.iter_mut().enumerate() {
        let mut sums = [HALF; LANES];
        for (row, &weight) in rows.chunks(stride).zip(weights) {
            for (sum, &byte) in sums.iter_mut().zip(&row.as_chunks::<LANES>().0[block]) {
                *sum += i32::from(byte) * weight;
            }
        }
        *target = sums.map(byte);
    }
    for (lane, target) in rest.iter_mut().enumerate() {
        let column = rows[begin + lane..].iter().step_by(stride);
        *target = byte(HALF + column.zip(weights).map(|(&byte, &weight)| i32::from(byte) * weight).sum::<i32>());
    }
}

impl VectorWork for Split<'_> {
    #[inline(always)]
    fn work(self) {
        let pixels = self.target.len() / 3;
        let (red, rest) = self.target.split_at_mut(pixels);
        let (green, blue) = rest.split_at_mut(pixels);
        let planes = red.iter_mut().zip(green).zip(blue);
        for (pixel, ((red, green), blue)) in self.source.as_chunks::<PIXEL>().0.iter().zip(planes) {
            [*red, *green, *blue, _] = *pixel;
        }
    }
}

/// Does the work with the widest vectors that this processor supports.
pub(crate) fn with_vectors(work: impl VectorWork) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2(work: impl VectorWork) {
            work.work();
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports it.
            return unsafe { with_avx2(work) };
        }
    }
    work.work();
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn without_vectors_rows_become_the_same(
            (source, target) in (1_u32..80, 1_u32..40),
            rows in 1_usize..10,
            is_mirrored: bool,
            noise in prop::collection::vec(any::<u8>(), 997),
        ) {
            if !std::arch::is_x86_feature_detected!("avx2") {
                return Ok(());
            }
            let mut across = Taps::default();
            across.fill(source, target, 0..target);
            across.spread();
            let stride = source as usize * PIXEL;
            let bytes: Vec<u8> = noise.iter().copied().cycle().take(stride * rows + BEYOND).collect();
            let [mut with, mut without] = [(); 2].map(|()| vec![0; target as usize * rows * PIXEL]);
            let narrow = |target| Narrow { source: PixelRows { bytes: &bytes, stride }, across: &across, is_mirrored, target };
            narrow(&mut with).run();
            narrow(&mut without).with(means);
            prop_assert_eq!(with, without);
        }
    }
}
