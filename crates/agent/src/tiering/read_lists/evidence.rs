//! Evidence of what a program has read of a large file.

use std::os::fd::AsFd;

use forebay_policy::read_list::{ReadEvidence, ReadParts, parts_read};
use forebay_store::SourceFile;

use crate::{
    host::shared::cached_bytes,
    tiering::{
        ahead::mapped::touched,
        open_files::name_of,
        reader::{FollowedReader, bytes_read},
    },
};

/// End of the copy of a large file, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyEnd {
    /// Size of the file.
    pub(crate) size: u64,
    /// Copied from the start.
    pub(crate) copied: u64,
    /// True if the copy is whole.
    pub(crate) is_whole: bool,
    /// True if the agent read the file ahead of its reader.
    pub(crate) was_ahead: bool,
}

/// Returns the parts of a file that the program `pid` has read.
pub(crate) fn parts_of(source: &SourceFile, pid: i32, reader: Option<&mut FollowedReader>, end: CopyEnd) -> ReadParts {
    let CopyEnd {
        size,
        copied,
        is_whole,
        was_ahead,
    } = end;
    let (seen, is_open) = reader.map_or((0, false), |reader| (reader.volume_now().min(size), reader.is_open()));
    let mapped = if seen < size / 2 && !was_ahead {
        name_of(source).and_then(|name| touched(pid, &name, 0))
    } else {
        None
    };
    let touched = mapped.map_or(0, |touched| touched.anywhere);
    // The reads before its file reached the agent are not seen, but no more than all that the process has ever read. Of
    // a program that has closed the file nothing is known.
    let is_over = mapped.is_none() && !is_open;
    let all_reads = if is_over { None } else { bytes_read(pid) };
    let is_cached = |from: u64, upto: u64| cached_bytes(source.as_fd(), from, upto - from).is_some_and(|bytes| bytes >= upto - from);
    parts_read(&ReadEvidence {
        size,
        copied,
        is_whole,
        was_ahead,
        seen: seen.max(touched),
        at_most: all_reads.map_or(size, |bytes| bytes.saturating_add(touched)),
        cached: if is_whole {
            ReadParts::NONE
        } else {
            ReadParts::of(size, is_cached)
        },
    })
}
