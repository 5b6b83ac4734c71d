//! Pillow's bilinear filter with its fixed-point arithmetic, bit for bit (`src/libImaging/Resample.c`).
//!
//! Each pixel is a weighted mean of those that it covers, in each direction by itself, rounded to a byte in between; which direction comes
//! first, the cut says. The loops have no branch and fixed widths, so that the compiler makes vector instructions of them.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined is compiled for the vectors of the function around it"
)]

use crate::decode::PIXEL;
use std::ops::Range;

/// Binary places of a weight: 8 are the byte's, 2 are spare.
const PLACES: u32 = 32 - 8 - 2;
const HALF: i32 = 1 << (PLACES - 1);

/// Binary places of a weight's lower half: both halves are numbers of 16 bits, whose products and sums processors make many of at once.
const LOW_PLACES: u32 = PLACES / 2;

/// Bytes of which sums are kept in registers at once.
const LANES: usize = 32;

/// Rows that are narrowed at once.
const ROWS: usize = 4;

/// Pixels that are weighted at once.
const QUAD: usize = 4;

/// So many bytes behind the last pixel are looked at, whatever they are.
pub(crate) const BEYOND: usize = (QUAD - 1) * PIXEL;

/// Rows that are narrowed together.
#[derive(Clone, Copy, Debug)]
struct Block<'a> {
    bytes: &'a [u8],
    /// Where each begins. Of each there are `length` bytes.
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

    /// So many quads of each row, from a byte on.
    fn quads(&self, from: usize, count: usize) -> [&'a [[u8; QUAD * PIXEL]]; ROWS] {
        self.begins
            .map(|begin| self.bytes[begin + from..][..count * QUAD * PIXEL].as_chunks().0)
    }
}

/// Weights of four pixels, for each of their bytes in the order that [`Quad::lane`] says; what they stand for is `high << LOW_PLACES | low`.
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

    /// Which byte of four pixels is in a lane: the same band of two pixels that follow each other stands side by side, for their sum.
    const fn lane(lane: usize) -> usize {
        let (pair, band, of_pair) = (lane / (2 * PIXEL), lane / 2 % PIXEL, lane % 2);
        (2 * pair + of_pair) * PIXEL + band
    }
}

/// What each pixel of a row or column is made of.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    pixels: Vec<Tap>,
    // Of each pixel a multiple of four: the last ones may be nought.
    weights: Vec<i32>,
    quads: Vec<Quad>,
    reaches: Vec<Reach>,
}

#[derive(Clone, Copy, Debug)]
struct Tap {
    /// The first of the source's pixels.
    first: usize,
    /// Where its weight is, and those of the ones that follow.
    begin: usize,
    /// How many there are.
    count: usize,
}

/// What a pixel of a row is made of, in the terms of who makes many.
#[derive(Clone, Debug)]
struct Reach {
    /// The first byte, from the first one that is used on.
    from: usize,
    /// Where its weights are. To what follows the last one there may be some of nought.
    quads: Range<usize>,
}

impl Taps {
    /// Of the pixels in `window`, when `source` pixels become `target` ones.
    pub(crate) fn fill(&mut self, source: u32, target: u32, window: Range<u32>) {
        let scale = f64::from(source) / f64::from(target);
        // The filter is a triangle that reaches one pixel to each side, of whichever are larger.
        let reach = scale.max(1.0);
        let inverse = 1.0 / reach;
        self.pixels.clear();
        self.weights.clear();
        let mut shares = Vec::new();
        for pixel in window {
            let center = (f64::from(pixel) + 0.5) * scale;
            // Conversion cuts off, and at nought.
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

    /// Has `quads` and `reaches` for what was filled in.
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

    /// The source's pixels that any of them is made of.
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

    /// The first of the source's pixels that this one is made of, and the weights of it and of those that follow.
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

/// Rows of pixels, from the first one that is used on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    /// With `BEYOND` more at the end: pixels are looked at four by four.
    pub(crate) bytes: &'a [u8],
    /// Bytes from the beginning of a row to that of the next. There may be more than are used.
    pub(crate) stride: usize,
}

/// The pass along rows.
#[derive(Debug)]
pub(crate) struct Narrow<'a> {
    pub(crate) source: Rows<'a>,
    pub(crate) across: &'a Taps,
    pub(crate) is_mirrored: bool,
    /// As many rows, without gaps, of as many pixels as `across` is for.
    pub(crate) target: &'a mut [u8],
}

/// The pass along columns.
#[derive(Debug)]
pub(crate) struct Lower<'a> {
    pub(crate) source: Rows<'a>,
    /// Pixels of a row that are wanted.
    pub(crate) width: usize,
    pub(crate) down: &'a Taps,
    /// As many rows, without gaps, as `down` is for.
    pub(crate) target: &'a mut [u8],
}

/// Pixels become planes of red, green and blue.
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
                // SAFETY: the processor has it.
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
            // Below the last row is that row again.
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

/// The weighted means of pixels of several rows. How many pixels there are differs from place to place, so that the end of the loop is guessed
/// wrong again and again: that is paid for once for all of these rows.
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

/// The same.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn means_avx2(block: Block<'_>, from: usize, weights: &[Quad]) -> [[u8; PIXEL]; ROWS] {
    use std::arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm_packus_epi16, _mm_storeu_si128, _mm256_add_epi32, _mm256_broadcastsi128_si256,
        _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_packs_epi32,
        _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srai_epi32,
    };
    // Which byte becomes which number of 16 bits; what is negative becomes nought.
    const BYTES: [i8; 2 * QUAD * PIXEL] = {
        let mut bytes = [-1; 2 * QUAD * PIXEL];
        let mut lane = 0;
        while lane < QUAD * PIXEL {
            bytes[2 * lane] = Quad::lane(lane) as i8;
            lane += 1;
        }
        bytes
    };
    // SAFETY: these are as many bytes as a vector has, and may lie anywhere.
    let order = unsafe { _mm256_loadu_si256(BYTES.as_ptr().cast()) };
    // Once for all four rows, which are equally long.
    assert!(from + weights.len() * QUAD * PIXEL <= block.length, "quads beyond the rows");
    let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
    for (nth, Quad { high, low }) in weights.iter().enumerate() {
        // SAFETY: as above.
        let weights = [high, low].map(|half| unsafe { _mm256_loadu_si256(half.as_ptr().cast()) });
        for (sums, begin) in sums.iter_mut().zip(block.begins) {
            // SAFETY: `Block::new` has seen that the row lies within the bytes, and the assertion that these lie within the row.
            let bytes = unsafe { _mm_loadu_si128(block.bytes.as_ptr().add(begin + from + nth * QUAD * PIXEL).cast()) };
            let numbers = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), order);
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(numbers, weights));
            }
        }
    }
    let [a, b, c, d] = sums.map(|[high, low]| _mm256_add_epi32(_mm256_slli_epi32::<{ LOW_PLACES as i32 }>(high), low));
    // Of two rows: each has sums of its first pixels in the lower half and of the others in the upper one. The one's levels come to lie in the
    // lower half, the other's in the upper one.
    let levels = |one: __m256i, other: __m256i| {
        let pairs = [
            _mm256_permute2x128_si256::<0x20>(one, other),
            _mm256_permute2x128_si256::<0x31>(one, other),
        ];
        let sums = _mm256_add_epi32(_mm256_add_epi32(pairs[0], pairs[1]), _mm256_set1_epi32(HALF));
        _mm256_srai_epi32::<{ PLACES as i32 }>(sums)
    };
    // Both clamp. Halves are packed by themselves, so that the rows come in their order.
    let levels = _mm256_packs_epi32(levels(a, c), levels(b, d));
    let levels = _mm_packus_epi16(_mm256_castsi256_si128(levels), _mm256_extracti128_si256::<1>(levels));
    let mut means = [[0; PIXEL]; ROWS];
    // SAFETY: as above.
    unsafe { _mm_storeu_si128(means.as_mut_ptr().cast(), levels) };
    means
}

/// What is compiled once for each kind of vectors.
pub(crate) trait Work {
    fn work(self);
}

impl Work for Lower<'_> {
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

/// A row of rows, the first of which is for the first weight.
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

impl Work for Split<'_> {
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

/// Does it with the widest vectors that this processor is known to have.
pub(crate) fn with_vectors(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2(work: impl Work) {
            work.work();
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it.
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
            let narrow = |target| Narrow { source: Rows { bytes: &bytes, stride }, across: &across, is_mirrored, target };
            narrow(&mut with).run();
            narrow(&mut without).with(means);
            prop_assert_eq!(with, without);
        }
    }
}
