//! Memory of a clone's host for the states of the job's ranks, and its way to the host's forks role.
//!
//! A rank of the clone reads large entries under a read lease of this host's, from memory that all ranks here share:
//! those that the job's host has read under the job's. It gets that lease once the digests of all entries are known and
//! the copied entries have come, and reads a piece as soon as that has come: so it loads while the transfer goes on.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use forebay_contract::read_lease::{CLOSED, reader_bit};
use forebay_state::{
    ALIGNMENT_BYTES, CapturedSection, EntryPlace, EntrySource, Manifest, SentEntry, StateHeader, StateStream, StateTransfer, write_state,
};
use rustix::{
    fs::{self, SealFlags},
    io::pwrite,
};

use super::{
    IsOver,
    filled::FilledRanges,
    memory::{ReceivedMemory, fill},
    object_part::ObjectPart,
    staging::reason,
};

use crate::{
    forks::{
        client::ForkRank,
        read_lease::{LeaseOutcome, LeaseWords, PIECE_BYTES, ReadLease, note_copied},
    },
    host::shared::{LENGTH_SEALS, seal},
};

/// Number of the only memory that a lease of this host names.
const LEASED_MEMORY: u64 = 0;

/// A stream, and the number of the state that it is of; 0 for entries that all ranks hold alike.
type StreamKey = (StateStream, usize);

/// States of ranks of a job, as far as they have come to this host.
#[derive(Debug)]
pub(super) struct ReceivedStates {
    ranks: Vec<ReceivedRank>,
    /// Memory of the entries under a lease, each of the replicated ones once.
    leased: OwnedFd,
    streams: BTreeMap<StreamKey, ReceivedStream>,
    filled: Mutex<BTreeMap<StreamKey, FilledRanges>>,
    /// Tells that bytes have come.
    came: Condvar,
}

/// State of a rank.
#[derive(Debug)]
struct ReceivedRank {
    manifest: Manifest,
    /// Memory of the entries that are not under the lease.
    capture: OwnedFd,
    /// Places of the leased entries of each section.
    places: Vec<Vec<EntryPlace>>,
    /// Lease of the rank of the clone; none if everything goes to the capture.
    lease: Option<ReadLease>,
}

/// Entries of a stream, by their first byte, and the ranges that have to be there before a rank can begin to load.
#[derive(Debug, Default)]
struct ReceivedStream {
    entries: BTreeMap<u64, ReceivedEntry>,
    needed: Vec<Range<u64>>,
}

/// Memory of an entry. Of a replicated one each rank needs a copy, but under a lease they read the same.
#[derive(Debug, Default)]
struct ReceivedEntry {
    length: u64,
    /// Number of each rank that has a copy, and the offset in its capture.
    copies: Vec<(usize, u64)>,
    /// Offset in the memory of leased entries, if any rank reads it there.
    leased: Option<u64>,
    /// Number of each rank that reads it under its lease, and the number of its first piece there.
    readers: Vec<(usize, usize)>,
}

impl ReceivedStates {
    /// Prepares for the states of these manifests, in memory that was reserved, if any. With `is_leased` the ranks of
    /// the clone read under a lease what those of the job gave under one.
    ///
    /// # Errors
    /// There is not enough memory, or the ranks of the job do not hold the same entries alike.
    pub(super) fn new(manifests: Vec<Manifest>, reserved: Vec<ReceivedMemory>, is_leased: bool) -> Result<Self, String> {
        let mut plan = MemoryPlan::default();
        let mut planned = Vec::new();
        for (number, manifest) in manifests.into_iter().enumerate() {
            let transfer = StateTransfer::of(&manifest);
            let (places, pieces) = plan.add(number, &manifest, &transfer, is_leased);
            planned.push((manifest, transfer, places, pieces));
        }
        if planned
            .iter()
            .any(|(manifest, transfer, ..)| !is_alike(&planned[0].0, &planned[0].1, manifest, transfer))
        {
            return Err("the ranks of the job do not hold the same entries alike".into());
        }
        let mut reserved = reserved.into_iter();
        let for_leased = if plan.leased_bytes > 0 { reserved.next() } else { None };
        // What is not needed is freed before more is made.
        let rest = if plan.leased_bytes > 0 { Vec::new() } else { reserved.collect() };
        let leased = memory(for_leased, plan.leased_bytes)?;
        let sealed = fs::fcntl_add_seals(&leased, LENGTH_SEALS);
        sealed.map_err(|error| format!("at this host: the memory of the state can't be sealed: {error}"))?;
        let mut reserved = rest.into_iter();
        let ranks = planned.into_iter().map(|(manifest, transfer, places, pieces)| {
            let has_lease = places.iter().any(|places| !places.is_empty());
            let bytes = if has_lease { transfer.copied_bytes } else { transfer.capture_bytes };
            let lease = has_lease.then(|| closed_lease(pieces)).transpose();
            Ok(ReceivedRank {
                manifest,
                capture: memory(reserved.next(), bytes)?,
                places,
                lease: lease.map_err(|error| format!("at this host: no memory for a read lease: {error}"))?,
            })
        });
        Ok(Self {
            ranks: ranks.collect::<Result<_, String>>()?,
            leased,
            streams: plan.finish(),
            filled: Mutex::default(),
            came: Condvar::new(),
        })
    }

    /// Writes bytes of a part to their places in the states, and lets ranks read the pieces that are whole now.
    ///
    /// # Errors
    /// There is no memory, or the manifests have fewer bytes.
    pub(super) fn put(&self, part: &ObjectPart, bytes: &[u8]) -> Result<(), String> {
        let key = key_of(part.stream, part.of);
        // A capture may have been sealed since.
        if self.has(part) {
            return Ok(());
        }
        self.extents(key, part.at, bytes.len() as u64, |entry, within, range| {
            let part = &bytes[range];
            for (rank, offset) in &entry.copies {
                write(&self.ranks[*rank].capture, offset + within, part)?;
            }
            entry.leased.map_or(Ok(()), |offset| write(&self.leased, offset + within, part))
        })?;
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = filled.entry(key).or_default();
        filled.fill(part.at..part.at + bytes.len() as u64);
        self.extents(key, part.at, bytes.len() as u64, |entry, within, range| {
            let start = part.at + range.start as u64 - within;
            let first = within / PIECE_BYTES as u64;
            let last = (within + range.len() as u64).div_ceil(PIECE_BYTES as u64);
            for piece in first..last {
                let from = piece * PIECE_BYTES as u64;
                let to = entry.length.min(from + PIECE_BYTES as u64);
                if let Some(leased) = entry.leased.filter(|_| filled.has(&(start + from..start + to))) {
                    self.tell(entry, piece as usize, leased + from);
                }
            }
            Ok(())
        })?;
        self.came.notify_all();
        Ok(())
    }

    /// Tells the readers of an entry that one of its pieces has come, and where that is.
    fn tell(&self, entry: &ReceivedEntry, piece: usize, at: u64) {
        for (rank, first) in &entry.readers {
            if let Some(lease) = &self.ranks[*rank].lease {
                note_copied(&lease.memory(), first + piece, at);
            }
        }
    }

    /// Calls a function for each entry of a range of a stream: with the entry, the offset in it, and the part of the
    /// range.
    fn extents(
        &self,
        key: StreamKey,
        at: u64,
        bytes: u64,
        mut call: impl FnMut(&ReceivedEntry, u64, Range<usize>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut had = 0;
        while had < bytes {
            let entries = self.streams.get(&key).map(|stream| &stream.entries);
            let found = entries.and_then(|entries| entries.range(..=at + had).next_back());
            let found = found.map(|(start, entry)| (entry, at + had - start));
            let (entry, within) = found
                .filter(|(entry, within)| *within < entry.length)
                .ok_or("more bytes came than the manifest says")?;
            let part = (entry.length - within).min(bytes - had);
            call(entry, within, had as usize..(had + part) as usize)?;
            had += part;
        }
        Ok(())
    }

    /// Returns whether all bytes of a part have come.
    pub(super) fn has(&self, part: &ObjectPart) -> bool {
        let filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = filled.get(&key_of(part.stream, part.of));
        filled.is_some_and(|filled| filled.has(&(part.at..part.at + part.bytes)))
    }

    /// Reads bytes of a part that have come, from an offset in it on.
    ///
    /// # Errors
    /// They can't be read, or the manifests have fewer.
    pub(super) fn get(&self, part: &ObjectPart, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let bytes = room.len() as u64;
        let read = self.extents(key_of(part.stream, part.of), part.at + offset, bytes, |entry, within, range| {
            let copy = entry.copies.first().map(|(rank, offset)| (&self.ranks[*rank].capture, offset));
            let lying = entry.leased.as_ref().map(|offset| (&self.leased, offset));
            let (file, offset) = lying.or(copy).ok_or("nobody needs this entry")?;
            fill(file, offset + within, &mut room[range]).map_err(|error| error.to_string())
        });
        read.map_err(io::Error::other)
    }

    /// Waits until the ranks can begin to load: all entries that they do not read under a lease have come. Returns
    /// false if it is over before.
    pub(super) fn wait_ready(&self, is_over: IsOver<'_>) -> bool {
        const LOOK_EVERY: Duration = Duration::from_millis(100);
        let needed = |(key, stream): (&StreamKey, &ReceivedStream)| -> Vec<_> {
            let of_key = |range: &Range<u64>| (*key, range.clone());
            stream.needed.iter().map(of_key).collect()
        };
        let mut needed: Vec<_> = self.streams.iter().flat_map(needed).collect();
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            while needed
                .pop_if(|(key, range)| filled.get(key).is_some_and(|filled| filled.has(range)))
                .is_some()
            {}
            if needed.is_empty() || is_over() {
                return needed.is_empty();
            }
            filled = self.came.wait_timeout(filled, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether a manifest with all digests has the sections that were announced.
    pub(super) fn is_of(&self, number: usize, verified: &Manifest) -> bool {
        let lines = |manifest: &Manifest| -> Vec<Vec<u8>> { manifest.sections.iter().map(|held| held.section().line().to_vec()).collect() };
        let announced = &self.ranks[number].manifest;
        lines(announced) == lines(verified) && verified.sections.iter().all(|held| held.places().is_empty())
    }

    /// Hands the state of a rank over for a fork. Its copied entries are sealed; what is under the lease may still be
    /// coming. `verified` has all digests, so that the job has confirmed what the lease covers.
    ///
    /// # Errors
    /// There is no memory, or the forks role is gone.
    pub(super) fn publish(
        &self,
        number: usize,
        rank: &ForkRank,
        fork: u64,
        header: &StateHeader,
        verified: &Manifest,
    ) -> Result<(), String> {
        let secret = std::fs::read(rank.secret()).map_err(|error| format!("the secret of the fork can't be read: {error}"))?;
        let state = &self.ranks[number];
        let placed = |(held, places): (&CapturedSection, &Vec<EntryPlace>)| CapturedSection::new(held.section().clone(), places.clone());
        let manifest = Manifest {
            sections: verified.sections.iter().zip(&state.places).map(placed).collect::<Result<_, _>>()?,
            ..verified.clone()
        };
        let text = write_state(&secret, header, &manifest);
        let hand_over = || {
            fs::fcntl_add_seals(&state.capture, LENGTH_SEALS | SealFlags::WRITE)?;
            seal("forebay-state", &text)
        };
        let text = hand_over().map_err(|error| format!("the memory of the state can't be sealed: {error}"))?;
        let mut descriptors = vec![text.as_fd(), state.capture.as_fd()];
        if let Some(lease) = &state.lease {
            lease.memory().vouch(reader_bit(0));
            // A reader looks at the memory of the entries, finds the piece closed, and reads it where the lease says.
            descriptors.extend([lease.descriptor(), self.leased.as_fd(), self.leased.as_fd()]);
        }
        rank.offer(vec![fork], header.epoch, header.step, &descriptors).map_err(reason)
    }

    /// Ends the leases once everything has come.
    pub(super) fn keep(&self) {
        let leases = self.ranks.iter().filter_map(|rank| rank.lease.as_ref());
        leases.for_each(|lease| lease.memory().end(LeaseOutcome::Kept));
    }

    /// Ends the leases of a transfer that has failed: who waits for a piece is told.
    pub(super) fn abandon(&self) {
        let leases = self.ranks.iter().filter_map(|rank| rank.lease.as_ref());
        leases.for_each(|lease| lease.memory().abandon());
    }
}

/// Memory that the states of a host need, as far as their ranks are known.
#[derive(Debug, Default)]
struct MemoryPlan {
    streams: BTreeMap<StreamKey, ReceivedStream>,
    leased_bytes: u64,
}

impl MemoryPlan {
    /// Adds the state of a rank. Returns the places of its leased entries, by section, and the number of their pieces.
    fn add(&mut self, number: usize, manifest: &Manifest, transfer: &StateTransfer, is_leased: bool) -> (Vec<Vec<EntryPlace>>, usize) {
        let mut entries = transfer.entries.iter();
        let mut pieces = 0;
        let mut places = Vec::new();
        for held in &manifest.sections {
            let of_section = (0u64..).zip(entries.by_ref().take(held.section().kind_of().len()));
            let place = |(entry_number, entry): (u64, &SentEntry)| {
                let offset = self.place(number, entry, is_leased, &mut pieces)?;
                Some((entry_number, LEASED_MEMORY, offset))
            };
            places.push(of_section.filter_map(place).collect());
        }
        (places, pieces)
    }

    /// Plans the memory of an entry. Returns its offset in the memory of leased entries, if it is read there.
    fn place(&mut self, number: usize, entry: &SentEntry, is_leased: bool, pieces: &mut usize) -> Option<u64> {
        let stream = self.streams.entry(key_of(entry.stream, number)).or_default();
        let mut empty = ReceivedEntry::default();
        let known = if entry.length > 0 {
            stream.entries.entry(entry.at).or_default()
        } else {
            &mut empty
        };
        known.length = entry.length;
        match entry.source {
            EntrySource::Leased(..) if is_leased => {
                let offset = *known.leased.get_or_insert_with(|| {
                    let offset = self.leased_bytes;
                    self.leased_bytes += entry.length.next_multiple_of(ALIGNMENT_BYTES);
                    offset
                });
                known.readers.push((number, *pieces));
                *pieces += entry.length.div_ceil(PIECE_BYTES as u64) as usize;
                Some(offset)
            }
            EntrySource::Copied(offset) if is_leased => {
                known.copies.push((number, offset));
                None
            }
            _ => {
                known.copies.push((number, entry.offset));
                None
            }
        }
    }

    /// Returns the streams, once all ranks are known.
    fn finish(mut self) -> BTreeMap<StreamKey, ReceivedStream> {
        for stream in self.streams.values_mut() {
            let copied = stream.entries.iter().filter(|(_, entry)| !entry.copies.is_empty());
            for (at, entry) in copied {
                let end = at + entry.length;
                match stream.needed.last_mut().filter(|last| last.end == *at) {
                    Some(last) => last.end = end,
                    None => stream.needed.push(*at..end),
                }
            }
        }
        self.streams
    }
}

/// Returns the stream of the state with this number: replicated entries come once.
const fn key_of(stream: StateStream, number: usize) -> StreamKey {
    match stream {
        StateStream::Replicated => (stream, 0),
        StateStream::Own => (stream, number),
    }
}

/// Returns whether the replicated entries of two ranks are the same stream.
fn is_alike(first: &Manifest, of_first: &StateTransfer, other: &Manifest, of_other: &StateTransfer) -> bool {
    fn replicated<'a>(manifest: &'a Manifest, transfer: &'a StateTransfer) -> impl Iterator<Item = (&'a str, u64, u64)> {
        let entries = manifest.entries().zip(&transfer.entries);
        entries.filter_map(|((path, ..), entry)| (entry.stream == StateStream::Replicated).then_some((path, entry.at, entry.length)))
    }
    replicated(first, of_first).eq(replicated(other, of_other))
}

/// Returns memory of this length: that which was reserved, or new one.
fn memory(reserved: Option<ReceivedMemory>, length: u64) -> Result<OwnedFd, String> {
    let make = || {
        let mut memory = reserved.map_or_else(|| ReceivedMemory::make(length), Ok)?;
        memory.set_length(length)?;
        Ok::<_, String>(memory.file)
    };
    make().map_err(|why| format!("at this host: {why}"))
}

/// Makes a lease of which no piece has come: a reader waits until its place in memory is told.
fn closed_lease(pieces: usize) -> io::Result<ReadLease> {
    let lease = ReadLease::create(pieces, 1)?;
    for piece in 0..pieces {
        lease.memory().mark(piece, CLOSED);
    }
    Ok(lease)
}

fn write(file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> Result<(), String> {
    while !bytes.is_empty() {
        let written = pwrite(file, bytes, offset).map_err(|error| format!("no memory for the state here: {error}"))?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_peers::{BlobId, Kind};
    use forebay_state::{DIGEST_BYTES, EntryKind, Layout, Placement, Section};

    use super::*;
    use crate::forks::read_lease::{NextRead, PieceReader};

    const LEASED: u64 = PIECE_BYTES as u64 + 100;

    /// Returns the manifest of a rank: a short entry, a leased one of two pieces, and an own one.
    fn manifest(alike: &str) -> Manifest {
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
        let kinds = vec![
            kind(Placement::Replicated, 10),
            kind(Placement::Replicated, LEASED),
            kind(Placement::PerRank, 70_000),
        ];
        let paths = ["values", alike, "own"].map(String::from).to_vec();
        let section = Section::new(paths, kinds, vec![0, 1, 2]).unwrap();
        Manifest {
            sections: vec![CapturedSection::new(Arc::new(section), vec![(1, 3, 128)]).unwrap()],
            digests: vec![0; 3 * DIGEST_BYTES],
            ..Manifest::default()
        }
    }

    fn states(ranks: usize, is_leased: bool) -> ReceivedStates {
        ReceivedStates::new(vec![manifest("weight"); ranks], Vec::new(), is_leased).unwrap()
    }

    fn part(stream: StateStream, of: usize, at: u64, bytes: u64) -> ObjectPart {
        ObjectPart {
            id: BlobId::of(Kind::Forks, b"object", b"1"),
            offset: at,
            bytes,
            of,
            stream,
            at,
        }
    }

    /// Bytes of a stream that tell their place.
    fn bytes(stream: StateStream, of: usize, at: u64, length: u64) -> Vec<u8> {
        let seed = if stream == StateStream::Own { 7 + of as u64 } else { 3 };
        (at..at + length).map(|at| (at * 31 + seed + (at >> 13)) as u8).collect()
    }

    fn put(states: &ReceivedStates, stream: StateStream, of: usize, at: u64, length: u64) {
        states.put(&part(stream, of, at, length), &bytes(stream, of, at, length)).unwrap();
    }

    fn read(file: &OwnedFd, offset: u64, length: u64) -> Vec<u8> {
        let mut room = vec![0; length as usize];
        fill(file, offset, &mut room).unwrap();
        room
    }

    /// Returns the bytes of a piece as a rank of the clone reads them, or `None` if it would have to wait.
    fn piece(states: &ReceivedStates, rank: usize, number: usize, length: u64) -> Option<Vec<u8>> {
        let lease = states.ranks[rank].lease.as_ref().unwrap().memory();
        let mut reader = PieceReader::new(0, number);
        assert_eq!(reader.next(&lease), NextRead::InPlace);
        assert!(!reader.counts(&lease), "what lies there is not looked at");
        loop {
            match reader.next(&lease) {
                NextRead::Aside(at) => return Some(read(&states.leased, at, length)),
                NextRead::Again => {}
                NextRead::Wait => return None,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn ranks_begin_to_load_once_copied_entries_are_there_and_read_a_piece_once_it_is_whole() {
        use StateStream::{Own, Replicated};
        let states = states(2, true);
        let is_ready = || states.wait_ready(&|| true);
        put(&states, Replicated, 0, 0, 1 << 20);
        put(&states, Own, 0, 0, 70_000);
        assert!(!is_ready(), "the second rank lacks its own");
        put(&states, Own, 1, 0, 70_000);
        assert!(is_ready());
        let second = 10 + PIECE_BYTES as u64;
        put(&states, Replicated, 0, 2 << 20, 10 + LEASED - (2 << 20));
        for rank in 0..2 {
            assert_eq!(piece(&states, rank, 0, 1), None, "1 MiB of it is missing");
            assert_eq!(piece(&states, rank, 1, 100), Some(bytes(Replicated, 0, second, 100)));
        }
        put(&states, Replicated, 0, 1 << 20, 1 << 20);
        for rank in 0..2 {
            let whole = piece(&states, rank, 0, PIECE_BYTES as u64).unwrap();
            assert!(whole == bytes(Replicated, 0, 10, PIECE_BYTES as u64));
            let capture = &states.ranks[rank].capture;
            assert_eq!(read(capture, 0, 10), bytes(Replicated, 0, 0, 10));
            assert!(read(capture, 64, 70_000) == bytes(Own, rank, 0, 70_000));
        }
        // What has come is given to others, and does not come twice.
        let mut room = [0; 20];
        states.get(&part(Replicated, 0, 0, 1 << 20), 0, &mut room).unwrap();
        assert_eq!(room[..], bytes(Replicated, 0, 0, 20));
        states.put(&part(Replicated, 0, 0, 20), &[0; 20]).unwrap();
        assert_eq!(read(&states.ranks[0].capture, 0, 10), bytes(Replicated, 0, 0, 10));
    }

    #[test]
    fn without_a_lease_each_rank_has_a_whole_capture() {
        use StateStream::{Own, Replicated};
        let states = states(2, false);
        put(&states, Own, 0, 0, 70_000);
        put(&states, Own, 1, 0, 70_000);
        put(&states, Replicated, 0, 0, 1000);
        assert!(!states.wait_ready(&|| true));
        put(&states, Replicated, 0, 1000, 10 + LEASED - 1000);
        assert!(states.wait_ready(&|| true));
        for rank in 0..2 {
            let state = &states.ranks[rank];
            assert!(state.lease.is_none());
            let offset = StateTransfer::of(&state.manifest).entries[1].offset;
            assert!(read(&state.capture, offset, LEASED) == bytes(Replicated, 0, 10, LEASED));
        }
        let more = states.put(&part(Own, 0, 70_000, 1), &[0]);
        assert_eq!(more, Err("more bytes came than the manifest says".into()));
    }

    #[test]
    fn f51_a_transfer_that_fails_ends_the_wait_for_a_piece() {
        let states = states(1, true);
        assert_eq!(piece(&states, 0, 0, 1), None);
        states.abandon();
        let lease = states.ranks[0].lease.as_ref().unwrap().memory();
        let mut reader = PieceReader::new(0, 0);
        reader.next(&lease);
        reader.counts(&lease);
        let found = std::iter::repeat_with(|| reader.next(&lease)).find(|next| *next != NextRead::Again);
        assert_eq!(found, Some(NextRead::Lost(LeaseOutcome::OwnerLost)));
    }

    #[test]
    fn f52_ranks_that_do_not_hold_the_same_entries_alike_are_refused() {
        let refused = ReceivedStates::new(vec![manifest("weight"), manifest("bias")], Vec::new(), true);
        assert_eq!(
            refused.err(),
            Some("the ranks of the job do not hold the same entries alike".into())
        );
    }
}
