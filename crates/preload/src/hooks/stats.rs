//! Hooks of `stat` and `access` in all their forms: the present ones, those of libc before 2.33 (`__xstat`), and each
//! with 64. On all supported machines the latter are the same.

use core::ffi::{c_int, c_uint};

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW};

use super::CText;
use crate::{
    real, stat,
    status::{self, STAT_VERSION, stat as stat_by},
};

/// Handles a call that asks a descriptor.
fn of_descriptor(out: *mut libc::stat, real: impl FnOnce() -> c_int) -> c_int {
    let answer = real();
    if answer == 0 {
        // SAFETY: the call has filled it.
        unsafe { stat::disguise(out) };
    }
    answer
}

/// Makes a raw call before the library has started, if it fills the requested layout.
fn raw_of_version(version: c_int, raw: impl FnOnce() -> c_int) -> c_int {
    if (0..=STAT_VERSION).contains(&version) {
        raw()
    } else {
        real::set_errno(libc::EINVAL);
        -1
    }
}

/// Calls `stat_by`, if the layout is the one that we know.
fn stat_of_version(version: c_int, dirfd: c_int, path: CText, out: *mut libc::stat, flags: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if (0..=STAT_VERSION).contains(&version) {
        stat_by(dirfd, path, out, flags, real)
    } else {
        real()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(fd: c_int, out: *mut libc::stat) -> c_int {
    of_descriptor(out, || next_known!(FSTAT(fd, out) or real::raw_stat_fd(fd, out)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat64(fd: c_int, out: *mut libc::stat) -> c_int {
    of_descriptor(out, || next_known!(FSTAT64(fd, out) or real::raw_stat_fd(fd, out)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstat(version: c_int, fd: c_int, out: *mut libc::stat) -> c_int {
    of_descriptor(
        out,
        || next_known!(FXSTAT(version, fd, out) or raw_of_version(version, || real::raw_stat_fd(fd, out))),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstat64(version: c_int, fd: c_int, out: *mut libc::stat) -> c_int {
    of_descriptor(
        out,
        || next_known!(FXSTAT64(version, fd, out) or raw_of_version(version, || real::raw_stat_fd(fd, out))),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: CText, out: *mut libc::stat) -> c_int {
    stat_by(
        AT_FDCWD,
        path,
        out,
        0,
        || next_known!(STAT(path, out) or real::raw_stat(AT_FDCWD, path, out, 0)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat64(path: CText, out: *mut libc::stat) -> c_int {
    stat_by(
        AT_FDCWD,
        path,
        out,
        0,
        || next_known!(STAT64(path, out) or real::raw_stat(AT_FDCWD, path, out, 0)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lstat(path: CText, out: *mut libc::stat) -> c_int {
    stat_by(
        AT_FDCWD,
        path,
        out,
        AT_SYMLINK_NOFOLLOW,
        || next_known!(LSTAT(path, out) or real::raw_stat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lstat64(path: CText, out: *mut libc::stat) -> c_int {
    stat_by(
        AT_FDCWD,
        path,
        out,
        AT_SYMLINK_NOFOLLOW,
        || next_known!(LSTAT64(path, out) or real::raw_stat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __xstat(version: c_int, path: CText, out: *mut libc::stat) -> c_int {
    let real = || next_known!(XSTAT(version, path, out) or raw_of_version(version, || real::raw_stat(AT_FDCWD, path, out, 0)));
    stat_of_version(version, AT_FDCWD, path, out, 0, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __xstat64(version: c_int, path: CText, out: *mut libc::stat) -> c_int {
    let real = || next_known!(XSTAT64(version, path, out) or raw_of_version(version, || real::raw_stat(AT_FDCWD, path, out, 0)));
    stat_of_version(version, AT_FDCWD, path, out, 0, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __lxstat(version: c_int, path: CText, out: *mut libc::stat) -> c_int {
    let real =
        || next_known!(LXSTAT(version, path, out) or raw_of_version(version, || real::raw_stat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW)));
    stat_of_version(version, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __lxstat64(version: c_int, path: CText, out: *mut libc::stat) -> c_int {
    let real = || next_known!(LXSTAT64(version, path, out) or raw_of_version(version, || real::raw_stat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW)));
    stat_of_version(version, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat(dirfd: c_int, path: CText, out: *mut libc::stat, flags: c_int) -> c_int {
    stat_by(
        dirfd,
        path,
        out,
        flags,
        || next_known!(FSTATAT(dirfd, path, out, flags) or real::raw_stat(dirfd, path, out, flags)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat64(dirfd: c_int, path: CText, out: *mut libc::stat, flags: c_int) -> c_int {
    stat_by(
        dirfd,
        path,
        out,
        flags,
        || next_known!(FSTATAT64(dirfd, path, out, flags) or real::raw_stat(dirfd, path, out, flags)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstatat(version: c_int, dirfd: c_int, path: CText, out: *mut libc::stat, flags: c_int) -> c_int {
    let real =
        || next_known!(FXSTATAT(version, dirfd, path, out, flags) or raw_of_version(version, || real::raw_stat(dirfd, path, out, flags)));
    stat_of_version(version, dirfd, path, out, flags, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstatat64(version: c_int, dirfd: c_int, path: CText, out: *mut libc::stat, flags: c_int) -> c_int {
    let real =
        || next_known!(FXSTATAT64(version, dirfd, path, out, flags) or raw_of_version(version, || real::raw_stat(dirfd, path, out, flags)));
    stat_of_version(version, dirfd, path, out, flags, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(dirfd: c_int, path: CText, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int {
    let by_libc = || next!(STATX(dirfd, path, flags, mask, out) or real::missing(-1));
    let raw = || real::raw_statx(dirfd, path, flags, mask, out).unwrap_or_else(by_libc);
    let real = || next_known!(STATX(dirfd, path, flags, mask, out) or raw());
    status::statx(dirfd, path, flags, mask, out, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: CText, mode: c_int) -> c_int {
    status::access(AT_FDCWD, path, mode, 0, || {
        let by_libc = || next!(ACCESS(path, mode) or real::missing(-1));
        next_known!(ACCESS(path, mode) or real::raw_access(AT_FDCWD, path, mode, 0).unwrap_or_else(by_libc))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn faccessat(dirfd: c_int, path: CText, mode: c_int, flags: c_int) -> c_int {
    let by_libc = || next!(FACCESSAT(dirfd, path, mode, flags) or real::missing(-1));
    let raw = || real::raw_access(dirfd, path, mode, flags).unwrap_or_else(by_libc);
    let real = || next_known!(FACCESSAT(dirfd, path, mode, flags) or raw());
    status::access(dirfd, path, mode, flags, real)
}
