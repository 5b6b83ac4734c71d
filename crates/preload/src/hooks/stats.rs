//! `stat` and `access` in all their forms: those that programs are built with today, those of libc before 2.33 (`__xstat`), and each with 64.
//! On the machines that are supported the latter are the same.

use core::ffi::{c_int, c_uint};

use libc::AT_FDCWD;

use super::Text;
use crate::{
    real, stat,
    status::{self, STAT_VERSION, stat as stat_by},
};

/// After a call that asks a descriptor.
fn of_descriptor(out: *mut libc::stat, real: impl FnOnce() -> c_int) -> c_int {
    let answer = real();
    if answer == 0 {
        // SAFETY: the call has filled it.
        unsafe { stat::disguise(out) };
    }
    answer
}

/// As `stat_by`, if it is the layout that we know.
fn stat_of_version(version: c_int, dirfd: c_int, path: Text, out: *mut libc::stat, flags: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if (0..=STAT_VERSION).contains(&version) {
        stat_by(dirfd, path, out, flags, real)
    } else {
        real()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(fd: c_int, out: *mut libc::stat) -> c_int {
    of_descriptor(out, || next!(FSTAT(fd, out) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat64(fd: c_int, out: *mut libc::stat) -> c_int {
    of_descriptor(out, || next!(FSTAT64(fd, out) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstat(version: c_int, fd: c_int, out: *mut libc::stat) -> c_int {
    of_descriptor(out, || next!(FXSTAT(version, fd, out) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstat64(version: c_int, fd: c_int, out: *mut libc::stat) -> c_int {
    of_descriptor(out, || next!(FXSTAT64(version, fd, out) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: Text, out: *mut libc::stat) -> c_int {
    stat_by(AT_FDCWD, path, out, 0, || next!(STAT(path, out) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat64(path: Text, out: *mut libc::stat) -> c_int {
    stat_by(AT_FDCWD, path, out, 0, || next!(STAT64(path, out) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lstat(path: Text, out: *mut libc::stat) -> c_int {
    stat_by(
        AT_FDCWD,
        path,
        out,
        libc::AT_SYMLINK_NOFOLLOW,
        || next!(LSTAT(path, out) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lstat64(path: Text, out: *mut libc::stat) -> c_int {
    stat_by(
        AT_FDCWD,
        path,
        out,
        libc::AT_SYMLINK_NOFOLLOW,
        || next!(LSTAT64(path, out) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __xstat(version: c_int, path: Text, out: *mut libc::stat) -> c_int {
    let real = || next!(XSTAT(version, path, out) or real::missing(-1));
    stat_of_version(version, AT_FDCWD, path, out, 0, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __xstat64(version: c_int, path: Text, out: *mut libc::stat) -> c_int {
    let real = || next!(XSTAT64(version, path, out) or real::missing(-1));
    stat_of_version(version, AT_FDCWD, path, out, 0, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __lxstat(version: c_int, path: Text, out: *mut libc::stat) -> c_int {
    let real = || next!(LXSTAT(version, path, out) or real::missing(-1));
    stat_of_version(version, AT_FDCWD, path, out, libc::AT_SYMLINK_NOFOLLOW, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __lxstat64(version: c_int, path: Text, out: *mut libc::stat) -> c_int {
    let real = || next!(LXSTAT64(version, path, out) or real::missing(-1));
    stat_of_version(version, AT_FDCWD, path, out, libc::AT_SYMLINK_NOFOLLOW, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat(dirfd: c_int, path: Text, out: *mut libc::stat, flags: c_int) -> c_int {
    stat_by(
        dirfd,
        path,
        out,
        flags,
        || next!(FSTATAT(dirfd, path, out, flags) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat64(dirfd: c_int, path: Text, out: *mut libc::stat, flags: c_int) -> c_int {
    stat_by(
        dirfd,
        path,
        out,
        flags,
        || next!(FSTATAT64(dirfd, path, out, flags) or real::missing(-1)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstatat(version: c_int, dirfd: c_int, path: Text, out: *mut libc::stat, flags: c_int) -> c_int {
    let real = || next!(FXSTATAT(version, dirfd, path, out, flags) or real::missing(-1));
    stat_of_version(version, dirfd, path, out, flags, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstatat64(version: c_int, dirfd: c_int, path: Text, out: *mut libc::stat, flags: c_int) -> c_int {
    let real = || next!(FXSTATAT64(version, dirfd, path, out, flags) or real::missing(-1));
    stat_of_version(version, dirfd, path, out, flags, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(dirfd: c_int, path: Text, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int {
    let real = || next!(STATX(dirfd, path, flags, mask, out) or real::missing(-1));
    status::statx(dirfd, path, flags, mask, out, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: Text, mode: c_int) -> c_int {
    status::access(AT_FDCWD, path, mode, 0, || next!(ACCESS(path, mode) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn faccessat(dirfd: c_int, path: Text, mode: c_int, flags: c_int) -> c_int {
    let real = || next!(FACCESSAT(dirfd, path, mode, flags) or real::missing(-1));
    status::access(dirfd, path, mode, flags, real)
}
