//! Digests in one pass: copied bytes are digested in registers, read bytes while they are in the processor's cache.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use forebay_digest::{Digest, STRETCH_BYTES};
use rustix::io::{Errno, pread};

use crate::CallerMemory;

/// Bytes that fit, with their source, into the second-level cache of the processors that we know of.
const PIECE_BYTES: usize = 128 * 1024;
const _: () = assert!(PIECE_BYTES.is_multiple_of(STRETCH_BYTES));

/// Returns the digest of `memory`.
pub(crate) fn of(memory: CallerMemory) -> u128 {
    forebay_digest::of(bytes(memory))
}

/// Copies `source` to `target`, which has the same length and does not overlap it. Returns the digest of the copy.
pub(crate) fn of_copy(source: CallerMemory, target: CallerMemory) -> u128 {
    let mut digest = Digest::new(target.length);
    copy_next(&mut digest, source, target);
    digest.finish(bytes(target))
}

/// Fills `target` from `offset` of a file. Returns the digest of the bytes.
///
/// # Errors
///
/// `UnexpectedEof` if the file ends before; whatever `pread` fails with.
pub(crate) fn of_read(file: BorrowedFd<'_>, offset: u64, target: CallerMemory) -> io::Result<u128> {
    let mut digest = Digest::new(target.length);
    for at in (0..target.length).step_by(PIECE_BYTES) {
        let piece = piece(target, at);
        fill(file, offset.saturating_add(at as u64), piece)?;
        digest.see(bytes(piece));
    }
    Ok(digest.finish(bytes(target)))
}

/// Fills `target` from `offset` of a file.
///
/// # Errors
///
/// `UnexpectedEof` if the file ends before; whatever `pread` fails with.
pub(crate) fn fill(file: BorrowedFd<'_>, offset: u64, target: CallerMemory) -> io::Result<()> {
    let mut at = 0;
    while at < target.length {
        // SAFETY: memory that the caller guarantees and that nobody else uses; it may be uninitialised, which
        // `MaybeUninit` allows for.
        let room = unsafe { std::slice::from_raw_parts_mut((target.address + at) as *mut MaybeUninit<u8>, target.length - at) };
        match pread(file, room, offset.saturating_add(at as u64)) {
            Ok(([], _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((read, _)) => at += read.len(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Copies the next stretch of what is digested.
pub(crate) fn copy_next(digest: &mut Digest, source: CallerMemory, target: CallerMemory) {
    // SAFETY: both lie in memory that the caller guarantees, and the two do not overlap.
    unsafe { digest.copy(source.address as *const u8, target.address as *mut u8, target.length) };
}

/// Copies `source` to `target`, which has the same length and does not overlap it.
pub(crate) fn copy(source: CallerMemory, target: CallerMemory) {
    // SAFETY: both lie in memory that the caller guarantees, and the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(source.address as *const u8, target.address as *mut u8, target.length) };
}

/// Returns at most `PIECE_BYTES` of `memory`, from `at` on, which is within it.
pub(crate) fn piece(memory: CallerMemory, at: usize) -> CallerMemory {
    CallerMemory {
        address: memory.address + at,
        length: PIECE_BYTES.min(memory.length - at),
    }
}

pub(crate) fn bytes<'a>(memory: CallerMemory) -> &'a [u8] {
    if memory.length == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees the memory until its call returns, and no reference outlives that.
    unsafe { std::slice::from_raw_parts(memory.address as *const u8, memory.length) }
}
