//! Lines of `/proc/self/mountinfo`, the list of all mounts that this process sees.

use std::os::unix::ffi::OsStringExt;
use std::{ffi::OsString, fs};

/// Line of mountinfo: `36 35 98:0 /root /point options [optional...] - type source options`. Fields are as the kernel
/// writes them: see [`unescaped`].
#[derive(Clone, Copy, Debug)]
pub struct MountLine<'a> {
    /// Device number, as `stat` returns it.
    pub dev: u64,
    /// Directory of the file system that is mounted: `/`, unless it is a bind mount.
    pub root: &'a [u8],
    /// Mount point.
    pub point: &'a [u8],
    /// Options of the mount, between commas.
    pub options: &'a [u8],
    /// Type of the file system, such as `nfs4` or `fuse.sshfs`.
    pub fs_type: &'a [u8],
    /// Mounted device, or server and path.
    pub source: &'a [u8],
    /// Options of the file system itself, between commas.
    pub fs_options: &'a [u8],
}

impl<'a> MountLine<'a> {
    /// Parses a line. Returns `None` if it is invalid.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let field = |at: usize| fields.get(at).copied();
        let (major, minor) = std::str::from_utf8(field(2)?).ok()?.split_once(':')?;
        Some(Self {
            dev: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
            root: field(3)?,
            point: field(4)?,
            options: field(5)?,
            fs_type: field(dash + 1)?,
            source: field(dash + 2)?,
            fs_options: field(dash + 3).unwrap_or_default(),
        })
    }
}

/// Returns the text of mountinfo; there is none without `/proc`.
pub fn read() -> Vec<u8> {
    fs::read("/proc/self/mountinfo").unwrap_or_default()
}

/// Returns the valid lines of mountinfo, in the order of the mounts.
pub fn lines(text: &[u8]) -> impl Iterator<Item = MountLine<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(MountLine::parse)
}

/// Returns a field in which the kernel writes blanks as `\040`.
pub fn unescaped(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(code) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            plain.push(code);
            rest = after.get(3..).unwrap_or_default();
        } else {
            plain.push(byte);
            rest = after;
        }
    }
    OsString::from_vec(plain)
}
