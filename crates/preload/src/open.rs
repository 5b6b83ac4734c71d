//! The open family.

use core::{
    cell::Cell,
    ffi::{CStr, c_char, c_int},
};

use forebay_contract::Counter;

use crate::{
    copies::{self, OpenCopy},
    foreign,
    handoff::{self, OpenedFile},
    lookup::{self, Miss},
    marks::{self, MarkedName},
    path::{PathBuffer, descriptor_path},
    real,
    state::{self, Serving},
    sys::{self, Errno},
};

/// Flags that do not change the bytes read: a copy can stand in.
const HARMLESS: c_int =
    libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_SYNC | libc::O_ASYNC | libc::O_DIRECT | KERNEL_LARGEFILE;
/// `O_LARGEFILE` as the kernel has it; libc's constant is 0 if all files are large, but programs pass this one.
#[cfg(target_arch = "x86_64")]
const KERNEL_LARGEFILE: c_int = 0o100_000;
#[cfg(target_arch = "aarch64")]
const KERNEL_LARGEFILE: c_int = 0o400_000;

/// Purpose of an open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenKind {
    /// To read the bytes.
    Read,
    /// To change the file, or to make one.
    Write,
    /// Anything that only the source itself can answer.
    Odd,
}

#[inline]
const fn kind_of(flags: c_int) -> OpenKind {
    if flags & !HARMLESS == 0 {
        // O_RDONLY is 0.
        OpenKind::Read
    } else if flags & libc::O_PATH != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE {
        OpenKind::Odd
    } else if flags & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) != 0 {
        OpenKind::Write
    } else {
        OpenKind::Odd
    }
}

/// Handles an open by any name; `real` is the program's own call.
#[inline]
pub(crate) fn open(dirfd: c_int, path: *const c_char, flags: c_int, real: impl Fn() -> c_int) -> c_int {
    let Some(serving) = state::serving_open() else {
        return real();
    };
    if path.is_null() {
        return real();
    }
    // SAFETY: the program's string. The kernel would answer EFAULT if this faults; that is a listed deviation.
    let path = unsafe { CStr::from_ptr(path) };
    let kind = kind_of(flags);
    let bytes = path.to_bytes();
    if kind != OpenKind::Write && bytes.first() == Some(&b'/') {
        if !serving.pages.run.covers(bytes) {
            return foreign::open(serving, bytes, &real);
        }
        if kind == OpenKind::Read && bytes.len() < libc::PATH_MAX as usize {
            return read_spelled(serving, bytes, path, flags, &real);
        }
    }
    match kind {
        OpenKind::Read => read(serving, dirfd, path, flags, &real),
        OpenKind::Write => write(serving, dirfd, path, flags, &real),
        OpenKind::Odd => odd(serving, dirfd, path, &real),
    }
}

/// Opens for reading, by a name that may have to be made absolute.
#[inline(never)]
fn read(serving: Serving, dirfd: c_int, path: &CStr, flags: c_int, real: &dyn Fn() -> c_int) -> c_int {
    let mut buffer = PathBuffer::new();
    match lookup::spell(dirfd, path, &mut buffer) {
        Ok(spelled) if serving.pages.run.covers(spelled) => read_spelled(serving, spelled, path, flags, real),
        Ok(spelled) => foreign::open(serving, spelled, real),
        Err(reason) => {
            serving.pages.count(reason, 1);
            real()
        }
    }
}

/// Opens for reading, under a source.
#[inline(never)]
fn read_spelled(serving: Serving, spelled: &[u8], path: &CStr, flags: c_int, real: &dyn Fn() -> c_int) -> c_int {
    if serving.pages.run.excludes(spelled) {
        serving.pages.count(Counter::Excluded, 1);
        return real();
    }
    let file = OpenedFile {
        name: path,
        path: spelled,
        fd: -1,
        flags,
        opened_at: real::now(),
        took: 0,
        is_library: false,
    };
    read_file(serving, file, real)
}

/// Opens a file under a source: the copy, else the source.
#[inline]
fn read_file(serving: Serving, mut file: OpenedFile<'_>, real: &dyn Fn() -> c_int) -> c_int {
    serving.pages.count(Counter::SourceOpens, 1);
    let miss = match lookup::open_copy(serving, file.path, file.name, file.flags, file.opened_at) {
        Ok(fd) => return fd,
        Err(miss) => miss,
    };
    // The search for a copy does not count as the source's time, although with `on_open` it asks the source.
    let begun = real::now();
    file.fd = real();
    if file.fd >= 0 {
        file.took = serving.pages.count_source_open(begun);
        handoff::offer(serving, miss, &file);
    } else {
        serving.pages.count_startup_wait(file.path, begun);
        if let Miss::Because(reason) = miss {
            serving.pages.count(reason, 1);
        }
    }
    file.fd
}

/// Opens a file under a source as a program would, for the loader: the copy if there is one.
///
/// # Errors
/// The source's.
pub(crate) fn open_for_loader(serving: Serving, spelled: &[u8], path: &CStr) -> Result<c_int, Errno> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let error = Cell::new(Errno(0));
    let real = || {
        sys::open_at(libc::AT_FDCWD, path, flags, 0).unwrap_or_else(|errno| {
            error.set(errno);
            -1
        })
    };
    let file = OpenedFile {
        name: path,
        path: spelled,
        fd: -1,
        flags,
        opened_at: real::now(),
        took: 0,
        is_library: true,
    };
    let fd = read_file(serving, file, &real);
    if fd < 0 { Err(error.get()) } else { Ok(fd) }
}

/// Opens with flags that rule out a copy.
#[inline(never)]
fn odd(serving: Serving, dirfd: c_int, path: &CStr, real: &dyn Fn() -> c_int) -> c_int {
    let mut buffer = PathBuffer::new();
    let reason = match lookup::spell(dirfd, path, &mut buffer) {
        Ok(spelled) if serving.pages.run.covers(spelled) => Counter::Flags,
        Ok(_) => Counter::Foreign,
        Err(reason) => reason,
    };
    serving.pages.count(reason, 1);
    real()
}

/// Opens for writing, or creates a file.
#[inline(never)]
fn write(serving: Serving, dirfd: c_int, path: &CStr, flags: c_int, real: &dyn Fn() -> c_int) -> c_int {
    if let Some(copy) = copies::of_name(serving, dirfd, path) {
        return reopen(serving, &copy, flags);
    }
    let place = concerned(serving, dirfd, path);
    if let Some(place) = &place {
        place.mark(serving);
    }
    let fd = real();
    if fd >= 0 {
        opened_for_writing(serving, path, place.as_ref(), fd);
    }
    fd
}

/// Returns the place that an open for writing will change, as far as its spelling tells. An absolute spelling outside
/// every source is not examined: its target is marked after the open.
pub(crate) fn concerned(serving: Serving, dirfd: c_int, path: &CStr) -> Option<MarkedName<'_>> {
    let bytes = path.to_bytes();
    if bytes.first() == Some(&b'/') && !serving.pages.run.covers(bytes) {
        return None;
    }
    MarkedName::find(serving, dirfd, path)
}

/// Marks and counts after an open for writing, by the name `path`.
pub(crate) fn opened_for_writing(serving: Serving, path: &CStr, place: Option<&MarkedName<'_>>, fd: c_int) {
    if let Some(place) = place {
        place.mark(serving);
    }
    let is_source = marks::mark_descriptor(serving, fd);
    if is_source && place.is_none_or(MarkedName::is_dangling) {
        // It may be a new file, in a directory that was not examined before.
        marks::mark_parent_of(serving, fd);
    }
    // Marks any file that may be a source's: every file on its file system, since it may also have names under the
    // source.
    let is_marked = is_source || place.is_some();
    if is_marked {
        serving.pages.count(Counter::Tombstones, 1);
    }
    let is_writing = is_marked && is_under_source(serving, path, fd);
    serving.pages.count(if is_writing { Counter::Writing } else { Counter::Foreign }, 1);
}

/// Returns whether an open file is under a source, by the program's name or by the kernel's.
#[inline(never)]
fn is_under_source(serving: Serving, path: &CStr, fd: c_int) -> bool {
    let run = &serving.pages.run;
    let bytes = path.to_bytes();
    if bytes.first() == Some(&b'/') && run.covers(bytes) {
        return true;
    }
    has_source_path(serving, fd)
}

/// Returns whether the kernel's path of an open file is under a source.
#[inline(never)]
pub(crate) fn has_source_path(serving: Serving, fd: c_int) -> bool {
    let mut buffer = PathBuffer::new();
    descriptor_path(fd, &mut buffer).is_some_and(|()| serving.pages.run.covers(buffer.bytes()))
}

/// Opens a copy's descriptor again by name, for writing: opens the source instead, if it is still the same file.
fn reopen(serving: Serving, copy: &OpenCopy, flags: c_int) -> c_int {
    let mark = || {
        if let Some((dev, ino)) = copy.source_inode() {
            serving.control.mark_file(dev, ino, real::now());
        }
    };
    mark();
    let opened = if flags & libc::O_EXCL != 0 && flags & libc::O_CREAT != 0 {
        Err(Errno(libc::EEXIST))
    } else {
        // It is truncated only once it is known to be the file.
        copy.open_source(flags & !(libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW))
    };
    let opened = opened.and_then(|fd| {
        if flags & libc::O_TRUNC != 0
            && let Err(errno) = sys::truncate_fd(fd, 0)
        {
            sys::close(fd);
            return Err(errno);
        }
        Ok(fd)
    });
    mark();
    serving.pages.count(Counter::Tombstones, 1);
    serving.pages.count(Counter::Writing, 1);
    real::as_libc(opened)
}
