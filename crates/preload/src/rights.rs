//! Whether this process may still read what was copied (S4): one agent serves all sessions of a user, and some may be of fewer groups.
//! What was taken away at the source shows elsewhere, in the source's time of change.

use core::ffi::{CStr, c_int};

use forebay_contract::Attributes;
use libc::{gid_t, uid_t};

use crate::sys::{self, word};

/// A user of more groups is asked for at the source.
const GROUPS_MAX: usize = 256;
const ALL_READ: u32 = 0o444;

/// Whether the file that the program calls `path`, relative to its current directory, may be read by this process as it is now. What the
/// mode leaves open (access lists, capabilities) the source is asked for.
#[inline]
pub(crate) fn may_read(attributes: &Attributes, path: &CStr) -> bool {
    mode_lets(attributes) || source_lets(path)
}

/// Whether the mode alone leaves no doubt that this process may read the file.
#[inline]
pub(crate) fn mode_lets(attributes: &Attributes) -> bool {
    attributes.mode & ALL_READ == ALL_READ || is_of_right_class(attributes)
}

/// The class that the kernel would look at is let read: owner, group, others, in this order. The super-user is in all of them.
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

/// Whether the process acts as the user and the group that it belongs to; `access` asks for the latter.
pub(crate) fn is_one_user() -> bool {
    number(libc::SYS_getuid) == number(libc::SYS_geteuid) && number(libc::SYS_getgid) == number(libc::SYS_getegid)
}

fn is_in_group(group: gid_t) -> Option<bool> {
    if number(libc::SYS_getegid) == group {
        return Some(true);
    }
    let mut groups: [gid_t; GROUPS_MAX] = [0; GROUPS_MAX];
    let arguments = [groups.len(), groups.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: room for so many.
    let count = unsafe { sys::call(libc::SYS_getgroups, arguments) }.ok()?;
    Some(groups.get(..count)?.contains(&group))
}

/// Whether the source would be opened for reading; on kernels that can't tell it of the effective user (before 5.8): no.
fn source_lets(path: &CStr) -> bool {
    let (how, flags): (c_int, c_int) = (libc::R_OK, libc::AT_EACCESS);
    let arguments = [word(libc::AT_FDCWD), path.as_ptr() as usize, word(how), word(flags), 0, 0];
    // SAFETY: a string with its NUL.
    unsafe { sys::call(libc::SYS_faccessat2, arguments) }.is_ok()
}

/// The answer of a call that takes nothing and can't fail.
fn number(call: libc::c_long) -> uid_t {
    // SAFETY: takes nothing.
    unsafe { sys::call(call, [0; 6]) }.map_or(uid_t::MAX, |number| number as uid_t)
}
