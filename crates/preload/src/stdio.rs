//! stdio's own opens, which libc makes without the symbols of the open family.

use core::{
    ffi::{CStr, c_char, c_int},
    ptr,
};

use forebay_contract::Counter;
use libc::FILE;

use crate::{
    copies::{self, COPY_MODE, OpenCopy},
    handoff::{self, OpenedFile},
    lookup::{self, Miss},
    open::{concerned, opened_for_writing},
    path::{PathBuffer, ShortBuffer, descriptor_name},
    real,
    state::{self, Serving},
    sys,
};

/// Purpose of a mode string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// To read; with the flags of an equivalent open.
    Read(c_int),
    /// To read, in a way that only libc's own open can set up.
    Odd,
    /// To write, perhaps among other purposes.
    Write,
}

fn mode_of(mode: &CStr) -> Mode {
    let (first, rest) = match mode.to_bytes().split_first() {
        Some((b'r', rest)) => (Mode::Read(libc::O_RDONLY), rest),
        Some((b'w' | b'a', _)) => return Mode::Write,
        _ => return Mode::Odd,
    };
    rest.iter().fold(first, |mode, byte| match (mode, byte) {
        (Mode::Write, _) | (_, b'+') => Mode::Write,
        (Mode::Read(flags), b'e') => Mode::Read(flags | libc::O_CLOEXEC),
        (mode, b'b' | b'c' | b'm') => mode,
        _ => Mode::Odd,
    })
}

/// Returns both strings, or nothing if either is missing.
fn strings<'a>(path: *const c_char, mode: *const c_char) -> Option<(&'a CStr, &'a CStr)> {
    // SAFETY: the program's strings.
    (!path.is_null() && !mode.is_null()).then(|| unsafe { (CStr::from_ptr(path), CStr::from_ptr(mode)) })
}

fn descriptor_of(stream: *mut FILE) -> Option<c_int> {
    let fileno = real::FILENO.get()?;
    // SAFETY: a stream that libc has just given, or the program's own.
    (!stream.is_null()).then(|| unsafe { fileno(stream) }).filter(|fd| *fd >= 0)
}

/// A request to open a stream: `fopen` makes one, `freopen` changes one.
struct StreamRequest<'a> {
    path: &'a CStr,
    /// The program's own call, with this path or another.
    real: &'a dyn Fn(*const c_char) -> *mut FILE,
    /// Makes a stream of a copy's descriptor, which the stream then owns, or closes it; null on failure.
    adopt: &'a dyn Fn(c_int) -> *mut FILE,
}

impl StreamRequest<'_> {
    fn pass(&self) -> *mut FILE {
        (self.real)(self.path.as_ptr())
    }

    fn serve(&self, serving: Serving, mode: Mode) -> *mut FILE {
        match mode {
            Mode::Write => self.write(serving),
            Mode::Read(flags) => self.read(serving, Some(flags)),
            Mode::Odd => self.read(serving, None),
        }
    }

    /// Opens for reading; without flags, in a way that no copy can serve.
    fn read(&self, serving: Serving, flags: Option<c_int>) -> *mut FILE {
        let mut buffer = PathBuffer::new();
        let covered = match lookup::spell(libc::AT_FDCWD, self.path, &mut buffer) {
            Ok(spelled) if serving.pages.run.covers(spelled) => Ok((spelled, flags)),
            Ok(_) => Err(Counter::Foreign),
            Err(reason) => Err(reason),
        };
        match covered {
            Ok((spelled, Some(flags))) => self.read_spelled(serving, spelled, flags),
            Ok((_, None)) => {
                serving.pages.count(Counter::StdioMode, 1);
                self.pass()
            }
            Err(reason) => {
                serving.pages.count(reason, 1);
                self.pass()
            }
        }
    }

    fn read_spelled(&self, serving: Serving, spelled: &[u8], flags: c_int) -> *mut FILE {
        if serving.pages.run.excludes(spelled) {
            serving.pages.count(Counter::Excluded, 1);
            return self.pass();
        }
        serving.pages.count(Counter::SourceOpens, 1);
        let now = real::now();
        let miss = match lookup::open_copy(serving, spelled, self.path, flags, now) {
            Ok(fd) => {
                let errno = real::errno();
                let stream = (self.adopt)(fd);
                if stream.is_null() {
                    real::set_errno(errno);
                    return self.pass();
                }
                return stream;
            }
            Err(miss) => miss,
        };
        let begun = real::now();
        let stream = self.pass();
        if let Some(fd) = descriptor_of(stream) {
            let took = serving.pages.count_source_open(begun);
            let file = OpenedFile {
                name: self.path,
                path: spelled,
                fd,
                flags,
                opened_at: now,
                took,
                is_library: false,
            };
            handoff::offer(serving, miss, &file);
        } else {
            serving.pages.count_startup_wait(spelled, begun);
            if let Miss::Because(reason) = miss {
                serving.pages.count(reason, 1);
            }
        }
        stream
    }

    fn write(&self, serving: Serving) -> *mut FILE {
        match copies::of_name(serving, libc::AT_FDCWD, self.path) {
            None => write_at(serving, self.path, self.real),
            Some(copy) => write_source(serving, copy, self.real).unwrap_or_else(|| self.pass()),
        }
    }
}

/// Opens for writing, by a name that leads to no copy.
#[inline(never)]
fn write_at(serving: Serving, path: &CStr, real: &dyn Fn(*const c_char) -> *mut FILE) -> *mut FILE {
    let place = concerned(serving, libc::AT_FDCWD, path);
    if let Some(place) = &place {
        place.mark(serving);
    }
    let stream = real(path.as_ptr());
    if let Some(fd) = descriptor_of(stream) {
        opened_for_writing(serving, path, place.as_ref(), fd);
    }
    stream
}

/// Opens for writing, by a name that leads to a copy: uses the source's own name.
#[inline(never)]
fn write_source(serving: Serving, copy: OpenCopy, real: &dyn Fn(*const c_char) -> *mut FILE) -> Option<*mut FILE> {
    let mut buffer = PathBuffer::new();
    Some(write_at(serving, copy.into_source_path(&mut buffer)?, real))
}

/// Handles `fopen` by either name.
pub(crate) fn fopen(path: *const c_char, mode: *const c_char, real: impl Fn(*const c_char) -> *mut FILE) -> *mut FILE {
    let Some((serving, (named, how))) = state::serving_open().zip(strings(path, mode)) else {
        return real(path);
    };
    let kind = mode_of(how);
    let bytes = named.to_bytes();
    if kind != Mode::Write && bytes.first() == Some(&b'/') && !serving.pages.run.covers(bytes) {
        serving.pages.count(Counter::Foreign, 1);
        return real(path);
    }
    let adopt = |fd| {
        // SAFETY: the mode is the program's string.
        let stream = real::FDOPEN.get().map_or(ptr::null_mut(), |fdopen| unsafe { fdopen(fd, mode) });
        if stream.is_null() {
            sys::close(fd);
        }
        stream
    };
    let request = StreamRequest {
        path: named,
        real: &real,
        adopt: &adopt,
    };
    request.serve(serving, kind)
}

/// Handles `freopen` by either name.
pub(crate) fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE, real: impl Fn(*const c_char) -> *mut FILE) -> *mut FILE {
    let Some(serving) = state::serving_open() else {
        return real(path);
    };
    let Some((named, how)) = strings(path, mode) else {
        return change_mode(serving, path, mode, stream, &real);
    };
    let adopt = |fd| {
        let mut name = ShortBuffer::new();
        let by_number = descriptor_name(fd, &mut name);
        // libc closes the stream if it can't open the name, so the name must be known to lead to the copy.
        let leads_there = by_number.is_some_and(|name| {
            sys::stat_at(libc::AT_FDCWD, name, 0)
                .is_ok_and(|stat| stat.st_mode == COPY_MODE && Ok(stat.st_ino) == sys::stat_fd(fd).map(|s| s.st_ino))
        });
        let changed = if leads_there {
            real(name.c_str().as_ptr())
        } else {
            ptr::null_mut()
        };
        sys::close(fd);
        changed
    };
    let request = StreamRequest {
        path: named,
        real: &real,
        adopt: &adopt,
    };
    request.serve(serving, mode_of(how))
}

/// Handles `freopen` without a name: libc opens the stream's file again, by `/proc/self/fd`. A copy must not be opened
/// for writing.
fn change_mode(
    serving: Serving,
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    real: &dyn Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's string.
    let writes = !mode.is_null() && mode_of(unsafe { CStr::from_ptr(mode) }) == Mode::Write;
    descriptor_of(stream)
        .filter(|_| writes && path.is_null())
        .and_then(|fd| write_source(serving, copies::of_descriptor(serving, fd)?, real))
        .unwrap_or_else(|| real(path))
}
