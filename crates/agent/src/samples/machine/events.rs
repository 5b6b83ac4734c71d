//! Events and actions of the machine.

use std::time::Duration;

use forebay_contract::request_ring::{RankDecoding, SampleAnswer, SampleRequest};
use forebay_policy::ids::{Node, Sample};
use forebay_policy::residency::Origin;
use forebay_store::FileVersion;

use super::peers::Ticket;

/// A range in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaRange {
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

/// A disk by its place in the loader's settings.
pub(crate) type DiskIndex = usize;

/// Kind of operation on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DiskOperation {
    Read,
    Write,
}

/// Place from which a sample is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFrom {
    /// Its source; or a disk on which an earlier job left it.
    Source,
    /// A disk that has this version of it.
    Disk { disk: DiskIndex, version: FileVersion, bytes: u32 },
    /// Another node.
    Peer {
        node: Node,
        /// Its size, if that is known: above zero. It may be wrong, since a sample that could not be read counts as
        /// large as others.
        bytes: Option<u32>,
        /// Most bytes that are taken else.
        guess_bytes: u32,
        /// Time in which it has to come.
        within: Duration,
    },
}

impl ReadFrom {
    /// Returns true if another node is asked, which takes no thread.
    pub(super) const fn is_peer(self) -> bool {
        matches!(self, Self::Peer { .. })
    }
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// Its bytes are in this range.
    Whole {
        place: ArenaRange,
        version: FileVersion,
        /// The disk on which an earlier job had left it, if it was read there. It is claimed now.
        left_on: Option<DiskIndex>,
    },
    /// The arena has no room for `bytes`.
    NoRoom { bytes: u32 },
    /// The disk does not have it any more, or not in this version; or the other node does not have it.
    Gone,
    /// The disk can't read it, or its bytes are not those written: it is removed there.
    DiskFault,
    /// The source can't be read, or does not match.
    Failed,
    /// Another node has it, with this size, for which there was not enough room.
    OtherSize { bytes: u32 },
    /// Another node did not answer in time.
    Late,
}

/// A step of a rank, and the number of steps in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankStep {
    pub(crate) steps: u64,
    pub(crate) epoch: u32,
    pub(crate) iteration: u32,
}

/// Events for the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineEvent {
    /// A rank makes its next request.
    Asked { rank: usize, wanted: SampleRequest },
    /// A rank has released a request, named by the low half of its sequence number.
    Released { rank: usize, turn: u32 },
    /// A rank has begun a step.
    Stepped { rank: usize, step: RankStep },
    /// A rank's measurements of its decoding.
    Decodes { rank: usize, decoding: RankDecoding },
    /// A rank is gone.
    Gone { rank: usize },
    /// A read has ended.
    Read { flight: u32, outcome: ReadOutcome },
    /// Another node asks for a sample; the answer is [`MachineAction::Serve`] or [`MachineAction::Decline`].
    PeerAsked { ticket: Ticket, sample: Sample, from: Node },
    /// The bytes of a sample were sent to another node, or are not wanted any more.
    PeerReleased { ticket: Ticket },
    /// The result of a write to a disk.
    Written {
        sample: Sample,
        disk: DiskIndex,
        result: Result<(), WriteError>,
    },
}

/// Reason why a sample could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteError {
    /// There is no room.
    Full,
    /// The disk has failed.
    Fault,
}

/// Actions for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineAction {
    /// Read a sample for a rank; the answer is [`MachineEvent::Read`].
    Read {
        flight: u32,
        sample: Sample,
        from: ReadFrom,
        rank: usize,
    },
    /// Write a sample to a disk, from its range in the arena; the answer is [`MachineEvent::Written`].
    Write {
        sample: Sample,
        disk: DiskIndex,
        place: ArenaRange,
        version: FileVersion,
    },
    /// Free this range of the arena.
    Free { place: ArenaRange },
    /// Give up a claim to a sample on a disk.
    Release { sample: Sample, disk: DiskIndex },
    /// Send another node the sample in this range of the arena; at the end comes [`MachineEvent::PeerReleased`].
    Serve { ticket: Ticket, place: ArenaRange },
    /// Tell another node that the sample is not here.
    Decline { ticket: Ticket },
    /// Tell a rank the number of threads with which it is to decode.
    GiveDecoders { rank: usize, threads: u32 },
    /// Answer a request.
    Answer { rank: usize, turn: u64, answer: SampleAnswer },
}

/// Actions of a group of events, in their order.
pub(super) type Actions = Vec<MachineAction>;

pub(super) const fn answer(rank: usize, turn: u64, answer: SampleAnswer) -> MachineAction {
    MachineAction::Answer { rank, turn, answer }
}

/// Maps a place to the policies' origin.
pub(super) const fn origin_of(from: ReadFrom) -> Origin {
    match from {
        ReadFrom::Source => Origin::Source,
        ReadFrom::Disk { .. } => Origin::Local,
        ReadFrom::Peer { node, .. } => Origin::Peer(node),
    }
}
