//! Calls that start programs and wait for them.

use core::{
    arch::naked_asm,
    ffi::{c_char, c_int, c_void},
};

use libc::{FILE, id_t, idtype_t, pid_t, rusage, siginfo_t};

use super::CText;
use crate::{
    children,
    real::{self, Texts},
};

#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> pid_t {
    children::fork(|| next!(FORK() or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: CText, arguments: Texts, environment: Texts) -> c_int {
    children::execute(|| next!(EXECVE(path, arguments, environment) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: CText, arguments: Texts) -> c_int {
    children::execute(|| next!(EXECV(path, arguments) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: CText, arguments: Texts) -> c_int {
    children::execute(|| next!(EXECVP(file, arguments) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(file: CText, arguments: Texts, environment: Texts) -> c_int {
    children::execute(|| next!(EXECVPE(file, arguments, environment) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, arguments: Texts, environment: Texts) -> c_int {
    children::execute(|| next!(FEXECVE(fd, arguments, environment) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execveat(dirfd: c_int, path: CText, arguments: Texts, environment: Texts, flags: c_int) -> c_int {
    children::execute(|| next!(EXECVEAT(dirfd, path, arguments, environment, flags) or real::missing(-1)))
}

extern "C" fn no_such_call() -> c_int {
    real::missing(-1)
}

/// Defines a hook with any number of arguments: `leave`, which knows none of them, returns the address to jump to with
/// all of them in place.
macro_rules! execute_list {
    ($name:ident, $next:ident, $leave:ident) => {
        extern "C" fn $leave() -> *const c_void {
            children::leave();
            let found = real::$next.get();
            found.map_or(no_such_call as *const c_void, |function| function as *const c_void)
        }

        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "call {leave}",
                "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                leave = sym $leave,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "bl {leave}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                leave = sym $leave,
            );
        }
    };
}

execute_list!(execl, EXECL, leave_by_execl);
execute_list!(execlp, EXECLP, leave_by_execlp);
execute_list!(execle, EXECLE, leave_by_execle);

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn(
    child: *mut pid_t,
    path: CText,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Texts,
    environment: Texts,
) -> c_int {
    let call = |child| next!(POSIX_SPAWN(child, path, actions, attributes, arguments, environment) or libc::ENOSYS);
    // SAFETY: the program's own room.
    unsafe { children::spawn(child, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawnp(
    child: *mut pid_t,
    file: CText,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Texts,
    environment: Texts,
) -> c_int {
    let call = |child| next!(POSIX_SPAWNP(child, file, actions, attributes, arguments, environment) or libc::ENOSYS);
    // SAFETY: the program's own room.
    unsafe { children::spawn(child, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait(status: *mut c_int) -> pid_t {
    let call = |status| next!(WAIT(status) or real::missing(-1));
    // SAFETY: the program's own room.
    unsafe { children::wait(status, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn waitpid(child: pid_t, status: *mut c_int, options: c_int) -> pid_t {
    let call = |status| next!(WAITPID(child, status, options) or real::missing(-1));
    // SAFETY: the program's own room.
    unsafe { children::wait(status, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
    let call = |status| next!(WAIT3(status, options, usage) or real::missing(-1));
    // SAFETY: the program's own room.
    unsafe { children::wait(status, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait4(child: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
    let call = |status| next!(WAIT4(child, status, options, usage) or real::missing(-1));
    // SAFETY: the program's own room.
    unsafe { children::wait(status, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn waitid(kind: idtype_t, id: id_t, about: *mut siginfo_t, options: c_int) -> c_int {
    let call = |about| next!(WAITID(kind, id, about, options) or real::missing(-1));
    // SAFETY: the program's own room.
    unsafe { children::wait_id(about, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let answer = next!(SYSTEM(command) or real::missing(-1));
    if !command.is_null() {
        children::shell_ended();
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pclose(stream: *mut FILE) -> c_int {
    let answer = next!(PCLOSE(stream) or real::missing(-1));
    children::shell_ended();
    answer
}
