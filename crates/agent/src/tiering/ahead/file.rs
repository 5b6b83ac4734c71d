//! Reading ahead in one file, for the worker that makes its copy.

use std::{ffi::CString, os::fd::AsFd, sync::Arc, time::Instant};

use forebay_policy::{
    read_ahead::{AheadMode, AheadReach, ReaderEvidence, reach},
    wake::{ReaderProgress, sequential_offset},
};
use forebay_store::SourceFile;

use crate::{
    host::shared::cached_bytes,
    tiering::{
        ahead::{
            formats::{FileFormat, format_of, has_known_name},
            mapped::{TouchedBytes, touched},
            programs::{ReadAhead, UnjudgedReader, key_of},
            requests::{Arrival, Arrived, RequestEnd, request_range},
        },
        limits::{AHEAD_LOOK_PART, AHEAD_REQUEST_BYTES},
        reader::{FollowedReader, name_of},
    },
};

/// Next action of the copy of a file that is read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextBytes {
    /// Bytes have come up to this offset: take them.
    TakeTo(u64),
    /// Nothing has come: look again at once, after other copies.
    NotYet,
    /// Follow the reader.
    Follow,
}

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
    /// Offset up to which bytes were requested ahead of a reader that need not read all.
    requested: u64,
    /// True once the whole file is to be read.
    is_whole: bool,
    /// How far the whole file has come, once it is requested.
    arrival: Option<Arc<Arrival>>,
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
            is_whole: false,
            arrival: None,
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

    /// Returns what the copy of the whole file does next, which has `copied` bytes so far. Waits a moment for more.
    pub(crate) fn next_bytes(&mut self, source: &SourceFile, copied: u64) -> NextBytes {
        if copied >= self.size {
            return NextBytes::TakeTo(self.size);
        }
        if self.arrival.is_none() {
            self.arrival = self.shared.request(source, (self.dev, self.size), copied).ok();
        }
        match self.arrival.as_ref().map(|arrival| arrival.beyond(copied)) {
            Some(Arrived::UpTo(upto)) => return NextBytes::TakeTo(upto),
            Some(Arrived::NotYet) => return NextBytes::NotYet,
            Some(Arrived::Ended(RequestEnd::Uncached)) => {
                self.shared.set_uncached(self.dev);
                self.mode = AheadMode::Follow;
            }
            Some(Arrived::Ended(_)) => {}
            // There is no descriptor or thread for it.
            None => self.mode = AheadMode::Follow,
        }
        self.stop();
        NextBytes::Follow
    }

    /// Goes back to following the reader, until the evidence is looked at again.
    fn stop(&mut self) {
        if let Some(arrival) = self.arrival.take() {
            arrival.leave();
        }
        if self.is_whole {
            self.is_whole = false;
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::tiering::ahead::requests::PIECE_BYTES;

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
        let mut copied = 0;
        while copied < SIZE {
            match file.next_bytes(&source, copied) {
                NextBytes::TakeTo(upto) => {
                    assert!(upto > copied && (upto == SIZE || upto % PIECE_BYTES == 0), "{upto} after {copied}");
                    copied = upto;
                }
                next => assert_eq!(next, NextBytes::NotYet),
            }
        }
        assert_eq!(file.ended(Some(true), None), AheadUse::Ahead);
    }

    #[test]
    fn f14_nothing_is_read_ahead_while_memory_is_short() {
        let (shared, source) = (Arc::new(ReadAhead::of_short_memory()), file());
        let mut file = ahead(&shared, AheadMode::File, &source);
        assert!(file.decide(&source, &UNSEEN));
        assert_eq!(file.next_bytes(&source, 0), NextBytes::Follow);
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
