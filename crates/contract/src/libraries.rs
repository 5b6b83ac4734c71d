//! Functions of the preload library that the audit library calls, both in one process.
//!
//! The loader keeps an audit library and what it needs apart from the program. So the audit library has no state and no
//! libc: it passes each question on to the preload library, which serves files already.

use core::{
    ffi::{CStr, c_char, c_long, c_uint},
    sync::atomic::AtomicPtr,
};

/// Symbol of the preload library that holds a [`HooksCell`].
pub const HOOKS_SYMBOL: &CStr = c"forebay_library_hooks";

/// Directory below the agent's that mirrors directories of sources, for names of libraries.
pub const MIRROR: &str = "libraries";

/// Address of the hooks; null until the preload library has started.
pub type HooksCell = AtomicPtr<LibraryHooks>;

/// Public head of the loader's record of a loaded object, as `<link.h>` has it.
#[repr(C)]
#[derive(Debug)]
pub struct LinkMap {
    /// Difference between the addresses in the file and those in memory.
    pub base: usize,
    /// Path by which the object was loaded; empty for the program itself.
    pub name: *mut c_char,
    /// Its dynamic section.
    pub dynamic: *const DynamicEntry,
    /// Next object of the namespace.
    pub next: *mut Self,
    /// Previous object of the namespace.
    pub previous: *mut Self,
}

/// Entry of a dynamic section.
#[repr(C)]
#[derive(Debug)]
pub struct DynamicEntry {
    /// Kind of the entry; 0 ends the section.
    pub tag: c_long,
    /// Number or address, by the tag.
    pub value: usize,
}

/// Functions of the preload library. The loader holds its lock when it calls an audit library, except at a program's
/// end.
#[repr(C)]
#[derive(Debug)]
pub struct LibraryHooks {
    /// Returns the path that the loader is to open for `name`. `how` tells where the name comes from (`LA_SER_ORIG` and
    /// its kin in `<link.h>`), `any` is an object of the program's namespace.
    pub search: unsafe extern "C" fn(name: *const c_char, how: c_uint, any: *const LinkMap) -> *const c_char,
    /// Takes note of a loaded object.
    pub opened: unsafe extern "C" fn(map: *mut LinkMap),
    /// Takes note of an object that will be unloaded.
    pub closed: unsafe extern "C" fn(map: *const LinkMap),
    /// Takes note that the loader has finished.
    pub finished: unsafe extern "C" fn(),
}
