//! Questions about a file by its name (`stat`, `access` and similar calls), answered without the source if a copy is
//! usable.
//!
//! The rules of an open decide about that. Then the copy is asked, with the program's own credentials: if the program
//! can't reach it, or it is gone or altered, the source answers, as for an open. The copy also supplies the time of
//! access, which is not known of the source. The source answers everything else that can't be known here: links, write
//! permission, times of birth.

use core::ffi::{CStr, c_char, c_int, c_uint};

use forebay_contract::{Attributes, Counter, FileTime, Freshness, Identity};

use crate::{
    directories,
    lookup::{self, IndexHit, ObjectPath, identity_of},
    path::PathBuffer,
    real, rights,
    stat::{disguise, disguise_x, is_descriptor, put, put_x},
    state::{self, Serving},
    sys,
};

/// Flags that do not change which file is meant, beside `AT_SYMLINK_NOFOLLOW`.
const HARMLESS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;
/// Newest version of `struct stat` for `__xstat` and similar calls; an older one, if there is one, has the same layout.
#[cfg(target_arch = "x86_64")]
pub(crate) const STAT_VERSION: c_int = 1;
#[cfg(target_arch = "aarch64")]
pub(crate) const STAT_VERSION: c_int = 0;

/// A question, and the room for its answer.
#[derive(Clone, Copy)]
enum StatQuestion {
    Stat(*mut libc::stat),
    StatX(*mut libc::statx),
    /// Existence, or permission to read.
    AttributeAccess(c_int),
    /// A question that no record can answer.
    Other,
}

impl StatQuestion {
    /// Asks the copy, and answers for the source.
    fn ask(self, found: &IndexHit<'_>, copy: &CStr) -> bool {
        match self {
            Self::Stat(out) => {
                // It is the program's memory. If it is invalid the kernel says so, now and in the program's own call.
                if sys::stat_into(libc::AT_FDCWD, copy, out, 0).is_err() {
                    return false;
                }
                // SAFETY: the call succeeded, so the kernel has filled it.
                let stat = unsafe { &mut *out };
                let known = if found.is(&identity_of(stat)) { source_of(found) } else { None };
                known.is_some_and(|(identity, attributes)| {
                    put(stat, &identity, &attributes);
                    true
                })
            }
            Self::StatX(out) => {
                if sys::statx_into(copy, out).is_err() {
                    return false;
                }
                // SAFETY: the call succeeded, so the kernel has filled it.
                let statx = unsafe { &mut *out };
                let known = if found.is(&identity_of_x(statx)) { source_of(found) } else { None };
                known.is_some_and(|(identity, attributes)| {
                    put_x(statx, &identity, &attributes);
                    true
                })
            }
            // A process that may read the copy could read the source, unless it has left a group since.
            Self::AttributeAccess(mode) => {
                let lets = |source| rights::mode_lets(&source);
                rights::is_one_user() && sys::access(copy, mode).is_ok() && found.attributes().is_some_and(lets)
            }
            Self::Other => false,
        }
    }
}

/// Returns the source's identity and attributes.
fn source_of(found: &IndexHit<'_>) -> Option<(Identity, Attributes)> {
    let attributes = found.attributes()?;
    let identity = if attributes.is_directory() {
        source_of_listing(found)?
    } else {
        found.identity
    };
    Some((identity, attributes))
}

/// Returns the source's identity of a cached directory. Its record does not have the directory's own size. Under
/// `immutable` a cached directory of an earlier run is not used: a user who guarantees that files do not change may
/// still add some.
#[inline(never)]
fn source_of_listing(found: &IndexHit<'_>) -> Option<Identity> {
    if !found.is_checked() {
        return None;
    }
    let size = directories::directory_size(found)?;
    Some(Identity { size, ..found.identity })
}

fn identity_of_x(statx: &libc::statx) -> Identity {
    let time = |time: libc::statx_timestamp| FileTime {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    };
    Identity {
        dev: libc::makedev(statx.stx_dev_major, statx.stx_dev_minor),
        ino: statx.stx_ino,
        size: statx.stx_size,
        mtime: time(statx.stx_mtime),
        ctime: time(statx.stx_ctime),
    }
}

/// Returns whether a question could be answered here. `flags` are those of the call.
#[inline]
fn answered(question: StatQuestion, dirfd: c_int, path: *const c_char, flags: c_int) -> bool {
    let Some(serving) = state::serving() else { return false };
    if path.is_null() {
        return false;
    }
    // SAFETY: the program's string. The kernel would answer EFAULT if this faults; that is a listed deviation.
    let path = unsafe { CStr::from_ptr(path) };
    let bytes = path.to_bytes();
    if bytes.first() != Some(&b'/') {
        return answered_relative(serving, question, dirfd, path, flags);
    }
    serving.pages.run.covers(bytes) && bytes.len() < libc::PATH_MAX as usize && answered_spelled(serving, question, bytes, flags)
}

/// A function of its own, so that only calls that need a path on the stack have one.
#[inline(never)]
fn answered_relative(serving: Serving, question: StatQuestion, dirfd: c_int, path: &CStr, flags: c_int) -> bool {
    let mut buffer = PathBuffer::new();
    lookup::spell(dirfd, path, &mut buffer)
        .is_ok_and(|spelled| serving.pages.run.covers(spelled) && answered_spelled(serving, question, spelled, flags))
}

#[inline(never)]
fn answered_spelled(serving: Serving, question: StatQuestion, spelled: &[u8], flags: c_int) -> bool {
    serving.pages.count(Counter::SourceStats, 1);
    let only_source = matches!(question, StatQuestion::Other) || flags & !HARMLESS != 0;
    if only_source || serving.pages.run.freshness() == Freshness::OnOpen || serving.pages.run.excludes(spelled) {
        return false;
    }
    let now = real::now();
    let reading = serving.read();
    let Ok(found) = lookup::find(serving, reading.as_ref(), spelled, now) else {
        return false;
    };
    // The record describes the name's target. It describes the name, too, if that was seen to lead there without a
    // link; a file that is put behind a link later is renamed, which changes its ctime.
    if flags & libc::AT_SYMLINK_NOFOLLOW != 0 && !found.record.is_plain() {
        return false;
    }
    let mut room = [0; size_of::<ObjectPath>()];
    if !found.path(&mut room).is_some_and(|copy| question.ask(&found, copy)) {
        return false;
    }
    serving.pages.count(Counter::StatsSaved, 1);
    found.stamp(serving, now);
    true
}

/// Handles `stat` and similar calls; `real` is the program's own call.
pub(crate) fn stat(dirfd: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if is_descriptor(path, flags) {
        let answer = real();
        if answer == 0 {
            // SAFETY: the call has filled it.
            unsafe { disguise(out) };
        }
        return answer;
    }
    if answered(StatQuestion::Stat(out), dirfd, path, flags) {
        0
    } else {
        real()
    }
}

/// Handles `statx`; `real` is the program's own call.
pub(crate) fn statx(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    out: *mut libc::statx,
    real: impl FnOnce() -> c_int,
) -> c_int {
    if is_descriptor(path, flags) {
        let answer = real();
        if answer == 0 {
            // SAFETY: the call has filled it.
            unsafe { disguise_x(dirfd, out) };
        }
        return answer;
    }
    // A caller that accepts an old answer gets none older than other callers do.
    let flags = flags & !libc::AT_STATX_DONT_SYNC;
    let question = if mask & !libc::STATX_BASIC_STATS == 0 {
        StatQuestion::StatX(out)
    } else {
        StatQuestion::Other
    };
    if answered(question, dirfd, path, flags) { 0 } else { real() }
}

/// Handles `access` and `faccessat`; `real` is the program's own call.
pub(crate) fn access(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int, real: impl FnOnce() -> c_int) -> c_int {
    // Without flags: for the real user, and through links.
    let question = if mode & !libc::R_OK == 0 && flags == 0 {
        StatQuestion::AttributeAccess(mode)
    } else {
        StatQuestion::Other
    };
    if answered(question, dirfd, path, flags) { 0 } else { real() }
}
