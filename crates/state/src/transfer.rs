//! The bytes of a rank's state as they go to another host.
//!
//! Entries that all ranks hold alike are one stream of bytes, of which each rank of the job sends a *shard*; the
//! entries of one rank alone are another stream. All hosts compute both from the same manifest. Short entries come
//! first in a stream, together: a clone begins to load once it has all that the job copied, which is mostly those.

use std::{collections::BTreeMap, ops::Range};

use crate::manifest::Manifest;
use crate::section::Placement;

/// Entries of a capture begin at multiples of this.
pub const ALIGNMENT_BYTES: u64 = 64;

/// Bytes from which on an entry is not short. Jobs keep tensors of this length and more in shared storage.
const LONG_BYTES: u64 = 64 << 10;

/// Location of an entry's bytes at the host of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntrySource {
    /// Offset in the capture, in bytes.
    Copied(u64),
    /// Number of the shared memory, and offset in it in bytes. Leased entries have the order of their pieces in the
    /// read lease.
    Leased(u64, u64),
}

/// Streams of bytes of which a state consists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateStream {
    /// Entries that all ranks of the job hold alike.
    Replicated,
    /// Entries that a rank has for itself.
    Own,
}

/// The bytes of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentEntry {
    /// Number of the entry in the manifest.
    pub entry: usize,
    /// Location at the host of the job.
    pub source: EntrySource,
    /// Stream in which the bytes are sent.
    pub stream: StateStream,
    /// Offset in the stream in bytes.
    pub at: u64,
    /// Offset in a capture that has all entries, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// All entries of a rank's state, in the order of the manifest, and the lengths of their streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateTransfer {
    /// Entries.
    pub entries: Vec<SentEntry>,
    /// Length of a capture that has all entries, in bytes.
    pub capture_bytes: u64,
    /// Length of the capture at the host of the job, which has the copied entries, in bytes.
    pub copied_bytes: u64,
    /// Length of the stream of replicated entries in bytes.
    pub replicated_bytes: u64,
    /// Length of the stream of the rank's own entries in bytes.
    pub own_bytes: u64,
}

impl StateTransfer {
    /// Computes the transfer of the state that a manifest describes.
    pub fn of(manifest: &Manifest) -> Self {
        let mut transfer = Self::default();
        for held in &manifest.sections {
            let section = held.section();
            let mut places = held.places().iter().peekable();
            for (number, kind) in (0u64..).zip(section.kind_of()) {
                let kind = &section.kinds()[*kind];
                let room = kind.length.next_multiple_of(ALIGNMENT_BYTES);
                let place = places.next_if(|(of, _, _)| *of == number);
                let source = place.map_or(EntrySource::Copied(transfer.copied_bytes), |(_, memory, offset)| {
                    EntrySource::Leased(*memory, *offset)
                });
                transfer.copied_bytes += if place.is_none() { room } else { 0 };
                let stream = match kind.placement {
                    Placement::Replicated => StateStream::Replicated,
                    Placement::Sharded | Placement::PerRank | Placement::Leading => StateStream::Own,
                };
                transfer.entries.push(SentEntry {
                    entry: transfer.entries.len(),
                    source,
                    stream,
                    at: 0,
                    offset: transfer.capture_bytes,
                    length: kind.length,
                });
                transfer.capture_bytes += room;
            }
        }
        transfer.place();
        transfer
    }

    /// Gives each entry its place in its stream. Whether an entry was copied does not matter: that may differ from rank
    /// to rank, and a stream must not.
    fn place(&mut self) {
        for is_long in [false, true] {
            for entry in self.entries.iter_mut().filter(|entry| (entry.length >= LONG_BYTES) == is_long) {
                let end = match entry.stream {
                    StateStream::Replicated => &mut self.replicated_bytes,
                    StateStream::Own => &mut self.own_bytes,
                };
                entry.at = *end;
                *end += entry.length;
            }
        }
    }

    /// Returns the entries that the host of the job has copied.
    pub fn copied(&self) -> CopiedRanges {
        let mut ranges = BTreeMap::<StateStream, Vec<Range<u64>>>::new();
        let is_copied = |entry: &&SentEntry| matches!(entry.source, EntrySource::Copied(_)) && entry.length > 0;
        for entry in self.entries.iter().filter(is_copied) {
            ranges.entry(entry.stream).or_default().push(entry.at..entry.at + entry.length);
        }
        for ranges in ranges.values_mut() {
            ranges.sort_unstable_by_key(|range| range.start);
        }
        CopiedRanges(ranges)
    }
}

/// Entries that the host of a job has copied, as ranges of their streams, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiedRanges(BTreeMap<StateStream, Vec<Range<u64>>>);

impl CopiedRanges {
    /// Returns whether a range of a stream has bytes of one of them.
    pub fn overlap(&self, stream: StateStream, range: &Range<u64>) -> bool {
        let ranges = self.0.get(&stream).map_or(&[][..], Vec::as_slice);
        let first = ranges.partition_point(|other| other.end <= range.start);
        ranges.get(first).is_some_and(|other| other.start < range.end)
    }
}

/// Returns the part of `bytes` replicated bytes that a rank of the job sends: equal parts, the last with the remainder.
pub fn shard(bytes: u64, rank: u64, ranks: u64) -> Range<u64> {
    let part = bytes / ranks.max(1);
    let end = if rank + 1 >= ranks { bytes } else { part * (rank + 1) };
    part * rank..end
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{CapturedSection, EntryKind, Layout, Section};

    fn manifest() -> Manifest {
        let kind = |placement, length| EntryKind {
            placement,
            layout: Layout {
                dtype: "f".into(),
                shape: vec![length],
                strides: vec![1],
                device: "cpu".into(),
            },
            length,
        };
        let section = |name: &str, kinds: Vec<EntryKind>, places| {
            let paths = (0..kinds.len()).map(|number| format!("{name}/{number}")).collect();
            let numbers = (0..kinds.len()).collect();
            let section = Arc::new(Section::new(paths, kinds, numbers).unwrap());
            CapturedSection::new(section, places).unwrap()
        };
        let replicated = vec![
            kind(Placement::Replicated, 10),
            kind(Placement::Replicated, 100),
            kind(Placement::Replicated, LONG_BYTES),
        ];
        Manifest {
            sections: vec![
                section("a", replicated, vec![(1, 2, 4096), (2, 2, 0)]),
                section("b", vec![kind(Placement::PerRank, 65)], vec![]),
                section("c", vec![kind(Placement::Replicated, 5)], vec![]),
            ],
            ..Manifest::default()
        }
    }

    #[test]
    fn each_entry_has_its_place_in_a_stream_and_in_a_whole_capture() {
        use StateStream::{Own, Replicated};
        let transfer = StateTransfer::of(&manifest());
        let found: Vec<_> = transfer
            .entries
            .iter()
            .map(|one| (one.source, one.stream, one.at, one.offset, one.length))
            .collect();
        assert_eq!(
            found,
            [
                (EntrySource::Copied(0), Replicated, 0, 0, 10),
                (EntrySource::Leased(2, 4096), Replicated, 10, 64, 100),
                (EntrySource::Leased(2, 0), Replicated, 115, 192, LONG_BYTES),
                (EntrySource::Copied(64), Own, 0, LONG_BYTES + 192, 65),
                (EntrySource::Copied(192), Replicated, 110, LONG_BYTES + 320, 5),
            ]
        );
        assert_eq!(
            (
                transfer.replicated_bytes,
                transfer.own_bytes,
                transfer.capture_bytes,
                transfer.copied_bytes
            ),
            (LONG_BYTES + 115, 65, LONG_BYTES + 384, 256)
        );
        let copied = transfer.copied();
        let overlaps = [0..1, 9..20, 10..110, 110..200, 115..200].map(|range| copied.overlap(Replicated, &range));
        assert_eq!(overlaps, [true, true, false, true, false]);
        assert!(copied.overlap(Own, &(64..65)) && !copied.overlap(Own, &(65..66)));
    }

    #[test]
    fn shards_are_all_bytes_once_and_the_last_has_the_remainder() {
        for (bytes, ranks) in [(0, 1), (1, 3), (100, 1), (100, 3), (1 << 40, 7)] {
            let shards: Vec<_> = (0..ranks).map(|rank| shard(bytes, rank, ranks)).collect();
            assert_eq!(shards[0].start, 0);
            assert!(shards.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!(shards.last().unwrap().end, bytes);
            assert!(shards.iter().all(|one| one.end - one.start >= bytes / ranks));
        }
        assert_eq!([shard(100, 0, 3), shard(100, 2, 3)], [0..33, 66..100]);
    }
}
