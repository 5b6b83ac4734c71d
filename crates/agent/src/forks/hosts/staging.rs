//! Takes the state of one rank into memory of this process, as a clone on this host would, to be sent to another host.

use std::{io, os::fd::OwnedFd, sync::Arc, thread};

use forebay_state::{
    CapturedSection, DIGEST_BYTES, EntrySource, Manifest, SectionCache, SentEntry, StateStream, StateTransfer, read_state, shard,
    write_state,
};
use twox_hash::XxHash3_128;

use super::{filled::FilledMemory, memory::fill, message::HostFailure, stage::Stage};

use crate::{
    forks::{
        client::Taking,
        limits::{FORK_CONFIRM_EVERY, HOST_RANGE_BYTES, HOST_WAIT_EVERY},
        protocol::text_of,
        read_lease::{Confirmation, ConfirmationWait, NextRead, PIECE_BYTES, PieceReader, ReadLease, why_lost},
    },
    host::{error::AgentError, shared::seal},
};

/// Bytes that are read before their validity is checked.
const STRETCH_BYTES: usize = 128 << 10;

/// Bytes that a rank sends: its shard of the replicated entries, and its own entries.
#[derive(Clone, Debug)]
pub(super) struct RankStages {
    pub(super) shard: Arc<Stage>,
    pub(super) own: Arc<Stage>,
}

/// Receives the state of a rank as far as it has come.
pub(super) trait StageEvents: Sync {
    /// Notes that the state was taken: its manifest, and its bytes, which are still coming.
    fn taken(&self, manifest: Vec<u8>, stages: &RankStages);
    /// Notes that the state is complete and confirmed: its manifest with all digests.
    fn verified(&self, manifest: Vec<u8>);
    /// Returns true if nobody waits for the state any more.
    fn is_unwanted(&self) -> bool;
}

/// Takes the state of a rank of the clone into memory that was reserved, if any, and reports it as loaded.
///
/// # Errors
/// Reason why there is no such state. The fork has failed then.
pub(super) fn stage(taking: &Taking, secret: &[u8], memory: Option<FilledMemory>, events: &dyn StageEvents) -> Result<(), HostFailure> {
    let staged = take(taking, secret, memory, events);
    if let Err(failure) = &staged {
        // So that the other ranks need not wait for this one.
        let _ = taking.failed(&failure.why);
    }
    staged
}

fn take(taking: &Taking, secret: &[u8], memory: Option<FilledMemory>, events: &dyn StageEvents) -> Result<(), HostFailure> {
    let taken = until(events, || taking.state(HOST_WAIT_EVERY))?;
    let mut descriptors = taken.state.into_iter();
    let (Some(text), Some(copied)) = (descriptors.next(), descriptors.next()) else {
        return Err("the descriptors of the state are missing".into());
    };
    let text = text_of(&text)?;
    let (header, manifest) = read_state(secret, &text, &mut SectionCache::default()).map_err(|error| error.to_string())?;
    let transfer = StateTransfer::of(&manifest);
    let order = ReadingOrder::of(&transfer, &manifest);
    let lease = Leased::open(taken.reader, order.pieces, descriptors.collect())?;
    let create = |memory, part| Stage::create(memory, part).map_err(|why| format!("at the job's host: {why}"));
    let stages = RankStages {
        shard: Arc::new(create(memory, shard(transfer.replicated_bytes, manifest.rank, manifest.ranks))?),
        own: Arc::new(create(None, 0..transfer.own_bytes)?),
    };
    events.taken(text, &stages);
    let digests = order.fill(&stages, &copied, lease.as_ref(), (manifest.digests.clone(), events))?;
    lease.as_ref().map_or(Ok(()), |lease| lease.confirm(events))?;
    let whole = |held: &CapturedSection| CapturedSection::new(Arc::clone(held.section()), Vec::new());
    let sections = manifest.sections.iter().map(whole).collect::<Result<_, _>>()?;
    let verified = write_state(
        secret,
        &header,
        &Manifest {
            sections,
            digests,
            ..manifest
        },
    );
    let sealed = seal("forebay-state", &verified).map_err(|error| format!("no memory for its manifest: {error}"))?;
    taking.loaded(std::os::fd::AsFd::as_fd(&sealed))?;
    until(events, || Ok(taking.exists(HOST_WAIT_EVERY)?.then_some(())))?;
    events.verified(verified);
    Ok(())
}

/// Entries of a state in the order in which they are read. Of each kind those go first that the rank sends, and of
/// these those that are sent first, in one part with copied entries.
#[derive(Debug, Default)]
struct ReadingOrder {
    /// Entries under the read lease, each with the number of its first piece there.
    leased: Vec<(SentEntry, usize)>,
    /// Entries of the capture, each with its offset there.
    copied: Vec<(SentEntry, u64)>,
    /// Number of pieces of the read lease.
    pieces: usize,
}

impl ReadingOrder {
    fn of(transfer: &StateTransfer, manifest: &Manifest) -> Self {
        let mut order = Self::default();
        for entry in &transfer.entries {
            match entry.source {
                EntrySource::Copied(offset) => order.copied.push((*entry, offset)),
                EntrySource::Leased(..) => {
                    order.leased.push((*entry, order.pieces));
                    order.pieces += usize::try_from(entry.length.div_ceil(PIECE_BYTES as u64)).unwrap_or(usize::MAX);
                }
            }
        }
        let part = shard(transfer.replicated_bytes, manifest.rank, manifest.ranks);
        let is_sent = |entry: &SentEntry| entry.stream == StateStream::Own || (entry.at < part.end && entry.at + entry.length > part.start);
        let copied = transfer.copied();
        let is_first = |entry: &SentEntry| {
            let near = entry.at.saturating_sub(HOST_RANGE_BYTES as u64)..entry.at + entry.length + HOST_RANGE_BYTES as u64;
            copied.overlap(entry.stream, &near)
        };
        order.leased.sort_by_key(|(entry, _)| (!is_sent(entry), !is_first(entry)));
        order.copied.sort_by_key(|(entry, _)| !is_sent(entry));
        order
    }

    /// Reads all entries into the stages. Returns the digests of all. Entries under the lease do not wait for those of
    /// the capture, nor those for them: a stream has entries of both kinds, and is sent from its beginning on.
    fn fill(
        &self,
        stages: &RankStages,
        capture: &OwnedFd,
        lease: Option<&Leased>,
        (mut digests, events): (Vec<u8>, &dyn StageEvents),
    ) -> Result<Vec<u8>, String> {
        thread::scope(|scope| {
            let copying = scope.spawn(|| {
                let mut filling = Filling::new(stages);
                self.copied
                    .iter()
                    .try_for_each(|(entry, offset)| filling.copy(capture, *offset, entry))
            });
            let mut filling = Filling::new(stages);
            for (entry, piece) in &self.leased {
                let EntrySource::Leased(memory, offset) = entry.source else {
                    continue;
                };
                let lease = lease.ok_or("the read lease of the state is missing")?;
                let digest = filling.read(lease, (memory, offset), *piece, entry, events)?;
                digests[entry.entry * DIGEST_BYTES..][..DIGEST_BYTES].copy_from_slice(&digest.to_be_bytes());
            }
            copying.join().unwrap_or_else(|_| Err("a thread failed".into()))?;
            Ok(digests)
        })
    }
}

/// Calls `ask` until it returns an answer.
fn until<T>(events: &dyn StageEvents, mut ask: impl FnMut() -> Result<Option<T>, AgentError>) -> Result<T, HostFailure> {
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if events.is_unwanted() {
            return Err(unwanted().into());
        }
    }
}

fn unwanted() -> String {
    "the host of the clone does not wait for it any more".into()
}

/// Returns the reason of an error without the name of the agent that told it.
pub(super) fn reason(error: AgentError) -> String {
    HostFailure::from(error).why
}

/// Fills the stages of a rank.
struct Filling<'a> {
    stages: &'a RankStages,
    room: Vec<u8>,
}

impl<'a> Filling<'a> {
    fn new(stages: &'a RankStages) -> Self {
        let room = vec![0; STRETCH_BYTES];
        Self { stages, room }
    }

    /// Copies an entry of the capture.
    fn copy(&mut self, capture: &OwnedFd, offset: u64, entry: &SentEntry) -> Result<(), String> {
        let mut had = 0;
        while had < entry.length {
            let bytes = usize::try_from(entry.length - had).map_or(STRETCH_BYTES, |left| left.min(STRETCH_BYTES));
            self.stretch(entry, had, bytes, |room| {
                fill(capture, offset.saturating_add(had), room).map_err(|error| unreadable(&error))
            })?;
            had += bytes as u64;
        }
        Ok(())
    }

    /// Reads a leased entry, whose first piece has this number. Returns its digest.
    fn read(
        &mut self,
        lease: &Leased,
        (memory, offset): (u64, u64),
        mut number: usize,
        entry: &SentEntry,
        events: &dyn StageEvents,
    ) -> Result<u128, String> {
        let mut digest = XxHash3_128::new();
        let (mut piece_at, mut had) = (0, 0);
        while piece_at < entry.length {
            let piece = usize::try_from(entry.length - piece_at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
            let mut reading = lease.piece(number, memory, offset.saturating_add(piece_at));
            while reading.had < piece {
                let bytes = STRETCH_BYTES.min(piece - reading.had);
                self.stretch(entry, had, bytes, |room| {
                    lease.next(&mut reading, room, events)?;
                    digest.write(room);
                    Ok(())
                })?;
                had += bytes as u64;
            }
            reading.reader.done(&lease.lease.memory());
            number += 1;
            piece_at += piece as u64;
        }
        Ok(digest.finish_128())
    }

    /// Reads bytes of an entry from `had` on to their place in the stage, so that they are not copied once more. Those
    /// of which the stage has a part alone, or none, are read to memory of this thread first.
    fn stretch(
        &mut self,
        entry: &SentEntry,
        had: u64,
        bytes: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let stage = match entry.stream {
            StateStream::Replicated => &self.stages.shard,
            StateStream::Own => &self.stages.own,
        };
        if let Some(mut place) = stage.lend(entry.at + had, bytes) {
            read(place.bytes_mut())?;
            place.fill();
            return Ok(());
        }
        read(&mut self.room[..bytes])?;
        stage.put(entry.at + had, &self.room[..bytes])
    }
}

/// The read lease of a rank, as this process reads it.
struct Leased {
    lease: ReadLease,
    reader: u32,
    aside: OwnedFd,
    memory: Vec<OwnedFd>,
}

/// A piece that is being read.
struct ReadingPiece {
    reader: PieceReader,
    memory: usize,
    offset: u64,
    had: usize,
}

impl Leased {
    /// Opens the lease behind the descriptors that follow those of manifest and capture; none if all was copied.
    fn open(reader: u32, pieces: usize, descriptors: Vec<OwnedFd>) -> Result<Option<Self>, String> {
        let mut descriptors = descriptors.into_iter();
        let (Some(lease), Some(aside)) = (descriptors.next(), descriptors.next()) else {
            return Ok(None);
        };
        let lease = ReadLease::open(lease, pieces).map_err(|error| format!("the read lease of the state is invalid: {error}"))?;
        Ok(Some(Self {
            lease,
            reader,
            aside,
            memory: descriptors.collect(),
        }))
    }

    /// Begins to read a piece of the lease.
    fn piece(&self, piece: usize, memory: u64, offset: u64) -> ReadingPiece {
        ReadingPiece {
            reader: PieceReader::new(self.reader, piece),
            memory: usize::try_from(memory).unwrap_or(usize::MAX),
            offset,
            had: 0,
        }
    }

    /// Reads the next bytes of a piece into `room`, all of which count then.
    fn next(&self, piece: &mut ReadingPiece, room: &mut [u8], events: &dyn StageEvents) -> Result<(), String> {
        let words = self.lease.memory();
        loop {
            let had = piece.had as u64;
            match piece.reader.next(&words) {
                NextRead::InPlace => {
                    let memory = self
                        .memory
                        .get(piece.memory)
                        .ok_or("an entry is in memory whose descriptor is missing")?;
                    fill(memory, piece.offset.saturating_add(had), room).map_err(|error| unreadable(&error))?;
                }
                NextRead::Aside(at) => fill(&self.aside, at.saturating_add(had), room).map_err(|error| unreadable(&error))?,
                NextRead::Again => continue,
                NextRead::Wait if events.is_unwanted() => return Err(unwanted()),
                NextRead::Wait => {
                    thread::sleep(FORK_CONFIRM_EVERY);
                    continue;
                }
                NextRead::Lost(outcome) => return Err(why_lost(outcome).into()),
            }
            if piece.reader.counts(&words) {
                piece.had += room.len();
                return Ok(());
            }
        }
    }

    /// Waits until the job has confirmed that nothing changed during the read.
    fn confirm(&self, events: &dyn StageEvents) -> Result<(), String> {
        let mut waiting = ConfirmationWait::new(self.reader);
        waiting.ask(&self.lease.memory());
        loop {
            match waiting.next(&self.lease.memory()) {
                Confirmation::Again => {}
                Confirmation::NotYet if events.is_unwanted() => return Err(unwanted()),
                Confirmation::NotYet => thread::sleep(FORK_CONFIRM_EVERY),
                Confirmation::OfTheStep => return Ok(()),
                Confirmation::Lost(outcome) => return Err(why_lost(outcome).into()),
            }
        }
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("the memory of the state can't be read: {error}")
}
