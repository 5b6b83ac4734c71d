//! A piece of shared memory with checked access.

use core::{marker::PhantomData, ptr::NonNull, slice};

/// Types that shared memory may hold: any bit pattern is a value, and they hold no pointer.
///
/// # Safety
/// Only for `repr(C)` types of integers and atomics without padding that matters.
pub unsafe trait Plain {}

// SAFETY: integers and atomics accept every bit pattern.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for core::sync::atomic::AtomicU64 {}
// SAFETY: as above.
unsafe impl Plain for core::sync::atomic::AtomicU32 {}

/// A mapped range of bytes that other processes may write to. All access is bounds-checked and returns `None` outside.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    base: NonNull<u8>,
    len: usize,
    life: PhantomData<&'a u8>,
}

// SAFETY: a region is an address range; what is read through it is atomic or published before it is reachable.
unsafe impl Send for Region<'_> {}
// SAFETY: as above.
unsafe impl Sync for Region<'_> {}

impl<'a> Region<'a> {
    /// Wraps a mapping.
    ///
    /// # Safety
    /// `base` must be page-aligned and readable for `len` bytes during `'a`; it must be mapped writable if anything in
    /// it is stored to.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self {
            base,
            len,
            life: PhantomData,
        }
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping of no bytes can't exist")]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    pub const fn base(self) -> NonNull<u8> {
        self.base
    }

    /// Returns the value at a byte offset, if it is inside and aligned.
    #[inline]
    pub fn at<T: Plain>(self, offset: u64) -> Option<&'a T> {
        let end = offset.checked_add(size_of::<T>() as u64)?;
        if end > self.len as u64 || !offset.is_multiple_of(align_of::<T>() as u64) {
            return None;
        }
        // SAFETY: inside the mapping, aligned, and any bytes are a `T`.
        Some(unsafe { self.base.add(offset as usize).cast::<T>().as_ref() })
    }

    /// Returns element `index` of the array of `T` that starts at a byte offset.
    #[inline]
    pub fn element<T: Plain>(self, offset: u64, index: u64) -> Option<&'a T> {
        self.at(offset.checked_add(index.checked_mul(size_of::<T>() as u64)?)?)
    }

    /// Returns a range of bytes that nobody writes to any more.
    #[inline]
    pub fn bytes(self, offset: u64, len: u64) -> Option<&'a [u8]> {
        if offset.checked_add(len)? > self.len as u64 {
            return None;
        }
        // SAFETY: inside the mapping; callers only follow offsets that were published after their bytes were written.
        Some(unsafe { slice::from_raw_parts(self.base.add(offset as usize).as_ptr(), len as usize) })
    }

    /// Returns the address at which the one writer of a region may write a `T`.
    pub(crate) fn slot<T: Plain>(self, offset: u64) -> Option<*mut T> {
        self.at::<T>(offset)?;
        Some(self.base.as_ptr().wrapping_add(offset as usize).cast())
    }
}
