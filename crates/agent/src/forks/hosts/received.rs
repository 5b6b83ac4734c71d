//! Memory of a clone's host for the state of a rank, and its way to the host's forks role.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    os::fd::{AsFd, OwnedFd},
};

use forebay_state::{Manifest, SentEntry, StateHeader, StateStream, StateTransfer, write_state};
use rustix::{
    fs::{self, SealFlags},
    io::pwrite,
};

use super::{
    stage::{StageMemory, fill},
    staging::reason,
};

use crate::{
    forks::{client::ForkRank, limits::HOST_RANGE_BYTES},
    host::shared::{LENGTH_SEALS, seal},
};

/// Seals a rank's state, and hands it over for a fork.
pub(super) fn publish(rank: &ForkRank, fork: u64, file: &OwnedFd, header: &StateHeader, manifest: &Manifest) -> Result<(), String> {
    let secret = std::fs::read(rank.secret()).map_err(|error| format!("the secret of the fork can't be read: {error}"))?;
    let text = write_state(&secret, header, manifest);
    let hand_over = || {
        fs::fcntl_add_seals(file, LENGTH_SEALS | SealFlags::WRITE)?;
        seal("forebay-state", &text)
    };
    let text = hand_over().map_err(|error| format!("the memory of the state can't be sealed: {error}"))?;
    rank.offer(vec![fork], header.epoch, header.step, &[text.as_fd(), file.as_fd()])
        .map_err(reason)
}

/// The state of a rank, as far as it has come.
#[derive(Debug)]
pub(super) struct ReceivedRank {
    manifest: Manifest,
    transfer: StateTransfer,
    /// For each stream the offset of each entry that has bytes, and its number.
    starts: BTreeMap<StateStream, Vec<(u64, usize)>>,
    pub(super) file: OwnedFd,
}

impl ReceivedRank {
    /// Prepares for the state of a manifest, in memory that was reserved, if any.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn new(manifest: Manifest, memory: Option<StageMemory>) -> Result<Self, String> {
        let transfer = StateTransfer::of(&manifest);
        let mut starts: BTreeMap<StateStream, Vec<(u64, usize)>> = BTreeMap::new();
        for entry in transfer.entries.iter().filter(|entry| entry.length > 0) {
            starts.entry(entry.stream).or_default().push((entry.at, entry.entry));
        }
        let length = transfer.capture_bytes;
        let make = || {
            let mut memory = memory.map_or_else(|| StageMemory::make(length), Ok)?;
            memory.set_length(length)?;
            Ok::<_, String>(memory.file)
        };
        let file = make().map_err(|why| format!("at this host: {why}"))?;
        Ok(Self {
            manifest,
            transfer,
            starts,
            file,
        })
    }

    /// Returns whether another rank's replicated entries are the same stream.
    pub(super) fn has_stream_of(&self, other: &Self) -> bool {
        let stream = |rank: &Self| -> Vec<(u64, u64)> {
            let replicated = rank.transfer.entries.iter().filter(|entry| entry.stream == StateStream::Replicated);
            replicated.map(|entry| (entry.at, entry.length)).collect()
        };
        stream(self) == stream(other)
    }

    /// Reads bytes of a stream that have come.
    ///
    /// # Errors
    /// They can't be read, or the manifest has fewer.
    pub(super) fn get(&self, stream: StateStream, mut at: u64, mut room: &mut [u8]) -> io::Result<()> {
        while !room.is_empty() {
            let (offset, left) = self.extent(stream, at).ok_or(io::ErrorKind::UnexpectedEof)?;
            let part = usize::try_from(left).map_or(room.len(), |left| left.min(room.len()));
            let (now, later) = room.split_at_mut(part);
            fill(&self.file, offset, now)?;
            (room, at) = (later, at + part as u64);
        }
        Ok(())
    }

    /// Returns the offset in the state of a byte of a stream, and the number of bytes from there on in the same entry.
    fn extent(&self, stream: StateStream, at: u64) -> Option<(u64, u64)> {
        let starts = self.starts.get(&stream)?;
        let (start, number) = starts.get(starts.partition_point(|(start, _)| *start <= at).checked_sub(1)?)?;
        let entry = &self.transfer.entries[*number];
        let within = at - start;
        entry
            .length
            .checked_sub(within)
            .filter(|left| *left > 0)
            .map(|left| (entry.offset + within, left))
    }

    /// Writes bytes of a stream to their place in the state.
    ///
    /// # Errors
    /// There is no memory, or the manifest has fewer bytes.
    pub(super) fn put(&self, stream: StateStream, mut at: u64, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let (offset, left) = self.extent(stream, at).ok_or("more bytes came than the manifest says")?;
            let part = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
            write(&self.file, offset, &bytes[..part])?;
            (bytes, at) = (&bytes[part..], at + part as u64);
        }
        Ok(())
    }

    /// Returns whether a manifest with all digests has the sections that were announced.
    pub(super) fn is_of(&self, verified: &Manifest) -> bool {
        let lines = |manifest: &Manifest| -> Vec<Vec<u8>> { manifest.sections.iter().map(|held| held.section().line().to_vec()).collect() };
        lines(&self.manifest) == lines(verified) && verified.sections.iter().all(|held| held.places().is_empty())
    }

    /// Copies the replicated entries of another rank, whose digests are known by now as well as this one's.
    ///
    /// # Errors
    /// Both differ, or there is no memory.
    pub(super) fn copy_from(&self, first: &Self, verified: &Manifest, of_first: &Manifest) -> Result<(), String> {
        let held: HashMap<_, _> = of_first
            .entries()
            .zip(0..)
            .map(|((path, _, digest), entry)| (path, (entry, digest)))
            .collect();
        let entries: Vec<_> = verified.entries().collect();
        let mut room = vec![0; HOST_RANGE_BYTES];
        let replicated = |entry: &&SentEntry| entry.stream == StateStream::Replicated;
        for lacking in self.transfer.entries.iter().filter(replicated) {
            let (path, _, digest) = entries[lacking.entry];
            let like = held
                .get(path)
                .filter(|(_, of_first)| *of_first == digest)
                .and_then(|(entry, _)| first.transfer.entries.get::<usize>(*entry))
                .filter(|like| like.length == lacking.length);
            let like = like.ok_or_else(|| format!("{path} is not the same in all ranks of the job"))?;
            let mut had = 0;
            while had < lacking.length {
                let part = usize::try_from(lacking.length - had).map_or(room.len(), |left| left.min(room.len()));
                fill(&first.file, like.offset + had, &mut room[..part]).map_err(|error| format!("{path} can't be read: {error}"))?;
                write(&self.file, lacking.offset + had, &room[..part])?;
                had += part as u64;
            }
        }
        Ok(())
    }
}

fn write(file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> Result<(), String> {
    while !bytes.is_empty() {
        let written = pwrite(file, bytes, offset).map_err(|error| format!("no memory for the state here: {error}"))?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}
