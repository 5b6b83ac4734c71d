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

/// What doors and agent must lay out alike.
pub(crate) const LAYOUT: &[&[u64]] = &[&[
    MAGIC as u64,
    HEADER_BYTES as u64,
    RUN_AT as u64,
    OPENED_AT as u64,
    DESCRIPTOR_AT as u64,
    FLAGS_AT as u64,
    LENGTH_AT as u64,
    PATH_BYTES_MAX as u64,
]];

/// Where the fields lie that follow magic and version.
const RUN_AT: usize = 8;
const OPENED_AT: usize = 16;
const DESCRIPTOR_AT: usize = 24;
const FLAGS_AT: usize = 28;
const LENGTH_AT: usize = 32;

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
        put(&mut out, RUN_AT, &self.run.to_le_bytes());
        put(&mut out, OPENED_AT, &self.opened_at.to_le_bytes());
        put(&mut out, DESCRIPTOR_AT, &self.descriptor.to_le_bytes());
        put(&mut out, FLAGS_AT, &self.flags.to_le_bytes());
        put(&mut out, LENGTH_AT, &(self.path.len() as u32).to_le_bytes());
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
            flags: word(FLAGS_AT).ok_or(Malformed::Length)?.cast_signed(),
            path,
        })
    }
}
