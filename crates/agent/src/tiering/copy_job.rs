//! Copies that workers make, and what comes of each.

use std::sync::{Arc, atomic::AtomicBool};

use forebay_contract::{Control, Identity};
use forebay_policy::{read_ahead::AheadMode, read_list::ReadParts, speed::SpeedSample};
use forebay_store::{Finished, SourceFile, StatFrom, StoreError, Tier};

use crate::{
    host::shared::DirtyPages,
    tiering::{
        ahead::file::AheadUse,
        handoff::{Handoff, HeldDescriptor},
        nodes::partial::PartialCopy,
        reader::ReaderDescriptor,
    },
};

/// A copy to make.
#[derive(Debug)]
pub(crate) struct CopyJob {
    /// Number of the flight.
    pub(crate) number: u64,
    pub(crate) target: CopyTarget,
    pub(crate) identity: Identity,
    pub(crate) opened: OpenedSource,
    pub(crate) pace: CopyPace,
    /// Choice of the run how far the file is read ahead of its reader.
    pub(crate) ahead: AheadMode,
    /// True if the source may have holes.
    pub(crate) sparse: bool,
    /// Party that tells at the end whether a small source has changed. For a large source it is always the server.
    pub(crate) ask: StatFrom,
    /// Pages to write back before the source is read.
    pub(crate) pages: DirtyPages,
    /// Boot time of the open in nanoseconds. A later change mark in `control` ends the copy.
    pub(crate) opened_at: u64,
    pub(crate) control: Control<'static>,
    /// Pieces that other nodes are sent while the copy is made.
    pub(crate) partial: Option<Arc<PartialCopy>>,
    /// False once the run has left for which a file is copied that no program has opened.
    pub(crate) is_wanted: Option<Arc<AtomicBool>>,
}

impl CopyJob {
    /// Returns true if the file was changed or locked since it was opened. Its copy would be invalid, and a lock lasts
    /// as long as our duplicate of the descriptor.
    pub(crate) fn is_marked(&self) -> bool {
        self.control.file_marked_at(self.identity.dev, self.identity.ino) >= self.opened_at
    }
}

/// Place that takes what is read of a source file.
#[derive(Clone, Debug)]
pub(crate) enum CopyTarget {
    /// A tier.
    Tier(TierTarget),
    /// The page cache alone: no tier has room.
    PageCache,
}

/// Copy in a tier that is to be made.
#[derive(Clone, Debug)]
pub(crate) struct TierTarget {
    pub(crate) tier: Arc<Tier>,
    /// Name of the copy.
    pub(crate) copy: u64,
    /// True if the speed of the tier is measured with this copy.
    pub(crate) sampled: bool,
}

impl CopyTarget {
    /// Returns true for a tier in memory.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Self::Tier(target) if target.tier.is_memory())
    }
}

/// Pace of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyPace {
    /// Behind the program that reads the file.
    Reader,
    /// While the source is idle: no program reads the file, which is prefetched.
    Idle,
    /// Reading at the source's speed, in the order of a list: earlier runs of the command have read the file.
    Listed,
    /// Full speed of the source: another node waits for the file.
    Full,
    /// Full speed of the source: a program of this node maps the file, and nothing shows how far it is.
    Whole,
}

impl CopyPace {
    /// Returns true for a file that no program has opened.
    pub(crate) const fn is_ahead(self) -> bool {
        matches!(self, Self::Idle | Self::Listed)
    }

    /// Returns whether the copy waits for nobody.
    pub(crate) const fn is_full(self) -> bool {
        matches!(self, Self::Full | Self::Whole)
    }
}

/// A program's descriptor of a source file, and our duplicate of it.
#[derive(Debug)]
pub(crate) struct OpenedSource {
    pub(crate) source: SourceFile,
    pub(crate) reader: ReaderDescriptor,
    /// Held until the duplicate is closed.
    pub(crate) _place: HeldDescriptor,
}

impl From<Handoff> for OpenedSource {
    fn from(handoff: Handoff) -> Self {
        Self {
            source: handoff.source,
            reader: handoff.reader,
            _place: handoff.place,
        }
    }
}

/// Report of a worker: one copy has ended.
#[derive(Debug)]
pub(crate) struct Copied {
    /// Number of the flight.
    pub(crate) number: u64,
    pub(crate) outcome: CopyOutcome,
    /// Bytes read from the source.
    pub(crate) read_bytes: u64,
    pub(crate) ahead: AheadUse,
    /// Parts of the file that its reader has read.
    pub(crate) parts: ReadParts,
}

/// End of a copy.
#[derive(Debug)]
pub(crate) enum CopyOutcome {
    /// The copy is whole and can be published. It may carry a speed measurement.
    Whole(Finished, Option<SpeedSample>),
    /// The reader has the whole file. No tier took it.
    InPageCache,
    /// The reader left most of the file unread.
    GivenUp,
    /// The tier is in memory, and memory is short.
    MemoryShort,
    /// A program changed or locked the source meanwhile.
    Marked,
    /// The source has pages that could not be written back, so its times may not show its next change.
    DirtyPages,
    /// An operation failed; the partial copy has been removed.
    Failed(StoreError),
    /// Other nodes did not give it: it is to be made behind its reader.
    LeftToSource(Box<CopyJob>),
}
