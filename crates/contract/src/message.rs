//! The descriptor handoff: one packet with one descriptor (SCM_RIGHTS) on the agent's handoff socket.
//!
//! Layout, little-endian: magic (4), version (4), run (8), opened_at (8), descriptor number in the program (4), one
//! for a shared library or zero (4), path length (4), the word on which the opener waits plus one, or zero (4), the
//! bytes that the process had read, or all ones (8), then the path as the program spelled it, made absolute with the
//! current directory.

use crate::{CONTRACT_VERSION, PATH_BYTES_MAX};

const MAGIC: u32 = 0x5942_5246; // "FRBY"
/// Length of the fixed part before the path, in bytes.
pub const HEADER_BYTES: usize = 48;
/// Length of the longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + PATH_BYTES_MAX;

/// Placeholder for bytes that are not known.
const UNKNOWN: u64 = u64::MAX;

/// Layout that the preload library and the agent share.
pub(crate) const LAYOUT: &[&[u64]] = &[&[
    MAGIC as u64,
    HEADER_BYTES as u64,
    RUN_AT as u64,
    OPENED_AT as u64,
    DESCRIPTOR_AT as u64,
    LIBRARY_AT as u64,
    LENGTH_AT as u64,
    WAIT_AT as u64,
    READ_AT as u64,
    PATH_BYTES_MAX as u64,
]];

/// Position of the first field after magic and version.
const RUN_AT: usize = 8;
const OPENED_AT: usize = 16;
const DESCRIPTOR_AT: usize = 24;
const LIBRARY_AT: usize = 28;
const LENGTH_AT: usize = 32;
const WAIT_AT: usize = 36;
const READ_AT: usize = 40;

/// A source file that a program has opened for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorHandoff<'a> {
    /// Number of the run that the program belongs to.
    pub run: u64,
    /// `CLOCK_BOOTTIME` in nanoseconds *before* the program's open: the name led to this file no earlier.
    pub opened_at: u64,
    /// The descriptor's number in the program.
    pub descriptor: i32,
    /// True for a shared library, which the loader maps instead of reading it.
    pub is_library: bool,
    /// Number of the word in the run page on which the opener waits for a copy ([`crate::OpenWaits`]).
    pub wait: Option<u32>,
    /// Bytes that the process had read by system calls from any file (`rchar` of `/proc/self/io`), for a file above
    /// [`crate::control::SMALL_FILE_BYTES`], whose copy follows its reader. Looked up later, they would include what
    /// the program has read of the file by then.
    pub read_bytes: Option<u64>,
    /// Absolute path, as spelled.
    pub path: &'a [u8],
}

/// Reason for which a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The packet is too short, or its length does not match its header.
    Length,
    /// The magic number is missing.
    Magic,
    /// The packet is of another version.
    Version,
    /// The path is not absolute or holds a NUL.
    Path,
}

fn put(out: &mut [u8; HEADER_BYTES], at: usize, bytes: &[u8]) {
    for (to, from) in out.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

impl<'a> DescriptorHandoff<'a> {
    /// Returns the header to send before the path.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &CONTRACT_VERSION.to_le_bytes());
        put(&mut out, RUN_AT, &self.run.to_le_bytes());
        put(&mut out, OPENED_AT, &self.opened_at.to_le_bytes());
        put(&mut out, DESCRIPTOR_AT, &self.descriptor.to_le_bytes());
        put(&mut out, LIBRARY_AT, &u32::from(self.is_library).to_le_bytes());
        put(&mut out, LENGTH_AT, &(self.path.len() as u32).to_le_bytes());
        put(&mut out, WAIT_AT, &self.wait.map_or(0, |number| number + 1).to_le_bytes());
        put(&mut out, READ_AT, &self.read_bytes.unwrap_or(UNKNOWN).to_le_bytes());
        out
    }

    /// Parses a packet.
    ///
    /// # Errors
    /// [`Malformed`] names the fault; no part of such a packet is used.
    pub fn parse(packet: &'a [u8]) -> Result<Self, Malformed> {
        let word = |at: usize| packet.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        let long = |at: usize| packet.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        if word(0).ok_or(Malformed::Length)? != MAGIC {
            return Err(Malformed::Magic);
        }
        if word(4).ok_or(Malformed::Length)? != CONTRACT_VERSION {
            return Err(Malformed::Version);
        }
        let path = packet.get(HEADER_BYTES..).ok_or(Malformed::Length)?;
        if word(LENGTH_AT) != Some(path.len() as u32) || path.len() > PATH_BYTES_MAX {
            return Err(Malformed::Length);
        }
        if path.first() != Some(&b'/') || path.contains(&0) {
            return Err(Malformed::Path);
        }
        Ok(Self {
            run: long(RUN_AT).ok_or(Malformed::Length)?,
            opened_at: long(OPENED_AT).ok_or(Malformed::Length)?,
            descriptor: word(DESCRIPTOR_AT).ok_or(Malformed::Length)?.cast_signed(),
            is_library: word(LIBRARY_AT) == Some(1),
            wait: word(WAIT_AT).ok_or(Malformed::Length)?.checked_sub(1),
            read_bytes: Some(long(READ_AT).ok_or(Malformed::Length)?).filter(|bytes| *bytes != UNKNOWN),
            path,
        })
    }
}
