//! The hand-over: one packet with one descriptor (SCM_RIGHTS) on the agent's door socket.
//!
//! Layout, little-endian: magic (4), version (4), run (8), opened_at (8), descriptor number in the program (4), open flags (4),
//! path length (4), zero (4), then the path as the program spelled it, made absolute with the current directory.

use crate::{CONTRACT_VERSION, PATH_BYTES_MAX};

const MAGIC: u32 = 0x5942_5246; // "FRBY"
/// Bytes before the path.
pub const HEADER_BYTES: usize = 40;
/// Largest message.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + PATH_BYTES_MAX;

/// A source file that a program has opened for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver<'a> {
    /// Which run the program belongs to.
    pub run: u64,
    /// `CLOCK_BOOTTIME` in nanoseconds *before* the program's open: the name led to this file no earlier than that.
    pub opened_at: u64,
    /// The descriptor's number in the program.
    pub descriptor: i32,
    /// The flags of the program's open.
    pub flags: i32,
    /// Absolute path as spelled.
    pub path: &'a [u8],
}

/// Why a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Too short, or its length does not match its header.
    Length,
    /// Not one of ours.
    Magic,
    /// From a door of another version.
    Version,
    /// The path is not absolute or holds a NUL.
    Path,
}

fn put(out: &mut [u8; HEADER_BYTES], at: usize, bytes: &[u8]) {
    for (to, from) in out.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

impl<'a> HandOver<'a> {
    /// The header to send before the path.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &CONTRACT_VERSION.to_le_bytes());
        put(&mut out, 8, &self.run.to_le_bytes());
        put(&mut out, 16, &self.opened_at.to_le_bytes());
        put(&mut out, 24, &self.descriptor.to_le_bytes());
        put(&mut out, 28, &self.flags.to_le_bytes());
        put(&mut out, 32, &(self.path.len() as u32).to_le_bytes());
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`Malformed`] says what is wrong; nothing of such a packet is used.
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
        if word(32) != Some(path.len() as u32) || path.len() > PATH_BYTES_MAX {
            return Err(Malformed::Length);
        }
        if path.first() != Some(&b'/') || path.contains(&0) {
            return Err(Malformed::Path);
        }
        Ok(Self {
            run: long(8).ok_or(Malformed::Length)?,
            opened_at: long(16).ok_or(Malformed::Length)?,
            descriptor: word(24).ok_or(Malformed::Length)?.cast_signed(),
            flags: word(28).ok_or(Malformed::Length)?.cast_signed(),
            path,
        })
    }
}
