//! Location of each sample of a dataset: a table that the first rank of a node sends to the loader's agent, in sealed
//! memory.
//!
//! All numbers are 64-bit words in the machine's byte order. The table holds, in this order:
//!
//! - a header;
//! - the start of each file's path and, last, the end of all;
//! - the mark of each file, unless no file has one;
//! - file, offset and length of each sample, unless sample `n` is the whole of file `n`;
//! - the paths, back to back.

use crate::{CONTRACT_VERSION, PATH_BYTES_MAX, region::Region};

const MAGIC: u64 = u64::from_le_bytes(*b"FBEXTNT\x01");
/// Words of the header: magic, version, samples, files, whether samples are whole files, whether files have marks.
const HEADER_WORDS: u64 = 8;
const SPAN_WORDS: u64 = 3;
const WORD_BYTES: u64 = 8;

/// Layout that ranks and the agent share.
pub(crate) const LAYOUT: &[&[u64]] = &[&[MAGIC, HEADER_WORDS, SPAN_WORDS, WORD_BYTES, TO_THE_END]];

/// In place of a length: up to the end of the file.
pub const TO_THE_END: u64 = u64::MAX;

/// Location of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent<'a> {
    /// Number of the file in the table.
    pub file: u64,
    /// Path of the file.
    pub path: &'a [u8],
    /// Offset of the sample in the file, in bytes.
    pub offset: u64,
    /// Length of the sample in bytes, or [`TO_THE_END`].
    pub length: u64,
    /// Mark of the required version of the file; 0: the present version.
    pub mark: u64,
}

/// Access to the table.
#[derive(Clone, Copy, Debug)]
pub struct Extents<'a> {
    region: Region<'a>,
    samples: u64,
    files: u64,
    whole_files: bool,
    has_marks: bool,
}

impl<'a> Extents<'a> {
    /// Returns the words of a header, for the writer of a table.
    pub const fn header(samples: u64, files: u64, whole_files: bool, has_marks: bool) -> [u64; HEADER_WORDS as usize] {
        [
            MAGIC,
            CONTRACT_VERSION as u64,
            samples,
            files,
            whole_files as u64,
            has_marks as u64,
            0,
            0,
        ]
    }

    /// Opens the table in this memory, which must not change any more. Returns `None` if it is incomplete, or holds no
    /// table of this version.
    pub fn open(region: Region<'a>) -> Option<Self> {
        let word = |index: u64| region.element::<u64>(0, index).copied();
        let table = Self {
            region,
            samples: word(2)?,
            files: word(3)?,
            whole_files: word(4)? == 1,
            has_marks: word(5)? == 1,
        };
        let is_one = word(0)? == MAGIC && word(1)? == u64::from(CONTRACT_VERSION) && word(4)? <= 1 && word(5)? <= 1;
        // What each word of it says is checked when it is followed.
        let spans_end = table.paths_at()?;
        let matches = !table.whole_files || table.samples == table.files;
        (is_one && matches && spans_end <= region.len() as u64).then_some(table)
    }

    /// Returns the number of samples.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the number of files.
    pub const fn files(&self) -> u64 {
        self.files
    }

    /// Returns the location of a sample; `None` if there is no such sample, or its entry is invalid.
    pub fn locate(&self, sample: u64) -> Option<Extent<'a>> {
        if sample >= self.samples {
            return None;
        }
        let (file, offset, length) = if self.whole_files {
            (sample, 0, TO_THE_END)
        } else {
            let at = self.spans_at()?;
            let word = |nth| self.region.element::<u64>(at, sample * SPAN_WORDS + nth).copied();
            (word(0)?, word(1)?, word(2)?)
        };
        Some(Extent {
            file,
            path: self.path(file)?,
            offset,
            length,
            mark: self.mark(file)?,
        })
    }

    fn path(&self, file: u64) -> Option<&'a [u8]> {
        if file >= self.files {
            return None;
        }
        let word = |nth| self.region.element::<u64>(HEADER_WORDS * WORD_BYTES, nth).copied();
        let (begin, end) = (word(file)?, word(file + 1)?);
        let length = end.checked_sub(begin).filter(|length| *length <= PATH_BYTES_MAX as u64)?;
        self.region.bytes(self.paths_at()?.checked_add(begin)?, length)
    }

    fn mark(&self, file: u64) -> Option<u64> {
        if self.has_marks {
            self.region.element::<u64>(self.marks_at()?, file).copied()
        } else {
            Some(0)
        }
    }

    fn marks_at(&self) -> Option<u64> {
        self.files.checked_add(1 + HEADER_WORDS)?.checked_mul(WORD_BYTES)
    }

    fn spans_at(&self) -> Option<u64> {
        let marks = if self.has_marks { self.files } else { 0 };
        self.marks_at()?.checked_add(marks.checked_mul(WORD_BYTES)?)
    }

    fn paths_at(&self) -> Option<u64> {
        let spans = if self.whole_files { 0 } else { self.samples };
        self.spans_at()?.checked_add(spans.checked_mul(SPAN_WORDS * WORD_BYTES)?)
    }
}
