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

/// Bytes of which sums are kept in registers at once.
const LANES: usize = 32;

/// Rows that are narrowed at once.
const ROWS: usize = 4;

/// Pixels of a row, two by two.
type Pairs<'a> = &'a [[u8; 2 * PIXEL]];

/// What each pixel of a row or column is made of.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    pixels: Vec<Tap>,
    // Of each pixel an even number of them: the last may be nought.
    weights: Vec<i32>,
    pairs: Vec<[i32; 2 * PIXEL]>,
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
            self.weights.resize(self.weights.len().next_multiple_of(2), 0);
        }
    }

    /// Has `pairs` for what was filled in.
    pub(crate) fn pair_up(&mut self) {
        self.pairs.clear();
        let of_pair = |&[one, other]: &[i32; 2]| std::array::from_fn(|lane| if lane < PIXEL { one } else { other });
        self.pairs.extend(self.weights.as_chunks().0.iter().map(of_pair));
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

    /// The same, with the weights of two pixels side by side, one for each byte. To what follows the last there may be one of nought.
    fn pairs(&self, pixel: usize) -> (usize, &[[i32; 2 * PIXEL]]) {
        let Tap { first, begin, count } = self.pixels[pixel];
        (first, &self.pairs[begin / 2..][..count.div_ceil(2)])
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
    /// With one pixel more at the end, whatever it is: pixels are looked at in pairs.
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
                narrow.with(|rows, weights| means_avx2(rows, weights));
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has it.
                return unsafe { with_avx2(self) };
            }
        }
        self.with(means);
    }

    #[inline(always)]
    fn with(self, means: impl Fn([Pairs<'_>; ROWS], &[[i32; 2 * PIXEL]]) -> [[u8; PIXEL]; ROWS]) {
        let first_used = self.across.span().start as usize;
        let pixels = self.across.len();
        let target = self.target.as_chunks_mut::<PIXEL>().0;
        let rows = target.len() / pixels;
        for begin in (0..rows).step_by(ROWS) {
            // Below the last row is that row again.
            let rows: [usize; ROWS] = std::array::from_fn(|nth| (begin + nth).min(rows - 1));
            let sources = rows.map(|y| &self.source.bytes[y * self.source.stride..]);
            for pixel in 0..pixels {
                let (first, weights) = self.across.pairs(pixel);
                let pairs = sources.map(|row| row[(first - first_used) * PIXEL..].as_chunks().0);
                let place = if self.is_mirrored { pixels - 1 - pixel } else { pixel };
                for (y, mean) in rows.into_iter().zip(means(pairs, weights)) {
                    target[y * pixels + place] = mean;
                }
            }
        }
    }
}

/// The weighted means of pixels of several rows. How many pixels there are differs from place to place, so that the end of the loop is guessed
/// wrong again and again: that is paid for once for all of these rows.
fn means(rows: [Pairs<'_>; ROWS], weights: &[[i32; 2 * PIXEL]]) -> [[u8; PIXEL]; ROWS] {
    rows.map(|pairs| {
        let mut sums = [0; 2 * PIXEL];
        for (bytes, weights) in pairs.iter().zip(weights) {
            for ((sum, &byte), &weight) in sums.iter_mut().zip(bytes).zip(weights) {
                *sum += i32::from(byte) * weight;
            }
        }
        std::array::from_fn(|band| byte(HALF + sums[band] + sums[band + PIXEL]))
    })
}

/// The same. Left to itself, the compiler makes vectors across the pairs, of bytes that it gathers one by one.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn means_avx2([a, b, c, d]: [Pairs<'_>; ROWS], weights: &[[i32; 2 * PIXEL]]) -> [[u8; PIXEL]; ROWS] {
    use std::arch::x86_64::{
        _mm_add_epi32, _mm_cvtsi64_si128, _mm_packs_epi32, _mm_packus_epi16, _mm_set1_epi32, _mm_srai_epi32, _mm_storeu_si128,
        _mm256_add_epi32, _mm256_castsi256_si128, _mm256_cvtepu8_epi32, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_mullo_epi32,
        _mm256_setzero_si256,
    };
    let mut sums = [_mm256_setzero_si256(); ROWS];
    for ((((weights, a), b), c), d) in weights.iter().zip(a).zip(b).zip(c).zip(d) {
        // SAFETY: they are as many as a vector has, and may lie anywhere.
        let weights = unsafe { _mm256_loadu_si256(weights.as_ptr().cast()) };
        for (sum, bytes) in sums.iter_mut().zip([a, b, c, d]) {
            let bytes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*bytes)));
            *sum = _mm256_add_epi32(*sum, _mm256_mullo_epi32(bytes, weights));
        }
    }
    let [a, b, c, d] = sums.map(|sums| {
        let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        _mm_srai_epi32::<{ PLACES as i32 }>(_mm_add_epi32(sums, _mm_set1_epi32(HALF)))
    });
    // All three clamp.
    let levels = _mm_packus_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
    let mut means = [[0; PIXEL]; ROWS];
    // SAFETY: they are as many bytes as a vector has, and may lie anywhere.
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
            across.pair_up();
            let stride = source as usize * PIXEL;
            let bytes: Vec<u8> = noise.iter().copied().cycle().take(stride * rows + PIXEL).collect();
            let [mut with, mut without] = [(); 2].map(|()| vec![0; target as usize * rows * PIXEL]);
            let narrow = |target| Narrow { source: Rows { bytes: &bytes, stride }, across: &across, is_mirrored, target };
            narrow(&mut with).run();
            narrow(&mut without).with(means);
            prop_assert_eq!(with, without);
        }
    }
}
