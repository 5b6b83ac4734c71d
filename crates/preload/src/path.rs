//! Paths on the stack. A buffer is not cleared beforehand, which would cost more than the copy.

use core::{
    ffi::{CStr, c_int},
    mem::MaybeUninit,
    slice,
};

use forebay_contract::run::AGENT_DIR_BYTES_MAX;

use crate::sys;

/// Room for any path: the kernel's limit counts the final NUL.
pub(crate) type PathBuffer = Buffer<{ libc::PATH_MAX as usize }>;
/// Room for the paths of the agent's files and of descriptors; short, since signal stacks are small.
pub(crate) type ShortBuffer = Buffer<{ AGENT_DIR_BYTES_MAX + 32 }>;

/// Room for one path.
pub(crate) struct Buffer<const BYTES: usize> {
    bytes: [MaybeUninit<u8>; BYTES],
    /// Number of filled bytes; at most `BYTES - 1`, so that a NUL always fits.
    len: usize,
}

impl<const BYTES: usize> Buffer<BYTES> {
    /// Creates an empty buffer.
    #[inline]
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [MaybeUninit::uninit(); BYTES],
            len: 0,
        }
    }

    /// Returns the bytes that are not filled.
    pub(crate) fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        self.bytes.get_mut(self.len..).unwrap_or(&mut [])
    }

    /// Records that the kernel has filled this many bytes of [`Self::room`].
    pub(crate) fn grown_by(&mut self, count: usize) {
        self.len = (self.len + count).min(BYTES - 1);
    }

    /// Appends; returns `None` and changes nothing if the part does not fit.
    pub(crate) fn push(&mut self, part: &[u8]) -> Option<()> {
        let end = self.len.checked_add(part.len()).filter(|end| *end < BYTES)?;
        for (to, from) in self.bytes.get_mut(self.len..end)?.iter_mut().zip(part) {
            to.write(*from);
        }
        self.len = end;
        Some(())
    }

    /// Keeps the first `len` filled bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the filled bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the first `len` bytes have been written, and `len` is below the capacity.
        unsafe { slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
    }

    /// Returns the filled bytes as a C string.
    pub(crate) fn c_str(&mut self) -> &CStr {
        if let Some(end) = self.bytes.get_mut(self.len) {
            end.write(0);
        }
        let filled: *const u8 = self.bytes.as_ptr().cast();
        // SAFETY: a NUL stands at `len`, which is always inside.
        unsafe { CStr::from_ptr(filled.cast()) }
    }
}

/// Splits a path into parent and last component as the kernel does: final slashes do not belong to a name. Returns
/// `None` for `/`, `.`, `..` and the empty path.
pub(crate) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')?;
    let path = path.get(..=end)?;
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (path.get(..1)?, path.get(1..)?),
        Some(slash) => (path.get(..slash)?, path.get(slash + 1..)?),
        None => (&b"."[..], path),
    };
    (name != b"." && name != b"..").then_some((parent, name))
}

/// Writes `/proc/self/fd/N`.
pub(crate) fn descriptor_name(fd: c_int, buffer: &mut ShortBuffer) -> Option<&CStr> {
    let digits = Digits::of(fd as u64);
    buffer.push(b"/proc/self/fd/")?;
    buffer.push(digits.bytes())?;
    Some(buffer.c_str())
}

/// Reads the kernel's path of an open file; `None` if it is too long.
pub(crate) fn descriptor_path(fd: c_int, path: &mut PathBuffer) -> Option<()> {
    let mut link = ShortBuffer::new();
    sys::read_link(descriptor_name(fd, &mut link)?, path)
}

/// Digits of a decimal number.
pub(crate) struct Digits {
    text: [u8; 20],
    start: usize,
}

impl Digits {
    /// Creates the digits of a number.
    pub(crate) fn of(mut number: u64) -> Self {
        let mut text = [b'0'; 20];
        let mut start = text.len();
        for place in text.iter_mut().rev() {
            *place = b'0' + (number % 10) as u8;
            start -= 1;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        Self { text, start }
    }

    /// Returns the digits.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.text.get(self.start..).unwrap_or(&[])
    }
}
