//! Digests in one pass: a piece is hashed while it is still in the processor's cache from being copied or read.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, pread};
use twox_hash::XxHash3_128;

use crate::Memory;

/// Fits the second-level cache of the processors that we know of, beside its source.
const PIECE_BYTES: usize = 128 * 1024;

/// The digest of `memory`.
pub(crate) fn of(memory: Memory) -> u128 {
    XxHash3_128::oneshot(bytes(memory))
}

/// Copies `source` to `target`, which has the same length and does not overlap it; the digest is that of the copy.
pub(crate) fn of_copy(source: Memory, target: Memory) -> u128 {
    let mut hash = XxHash3_128::new();
    for at in (0..target.length).step_by(PIECE_BYTES) {
        let piece = piece(target, at);
        let from = Memory {
            address: source.address + at,
            length: piece.length,
        };
        copy(from, piece);
        // Of the copy, not of the source: if another thread writes to the source meanwhile, what is vouched for is what was taken.
        hash.write(bytes(piece));
    }
    hash.finish_128()
}

/// Fills `target` from `offset` of a file, and digests what was read.
///
/// # Errors
///
/// `UnexpectedEof` if the file ends before; whatever `pread` fails with.
pub(crate) fn of_read(file: BorrowedFd<'_>, offset: u64, target: Memory) -> io::Result<u128> {
    let mut hash = XxHash3_128::new();
    for at in (0..target.length).step_by(PIECE_BYTES) {
        let piece = piece(target, at);
        fill(file, offset.saturating_add(at as u64), piece)?;
        hash.write(bytes(piece));
    }
    Ok(hash.finish_128())
}

/// Fills `target` from `offset` of a file.
///
/// # Errors
///
/// `UnexpectedEof` if the file ends before; whatever `pread` fails with.
pub(crate) fn fill(file: BorrowedFd<'_>, offset: u64, target: Memory) -> io::Result<()> {
    let mut at = 0;
    while at < target.length {
        // SAFETY: memory that the caller vouches for and that nobody else uses; it may be uninitialised, which `MaybeUninit` allows for.
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

/// Copies `source` to `target`, which has the same length and does not overlap it.
pub(crate) fn copy(source: Memory, target: Memory) {
    // SAFETY: both lie in memory that the caller vouches for, and the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(source.address as *const u8, target.address as *mut u8, target.length) };
}

/// At most `PIECE_BYTES` of `memory`, from `at` on, which is within it.
pub(crate) fn piece(memory: Memory, at: usize) -> Memory {
    Memory {
        address: memory.address + at,
        length: PIECE_BYTES.min(memory.length - at),
    }
}

pub(crate) fn bytes<'a>(memory: Memory) -> &'a [u8] {
    if memory.length == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for the memory until its call returns, and no reference outlives that.
    unsafe { std::slice::from_raw_parts(memory.address as *const u8, memory.length) }
}
