//! Directory streams of our own, which `opendir` returns instead of libc's `DIR` for a cached directory.
//!
//! Their number is fixed, and they are in this library's own memory. So one comparison tells them from libc's, and only
//! the pages of the entries are allocated. If all are in use the source answers. The entries are read, not mapped, so
//! that a failing tier can't end the program. They belong to the program, which may write to them as it may to libc's.
//!
//! Some answers only the source has: a descriptor, and all entries once the stream is rewound and the cached directory
//! is no longer usable. They come from libc's stream of the same directory, *behind* ours, which is opened when it is
//! needed. Positions are the source's own (`d_off`), so they mean the same in both.
//!
//! As with libc's, threads may share a stream (each entry is returned once), and a forked child has its own from the
//! fork on. A call on a closed stream is an error here, and undefined there.

use core::{
    ffi::{CStr, c_int, c_long},
    ptr::{self, NonNull, null_mut},
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use forebay_contract::cached_directory::{CachedDirectoryHeader, ENTRY_BYTES_MAX, ENTRY_BYTES_MIN, HEADER_BYTES, LENGTH_AT, OFFSET_AT};
use libc::{DIR, dirent};

use crate::{
    directories, real,
    sys::{self, Errno},
};

/// Number of directories that a process can have open here at a time.
const STREAMS: usize = 256;

const FREE: u32 = 0;
/// State of a stream that a thread is filling or emptying.
const BUSY: u32 = 1;
const OPEN: u32 = 2;

const _: () = assert!(ENTRY_BYTES_MAX == size_of::<dirent>() && LENGTH_AT == core::mem::offset_of!(dirent, d_reclen));

/// Directory and copy that a stream was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamOrigin {
    /// Device and inode of the directory.
    pub(crate) directory: (u64, u64),
    pub(crate) copy: u64,
}

/// Memory of a stream: the cached directory as stored in the tier, room behind it, so that a whole `struct dirent` can
/// be read at any entry, and the directory's path.
#[derive(Clone, Copy)]
pub(crate) struct CachedEntries {
    base: NonNull<u8>,
    /// Length of the cached directory in bytes.
    len: usize,
    mapped: usize,
}

impl CachedEntries {
    /// Reads a cached directory of `len` bytes, with this spelled path; `None` if it is invalid, or there is no memory.
    pub(crate) fn read(fd: c_int, len: usize, spelled: &[u8]) -> Option<Self> {
        let mapped = len.checked_add(ENTRY_BYTES_MAX + spelled.len() + 1)?;
        let base = sys::map_memory(mapped)?;
        let listing = Self { base, len, mapped };
        // SAFETY: the mapping of a moment ago, which nobody else knows of.
        let bytes = unsafe { core::slice::from_raw_parts_mut(base.as_ptr(), mapped) };
        if listing.fill(fd, bytes, spelled).is_none() {
            listing.unmap();
            return None;
        }
        Some(listing)
    }

    fn fill(&self, fd: c_int, bytes: &mut [u8], spelled: &[u8]) -> Option<()> {
        let (listing, rest) = bytes.split_at_mut_checked(self.len)?;
        sys::read_full(fd, listing).ok()?;
        let (header, entries) = listing.split_at_checked(HEADER_BYTES)?;
        if !CachedDirectoryHeader::parse(header)?.is_of(entries) {
            return None;
        }
        // All bytes behind it are zero, the NUL of the path included.
        let path = rest.get_mut(ENTRY_BYTES_MAX..)?;
        for (to, from) in path.iter_mut().zip(spelled) {
            *to = *from;
        }
        Some(())
    }

    /// Returns the entries, as stored in the tier.
    pub(crate) fn entries(&self) -> &[u8] {
        // SAFETY: the mapping holds `len` bytes, and nobody writes to them before the stream is open.
        let bytes = unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) };
        bytes.get(HEADER_BYTES..).unwrap_or(&[])
    }

    /// Frees the memory.
    pub(crate) fn unmap(self) {
        sys::unmap(self.base, self.mapped);
    }
}

/// A directory stream.
#[repr(align(64))]
struct Stream {
    state: AtomicU32,
    /// True if all entries come from the source, by the stream behind.
    is_passed: AtomicBool,
    base: AtomicPtr<u8>,
    len: AtomicUsize,
    mapped: AtomicUsize,
    /// Position of the next entry, in the upper half, and of the last one returned, in the lower.
    position: AtomicU64,
    /// libc's stream of the same directory; null until it is needed.
    behind: AtomicPtr<DIR>,
    dev: AtomicU64,
    ino: AtomicU64,
    copy: AtomicU64,
}

static TABLE: [Stream; STREAMS] = [const { Stream::new() }; STREAMS];

/// Returns the stream that the program means by `dir`, if it is ours, open or closed.
#[inline]
pub(crate) fn find(dir: *mut DIR) -> Option<Ours> {
    let offset = (dir as usize).wrapping_sub(TABLE.as_ptr() as usize);
    if offset >= size_of_val(&TABLE) {
        return None;
    }
    TABLE.get(offset / size_of::<Stream>()).map(Ours)
}

/// Opens a stream over a cached directory, and takes its memory; returns it if there is no free slot.
pub(crate) fn open(listing: CachedEntries, origin: StreamOrigin) -> Option<*mut DIR> {
    let free = |stream: &&Stream| stream.state.compare_exchange(FREE, BUSY, Acquire, Relaxed).is_ok();
    let Some(stream) = TABLE.iter().find(free) else {
        listing.unmap();
        return None;
    };
    stream.is_passed.store(false, Relaxed);
    stream.base.store(listing.base.as_ptr(), Relaxed);
    stream.len.store(listing.len, Relaxed);
    stream.mapped.store(listing.mapped, Relaxed);
    stream.position.store(START, Relaxed);
    stream.behind.store(null_mut(), Relaxed);
    stream.dev.store(origin.directory.0, Relaxed);
    stream.ino.store(origin.directory.1, Relaxed);
    stream.copy.store(origin.copy, Relaxed);
    stream.state.store(OPEN, Release);
    Some(ptr::from_ref(stream).cast_mut().cast())
}

/// Position before the first entry.
const START: u64 = position(HEADER_BYTES, 0);

/// Packs a position; cached directories are shorter than 4 GiB.
const fn position(next: usize, last: usize) -> u64 {
    (next as u64) << 32 | last as u64
}

impl Stream {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            is_passed: AtomicBool::new(false),
            base: AtomicPtr::new(null_mut()),
            len: AtomicUsize::new(0),
            mapped: AtomicUsize::new(0),
            position: AtomicU64::new(0),
            behind: AtomicPtr::new(null_mut()),
            dev: AtomicU64::new(0),
            ino: AtomicU64::new(0),
            copy: AtomicU64::new(0),
        }
    }

    /// Returns the bytes at `at`, which must be in the entries or in the room behind them.
    fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N] {
        // SAFETY: mapped while the stream is open; callers stay inside.
        unsafe { ptr::read_unaligned(self.base.load(Relaxed).wrapping_add(at).cast::<[u8; N]>()) }
    }

    /// Returns the length of the entry at `at`; `None` at the end.
    fn entry_len(&self, at: usize) -> Option<usize> {
        let left = self.len.load(Relaxed).checked_sub(at)?;
        if left < ENTRY_BYTES_MIN {
            return None;
        }
        let len = usize::from(u16::from_le_bytes(self.bytes_at(at + LENGTH_AT)));
        // The program may have overwritten it.
        (ENTRY_BYTES_MIN..=ENTRY_BYTES_MAX.min(left)).contains(&len).then_some(len)
    }

    fn offset_of(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes_at(at + OFFSET_AT))
    }

    /// Returns the next entry and its length.
    fn next(&self) -> Option<(NonNull<u8>, usize)> {
        let mut seen = self.position.load(Relaxed);
        loop {
            let at = (seen >> 32) as usize;
            let len = self.entry_len(at)?;
            match self.position.compare_exchange_weak(seen, position(at + len, at), Relaxed, Relaxed) {
                Ok(_) => return Some((NonNull::new(self.base.load(Relaxed).wrapping_add(at))?, len)),
                Err(now) => seen = now,
            }
        }
    }

    /// Returns the source's position behind the entry that was returned last.
    fn tell(&self) -> u64 {
        let seen = self.position.load(Relaxed);
        if seen == START {
            return 0;
        }
        self.offset_of(seen as u32 as usize)
    }

    /// Goes to a position that `tell` returned; to the end for any other.
    fn seek(&self, offset: u64) {
        let (mut at, mut found) = (HEADER_BYTES, START);
        while offset != 0
            && let Some(len) = self.entry_len(at)
        {
            found = position(at + len, at);
            if self.offset_of(at) == offset {
                break;
            }
            at += len;
        }
        self.position.store(found, Relaxed);
    }

    /// Returns the directory's path as the program spelled it, made absolute.
    fn path(&self) -> &CStr {
        let path_at = self.len.load(Relaxed) + ENTRY_BYTES_MAX;
        // SAFETY: written there, with its NUL, before the stream was opened.
        unsafe { CStr::from_ptr(self.base.load(Relaxed).wrapping_add(path_at).cast()) }
    }

    /// Returns libc's stream of the same directory, and opens it first if necessary. Returns null with `errno` if that
    /// fails, or if the path leads elsewhere now.
    fn behind(&self) -> *mut DIR {
        let known = self.behind.load(Acquire);
        if !known.is_null() {
            return known;
        }
        let opened = self.open_behind();
        if opened.is_null() {
            return opened;
        }
        match self.behind.compare_exchange(null_mut(), opened, AcqRel, Acquire) {
            Ok(_) => opened,
            Err(faster) => {
                close_behind(opened);
                faster
            }
        }
    }

    #[inline(never)]
    fn open_behind(&self) -> *mut DIR {
        let Some(opendir) = real::OPENDIR.get() else {
            return real::missing(null_mut());
        };
        // SAFETY: a string with its NUL.
        let opened = unsafe { opendir(self.path().as_ptr()) };
        if opened.is_null() {
            return opened;
        }
        let directory = (self.dev.load(Relaxed), self.ino.load(Relaxed));
        let is_same = descriptor_of(opened)
            .and_then(|fd| sys::stat_fd(fd).ok())
            .is_some_and(|stat| (stat.st_dev, stat.st_ino) == directory);
        if !is_same {
            close_behind(opened);
            real::set_errno(libc::ESTALE);
            return null_mut();
        }
        opened
    }
}

/// Returns the descriptor of a stream of libc's.
pub(crate) fn descriptor_of(dir: *mut DIR) -> Option<c_int> {
    let dirfd = real::DIRFD.get()?;
    // SAFETY: a stream that libc has given.
    Some(unsafe { dirfd(dir) }).filter(|fd| *fd >= 0)
}

fn close_behind(dir: *mut DIR) -> c_int {
    real::CLOSEDIR.get().map_or(0, |closedir| {
        // SAFETY: a stream that libc has given, and nobody else has.
        unsafe { closedir(dir) }
    })
}

/// A stream of ours that the program uses. In its methods `pass` is the program's own call, on the stream behind.
#[derive(Clone, Copy)]
pub(crate) struct Ours(&'static Stream);

impl Ours {
    /// Returns the stream.
    ///
    /// # Errors
    /// `EBADF` if it is closed.
    fn open(self) -> Result<&'static Stream, Errno> {
        let is_open = self.0.state.load(Acquire) == OPEN;
        is_open.then_some(self.0).ok_or(Errno(libc::EBADF))
    }

    /// Handles `readdir`: returns the next entry. Null at the end, and with `errno` on failure.
    pub(crate) fn read(self, pass: impl FnOnce(*mut DIR) -> *mut dirent) -> *mut dirent {
        match self.open() {
            Ok(stream) if stream.is_passed.load(Relaxed) => {
                let behind = stream.behind();
                if behind.is_null() { null_mut() } else { pass(behind) }
            }
            Ok(stream) => stream.next().map_or(null_mut(), |(entry, _)| entry.as_ptr().cast()),
            Err(Errno(errno)) => {
                real::set_errno(errno);
                null_mut()
            }
        }
    }

    /// Handles `readdir_r`: copies the next entry to `room`, and sets `result`; returns an `errno`, or 0.
    ///
    /// # Safety
    /// Both are the program's, and `room` is as large as a `struct dirent`.
    pub(crate) unsafe fn read_into(self, room: *mut dirent, result: *mut *mut dirent, pass: impl FnOnce(*mut DIR) -> c_int) -> c_int {
        let stream = match self.open() {
            Ok(stream) if stream.is_passed.load(Relaxed) => {
                let behind = stream.behind();
                return if behind.is_null() { real::errno() } else { pass(behind) };
            }
            Ok(stream) => stream,
            Err(Errno(errno)) => return errno,
        };
        let found = stream.next();
        // SAFETY: the caller guarantees both places, and no entry is longer than one.
        unsafe {
            if let Some((entry, len)) = found {
                ptr::copy_nonoverlapping(entry.as_ptr(), room.cast(), len);
            }
            *result = if found.is_some() { room } else { null_mut() };
        }
        0
    }

    /// Handles `rewinddir`: starts again, with the directory's present contents.
    pub(crate) fn rewind(self, pass: impl FnOnce(*mut DIR)) {
        let Ok(stream) = self.open() else { return };
        let origin = StreamOrigin {
            directory: (stream.dev.load(Relaxed), stream.ino.load(Relaxed)),
            copy: stream.copy.load(Relaxed),
        };
        if !stream.is_passed.load(Relaxed) && directories::is_current(stream.path(), &origin) {
            stream.position.store(START, Relaxed);
            return;
        }
        stream.is_passed.store(true, Relaxed);
        let behind = stream.behind();
        if !behind.is_null() {
            pass(behind);
        }
    }

    /// Handles `telldir`.
    pub(crate) fn tell(self, pass: impl FnOnce(*mut DIR) -> c_long) -> c_long {
        match self.open() {
            Ok(stream) if stream.is_passed.load(Relaxed) => {
                let behind = stream.behind();
                if behind.is_null() { -1 } else { pass(behind) }
            }
            Ok(stream) => stream.tell() as c_long,
            Err(Errno(errno)) => {
                real::set_errno(errno);
                -1
            }
        }
    }

    /// Handles `seekdir`.
    pub(crate) fn seek(self, offset: c_long, pass: impl FnOnce(*mut DIR)) {
        let Ok(stream) = self.open() else { return };
        if !stream.is_passed.load(Relaxed) {
            return stream.seek(offset as u64);
        }
        let behind = stream.behind();
        if !behind.is_null() {
            pass(behind);
        }
    }

    /// Handles `dirfd`: returns the descriptor of the source's directory, which lives as long as the stream.
    pub(crate) fn descriptor(self) -> c_int {
        match self.open() {
            Ok(stream) => {
                let behind = stream.behind();
                if behind.is_null() {
                    -1
                } else {
                    descriptor_of(behind).unwrap_or(-1)
                }
            }
            Err(Errno(errno)) => {
                real::set_errno(errno);
                -1
            }
        }
    }

    /// Handles `closedir`.
    pub(crate) fn close(self) -> c_int {
        let stream = self.0;
        if stream.state.compare_exchange(OPEN, BUSY, Acquire, Relaxed).is_err() {
            real::set_errno(libc::EBADF);
            return -1;
        }
        let behind = stream.behind.swap(null_mut(), AcqRel);
        if let Some(base) = NonNull::new(stream.base.swap(null_mut(), Relaxed)) {
            sys::unmap(base, stream.mapped.load(Relaxed));
        }
        stream.state.store(FREE, Release);
        if behind.is_null() { 0 } else { close_behind(behind) }
    }
}
