//! Locks: `flock`, the lock commands of `fcntl`, `lockf`. All other commands of `fcntl` pass straight through.

use core::ffi::c_int;

use libc::{LOCK_UN, off_t};

use crate::{
    locks::{Owner, lock, owner_of},
    real,
};

#[unsafe(no_mangle)]
unsafe extern "C" fn flock(fd: c_int, operation: c_int) -> c_int {
    let real = || next!(FLOCK(fd, operation) or real::missing(-1));
    if operation & LOCK_UN != 0 {
        return real();
    }
    lock(fd, Owner::Description, real)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let real = || next_known!(FCNTL(fd, command, argument) or real::raw_fcntl(fd, command, argument));
    match owner_of(command) {
        None => real(),
        Some(owner) => lock(fd, owner, real),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    let real = || next_known!(FCNTL64(fd, command, argument) or real::raw_fcntl(fd, command, argument));
    match owner_of(command) {
        None => real(),
        Some(owner) => lock(fd, owner, real),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int {
    lock(fd, Owner::Process, || next!(LOCKF(fd, command, len) or real::missing(-1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lockf64(fd: c_int, command: c_int, len: off_t) -> c_int {
    lock(fd, Owner::Process, || next!(LOCKF64(fd, command, len) or real::missing(-1)))
}
