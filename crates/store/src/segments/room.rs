//! Segments and their free ranges. No I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_policy::ranges::Ranges;

use crate::disk::DiskFile;

/// A range of bytes in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentRange {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

#[derive(Debug)]
struct Segment {
    free: Ranges,
    /// Opened when it is first needed.
    file: Option<Arc<dyn DiskFile>>,
    /// Length of the file: nothing was written behind it yet.
    end: u64,
}

/// All segments; their total length is within the quota.
#[derive(Debug)]
pub(super) struct SegmentRoom {
    quota_bytes: u64,
    segment_bytes: u64,
    segments: BTreeMap<u64, Segment>,
}

impl SegmentRoom {
    pub(super) fn new(quota_bytes: u64, segment_bytes: u64) -> Self {
        Self {
            quota_bytes,
            segment_bytes: segment_bytes.max(1),
            segments: BTreeMap::new(),
        }
    }

    /// Returns the length of one more segment; 0 if the quota is used up.
    pub(super) fn next_bytes(&self) -> u64 {
        let taken: u64 = self.segments.values().map(|segment| segment.free.length()).sum();
        self.quota_bytes.saturating_sub(taken).min(self.segment_bytes)
    }

    /// Adds a segment, as long as the quota permits; `false` if that is used up.
    pub(super) fn add(&mut self, id: u64, file: Option<Arc<dyn DiskFile>>) -> bool {
        let bytes = self.next_bytes();
        if bytes == 0 {
            return false;
        }
        let segment = Segment {
            free: Ranges::new(bytes),
            file,
            end: 0,
        };
        self.segments.insert(id, segment).is_none()
    }

    /// Takes a range of this length, wherever it fits.
    pub(super) fn take(&mut self, bytes: u64) -> Option<SegmentRange> {
        let mut fitting = self.segments.iter_mut().filter(|(_, segment)| segment.free.largest() >= bytes);
        let (&segment, found) = fitting.next()?;
        let offset = found.free.take(bytes)?;
        Some(SegmentRange { segment, offset, bytes })
    }

    /// Takes this very range; `false` if it is not free, or beyond the segment.
    pub(super) fn take_at(&mut self, range: SegmentRange) -> bool {
        let Some(segment) = self.segments.get_mut(&range.segment) else {
            return false;
        };
        let taken = segment.free.take_at(range.offset, range.bytes);
        if taken {
            segment.end = segment.end.max(range.offset + range.bytes);
        }
        taken
    }

    /// Frees a range.
    pub(super) fn give(&mut self, range: SegmentRange) {
        if let Some(segment) = self.segments.get_mut(&range.segment) {
            segment.free.give(range.offset, range.bytes);
        }
    }

    /// Returns the bytes by which the segment's file grows when the range is written.
    pub(super) fn growth(&self, range: SegmentRange) -> u64 {
        let end = self.segments.get(&range.segment).map_or(0, |segment| segment.end);
        (range.offset + range.bytes).saturating_sub(end)
    }

    /// Records that the range was written.
    pub(super) fn grown(&mut self, range: SegmentRange) {
        if let Some(segment) = self.segments.get_mut(&range.segment) {
            segment.end = segment.end.max(range.offset + range.bytes);
        }
    }

    /// Returns the segment's file, if it is open.
    pub(super) fn file(&self, id: u64) -> Option<Arc<dyn DiskFile>> {
        self.segments.get(&id)?.file.clone()
    }

    /// Records that the segment's file is open.
    pub(super) fn opened(&mut self, id: u64, file: &Arc<dyn DiskFile>) {
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.file = Some(Arc::clone(file));
        }
    }

    /// Returns the number of bytes taken.
    pub(super) fn used_bytes(&self) -> u64 {
        let used = |segment: &Segment| segment.free.length() - segment.free.free_bytes();
        self.segments.values().map(used).sum()
    }
}
