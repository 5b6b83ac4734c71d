//! The C ABI that the program sees. Each hook decodes its arguments, and calls a function that knows no C.
//!
//! Variadic hooks always take their optional argument: the calling conventions of x86-64 and aarch64 Linux put it where
//! a fixed argument would be, and it is passed on unread.

use core::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

use libc::{AT_FDCWD, FILE, O_CREAT, O_TRUNC, O_WRONLY, gid_t, mode_t, off_t, timespec, timeval, uid_t, utimbuf};

use crate::{
    attributes::{AttributeAccess, forward},
    marks::NameChange,
    names::{ProgramName, change_file, change_one, change_two, make_link, make_name},
    open::open as open_by,
    real::{self, CText},
    stat, state, stdio,
    sys::word,
};

/// Flags with which `creat` opens.
const CREAT: c_int = O_CREAT | O_WRONLY | O_TRUNC;

/// Calls the next definition; returns `or` if there is none.
macro_rules! next {
    ($function:ident($($argument:expr),*) or $missing:expr) => {
        match real::$function.get() {
            // SAFETY: the program's own arguments, for the call that it has made.
            Some(function) => unsafe { function($($argument),*) },
            None => $missing,
        }
    };
}

/// Calls the next definition if it is known. It looks nothing up and does `or` instead, for calls from other libraries'
/// constructors before ours has run.
macro_rules! next_known {
    ($function:ident($($argument:expr),*) or $raw:expr) => {
        match real::$function.known() {
            // SAFETY: the program's own arguments, for the call that it has made.
            Some(function) => unsafe { function($($argument),*) },
            None => $raw,
        }
    };
}

/// Calls the next definition of the open family.
macro_rules! next_open {
    ($function:ident($($argument:expr),*) or ($dirfd:expr, $path:expr, $flags:expr, $mode:expr)) => {
        next_known!($function($($argument),*) or real::raw_open($dirfd, $path, $flags, $mode))
    };
}

// Below the macros, which they use.
mod children;
mod dirs;
mod locks;
mod stats;

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: CText, flags: c_int, mode: mode_t) -> c_int {
    open_by(
        AT_FDCWD,
        path,
        flags,
        || next_open!(OPEN(path, flags, mode) or (AT_FDCWD, path, flags, mode)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: CText, flags: c_int, mode: mode_t) -> c_int {
    open_by(
        AT_FDCWD,
        path,
        flags,
        || next_open!(OPEN64(path, flags, mode) or (AT_FDCWD, path, flags, mode)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(dirfd: c_int, path: CText, flags: c_int, mode: mode_t) -> c_int {
    open_by(
        dirfd,
        path,
        flags,
        || next_open!(OPENAT(dirfd, path, flags, mode) or (dirfd, path, flags, mode)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(dirfd: c_int, path: CText, flags: c_int, mode: mode_t) -> c_int {
    open_by(
        dirfd,
        path,
        flags,
        || next_open!(OPENAT64(dirfd, path, flags, mode) or (dirfd, path, flags, mode)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open_2(path: CText, flags: c_int) -> c_int {
    open_by(
        AT_FDCWD,
        path,
        flags,
        || next_open!(OPEN_2(path, flags) or (AT_FDCWD, path, flags, 0)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open64_2(path: CText, flags: c_int) -> c_int {
    open_by(
        AT_FDCWD,
        path,
        flags,
        || next_open!(OPEN64_2(path, flags) or (AT_FDCWD, path, flags, 0)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat_2(dirfd: c_int, path: CText, flags: c_int) -> c_int {
    open_by(
        dirfd,
        path,
        flags,
        || next_open!(OPENAT_2(dirfd, path, flags) or (dirfd, path, flags, 0)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat64_2(dirfd: c_int, path: CText, flags: c_int) -> c_int {
    open_by(
        dirfd,
        path,
        flags,
        || next_open!(OPENAT64_2(dirfd, path, flags) or (dirfd, path, flags, 0)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn creat(path: CText, mode: mode_t) -> c_int {
    open_by(
        AT_FDCWD,
        path,
        CREAT,
        || next_open!(CREAT(path, mode) or (AT_FDCWD, path, CREAT, mode)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn creat64(path: CText, mode: mode_t) -> c_int {
    open_by(
        AT_FDCWD,
        path,
        CREAT,
        || next_open!(CREAT64(path, mode) or (AT_FDCWD, path, CREAT, mode)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: CText, mode: CText) -> *mut FILE {
    stdio::fopen(path, mode, |path| next!(FOPEN(path, mode) or real::missing(null_mut())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: CText, mode: CText) -> *mut FILE {
    stdio::fopen(path, mode, |path| next!(FOPEN64(path, mode) or real::missing(null_mut())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen(path: CText, mode: CText, stream: *mut FILE) -> *mut FILE {
    stdio::freopen(
        path,
        mode,
        stream,
        |path| next!(FREOPEN(path, mode, stream) or real::missing(null_mut())),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen64(path: CText, mode: CText, stream: *mut FILE) -> *mut FILE {
    stdio::freopen(
        path,
        mode,
        stream,
        |path| next!(FREOPEN64(path, mode, stream) or real::missing(null_mut())),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: CText, to: CText) -> c_int {
    change_two(
        ProgramName::here(from),
        ProgramName::here(to),
        || next!(RENAME(from, to) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(from_fd: c_int, from: CText, to_fd: c_int, to: CText) -> c_int {
    change_two(
        ProgramName(from_fd, from),
        ProgramName(to_fd, to),
        || next!(RENAMEAT(from_fd, from, to_fd, to) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat2(from_fd: c_int, from: CText, to_fd: c_int, to: CText, flags: c_uint) -> c_int {
    change_two(
        ProgramName(from_fd, from),
        ProgramName(to_fd, to),
        || next!(RENAMEAT2(from_fd, from, to_fd, to, flags) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: CText) -> c_int {
    change_one(
        ProgramName::here(path),
        NameChange::Remove,
        || next!(UNLINK(path) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(dirfd: c_int, path: CText, flags: c_int) -> c_int {
    change_one(
        ProgramName(dirfd, path),
        NameChange::Remove,
        || next!(UNLINKAT(dirfd, path, flags) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn remove(path: CText) -> c_int {
    change_one(
        ProgramName::here(path),
        NameChange::Remove,
        || next!(REMOVE(path) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: CText) -> c_int {
    change_one(
        ProgramName::here(path),
        NameChange::Remove,
        || next!(RMDIR(path) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate(path: CText, len: off_t) -> c_int {
    change_file(ProgramName::here(path), |path| next!(TRUNCATE(path, len) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate64(path: CText, len: off_t) -> c_int {
    change_file(ProgramName::here(path), |path| next!(TRUNCATE64(path, len) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: CText, to: CText) -> c_int {
    change_two(
        ProgramName::here(from),
        ProgramName::here(to),
        || next!(LINK(from, to) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(from_fd: c_int, from: CText, to_fd: c_int, to: CText, flags: c_int) -> c_int {
    let real = |ProgramName(from_fd, from)| next!(LINKAT(from_fd, from, to_fd, to, flags) or real::missing(-1));
    make_name(ProgramName(from_fd, from), flags, ProgramName(to_fd, to), real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlink(target: CText, path: CText) -> c_int {
    make_link(ProgramName::here(path), || next!(SYMLINK(target, path) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlinkat(target: CText, dirfd: c_int, path: CText) -> c_int {
    make_link(
        ProgramName(dirfd, path),
        || next!(SYMLINKAT(target, dirfd, path) or real::missing(-1)),
    )
}

/// Changes an attribute through a descriptor: `number(fd, rest...)` on the source, or the program's own call.
fn change(fd: c_int, number: libc::c_long, rest: [usize; 4], real: impl FnOnce() -> c_int) -> c_int {
    forward(fd, AttributeAccess::Changes, number, rest, || real() as isize) as c_int
}

/// Changes times given as for `futimes`, in the form of `utimensat`; the kernel refuses values out of range.
fn change_times(fd: c_int, times: *const libc::timeval, real: impl FnOnce() -> c_int) -> c_int {
    if times.is_null() {
        return change(fd, libc::SYS_utimensat, [0; 4], real);
    }
    // SAFETY: the program's own two times.
    let precise = unsafe { [*times, *times.add(1)] }.map(|time| libc::timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec.wrapping_mul(1000),
    });
    change(fd, libc::SYS_utimensat, [0, precise.as_ptr() as usize, 0, 0], real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchmod(fd: c_int, mode: mode_t) -> c_int {
    change(
        fd,
        libc::SYS_fchmod,
        [mode as usize, 0, 0, 0],
        || next!(FCHMOD(fd, mode) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchmodat(dirfd: c_int, path: CText, mode: mode_t, flags: c_int) -> c_int {
    let real = |path| next!(FCHMODAT(dirfd, path, mode, flags) or real::missing(-1));
    if stat::is_descriptor(path, flags) {
        return change(dirfd, libc::SYS_fchmod, [mode as usize, 0, 0, 0], || real(path));
    }
    change_file(ProgramName(dirfd, path), real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchown(fd: c_int, owner: uid_t, group: gid_t) -> c_int {
    change(
        fd,
        libc::SYS_fchown,
        [owner as usize, group as usize, 0, 0],
        || next!(FCHOWN(fd, owner, group) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchownat(dirfd: c_int, path: CText, owner: uid_t, group: gid_t, flags: c_int) -> c_int {
    let real = |path| next!(FCHOWNAT(dirfd, path, owner, group, flags) or real::missing(-1));
    if stat::is_descriptor(path, flags) {
        return change(dirfd, libc::SYS_fchown, [owner as usize, group as usize, 0, 0], || real(path));
    }
    change_file(ProgramName(dirfd, path), real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    change(
        fd,
        libc::SYS_utimensat,
        [0, times as usize, 0, 0],
        || next!(FUTIMENS(fd, times) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimensat(dirfd: c_int, path: CText, times: *const timespec, flags: c_int) -> c_int {
    let real = |path| next!(UTIMENSAT(dirfd, path, times, flags) or real::missing(-1));
    if stat::is_descriptor(path, flags) {
        return change(dirfd, libc::SYS_utimensat, [0, times as usize, 0, 0], || real(path));
    }
    change_file(ProgramName(dirfd, path), real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimes(fd: c_int, times: *const timeval) -> c_int {
    change_times(fd, times, || next!(FUTIMES(fd, times) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimesat(dirfd: c_int, path: CText, times: *const timeval) -> c_int {
    let real = |path| next!(FUTIMESAT(dirfd, path, times) or real::missing(-1));
    if path.is_null() {
        return change_times(dirfd, times, || real(path));
    }
    change_file(ProgramName(dirfd, path), real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsetxattr(fd: c_int, name: CText, value: *const c_void, size: usize, flags: c_int) -> c_int {
    let rest = [name as usize, value as usize, size, word(flags)];
    change(
        fd,
        libc::SYS_fsetxattr,
        rest,
        || next!(FSETXATTR(fd, name, value, size, flags) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fremovexattr(fd: c_int, name: CText) -> c_int {
    change(
        fd,
        libc::SYS_fremovexattr,
        [name as usize, 0, 0, 0],
        || next!(FREMOVEXATTR(fd, name) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fgetxattr(fd: c_int, name: CText, value: *mut c_void, size: usize) -> isize {
    let rest = [name as usize, value as usize, size, 0];
    forward(
        fd,
        AttributeAccess::Reads,
        libc::SYS_fgetxattr,
        rest,
        || next!(FGETXATTR(fd, name, value, size) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn flistxattr(fd: c_int, list: *mut c_char, size: usize) -> isize {
    let rest = [list as usize, size, 0, 0];
    forward(
        fd,
        AttributeAccess::Reads,
        libc::SYS_flistxattr,
        rest,
        || next!(FLISTXATTR(fd, list, size) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chmod(path: CText, mode: mode_t) -> c_int {
    change_file(ProgramName::here(path), |path| next!(CHMOD(path, mode) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chown(path: CText, owner: uid_t, group: gid_t) -> c_int {
    change_file(
        ProgramName::here(path),
        |path| next!(CHOWN(path, owner, group) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lchown(path: CText, owner: uid_t, group: gid_t) -> c_int {
    change_file(
        ProgramName::here(path),
        |path| next!(LCHOWN(path, owner, group) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utime(path: CText, times: *const utimbuf) -> c_int {
    change_file(ProgramName::here(path), |path| next!(UTIME(path, times) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimes(path: CText, times: *const timeval) -> c_int {
    change_file(ProgramName::here(path), |path| next!(UTIMES(path, times) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lutimes(path: CText, times: *const timeval) -> c_int {
    change_file(ProgramName::here(path), |path| next!(LUTIMES(path, times) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setxattr(path: CText, name: CText, value: *const c_void, size: usize, flags: c_int) -> c_int {
    change_file(
        ProgramName::here(path),
        |path| next!(SETXATTR(path, name, value, size, flags) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn removexattr(path: CText, name: CText) -> c_int {
    change_file(ProgramName::here(path), |path| next!(REMOVEXATTR(path, name) or real::missing(-1)))
}

/// Handles a call that may have moved the process to another root or mount namespace.
fn moved(answer: c_int) -> c_int {
    if answer == 0 {
        state::check_place();
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chroot(path: CText) -> c_int {
    moved(next!(CHROOT(path) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    moved(next!(UNSHARE(flags) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    moved(next!(SETNS(fd, kind) or real::missing(-1)))
}
