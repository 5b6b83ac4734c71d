//! Programs that the library can't come into (static, Go, setuid, without our environment) change files unseen. So where a child ends that was
//! not covered to its end, copies are compared with the source before they stand in again.
//!
//! A process that is covered is entered in the run page (see `forebay_contract::covered`): by the constructor, or in the child of a `fork`. Before
//! it executes another program it is removed. When a child is reaped that is not entered, the control page says so.

use core::{ffi::c_int, slice};

use forebay_contract::Counter;

use crate::{
    real,
    state::{self, Serving},
    sys,
};

/// Enters the calling process.
pub(crate) fn enter(serving: Serving) {
    serving.door.run.covered().enter(sys::process_id(), real::now());
}

/// Removes the calling process: it will be another program, or is elsewhere.
pub(crate) fn leave() {
    if let Some(serving) = state::serving() {
        serving.door.run.covered().remove(sys::process_id());
    }
}

/// Executes another program; where that fails the process is covered as it was.
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

/// Starts a program in a child. What was entered before it belongs to an earlier process with the child's number.
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
        serving.door.run.covered().remove_older(unsafe { *child } as u64, begun);
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

/// After a call of libc in which a shell was started and waited for, unknown to us.
pub(crate) fn shell_ended() {
    if let Some(serving) = state::serving() {
        mark(serving);
    }
}

fn ended(serving: Serving, child: libc::pid_t) {
    if !serving.door.run.covered().remove(child as u64) {
        mark(serving);
    }
}

/// Where nobody is to be reaped, the kernel may have reaped children itself, for a program that ignores their ends.
fn failed(serving: Serving) {
    if real::errno() == libc::ECHILD && sys::reaps_itself() {
        mark(serving);
    }
}

fn mark(serving: Serving) {
    serving.control.mark_unseen(real::now());
    serving.door.count(Counter::UncoveredEnds, 1);
}

/// Whether the program was written in Go, which calls the kernel without libc: what it does is not seen, though the library is in it.
pub(crate) fn is_go() -> bool {
    let headers = real::auxiliary(libc::AT_PHDR) as *const libc::Elf64_Phdr;
    let count = real::auxiliary(libc::AT_PHNUM) as usize;
    if headers.is_null() {
        return false;
    }
    // SAFETY: the kernel has mapped the program's headers, and tells where and how many.
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

/// Whether notes (length of name, length of text, kind, name, text; padded to four bytes) have one of Go's.
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
