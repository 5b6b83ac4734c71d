//! Cached directories: if one is usable, `opendir` returns a stream of ours over it.
//!
//! The rules are those of an open, with two more. Under `on_open` the source lists. And a cached directory that was not
//! compared with the source in time, or not at all since an earlier run made it, is compared now: the directory is
//! opened for its times, and its entries are not read. The agent gets the descriptor, so that no other process need
//! compare again.

use core::ffi::{CStr, c_char, c_int};

use forebay_contract::{
    Counter, Freshness,
    cached_directory::{CachedDirectoryHeader, HEADER_BYTES, names},
};
use libc::DIR;

use crate::{
    handoff,
    lookup::{self, IndexHit, Miss, identity_of},
    path::PathBuffer,
    real, rights,
    state::{self, Serving},
    streams::{self, CachedEntries, StreamOrigin},
    sys,
};

/// Flags with which directories and their copies are opened.
const FLAGS: c_int = libc::O_RDONLY | libc::O_CLOEXEC;

/// Handles `opendir`; `real` is the program's own call.
#[inline]
pub(crate) fn open(path: *const c_char, real: impl Fn() -> *mut DIR) -> *mut DIR {
    let Some(serving) = state::serving() else {
        return real();
    };
    if path.is_null() {
        return real();
    }
    // SAFETY: the program's string. The kernel would answer EFAULT if this faults; that is a listed deviation.
    let path = unsafe { CStr::from_ptr(path) };
    let bytes = path.to_bytes();
    match bytes.first() {
        Some(b'/') if bytes.len() < libc::PATH_MAX as usize => open_absolute(serving, bytes, path, &real),
        Some(b'/') | None => real(),
        Some(_) => open_relative(serving, path, &real),
    }
}

/// A function of its own, so that only calls that need a path on the stack have one.
#[inline(never)]
fn open_relative(serving: Serving, path: &CStr, real: &dyn Fn() -> *mut DIR) -> *mut DIR {
    let mut buffer = PathBuffer::new();
    match lookup::spell(libc::AT_FDCWD, path, &mut buffer) {
        Ok(spelled) => open_absolute(serving, spelled, path, real),
        Err(_) => real(),
    }
}

fn open_absolute(serving: Serving, path: &[u8], given: &CStr, real: &dyn Fn() -> *mut DIR) -> *mut DIR {
    let spelled = without_end(path);
    if serving.pages.run.covers_directory(spelled) {
        open_spelled(serving, spelled, given, real)
    } else {
        real()
    }
}

/// Removes final slashes and `/.`, which change nothing for a directory.
fn without_end(mut path: &[u8]) -> &[u8] {
    while let Some(rest) = path.strip_suffix(b"/").or_else(|| path.strip_suffix(b"/.")) {
        path = rest;
    }
    path
}

#[inline(never)]
fn open_spelled(serving: Serving, spelled: &[u8], path: &CStr, real: &dyn Fn() -> *mut DIR) -> *mut DIR {
    let now = real::now();
    let kept = open_kept(serving, spelled, path, now);
    count(serving, kept.as_ref().err());
    let miss = match kept {
        Ok(stream) => return stream,
        Err(miss) => miss,
    };
    let dir = real();
    if !dir.is_null()
        && miss.is_news()
        && let Some(fd) = streams::descriptor_of(dir)
    {
        handoff::offer_directory(serving, spelled, fd, now);
    }
    dir
}

fn count(serving: Serving, miss: Option<&Miss>) {
    let reason = match miss {
        None => Counter::ListingsSaved,
        Some(Miss::Unknown) => Counter::ListingsUnknown,
        Some(Miss::Because(Counter::Stale)) => Counter::ListingsStale,
        Some(Miss::Because(Counter::Tombstoned)) => Counter::ListingsTombstoned,
        Some(Miss::Because(Counter::Excluded)) => Counter::ListingsExcluded,
        Some(Miss::Because(_)) => Counter::ListingsPassed,
    };
    serving.pages.count(Counter::SourceListings, 1);
    serving.pages.count(reason, 1);
}

fn open_kept(serving: Serving, spelled: &[u8], path: &CStr, now: u64) -> Result<*mut DIR, Miss> {
    if serving.pages.run.excludes(spelled) {
        return Err(Miss::Because(Counter::Excluded));
    }
    // The agent needs no handoff either: this run would not use its copy.
    if serving.pages.run.freshness() == Freshness::OnOpen {
        return Err(Miss::Because(Counter::ListingsPassed));
    }
    let reading = serving.read();
    let found = lookup::known(reading.as_ref(), spelled)?;
    check(serving, &found, spelled, path, now)?;
    // As for a file: the source refuses what the program may not list.
    if !rights::may_read(&found.attributes().ok_or(Miss::Unknown)?, path) {
        return Err(Miss::Because(Counter::SourceChanged));
    }
    let fd = found.open(FLAGS).ok_or(Miss::Because(Counter::CopyGone))?;
    let listing = CachedEntries::read(fd, found.record.size() as usize, spelled);
    sys::close(fd);
    let origin = origin_of(&found);
    let listing = listing.ok_or(Miss::Because(Counter::CopyGone))?;
    if serving.pages.run.has_excludes() && has_excluded_name(serving, spelled, listing.entries()) {
        listing.unmap();
        return Err(Miss::Because(Counter::Excluded));
    }
    let stream = streams::open(listing, origin);
    // If all streams are in use, the agent could not help.
    let stream = stream.ok_or(Miss::Because(Counter::ListingsPassed))?;
    found.stamp(serving, now);
    Ok(stream)
}

/// Returns whether a name in a cached directory is excluded: the source decides which of those names exist.
#[cold]
#[inline(never)]
fn has_excluded_name(serving: Serving, spelled: &[u8], entries: &[u8]) -> bool {
    let mut path = PathBuffer::new();
    if path.push(spelled).and_then(|()| path.push(b"/")).is_none() {
        return true;
    }
    let directory = path.bytes().len();
    names(entries).filter(|name| !matches!(*name, b"." | b"..")).any(|name| {
        path.truncate(directory);
        path.push(name).is_none() || serving.pages.run.excludes(path.bytes())
    })
}

/// Checks that the cached directory is usable now.
fn check(serving: Serving, found: &IndexHit<'_>, spelled: &[u8], path: &CStr, now: u64) -> Result<(), Miss> {
    if !found.is_cached_directory() {
        // It was a file when its copy was made.
        return Err(Miss::Because(Counter::SourceChanged));
    }
    match found.may_stand_in(serving, spelled, now) {
        Ok(()) if found.is_checked() => Ok(()),
        Ok(()) | Err(Miss::Because(Counter::Stale)) if is_unchanged(serving, found, spelled, path, now) => Ok(()),
        Ok(()) => Err(Miss::Because(Counter::Stale)),
        Err(miss) => Err(miss),
    }
}

/// Asks the source whether the name leads to the cached version; if so, hands the directory to the agent.
fn is_unchanged(serving: Serving, found: &IndexHit<'_>, spelled: &[u8], path: &CStr, now: u64) -> bool {
    let Ok(fd) = sys::open_at(libc::AT_FDCWD, path, FLAGS | libc::O_DIRECTORY, 0) else {
        return false;
    };
    let is_unchanged = sys::stat_fd(fd).is_ok_and(|stat| found.is_version(&identity_of(&stat)));
    if is_unchanged {
        handoff::offer_directory(serving, spelled, fd, now);
    }
    sys::close(fd);
    is_unchanged
}

fn origin_of(found: &IndexHit<'_>) -> StreamOrigin {
    StreamOrigin {
        directory: (found.identity.dev, found.identity.ino),
        copy: found.record.copy(),
    }
}

/// Returns whether a rewound stream may return the same entries once more.
#[inline(never)]
pub(crate) fn is_current(path: &CStr, origin: &StreamOrigin) -> bool {
    let Some(serving) = state::serving() else { return false };
    let reading = serving.read();
    let spelled = path.to_bytes();
    let found = lookup::known(reading.as_ref(), spelled);
    let answer = found.and_then(|found| {
        check(serving, &found, spelled, path, real::now())?;
        if origin_of(&found) == *origin {
            Ok(())
        } else {
            Err(Miss::Because(Counter::Stale))
        }
    });
    count(serving, answer.as_ref().err());
    answer.is_ok()
}

/// Returns the size that the source reports for a cached directory.
pub(crate) fn directory_size(found: &IndexHit<'_>) -> Option<u64> {
    let fd = found.open(FLAGS)?;
    let mut bytes = [0; HEADER_BYTES];
    let read = sys::read_full(fd, &mut bytes);
    sys::close(fd);
    read.ok()?;
    Some(CachedDirectoryHeader::parse(&bytes)?.directory_size())
}
