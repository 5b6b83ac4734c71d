//! Reading ahead in one file, for the worker that makes its copy.

use std::{
    collections::VecDeque,
    ffi::CString,
    num::NonZeroU64,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_policy::{
    read_ahead::{AheadMode, AheadReach, ReaderEvidence, WINDOW_MIN_BYTES, reach},
    wake::{ReaderProgress, sequential_offset},
};
use forebay_store::{CopySource, SourceFile};
use rustix::fs::{Advice, fadvise};

use crate::{
    host::shared::cached_bytes,
    tiering::{
        ahead::{
            formats::{FileFormat, format_of, has_known_name},
            mapped::{TouchedBytes, touched},
            programs::{ReadAhead, UnjudgedReader, key_of},
        },
        limits::{AHEAD_LOOK_PART, AHEAD_REQUEST_BYTES, AHEAD_WAITED_MIN},
        open_files::name_of,
        reader::FollowedReader,
    },
};

/// Bytes that are requested and waited for together.
const PIECE_BYTES: u64 = WINDOW_MIN_BYTES;

/// End of reading ahead in a file, for the counts of its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AheadUse {
    /// The copy followed its reader.
    #[default]
    Followed,
    /// The file was read ahead of its reader.
    Ahead,
    /// The copy followed its reader, since the file's header is damaged.
    DamagedHeader,
}

/// Reading ahead in a file that is being copied.
#[derive(Debug)]
pub(crate) struct FileAhead {
    shared: Arc<ReadAhead>,
    mode: AheadMode,
    dev: u64,
    size: u64,
    pid: i32,
    /// The kernel's name of the file; empty if unknown.
    name: CString,
    /// Key of the program and the directory; `None` before the first look, and if it is unknown.
    key: Option<u64>,
    format: Option<FileFormat>,
    /// Time of the next look at the program's mappings.
    mapped_due: Option<Instant>,
    touched: Option<TouchedBytes>,
    /// The most bytes that the program was seen to have touched.
    used: u64,
    /// Offset up to which bytes were requested.
    requested: u64,
    /// Ends of the pieces that were requested and have not come, and the times of their requests.
    pieces: VecDeque<(u64, Instant)>,
    /// True once the whole file is to be read.
    is_whole: bool,
    /// True once bytes of the file were found in the page cache after they had been read.
    is_cached: bool,
}

impl FileAhead {
    /// Prepares reading ahead for the program `pid` that has opened the file.
    pub(crate) fn new(shared: &Arc<ReadAhead>, mode: AheadMode, source: &SourceFile, (dev, size): (u64, u64), pid: i32) -> Self {
        Self {
            shared: Arc::clone(shared),
            mode,
            dev,
            size,
            pid,
            name: name_of(source).unwrap_or_default(),
            key: None,
            format: None,
            mapped_due: None,
            touched: None,
            used: 0,
            requested: 0,
            pieces: VecDeque::new(),
            is_whole: false,
            is_cached: false,
        }
    }

    /// Judges another reader from now on.
    pub(crate) fn follow(&mut self, pid: i32) {
        if !self.is_whole {
            self.pid = pid;
            (self.key, self.touched, self.mapped_due, self.used) = (None, None, None, 0);
        }
    }

    /// Judges the program `pid`, which has opened the file while all of it is read ahead.
    pub(crate) fn judge(&mut self, pid: i32) {
        (self.pid, self.used) = (pid, 0);
        self.key = key_of(pid, &self.name);
    }

    /// Returns true if the program has the file mapped, as far as that was looked at.
    pub(crate) const fn is_mapped(&self) -> bool {
        self.touched.is_some()
    }

    /// Looks at the program's mappings of the file, if its reads may come through one. To list mappings takes long, so
    /// looks take their share of the time and no more. Once the whole file is read ahead, they tell how much of it the
    /// program uses, which may have unmapped it before its copy ends.
    pub(crate) fn look_at_mappings(&mut self, is_open: bool) {
        let begun = Instant::now();
        let may_be_mapped = !is_open || has_known_name(self.name.to_bytes());
        if self.mode != AheadMode::Auto || !may_be_mapped || self.mapped_due.is_some_and(|due| begun < due) {
            return;
        }
        let from = match self.format {
            Some(FileFormat::Known(body)) => body,
            _ => 0,
        };
        let touched = touched(self.pid, &self.name, from);
        self.used = self.used.max(touched.map_or(0, |touched| touched.anywhere));
        if !self.is_whole {
            self.touched = touched;
        }
        self.mapped_due = Some(begun + begun.elapsed() * AHEAD_LOOK_PART);
    }

    /// Decides by what was seen of the reader, and requests a part ahead of it. Returns true if the whole file is to be
    /// read now, by [`Self::next_piece`].
    pub(crate) fn decide(&mut self, source: &SourceFile, progress: &ReaderProgress) -> bool {
        if self.is_whole {
            return true;
        }
        if self.key.is_none() {
            self.key = key_of(self.pid, &self.name);
        }
        let evidence = self.evidence(source, progress);
        match reach(self.mode, &evidence) {
            AheadReach::Whole => {
                self.is_whole = self.shared.begin(self.dev);
                if !self.is_whole {
                    self.mode = AheadMode::Follow;
                }
            }
            // What is nearer the kernel reads for the reader anyway.
            AheadReach::UpTo(upto) if upto >= self.requested.max(evidence.in_order) + AHEAD_REQUEST_BYTES => {
                self.request_to(source, evidence.in_order.max(self.requested), upto);
            }
            AheadReach::UpTo(_) => {}
        }
        self.is_whole
    }

    fn evidence(&mut self, source: &SourceFile, progress: &ReaderProgress) -> ReaderEvidence {
        let passed = sequential_offset(progress);
        let touched = self.touched.unwrap_or_default();
        let mut evidence = ReaderEvidence {
            size: self.size,
            in_order: passed,
            anywhere: touched.anywhere.max(passed),
            has_known_format: false,
            streak: self.key.map_or(0, |key| self.shared.streak(key)),
        };
        if !has_known_name(self.name.to_bytes()) {
            return evidence;
        }
        // Calls like `pread` show in the count of the process alone, which may have read other files.
        // So they count only as far as the kernel tells how much of this file is cached.
        let cached = || cached_bytes(source.as_fd(), 0, self.size).unwrap_or(0);
        let volume = progress
            .volume
            .filter(|volume| *volume > 0)
            .map_or(0, |volume| volume.min(cached()));
        evidence.anywhere = evidence.anywhere.max(volume);
        if evidence.anywhere == 0 {
            return evidence;
        }
        // The program has begun to read the file, so its header costs the source nothing more.
        let format = *self
            .format
            .get_or_insert_with(|| format_of(self.name.to_bytes(), source, self.size));
        if let FileFormat::Known(body) = format {
            evidence.has_known_format = true;
            evidence.in_order = passed.saturating_sub(body).max(touched.in_order);
        }
        evidence
    }

    /// Begins to read the whole file, whoever reads it. Returns false if the kernel does not cache files of its source.
    pub(crate) fn begin_whole(&mut self) -> bool {
        if !self.is_whole {
            self.is_whole = self.shared.begin(self.dev);
        }
        self.is_whole
    }

    /// Returns true if the whole file is being read ahead of its reader.
    pub(crate) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn request_to(&mut self, source: &SourceFile, from: u64, upto: u64) {
        request_range(source, from, upto);
        self.requested = self.requested.max(upto);
    }

    /// Requests the next pieces of the whole file beyond `copied`, and waits for the first that was requested. Returns
    /// the offset up to which bytes have come; `None` if the copy is to follow its reader.
    pub(crate) fn next_piece(&mut self, source: &SourceFile, copied: u64) -> Option<u64> {
        if self.shared.is_memory_short() {
            self.stop();
            return None;
        }
        let share = self.shared.share(self.dev);
        let mut at = self.pieces.back().map_or(copied, |(end, _)| *end);
        while at < self.size && at.saturating_sub(copied) < share + PIECE_BYTES {
            let end = (at + PIECE_BYTES).min(self.size);
            self.request_to(source, at, end);
            self.pieces.push_back((end, Instant::now()));
            at = end;
        }
        let Some((end, requested_at)) = self.pieces.pop_front() else {
            return Some(self.size);
        };
        // The copy meets an error of the source again, and reports it.
        let took = read_byte(source, end - 1).unwrap_or_default();
        if took >= AHEAD_WAITED_MIN {
            self.shared.answered(self.dev, requested_at.elapsed());
            if !self.is_cached && !is_cached(source, end) {
                self.shared.set_uncached(self.dev);
                self.mode = AheadMode::Follow;
                self.stop();
                return None;
            }
            self.is_cached = true;
        }
        Some(end)
    }

    /// Goes back to following the reader, until the evidence is looked at again.
    fn stop(&mut self) {
        if self.is_whole {
            self.is_whole = false;
            self.pieces.clear();
            self.shared.end(self.dev);
        }
    }

    /// Notes the end of the copy: `is_whole` if it is whole, false if its reader left most of the file unread, `None`
    /// if it failed.
    pub(crate) fn ended(mut self, is_whole: Option<bool>, reader: Option<FollowedReader>) -> AheadUse {
        let was_ahead = self.is_whole;
        self.stop();
        if let Some(key) = self.key {
            match (is_whole, reader) {
                (Some(true), Some(reader)) if was_ahead => self.shared.watch(UnjudgedReader {
                    key,
                    size: self.size,
                    used: self.used,
                    pid: self.pid,
                    goes_on: true,
                    may_be_mapped: self.touched.is_some() || has_known_name(self.name.to_bytes()),
                    name: self.name,
                    reader,
                }),
                (Some(whole), _) if !was_ahead => self.shared.note(key, whole),
                _ => {}
            }
        }
        match (was_ahead, self.format) {
            (true, _) => AheadUse::Ahead,
            (false, Some(FileFormat::Damaged)) => AheadUse::DamagedHeader,
            (false, _) => AheadUse::Followed,
        }
    }
}

/// Asks the kernel to read a range of a file into the page cache.
pub(crate) fn request_range(source: &SourceFile, from: u64, upto: u64) {
    let mut at = from;
    while at < upto {
        let len = AHEAD_REQUEST_BYTES.min(upto - at);
        // Advice that the file system does not take leaves the reader as it is.
        let _ = fadvise(source, at, NonZeroU64::new(len), Advice::WillNeed);
        at += len;
    }
}

/// Reads a byte, and returns how long that took; `None` if it failed.
pub(crate) fn read_byte(source: &SourceFile, at: u64) -> Option<Duration> {
    let begun = Instant::now();
    source.read_at(&mut [0], at).ok()?;
    Some(begun.elapsed())
}

/// Returns true if the piece that ends at an offset, which was just read, is in the page cache. Where the kernel does
/// not tell, the time of another read does.
fn is_cached(source: &SourceFile, end: u64) -> bool {
    let begin = end.saturating_sub(PIECE_BYTES);
    match cached_bytes(source.as_fd(), begin, end - begin) {
        Some(cached) => cached > 0,
        None => (0..3)
            .filter_map(|_| read_byte(source, end - 1))
            .any(|took| took < AHEAD_WAITED_MIN),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const SIZE: u64 = 5 * PIECE_BYTES / 2;
    const UNSEEN: ReaderProgress = ReaderProgress {
        size: SIZE,
        copied: 0,
        offset: 0,
        volume: None,
        cached: None,
        readahead: 0,
        seeks: false,
        open: true,
        idle_ms: 0,
    };

    fn file() -> SourceFile {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; SIZE as usize]).unwrap();
        SourceFile::new(file.into())
    }

    fn ahead(shared: &Arc<ReadAhead>, mode: AheadMode, source: &SourceFile) -> FileAhead {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        FileAhead::new(shared, mode, source, (7, SIZE), pid)
    }

    #[test]
    fn a_whole_file_comes_piece_by_piece_to_its_end() {
        let (shared, source) = (Arc::default(), file());
        let mut file = ahead(&shared, AheadMode::File, &source);
        assert!(file.decide(&source, &UNSEEN));
        let mut ends = vec![0];
        while ends.last().is_some_and(|end| *end < SIZE) {
            ends.push(file.next_piece(&source, ends.last().copied().unwrap()).unwrap());
        }
        assert_eq!(ends, [0, PIECE_BYTES, 2 * PIECE_BYTES, SIZE]);
        assert_eq!(file.ended(Some(true), None), AheadUse::Ahead);
    }

    #[test]
    fn f14_nothing_is_read_ahead_while_memory_is_short() {
        let (shared, source) = (Arc::new(ReadAhead::of_short_memory()), file());
        let mut file = ahead(&shared, AheadMode::File, &source);
        assert!(file.decide(&source, &UNSEEN));
        assert_eq!(file.next_piece(&source, 0), None);
        assert_eq!(file.ended(Some(true), None), AheadUse::Followed);
    }

    #[test]
    fn two_whole_files_of_a_program_have_the_next_one_read_ahead() {
        let (shared, source) = (Arc::default(), file());
        for number in 0..3 {
            let mut file = ahead(&shared, AheadMode::Auto, &source);
            assert_eq!(file.decide(&source, &UNSEEN), number == 2, "file {number}");
            file.ended(Some(true), None);
        }
    }
}
