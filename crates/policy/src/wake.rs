//! Pacing of a copy behind its reader: a program that reads little of a file never costs a read of the whole file.
//!
//! Data in the page cache costs the source nothing to read again, and data that the reader has passed sequentially is
//! most likely there. An offset alone proves nothing, since a seek moves it without a read: it counts only if the
//! process was seen to read about as much (`/proc/PID/io`).

/// A file at most this long is read by the kernel's own readahead once its reader begins; its copy needs no pacing.
pub const SMALL_BYTES_MAX: u64 = 128 * 1024;
/// Milliseconds to wait for a reader that has closed the file, or for the first read of a small file.
pub const GRACE_MS: u64 = 1_500;
/// Milliseconds for which an open file is followed while its reader does not move.
pub const IDLE_MS_MAX: u64 = 30_000;

/// Observations of a reader, in bytes except for the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderProgress {
    /// Size of the file.
    pub size: u64,
    /// Copied so far, from the start.
    pub copied: u64,
    /// The offset that the reader's descriptor shares with ours; `pread` and `mmap` do not move it.
    pub offset: u64,
    /// This file's share of the bytes that the process was seen to read since it opened the file; `None` if that
    /// can't be seen.
    pub volume: Option<u64>,
    /// Bytes in the page cache from `copied` on, without a hole; `None` if the kernel does not tell us.
    pub cached: Option<u64>,
    /// Bytes that the kernel reads ahead of a reader. A read of pages that it has read ahead makes it read more.
    pub readahead: u64,
    /// The reader was seen to seek: its offset went back, or further than was read.
    pub seeks: bool,
    /// The reader still has the descriptor.
    pub open: bool,
    /// Milliseconds since any of this last changed.
    pub idle_ms: u64,
}

/// Next step of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Copy up to this offset.
    CopyTo(u64),
    /// Look again later.
    Wait,
    /// The reader has left most of the file unread: make no copy.
    GiveUp,
}

/// Decides the offset up to which to copy now.
pub fn follow(progress: &ReaderProgress) -> Wake {
    let ReaderProgress {
        size,
        copied,
        cached,
        readahead,
        open,
        idle_ms,
        ..
    } = *progress;
    let whole = if size <= SMALL_BYTES_MAX {
        begun(progress)
    } else {
        volume_of_whole_file(progress)
    };
    let passed = sequential_offset(progress);
    let cached_upto = copied.saturating_add(cached.unwrap_or(0));
    let free = if cached_upto >= size {
        size
    } else {
        // The last pages were read ahead, perhaps: whoever follows into them reads the file by itself, to its end. What
        // is behind the reader it has passed, unless it has jumped there.
        let is_near = progress.offset <= cached_upto.saturating_add(SMALL_BYTES_MAX);
        let behind = if is_near { progress.offset.min(cached_upto) } else { 0 };
        cached_upto.saturating_sub(readahead).max(behind)
    };
    let mut upto = passed.max(free).min(size);
    // The end of a file that was read this far is worth its few bytes: readers close before the last of them.
    if whole || upto >= size - size / 8 {
        upto = size;
    }
    if upto > copied || (size == 0 && copied == 0) {
        return Wake::CopyTo(upto);
    }
    let patience_ms = if open && size > SMALL_BYTES_MAX { IDLE_MS_MAX } else { GRACE_MS };
    if idle_ms >= patience_ms { Wake::GiveUp } else { Wake::Wait }
}

/// Returns the offset of the reader if it has read everything before it, else 0.
pub fn sequential_offset(progress: &ReaderProgress) -> u64 {
    if is_sequential(progress) { progress.offset } else { 0 }
}

/// Returns true if the offset can have come from reading everything before it. A process's reads are shared out
/// evenly among its files, so a file may be up to twice as far as its share; a program that seeks from piece to piece
/// is further.
fn is_sequential(progress: &ReaderProgress) -> bool {
    !progress.seeks && progress.volume.is_none_or(|volume| progress.offset <= volume.saturating_mul(2))
}

/// Returns true if the reader of a small file has begun.
fn begun(progress: &ReaderProgress) -> bool {
    progress.offset > 0 || progress.cached.is_some_and(|bytes| bytes > 0) || volume_of_whole_file(progress) || progress.size == 0
}

/// Returns true if the process has read as many bytes as the file has, while the page cache can't be asked.
fn volume_of_whole_file(progress: &ReaderProgress) -> bool {
    progress.cached.is_none() && progress.volume.is_some_and(|volume| volume >= progress.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LARGE: ReaderProgress = ReaderProgress {
        size: 64 * MIB,
        copied: 0,
        offset: 0,
        volume: Some(0),
        cached: None,
        readahead: 0,
        seeks: false,
        open: true,
        idle_ms: 0,
    };

    #[test]
    fn follows_a_sequential_reader_and_finishes_near_the_end() {
        assert_eq!(
            follow(&ReaderProgress {
                offset: 3 * MIB,
                volume: Some(9 * MIB),
                ..LARGE
            }),
            Wake::CopyTo(3 * MIB)
        );
        assert_eq!(
            follow(&ReaderProgress {
                offset: 60 * MIB,
                volume: Some(60 * MIB),
                copied: 50 * MIB,
                ..LARGE
            }),
            Wake::CopyTo(64 * MIB)
        );
    }

    #[test]
    fn a_seek_to_the_end_reads_nothing() {
        // A program that reads pieces: an offset near the start proves nothing about the bytes before it.
        assert_eq!(
            follow(&ReaderProgress {
                offset: MIB,
                volume: Some(2 * MIB),
                seeks: true,
                ..LARGE
            }),
            Wake::Wait
        );
        // Pieces of 160 KiB, 3.2 MiB apart.
        assert_eq!(
            follow(&ReaderProgress {
                offset: 32 * MIB,
                volume: Some(1600 << 10),
                copied: 160 << 10,
                ..LARGE
            }),
            Wake::Wait
        );
        assert_eq!(
            follow(&ReaderProgress {
                offset: 64 * MIB,
                volume: Some(4096),
                copied: 4096,
                ..LARGE
            }),
            Wake::Wait
        );
    }

    #[test]
    fn five_per_cent_by_pread_or_mmap_are_never_followed() {
        assert_eq!(
            follow(&ReaderProgress {
                volume: Some(3 * MIB),
                ..LARGE
            }),
            Wake::Wait
        );
        assert_eq!(
            follow(&ReaderProgress {
                volume: Some(0),
                open: false,
                idle_ms: GRACE_MS,
                ..LARGE
            }),
            Wake::GiveUp
        );
        assert_eq!(
            follow(&ReaderProgress {
                volume: Some(3 * MIB),
                idle_ms: IDLE_MS_MAX,
                ..LARGE
            }),
            Wake::GiveUp
        );
    }

    #[test]
    fn what_is_in_the_page_cache_is_free() {
        assert_eq!(
            follow(&ReaderProgress {
                cached: Some(MIB),
                copied: MIB,
                ..LARGE
            }),
            Wake::CopyTo(2 * MIB)
        );
        // The kernel's own reading ahead is not followed, but for the end of the file.
        let ahead = ReaderProgress {
            copied: MIB,
            readahead: MIB / 8,
            ..LARGE
        };
        let now = |cached| {
            follow(&ReaderProgress {
                cached: Some(cached),
                ..ahead
            })
        };
        assert_eq!(now(MIB / 8), Wake::Wait);
        assert_eq!(now(MIB), Wake::CopyTo(2 * MIB - MIB / 8));
        assert_eq!(now(63 * MIB), Wake::CopyTo(64 * MIB));
        let at = |offset| {
            follow(&ReaderProgress {
                offset,
                cached: Some(MIB / 8),
                ..ahead
            })
        };
        assert_eq!(at(MIB + MIB / 16), Wake::CopyTo(MIB + MIB / 16));
        assert_eq!(at(4 * MIB), Wake::Wait, "it has jumped");
        // The cache can be asked, so a large volume proves nothing about this file.
        assert_eq!(
            follow(&ReaderProgress {
                cached: Some(0),
                volume: Some(200 * MIB),
                ..LARGE
            }),
            Wake::Wait
        );
        assert_eq!(
            follow(&ReaderProgress {
                volume: Some(64 * MIB),
                ..LARGE
            }),
            Wake::CopyTo(64 * MIB)
        );
    }

    #[test]
    fn a_small_file_is_copied_once_its_reader_begins() {
        let small = ReaderProgress { size: 30_000, ..LARGE };
        assert_eq!(follow(&small), Wake::Wait);
        assert_eq!(follow(&ReaderProgress { offset: 1, ..small }), Wake::CopyTo(30_000));
        assert_eq!(
            follow(&ReaderProgress {
                cached: Some(4096),
                ..small
            }),
            Wake::CopyTo(30_000)
        );
        assert_eq!(
            follow(&ReaderProgress {
                volume: Some(30_000),
                ..small
            }),
            Wake::CopyTo(30_000)
        );
        assert_eq!(
            follow(&ReaderProgress {
                idle_ms: GRACE_MS,
                ..small
            }),
            Wake::GiveUp
        );
        assert_eq!(follow(&ReaderProgress { size: 0, ..small }), Wake::CopyTo(0));
    }
}
