//! What LD_PRELOAD brings into a program: opens under a source are answered with a copy, and nothing else changes.
//!
//! This code lives in strangers' processes: in forked and vforked children, in signal handlers, before constructors, after
//! destructors. So: no allocation, no lock, no thread, no thread-local storage, no destructor, no panic path (the link fails if one is
//! left, see [`panic`]), no state for each descriptor. What it keeps are a few mappings, published once; only an index that was replaced, and in
//! which nobody reads, is taken away. A directory stream that the program opens is the one thing of its own that we hold for it: a place in a
//! fixed table, and pages that go with `closedir`.
//! Any failure of ours becomes the call that the program asked for, and is counted with its reason.
//!
//! Life of an open: `hooks` (C ABI) -> `open` (which kind is it? a path under a source?) -> `lookup` (a copy that may stand in?) ->
//! the kernel's descriptor of the copy. Or, on a miss: the program's own call, then `handover` sends the agent a duplicate of the descriptor.
//!
//! A question about a name (`stat`, `access`) goes the same way: `hooks` -> `status` -> `lookup` -> what the index knows of the source. So does
//! a directory that is to be listed: `hooks` -> `listings` -> `lookup` -> a stream (`streams`) over the listing that the agent has made.
//!
//! `state` what is mapped, and whether we are on | `real` the next definitions of what is hooked | `sys` raw system calls |
//! `rights` whether the process may still read | `stdio` fopen and kin | `marks` tombstones, for `open` and `names` | `copies` from a
//! descriptor back to the source, for `stat` (what a redirected descriptor says of itself) and `attributes` (changes through one) | `locks` a copy's
//! descriptor becomes the source's |
//! `children` programs that end uncovered | `path` paths on the stack.
#![no_std]
#![deny(clippy::indexing_slicing, clippy::expect_used, clippy::unwrap_used)]

mod attributes;
mod children;
mod copies;
mod foreign;
mod handover;
mod hooks;
mod listings;
mod locks;
mod lookup;
mod marks;
mod names;
mod open;
mod path;
mod real;
mod rights;
mod stat;
mod state;
mod status;
mod stdio;
mod streams;
mod sys;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        /// Defined nowhere, on purpose.
        fn forebay_preload_has_a_panic_path() -> !;
    }
    // SAFETY: never linked, so never called.
    unsafe { forebay_preload_has_a_panic_path() }
}
