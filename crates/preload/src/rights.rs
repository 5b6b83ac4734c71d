//! Checks that this process may still read the source of a copy (S4): one agent serves all sessions of a user, and some
//! may have fewer groups. A right that was removed at the source changes its ctime, which is checked elsewhere.

use core::ffi::{CStr, c_int};

use forebay_contract::Attributes;
use libc::{gid_t, uid_t};

use crate::sys::{self, word};

/// Largest number of groups checked here; for a user of more groups the source is asked.
const GROUPS_MAX: usize = 256;
const ALL_READ: u32 = 0o444;

/// Returns whether this process may now read the file that the program calls `path`, relative to its current directory.
/// The source is asked if the mode does not decide (access lists, capabilities).
#[inline]
pub(crate) fn may_read(attributes: &Attributes, path: &CStr) -> bool {
    mode_lets(attributes) || source_lets(path)
}

/// Returns whether the mode alone proves that this process may read the file.
#[inline]
pub(crate) fn mode_lets(attributes: &Attributes) -> bool {
    attributes.mode & ALL_READ == ALL_READ || is_of_right_class(attributes)
}

/// Returns whether the kernel would let this process read: it checks the first matching class of owner, group, others.
/// The super-user is in all of them.
#[inline(never)]
fn is_of_right_class(attributes: &Attributes) -> bool {
    let user = number(libc::SYS_geteuid);
    let bit = if user == 0 {
        return true;
    } else if user == attributes.uid {
        0o400
    } else {
        match is_in_group(attributes.gid) {
            Some(true) => 0o040,
            Some(false) => 0o004,
            None => return false,
        }
    };
    attributes.mode & bit != 0
}

/// Returns whether effective and real user and group are the same; `access` checks the real ones.
pub(crate) fn is_one_user() -> bool {
    number(libc::SYS_getuid) == number(libc::SYS_geteuid) && number(libc::SYS_getgid) == number(libc::SYS_getegid)
}

fn is_in_group(group: gid_t) -> Option<bool> {
    if number(libc::SYS_getegid) == group {
        return Some(true);
    }
    let mut groups: [gid_t; GROUPS_MAX] = [0; GROUPS_MAX];
    let arguments = [groups.len(), groups.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: room for that many.
    let count = unsafe { sys::call(libc::SYS_getgroups, arguments) }.ok()?;
    Some(groups.get(..count)?.contains(&group))
}

/// Returns whether the source could be opened for reading; false on kernels that can't tell it for the effective user
/// (before 5.8).
fn source_lets(path: &CStr) -> bool {
    let (how, flags): (c_int, c_int) = (libc::R_OK, libc::AT_EACCESS);
    let arguments = [word(libc::AT_FDCWD), path.as_ptr() as usize, word(how), word(flags), 0, 0];
    // SAFETY: a string with its NUL.
    unsafe { sys::call(libc::SYS_faccessat2, arguments) }.is_ok()
}

/// Returns the result of a call that takes nothing and can't fail.
fn number(call: libc::c_long) -> uid_t {
    // SAFETY: takes nothing.
    unsafe { sys::call(call, [0; 6]) }.map_or(uid_t::MAX, |number| number as uid_t)
}
