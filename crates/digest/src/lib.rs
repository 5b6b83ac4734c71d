//! XXH3-128 of memory while it is copied: one pass, in registers.
//!
//! A library digests bytes in memory, so copied bytes are read once more: a copy with its digest takes 1.4 times as
//! long as the copy, out of the second cache. Here each vector is digested between its load and its store, and large
//! copies bypass the caches: both together take as long as `memcpy`. The algorithm is xxHash's (its specification,
//! section XXH3, "large inputs"); twox-hash digests inputs of up to 240 bytes.

mod kernel;

use kernel::{BLOCK_BYTES, STRIPE_BYTES};
use twox_hash::XxHash3_128;

/// Length in bytes of a stretch of memory; each part given to [`Digest::copy`] except the last is a multiple of it.
pub const STRETCH_BYTES: usize = BLOCK_BYTES;

/// Number of bytes at the end that [`Digest::finish`] reads once more, or all of them if there are fewer.
pub const END_BYTES: usize = BLOCK_BYTES + STRIPE_BYTES;

/// Length in bytes from which the large-input algorithm of the specification applies.
const LARGE_FROM: usize = 241;

/// Digest of bytes that come one stretch after the other. To go back before a stretch, keep a copy from before it.
#[derive(Clone, Copy, Debug)]
pub struct Digest {
    sums: kernel::Sums,
    length: usize,
    had: usize,
}

impl Digest {
    /// Creates the digest of `length` bytes.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self {
            sums: kernel::SUMS,
            length,
            had: 0,
        }
    }

    /// Copies the next `length` bytes from `source` to `target`. It digests exactly the stored bytes, even if another
    /// thread or process writes to the source meanwhile.
    ///
    /// # Panics
    ///
    /// There are more bytes than announced, or they are not the last and not a multiple of [`STRETCH_BYTES`].
    ///
    /// # Safety
    ///
    /// Both pointers are valid for `length` bytes, and do not overlap.
    pub unsafe fn copy(&mut self, source: *const u8, target: *mut u8, length: usize) {
        let blocks = self.next(length);
        let copied = blocks * BLOCK_BYTES;
        // SAFETY: the caller's; the rest begins where the blocks end.
        unsafe {
            kernel::copy(&mut self.sums, source, target, blocks, self.length);
            source.add(copied).copy_to_nonoverlapping(target.add(copied), length - copied);
        }
    }

    /// Digests the next bytes without copying them.
    ///
    /// # Panics
    ///
    /// The same as [`Digest::copy`].
    pub fn see(&mut self, bytes: &[u8]) {
        let blocks = self.next(bytes.len());
        kernel::see(&mut self.sums, &bytes[..blocks * BLOCK_BYTES]);
    }

    /// Returns the number of bytes digested.
    #[must_use]
    pub fn had(&self) -> usize {
        self.had
    }

    /// Returns the number of bytes still to come.
    #[must_use]
    pub fn left(&self) -> usize {
        self.length - self.had
    }

    /// Returns the digest once all bytes have come. `end` is the last of them, [`END_BYTES`] or more, or all.
    ///
    /// # Panics
    ///
    /// Some bytes have not come, or the end is too short.
    #[must_use]
    pub fn finish(mut self, end: &[u8]) -> u128 {
        assert!(self.left() == 0, "all bytes have come");
        assert!(end.len() >= END_BYTES.min(self.length), "the end is long enough");
        if self.length < LARGE_FROM {
            return XxHash3_128::oneshot(&end[end.len() - self.length..]);
        }
        let last_block = self.length - self.blocks() * BLOCK_BYTES;
        kernel::end(&mut self.sums, &end[end.len() - last_block..], &end[end.len() - STRIPE_BYTES..]);
        kernel::merged(&self.sums, self.length)
    }

    /// Returns the number of blocks that are mixed in whole: all but the last, which may be shorter.
    fn blocks(&self) -> usize {
        self.length.saturating_sub(1) / BLOCK_BYTES
    }

    /// Counts the next `length` bytes. Returns the number of their blocks that are mixed in whole.
    fn next(&mut self, length: usize) -> usize {
        let first = self.had / BLOCK_BYTES;
        assert!(length <= self.length - self.had, "as many bytes as were announced");
        assert!(
            length.is_multiple_of(BLOCK_BYTES) || length == self.length - self.had,
            "stretches but the last are whole"
        );
        self.had += length;
        (self.had / BLOCK_BYTES).min(self.blocks()).saturating_sub(first)
    }
}

/// Returns the digest of bytes.
#[must_use]
pub fn of(bytes: &[u8]) -> u128 {
    let mut digest = Digest::new(bytes.len());
    digest.see(bytes);
    digest.finish(bytes)
}
