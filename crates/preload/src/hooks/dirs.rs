//! Hooks of directory streams, which go to `streams` or to libc, and of calls that make a name without opening it.

use core::{
    ffi::{c_int, c_long},
    ptr::null_mut,
};

use libc::{DIR, dev_t, dirent, mode_t};

use super::CText;
use crate::{
    directories,
    marks::NameChange,
    names::{ProgramName, change_one, mark_made},
    real::{self, Template},
    streams,
};

#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(path: CText) -> *mut DIR {
    directories::open(path, || next!(OPENDIR(path) or real::missing(null_mut())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readdir(dir: *mut DIR) -> *mut dirent {
    let pass = |dir| next!(READDIR(dir) or real::missing(null_mut()));
    match streams::find(dir) {
        None => pass(dir),
        Some(ours) => ours.read(pass),
    }
}

/// On all supported machines its entries are those of `readdir`.
#[unsafe(no_mangle)]
unsafe extern "C" fn readdir64(dir: *mut DIR) -> *mut dirent {
    let pass = |dir| next!(READDIR64(dir) or real::missing(null_mut()));
    match streams::find(dir) {
        None => pass(dir),
        Some(ours) => ours.read(pass),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readdir_r(dir: *mut DIR, room: *mut dirent, result: *mut *mut dirent) -> c_int {
    let pass = |dir| next!(READDIR_R(dir, room, result) or libc::ENOSYS);
    match streams::find(dir) {
        None => pass(dir),
        // SAFETY: the program's own places.
        Some(ours) => unsafe { ours.read_into(room, result, pass) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readdir64_r(dir: *mut DIR, room: *mut dirent, result: *mut *mut dirent) -> c_int {
    let pass = |dir| next!(READDIR64_R(dir, room, result) or libc::ENOSYS);
    match streams::find(dir) {
        None => pass(dir),
        // SAFETY: the program's own places.
        Some(ours) => unsafe { ours.read_into(room, result, pass) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rewinddir(dir: *mut DIR) {
    let pass = |dir| next!(REWINDDIR(dir) or ());
    match streams::find(dir) {
        None => pass(dir),
        Some(ours) => ours.rewind(pass),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn telldir(dir: *mut DIR) -> c_long {
    let pass = |dir| next!(TELLDIR(dir) or real::missing(-1));
    match streams::find(dir) {
        None => pass(dir),
        Some(ours) => ours.tell(pass),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn seekdir(dir: *mut DIR, offset: c_long) {
    let pass = |dir| next!(SEEKDIR(dir, offset) or ());
    match streams::find(dir) {
        None => pass(dir),
        Some(ours) => ours.seek(offset, pass),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dirfd(dir: *mut DIR) -> c_int {
    match streams::find(dir) {
        None => next!(DIRFD(dir) or real::missing(-1)),
        Some(ours) => ours.descriptor(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(dir: *mut DIR) -> c_int {
    match streams::find(dir) {
        None => next!(CLOSEDIR(dir) or real::missing(-1)),
        Some(ours) => ours.close(),
    }
}

/// Makes a new name.
fn make(name: ProgramName, real: impl FnOnce() -> c_int) -> c_int {
    change_one(name, NameChange::Make, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: CText, mode: mode_t) -> c_int {
    make(ProgramName::here(path), || next!(MKDIR(path, mode) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdirat(dirfd: c_int, path: CText, mode: mode_t) -> c_int {
    make(ProgramName(dirfd, path), || next!(MKDIRAT(dirfd, path, mode) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mknod(path: CText, mode: mode_t, dev: dev_t) -> c_int {
    make(ProgramName::here(path), || next!(MKNOD(path, mode, dev) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mknodat(dirfd: c_int, path: CText, mode: mode_t, dev: dev_t) -> c_int {
    make(
        ProgramName(dirfd, path),
        || next!(MKNODAT(dirfd, path, mode, dev) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkfifo(path: CText, mode: mode_t) -> c_int {
    make(ProgramName::here(path), || next!(MKFIFO(path, mode) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkfifoat(dirfd: c_int, path: CText, mode: mode_t) -> c_int {
    make(ProgramName(dirfd, path), || next!(MKFIFOAT(dirfd, path, mode) or real::missing(-1)))
}

/// Handles a file that libc has made, under a name that it put into the program's template, without a hooked call.
fn made(template: Template, fd: c_int) -> c_int {
    if fd >= 0 {
        mark_made(ProgramName::here(template));
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdtemp(template: Template) -> Template {
    let path = next!(MKDTEMP(template) or real::missing(null_mut()));
    if !path.is_null() {
        mark_made(ProgramName::here(path));
    }
    path
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemp(template: Template) -> c_int {
    made(template, next!(MKSTEMP(template) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemp64(template: Template) -> c_int {
    made(template, next!(MKSTEMP64(template) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemp(template: Template, flags: c_int) -> c_int {
    made(template, next!(MKOSTEMP(template, flags) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemp64(template: Template, flags: c_int) -> c_int {
    made(template, next!(MKOSTEMP64(template, flags) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemps(template: Template, suffix: c_int) -> c_int {
    made(template, next!(MKSTEMPS(template, suffix) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemps64(template: Template, suffix: c_int) -> c_int {
    made(template, next!(MKSTEMPS64(template, suffix) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemps(template: Template, suffix: c_int, flags: c_int) -> c_int {
    made(template, next!(MKOSTEMPS(template, suffix, flags) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemps64(template: Template, suffix: c_int, flags: c_int) -> c_int {
    made(template, next!(MKOSTEMPS64(template, suffix, flags) or real::missing(-1)))
}
