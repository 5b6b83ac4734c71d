//! The library that LD_AUDIT loads beside a program: the loader asks it for the path of each shared library.
//!
//! It passes the questions on to the preload library, whose functions it finds in the program
//! ([`forebay_contract::libraries`]). Without one, each answer is the name that was asked for.
//!
//! The loader gives an audit library a namespace of its own, where even libc would be loaded once more. So this library
//! needs no other one, allocates nothing and has no state but two addresses.
#![no_std]
// Without libc there is no `memcpy` that a loop could be turned into.
#![no_builtins]
#![deny(clippy::indexing_slicing, clippy::expect_used, clippy::unwrap_used)]

use core::{
    ffi::{c_char, c_long, c_uint},
    ptr,
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Relaxed},
    },
};

use forebay_contract::libraries::{HooksCell, LibraryHooks, LinkMap};

mod symbols;

/// Version of the interface from glibc 2.35 on. Before it, a program with any audit library makes each of its calls
/// into other libraries by a slow path (glibc bug 15533).
const VERSION: c_uint = 2;
/// Namespace of the program.
const LM_ID_BASE: c_long = 0;
/// Event of the loader: it has added or removed all objects.
const LA_ACT_CONSISTENT: c_uint = 0;

/// Hooks of the preload library, once it was found.
static HOOKS: AtomicPtr<HooksCell> = AtomicPtr::new(ptr::null_mut());
/// The loader's record of the preload library.
static PRELOAD: AtomicPtr<LinkMap> = AtomicPtr::new(ptr::null_mut());

/// Returns the hooks, once the preload library has started.
fn hooks() -> Option<&'static LibraryHooks> {
    // SAFETY: null, or a static of the preload library, which is never unloaded.
    let cell = unsafe { HOOKS.load(Acquire).as_ref() }?;
    // SAFETY: as above.
    unsafe { cell.load(Acquire).as_ref() }
}

/// Accepts the loader's interface; 0 has the loader go on without this library.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: c_uint) -> c_uint {
    if version >= VERSION { VERSION } else { 0 }
}

/// Answers which path is to be opened for a shared library.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objsearch(name: *const c_char, _cookie: *mut usize, how: c_uint) -> *const c_char {
    match hooks() {
        // SAFETY: the loader's string.
        Some(hooks) => unsafe { (hooks.search)(name, how, PRELOAD.load(Relaxed)) },
        None => name,
    }
}

/// Takes note of a loaded object. The answer 0 leaves its symbols alone.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(map: *mut LinkMap, namespace: c_long, _cookie: *mut usize) -> c_uint {
    if let Some(hooks) = hooks() {
        // SAFETY: the loader's record.
        unsafe { (hooks.opened)(map) };
    } else if namespace == LM_ID_BASE && HOOKS.load(Relaxed).is_null() {
        // SAFETY: as above; its dynamic section and symbols are mapped.
        if let Some(cell) = unsafe { symbols::hooks_of(map) } {
            PRELOAD.store(map, Relaxed);
            HOOKS.store(cell.cast_mut(), Relaxed);
        }
    }
    0
}

/// Takes note of an object that is unloaded.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objclose(cookie: *mut usize) -> c_uint {
    if let Some(hooks) = hooks() {
        // SAFETY: the cookie holds the address of the object's record, which the loader puts there.
        unsafe { (hooks.closed)(ptr::with_exposed_provenance(*cookie)) };
    }
    0
}

/// Takes note of what the loader does.
#[unsafe(no_mangle)]
pub extern "C" fn la_activity(_cookie: *mut usize, what: c_uint) {
    if what == LA_ACT_CONSISTENT
        && let Some(hooks) = hooks()
    {
        // SAFETY: the loader holds its lock.
        unsafe { (hooks.finished)() };
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        /// Defined nowhere, on purpose.
        fn forebay_audit_has_a_panic_path() -> !;
    }
    // SAFETY: never linked, so never called.
    unsafe { forebay_audit_has_a_panic_path() }
}
