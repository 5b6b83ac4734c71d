//! Attributes through a redirected descriptor: read and changed on the source, never on the copy (promise P6).

use core::ffi::c_int;

use forebay_contract::Counter;

use crate::{
    copies,
    marks::mark_attributes,
    real,
    state::{self, Serving},
    sys::{self, Errno},
};

/// Effect of a call on the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttributeAccess {
    Reads,
    Changes,
}

/// Carries out `number(fd, rest...)` on the source of the copy that `fd` is open on. If `fd` is not a copy's, makes the
/// program's own call.
pub(crate) fn forward(fd: c_int, access: AttributeAccess, number: libc::c_long, rest: [usize; 4], real: impl FnOnce() -> isize) -> isize {
    let Some(serving) = state::serving() else {
        return real();
    };
    match on_source(serving, fd, access, number, rest) {
        None if access == AttributeAccess::Changes => {
            mark_attributes(serving, fd);
            let answer = real();
            mark_attributes(serving, fd);
            answer
        }
        None => real(),
        Some(Ok(answer)) => answer as isize,
        Some(Err(Errno(errno))) => {
            real::set_errno(errno);
            -1
        }
    }
}

fn on_source(serving: Serving, fd: c_int, access: AttributeAccess, number: libc::c_long, rest: [usize; 4]) -> Option<Result<usize, Errno>> {
    let copy = copies::of_descriptor(serving, fd)?;
    let inode = copy.source_inode()?;
    let source = match copy.open_source(libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY) {
        Ok(source) => source,
        Err(errno) => return Some(Err(errno)),
    };
    let mark = || {
        if access == AttributeAccess::Changes {
            serving.control.mark_file(inode.0, inode.1, real::now());
        }
    };
    mark();
    let [b, c, d, e] = rest;
    // SAFETY: the program's own arguments, which the kernel checks, on a descriptor of the file that they were meant
    // for.
    let answer = unsafe { sys::call(number, [sys::word(source), b, c, d, e, 0]) };
    mark();
    sys::close(source);
    if access == AttributeAccess::Changes {
        serving.pages.count(Counter::AttributesForwarded, 1);
        serving.pages.count(Counter::Tombstones, 1);
    }
    Some(answer)
}
