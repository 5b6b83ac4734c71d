//! Child processes. Some programs can't load the library (static, Go, setuid, without our environment) and change files
//! unseen. So when a child ends that was not covered to its end, copies are compared with the source before they are
//! used again.
//!
//! A covered process is entered in the run page (see `forebay_contract::covered`): by the constructor, or in the child
//! of a `fork`. It is removed before it executes another program. When a child is reaped that is not entered, the
//! control page records it.

use core::{ffi::c_int, slice};

use forebay_contract::Counter;

use crate::{
    real,
    state::{self, Serving},
    sys,
};

/// Enters the calling process.
pub(crate) fn enter(serving: Serving) {
    serving.pages.run.covered().enter(sys::process_id(), real::now());
}

/// Removes the calling process, which is about to become another program or has moved elsewhere.
pub(crate) fn leave() {
    if let Some(serving) = state::serving() {
        serving.pages.run.covered().remove(sys::process_id());
    }
}

/// Executes another program; if that fails, the process is entered again.
pub(crate) fn execute(call: impl FnOnce() -> c_int) -> c_int {
    leave();
    let answer = call();
    if let Some(serving) = state::serving() {
        enter(serving);
    }
    answer
}

/// Forks, and enters the child.
pub(crate) fn fork(call: impl FnOnce() -> libc::pid_t) -> libc::pid_t {
    let answer = call();
    if answer == 0
        && let Some(serving) = state::serving()
    {
        enter(serving);
    }
    answer
}

/// Starts a program in a child. An entry made before it belongs to an earlier process with the child's number.
///
/// # Safety
/// `child` is null, or the program's room for the number, which a call that succeeds fills.
pub(crate) unsafe fn spawn(child: *mut libc::pid_t, call: impl FnOnce(*mut libc::pid_t) -> c_int) -> c_int {
    let Some(serving) = state::serving() else {
        return call(child);
    };
    let begun = real::now();
    let mut own = 0;
    let child = if child.is_null() { &raw mut own } else { child };
    let answer = call(child);
    if answer == 0 {
        // SAFETY: the call succeeded.
        serving.pages.run.covered().remove_older(unsafe { *child } as u64, begun);
    }
    answer
}

/// Waits for a child by a call that fills a status.
///
/// # Safety
/// `status` is null, or the program's room for it, which a call that finds a child fills.
pub(crate) unsafe fn wait(status: *mut c_int, call: impl FnOnce(*mut c_int) -> libc::pid_t) -> libc::pid_t {
    let Some(serving) = state::serving() else {
        return call(status);
    };
    let mut own = 0;
    let status = if status.is_null() { &raw mut own } else { status };
    let child = call(status);
    if child > 0 {
        // SAFETY: the call has found a child.
        let status = unsafe { *status };
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            ended(serving, child);
        }
    } else if child < 0 {
        failed(serving);
    }
    child
}

/// Waits for a child by a call that describes it.
///
/// # Safety
/// `about` is null, or the program's room for the description, which a call that succeeds fills.
pub(crate) unsafe fn wait_id(about: *mut libc::siginfo_t, call: impl FnOnce(*mut libc::siginfo_t) -> c_int) -> c_int {
    let Some(serving) = state::serving() else {
        return call(about);
    };
    // SAFETY: integers, of which all may be 0.
    let mut own: libc::siginfo_t = unsafe { core::mem::zeroed() };
    let about = if about.is_null() { &raw mut own } else { about };
    let answer = call(about);
    if answer == 0 {
        // SAFETY: the call succeeded, and has described a child, or put 0 for its number.
        let (child, code) = unsafe { ((*about).si_pid(), (*about).si_code) };
        if child > 0 && matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
            ended(serving, child);
        }
    } else {
        failed(serving);
    }
    answer
}

/// Records the end of a shell that a call of libc started and waited for, unseen by us.
pub(crate) fn shell_ended() {
    if let Some(serving) = state::serving() {
        mark(serving);
    }
}

fn ended(serving: Serving, child: libc::pid_t) {
    if !serving.pages.run.covered().remove(child as u64) {
        mark(serving);
    }
}

/// Handles a wait that found no child: the kernel may have reaped children itself, for a program that ignores their
/// ends.
fn failed(serving: Serving) {
    if real::errno() == libc::ECHILD && sys::reaps_itself() {
        mark(serving);
    }
}

fn mark(serving: Serving) {
    serving.control.mark_unseen(real::now());
    serving.pages.count(Counter::UncoveredEnds, 1);
}

/// Returns whether the program was written in Go. Such a program calls the kernel without libc, so the library does not
/// see its calls.
pub(crate) fn is_go() -> bool {
    let headers = real::auxiliary(libc::AT_PHDR) as *const libc::Elf64_Phdr;
    let count = real::auxiliary(libc::AT_PHNUM) as usize;
    if headers.is_null() {
        return false;
    }
    // SAFETY: the kernel has mapped the program's headers, and reports their address and number.
    let headers = unsafe { slice::from_raw_parts(headers, count) };
    let Some(own) = headers.iter().find(|header| header.p_type == libc::PT_PHDR) else {
        return false;
    };
    let base = (headers.as_ptr() as usize).wrapping_sub(own.p_vaddr as usize);
    let notes = headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
    notes
        .map(|header| {
            // SAFETY: notes are part of what the loader has mapped.
            unsafe { slice::from_raw_parts(base.wrapping_add(header.p_vaddr as usize) as *const u8, header.p_memsz as usize) }
        })
        .any(has_go_note)
}

/// Returns whether notes (length of name, length of text, kind, name, text; padded to four bytes) contain one of Go's.
fn has_go_note(mut notes: &[u8]) -> bool {
    let word = |notes: &[u8], at: usize| {
        let bytes = notes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    while let (Some(name), Some(text)) = (word(notes, 0), word(notes, 4)) {
        if name == 4 && notes.get(12..16) == Some(b"Go\0\0") {
            return true;
        }
        let len = 12usize
            .saturating_add(name.saturating_add(3) & !3)
            .saturating_add(text.saturating_add(3) & !3);
        notes = notes.get(len..).unwrap_or(&[]);
    }
    false
}
