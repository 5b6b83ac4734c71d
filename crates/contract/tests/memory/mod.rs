//! Zeroed, page-aligned memory in the place of a mapped file. Like a sparse file, it takes room where it is written.

use std::{
    alloc::{Layout, alloc_zeroed, handle_alloc_error},
    ptr::NonNull,
};

use forebay_contract::Region;

/// Returns a region of zeroes that lives as long as the test: a mapping is never taken away, as in programs.
pub(crate) fn region(len: usize) -> Region<'static> {
    let layout = Layout::from_size_align(len, 4096).expect("a test's own size");
    // SAFETY: the size is not zero.
    let base = unsafe { alloc_zeroed(layout) };
    let Some(base) = NonNull::new(base) else {
        handle_alloc_error(layout)
    };
    // SAFETY: aligned, readable, writable, and leaked.
    unsafe { Region::new(base, len) }
}
