//! Opens outside every source, as spelled. Some still lead to a source, by a link that no option names. They are not
//! served, but counted, so that the user hears of it. The first open in each directory is examined; later ones cost a
//! comparison.

use core::{
    ffi::c_int,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use forebay_contract::{Counter, hash_bytes};

use crate::{
    path::{PathBuffer, descriptor_path, split},
    state::Serving,
    sys,
};

const SEED: u64 = 0x6E61_6D65_732E_2E2E;
/// Number of directories remembered; another one with the same slot replaces it.
const DIRECTORIES: usize = 1024;
/// Flag of a slot: the directory was examined.
const KNOWN: u32 = 1;
/// Flag of a slot: the directory belongs to a source.
const IS_SOURCE: u32 = 2;

static TABLE: [AtomicU32; DIRECTORIES] = [const { AtomicU32::new(0) }; DIRECTORIES];

/// Handles an open for reading by a name outside every source; `real` is the program's own call.
#[inline]
pub(crate) fn open(serving: Serving, spelled: &[u8], real: &dyn Fn() -> c_int) -> c_int {
    let end = spelled.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let hash = hash_bytes(SEED, spelled.get(..end).unwrap_or(&[]));
    let key = (hash >> 32) as u32 & !(KNOWN | IS_SOURCE) | KNOWN;
    let Some(place) = TABLE.get(hash as usize % DIRECTORIES) else {
        return real();
    };
    let seen = place.load(Relaxed);
    if seen == key {
        serving.pages.count(Counter::Foreign, 1);
        return real();
    }
    if seen == key | IS_SOURCE {
        serving.pages.count(Counter::OtherName, 1);
        return real();
    }
    let fd = real();
    let is_source = fd >= 0 && look(serving, spelled, fd);
    if fd >= 0 {
        place.store(if is_source { key | IS_SOURCE } else { key }, Relaxed);
    }
    serving
        .pages
        .count(if is_source { Counter::OtherName } else { Counter::Foreign }, 1);
    fd
}

/// Returns whether an open file is under a source, and records the name of the source by which it was reached.
#[cold]
#[inline(never)]
fn look(serving: Serving, spelled: &[u8], fd: c_int) -> bool {
    let run = &serving.pages.run;
    if !sys::stat_fd(fd).is_ok_and(|stat| run.is_source_device(stat.st_dev)) {
        return false;
    }
    let mut buffer = PathBuffer::new();
    let is_below = descriptor_path(fd, &mut buffer).is_some_and(|()| run.covers(buffer.bytes()));
    if is_below && let Some(name) = other_name(serving, spelled, buffer.bytes()) {
        run.note_other_name(name);
    }
    is_below
}

/// Returns the start of a spelled path that is another name of a source's directory. Both paths lose the names that
/// they share at the end, as long as they lead to one directory of a source. Returns `None` if a link leads to the file
/// itself.
fn other_name<'a>(serving: Serving, spelled: &'a [u8], kernel: &[u8]) -> Option<&'a [u8]> {
    let (mut spelled, mut kernel) = (spelled, kernel);
    let mut found = None;
    while let (Some((parent, name)), Some((directory, same))) = (split(spelled), split(kernel))
        && name == same
        && serving.pages.run.covers_directory(directory)
        && inode_of(parent).is_some_and(|inode| inode_of(directory) == Some(inode))
    {
        (spelled, kernel) = (parent, directory);
        found = Some(parent);
    }
    found
}

#[inline(never)]
fn inode_of(path: &[u8]) -> Option<(u64, u64)> {
    let mut buffer = PathBuffer::new();
    buffer.push(path)?;
    let stat = sys::stat_at(libc::AT_FDCWD, buffer.c_str(), 0).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
