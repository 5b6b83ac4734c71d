//! Calls that change the targets of names, or a file's contents by name. All of them go to the source, between
//! tombstones.

use core::ffi::{CStr, c_char, c_int};

use crate::{
    copies::{self, OpenCopy},
    lookup,
    marks::{MarkedName, NameChange, around, mark_parent},
    path::PathBuffer,
    real,
    stat::is_descriptor,
    state::{self, Serving},
    sys,
};

/// A name as the program gives it.
#[derive(Clone, Copy)]
pub(crate) struct ProgramName(pub(crate) c_int, pub(crate) *const c_char);

impl ProgramName {
    /// Creates a name that is relative to the current directory, unless it is absolute.
    pub(crate) const fn here(path: *const c_char) -> Self {
        Self(libc::AT_FDCWD, path)
    }

    fn leads_to_directory(&self) -> bool {
        // SAFETY: the program's string, with which its call has just succeeded.
        let path = unsafe { CStr::from_ptr(self.1) };
        sys::stat_at(self.0, path, 0).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
    }

    /// Returns whether a source, as it is spelled, is at this name or below it.
    #[inline(never)]
    fn is_on_the_way(&self, serving: Serving) -> bool {
        if self.1.is_null() {
            return false;
        }
        // SAFETY: the program's string.
        let path = unsafe { CStr::from_ptr(self.1) };
        let mut buffer = PathBuffer::new();
        let spelled = lookup::spell(self.0, path, &mut buffer);
        spelled.is_ok_and(|spelled| {
            let mut roots = serving.pages.run.roots();
            roots.any(|(root, _)| {
                root.strip_prefix(spelled)
                    .is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
            })
        })
    }

    fn place(&self, serving: Serving) -> Option<MarkedName<'_>> {
        if self.1.is_null() {
            return None;
        }
        // SAFETY: the program's string.
        MarkedName::find(serving, self.0, unsafe { CStr::from_ptr(self.1) })
    }
}

pub(crate) fn change_one(name: ProgramName, change: NameChange, real: impl FnOnce() -> c_int) -> c_int {
    let Some(serving) = state::serving() else {
        return real();
    };
    let result = around(serving, &[name.place(serving)], change, real);
    void_if_moved(serving, result, [name]);
    result
}

pub(crate) fn change_two(from: ProgramName, to: ProgramName, real: impl FnOnce() -> c_int) -> c_int {
    let Some(serving) = state::serving() else {
        return real();
    };
    let result = around(serving, &[from.place(serving), to.place(serving)], NameChange::Move, real);
    void_if_moved(serving, result, [from, to]);
    result
}

/// Gives a file a new name. If the old one leads to a copy (a descriptor's name in `/proc`, or the descriptor itself),
/// the source gets the new name.
pub(crate) fn make_name(from: ProgramName, flags: c_int, to: ProgramName, real: impl FnOnce(ProgramName) -> c_int) -> c_int {
    let Some(serving) = state::serving() else {
        return real(from);
    };
    let copy = if is_descriptor(from.1, flags) {
        copies::of_descriptor(serving, from.0)
    } else if from.1.is_null() || flags & libc::AT_SYMLINK_FOLLOW == 0 {
        // The name itself gets another one, whatever its target.
        None
    } else {
        // SAFETY: the program's string.
        copies::of_name(serving, from.0, unsafe { CStr::from_ptr(from.1) })
    };
    match copy {
        None => change_two(from, to, || real(from)),
        Some(copy) => name_source(copy, to, real),
    }
}

#[inline(never)]
fn name_source(copy: OpenCopy, to: ProgramName, real: impl FnOnce(ProgramName) -> c_int) -> c_int {
    let mut buffer = PathBuffer::new();
    let Some(path) = copy.into_source_path(&mut buffer) else {
        real::set_errno(libc::ESTALE);
        return -1;
    };
    let from = ProgramName::here(path.as_ptr());
    change_two(from, to, || real(from))
}

/// Advances the invalidation epoch after a successful change, from outside of it, of a name on the path to a source:
/// paths under the source may lead elsewhere.
fn void_if_moved<const N: usize>(serving: Serving, result: c_int, names: [ProgramName; N]) {
    if result == 0 && names.iter().any(|name| name.is_on_the_way(serving)) {
        serving.control.mark_void(real::now());
    }
}

/// Marks the directory of a name that libc has made by itself (`mkstemp` and similar calls).
pub(crate) fn mark_made(name: ProgramName) {
    if let Some(serving) = state::serving() {
        // SAFETY: the program's string, with which its call has just succeeded.
        mark_parent(serving, name.0, unsafe { CStr::from_ptr(name.1) });
    }
}

/// Makes a symbolic link.
pub(crate) fn make_link(name: ProgramName, call: impl FnOnce() -> c_int) -> c_int {
    let Some(serving) = state::serving() else {
        return call();
    };
    let place = name.place(serving);
    let is_source = place.is_some();
    let result = around(serving, &[place], NameChange::Move, call);
    if result == 0 && is_source && name.leads_to_directory() {
        serving.control.mark_void(real::now());
    }
    result
}

/// Changes the file that a name leads to, not the name: `truncate`, `chmod` and similar calls. If the name leads to a
/// copy (`/proc/self/fd/N`), `real` gets the source's own name instead.
pub(crate) fn change_file(name: ProgramName, real: impl FnOnce(*const c_char) -> c_int) -> c_int {
    let ProgramName(dirfd, path) = name;
    let Some(serving) = state::serving().filter(|_| !path.is_null()) else {
        return real(path);
    };
    // SAFETY: the program's string.
    let given = unsafe { CStr::from_ptr(path) };
    match copies::of_name(serving, dirfd, given) {
        None => change_file_at(serving, dirfd, given, real),
        Some(copy) => change_source(serving, copy, given, real),
    }
}

#[inline(never)]
fn change_file_at(serving: Serving, dirfd: c_int, path: &CStr, real: impl FnOnce(*const c_char) -> c_int) -> c_int {
    around(serving, &[MarkedName::find(serving, dirfd, path)], NameChange::Contents, || {
        real(path.as_ptr())
    })
}

#[inline(never)]
fn change_source(serving: Serving, copy: OpenCopy, given: &CStr, real: impl FnOnce(*const c_char) -> c_int) -> c_int {
    let mut buffer = PathBuffer::new();
    let path = copy.into_source_path(&mut buffer).unwrap_or(given);
    change_file_at(serving, libc::AT_FDCWD, path, real)
}
