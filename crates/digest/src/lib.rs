//! XXH3-128 of memory as it is copied: one pass, in registers.
//!
//! A library takes bytes that lie in memory already, so what was copied is read once more: a copy with its digest takes 1.4 times as long as
//! the copy, out of the second cache. Here each vector is digested between its load and its store, and stored past the caches where there is
//! much: the two together take as long as `memcpy`. The algorithm is xxHash's (its specification, section XXH3, "large inputs"); whatever
//! has up to 240 bytes, twox-hash digests.

mod kernel;

use kernel::{BLOCK_BYTES, STRIPE_BYTES};
use twox_hash::XxHash3_128;

/// Bytes of a stretch of memory, any number of which may come one after the other; see [`Digest::copy`].
pub const STRETCH_BYTES: usize = BLOCK_BYTES;

/// As many of the last bytes, or all, are looked at once more by [`Digest::finish`].
pub const END_BYTES: usize = BLOCK_BYTES + STRIPE_BYTES;

/// What has fewer is digested another way, by the specification.
const LARGE_FROM: usize = 241;

/// The digest of so many bytes that come one stretch after the other. To go back before a stretch, keep a copy from before it.
#[derive(Clone, Copy, Debug)]
pub struct Digest {
    sums: kernel::Sums,
    length: usize,
    had: usize,
}

impl Digest {
    /// Of `length` bytes.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self {
            sums: kernel::SUMS,
            length,
            had: 0,
        }
    }

    /// Copies the next `length` bytes from `source` to `target`. What is digested is what is stored there, though another thread or process
    /// may write to the source meanwhile.
    ///
    /// # Panics
    ///
    /// There are more than were announced, or they are no multiple of [`STRETCH_BYTES`] and not the last.
    ///
    /// # Safety
    ///
    /// Both are valid for `length` bytes, and do not overlap.
    pub unsafe fn copy(&mut self, source: *const u8, target: *mut u8, length: usize) {
        let blocks = self.next(length);
        let copied = blocks * BLOCK_BYTES;
        // SAFETY: the caller's; what is left begins where the blocks end.
        unsafe {
            kernel::copy(&mut self.sums, source, target, blocks, self.length);
            source.add(copied).copy_to_nonoverlapping(target.add(copied), length - copied);
        }
    }

    /// Digests the next bytes, which are there already.
    ///
    /// # Panics
    ///
    /// As [`Digest::copy`].
    pub fn see(&mut self, bytes: &[u8]) {
        let blocks = self.next(bytes.len());
        kernel::see(&mut self.sums, &bytes[..blocks * BLOCK_BYTES]);
    }

    /// How many have come.
    #[must_use]
    pub fn had(&self) -> usize {
        self.had
    }

    /// How many are still to come.
    #[must_use]
    pub fn left(&self) -> usize {
        self.length - self.had
    }

    /// The digest, when all have come. `end` is the last of them, [`END_BYTES`] or more, or all.
    ///
    /// # Panics
    ///
    /// Some have not come, or the end is too short.
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

    /// Blocks that are mixed in whole: all but the last, however many bytes that has.
    fn blocks(&self) -> usize {
        self.length.saturating_sub(1) / BLOCK_BYTES
    }

    /// So many bytes come; how many blocks of them are mixed in whole.
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

/// The digest of bytes.
#[must_use]
pub fn of(bytes: &[u8]) -> u128 {
    let mut digest = Digest::new(bytes.len());
    digest.see(bytes);
    digest.finish(bytes)
}
