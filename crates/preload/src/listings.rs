//! Listings of directories that lie on this node: where one may stand in for the source's, `opendir` gives a stream of ours over it.
//!
//! The rules are those of an open, with two more. Under `on_open` the source lists. And a listing that was not compared with the source in time,
//! or not at all since an earlier run made it, is compared now: the directory is opened for its times, and not read for its names. The agent is told,
//! so that nobody need ask again.

use core::ffi::{CStr, c_char, c_int};

use forebay_contract::{
    Counter, Freshness,
    cached_directory::{CachedDirectoryHeader, HEADER_BYTES, names},
};
use libc::DIR;

use crate::{
    handover,
    lookup::{self, Found, Miss, identity_of},
    path::PathBuffer,
    real, rights,
    state::{self, Serving},
    streams::{self, Listing, Origin},
    sys,
};

/// How listings and directories are opened.
const FLAGS: c_int = libc::O_RDONLY | libc::O_CLOEXEC;

/// `opendir`; `real` is the program's own call.
#[inline]
pub(crate) fn open(path: *const c_char, real: impl Fn() -> *mut DIR) -> *mut DIR {
    let Some(serving) = state::serving() else {
        return real();
    };
    if path.is_null() {
        return real();
    }
    // SAFETY: the program's string. The kernel would answer EFAULT where this faults; that is a listed deviation.
    let path = unsafe { CStr::from_ptr(path) };
    let bytes = path.to_bytes();
    match bytes.first() {
        Some(b'/') if bytes.len() < libc::PATH_MAX as usize => open_absolute(serving, bytes, path, &real),
        Some(b'/') | None => real(),
        Some(_) => open_relative(serving, path, &real),
    }
}

/// Apart, so that a path lies on the stack only where one has to be made.
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
    if serving.door.run.covers_directory(spelled) {
        open_spelled(serving, spelled, given, real)
    } else {
        real()
    }
}

/// Without final slashes and `/.`: they lead nowhere else, for what is listed is a directory.
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
        handover::offer_directory(serving, spelled, fd, now);
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
    serving.door.count(Counter::SourceListings, 1);
    serving.door.count(reason, 1);
}

fn open_kept(serving: Serving, spelled: &[u8], path: &CStr, now: u64) -> Result<*mut DIR, Miss> {
    if serving.door.run.excludes(spelled) {
        return Err(Miss::Because(Counter::Excluded));
    }
    // Nor need the agent hear of it: whatever it listed, this run would not use it.
    if serving.door.run.freshness() == Freshness::OnOpen {
        return Err(Miss::Because(Counter::ListingsPassed));
    }
    let reading = serving.read();
    let found = lookup::known(reading.as_ref(), spelled)?;
    check(serving, &found, spelled, path, now)?;
    // As for a file: what the program may not list here, it is told by the source.
    if !rights::may_read(&found.attributes().ok_or(Miss::Unknown)?, path) {
        return Err(Miss::Because(Counter::SourceChanged));
    }
    let fd = found.open(FLAGS).ok_or(Miss::Because(Counter::CopyGone))?;
    let listing = Listing::read(fd, found.record.size() as usize, spelled);
    sys::close(fd);
    let origin = origin_of(&found);
    let listing = listing.ok_or(Miss::Because(Counter::CopyGone))?;
    if serving.door.run.has_excludes() && has_excluded_name(serving, spelled, listing.entries()) {
        listing.unmap();
        return Err(Miss::Because(Counter::Excluded));
    }
    let stream = streams::open(listing, origin);
    // Where all are in use it is none of the agent's business.
    let stream = stream.ok_or(Miss::Because(Counter::ListingsPassed))?;
    found.stamp(serving, now);
    Ok(stream)
}

/// Returns whether a name in a listing is excluded: which of those there are is for the source to say.
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
        path.push(name).is_none() || serving.door.run.excludes(path.bytes())
    })
}

/// Whether the listing may stand in now.
fn check(serving: Serving, found: &Found<'_>, spelled: &[u8], path: &CStr, now: u64) -> Result<(), Miss> {
    if !found.is_listing() {
        // A file, when its copy was made.
        return Err(Miss::Because(Counter::SourceChanged));
    }
    match found.may_stand_in(serving, spelled, now) {
        Ok(()) if found.is_checked() => Ok(()),
        Ok(()) | Err(Miss::Because(Counter::Stale)) if is_unchanged(serving, found, spelled, path, now) => Ok(()),
        Ok(()) => Err(Miss::Because(Counter::Stale)),
        Err(miss) => Err(miss),
    }
}

/// Whether the name leads to the version that was listed, says the source; if so, the agent hears of it.
fn is_unchanged(serving: Serving, found: &Found<'_>, spelled: &[u8], path: &CStr, now: u64) -> bool {
    let Ok(fd) = sys::open_at(libc::AT_FDCWD, path, FLAGS | libc::O_DIRECTORY, 0) else {
        return false;
    };
    let is_unchanged = sys::stat_fd(fd).is_ok_and(|stat| found.is_version(&identity_of(&stat)));
    if is_unchanged {
        handover::offer_directory(serving, spelled, fd, now);
    }
    sys::close(fd);
    is_unchanged
}

fn origin_of(found: &Found<'_>) -> Origin {
    Origin {
        directory: (found.identity.dev, found.identity.ino),
        copy: found.record.copy(),
    }
}

/// Whether a stream that is rewound may give the same listing once more.
#[inline(never)]
pub(crate) fn is_current(path: &CStr, origin: &Origin) -> bool {
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

/// The size that the source tells of a directory whose listing was found.
pub(crate) fn directory_size(found: &Found<'_>) -> Option<u64> {
    let fd = found.open(FLAGS)?;
    let mut bytes = [0; HEADER_BYTES];
    let read = sys::read_full(fd, &mut bytes);
    sys::close(fd);
    read.ok()?;
    Some(CachedDirectoryHeader::parse(&bytes)?.directory_size())
}
