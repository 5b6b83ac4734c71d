//! The library that LD_PRELOAD loads into a program: it answers opens under a source with a copy, and changes nothing
//! else.
//!
//! This code lives in other people's processes: in forked and vforked children, in signal handlers, before
//! constructors, after destructors. So: no allocation, no lock, no thread, no thread-local storage, no destructor, no
//! panic path (the link fails if one is left, see [`panic`]), no state for each descriptor. It keeps a few mappings,
//! each published once; only a replaced index that nobody reads is unmapped. A directory stream of the program is the
//! one exception: a slot in a fixed table, and pages that are freed by `closedir`. After any failure of ours the
//! program's own call is made, and counted with its reason.
//!
//! Life of an open: `hooks` (C ABI) -> `open` (which kind? a path under a source?) -> `lookup` (a usable copy?) -> the
//! kernel's descriptor of the copy. On a miss: the program's own call, then `handoff` sends the agent a duplicate of
//! the descriptor.
//!
//! A question about a name (`stat`, `access`) takes the same way: `hooks` -> `status` -> `lookup` -> the source's
//! attributes in the index. So does a directory to be read: `hooks` -> `directories` -> `lookup` -> a stream
//! (`streams`) over the cached directory.
//!
//! Shared libraries are opened by the loader itself: it asks `libraries` for their paths, if the user wants that.
//!
//! `state` mappings and mode of the process | `real` next definitions of hooked functions | `sys` raw system calls |
//! `rights` read permission | `stdio` fopen and similar calls | `marks` tombstones, for `open` and `names` | `copies`
//! from a descriptor back to the source, for `stat` (on a redirected descriptor) and `attributes` (changes through one)
//! | `locks` moves a copy's descriptor to the source | `children` programs that end uncovered | `path` paths on the
//! stack.
#![no_std]
#![deny(clippy::indexing_slicing, clippy::expect_used, clippy::unwrap_used)]

mod attributes;
mod children;
mod copies;
mod directories;
mod foreign;
mod handoff;
mod hooks;
mod libraries;
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
