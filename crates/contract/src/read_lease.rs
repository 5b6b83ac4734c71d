//! Read lease of a rank's tensors: memory that the rank (the *source*), the clones' ranks (its *readers*) and the fork
//! agent share, by which readers learn whether the bytes that they read in place belong to one step.
//!
//! The tensors are cut into pieces. A piece has two words: who has read it and whether the source has closed it; and
//! where it is in the copy-on-write buffer. The memory is zero at first.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Release, SeqCst},
    fence,
};

use crate::{
    digest::layout,
    job_page::FORKS_PER_JOB_MAX,
    region::{Plain, Region},
};

/// Bytes of a piece; a tensor's last one may be shorter. At most this much is copied without use for each reader.
pub const PIECE_BYTES: usize = 4 << 20;

/// Bit of a piece's word, above those of its readers: the source has closed it.
pub const CLOSED: u64 = 1 << 63;

const PIECES_AT: u64 = 64;

#[repr(C)]
#[derive(Debug)]
struct LeaseHeader {
    outcome: AtomicU64,
    /// Wanted readers, a bit each.
    wanted: AtomicU64,
    /// Readers that request validation.
    asking: AtomicU64,
    /// Validated readers.
    vouched: AtomicU64,
    /// Futex on which the source waits.
    bell: AtomicU32,
}

#[repr(C)]
#[derive(Debug)]
struct PieceWords {
    /// Readers that have the piece, and [`CLOSED`].
    readers: AtomicU64,
    /// Offset in the copy-on-write buffer, plus one; 0: not copied.
    aside: AtomicU64,
}

/// Layout that ranks, clones and the agent share.
pub(crate) const LAYOUT: &[&[u64]] = &[
    layout!(LeaseHeader: outcome, wanted, asking, vouched, bell),
    layout!(PieceWords: readers, aside),
    &[PIECES_AT, PIECE_BYTES as u64, CLOSED],
    &[
        LeaseOutcome::Open as u64,
        LeaseOutcome::Kept as u64,
        LeaseOutcome::OverBudget as u64,
        LeaseOutcome::Invalidated as u64,
        LeaseOutcome::OwnerLost as u64,
    ],
];

// SAFETY: atomics only.
unsafe impl Plain for LeaseHeader {}
// SAFETY: as above.
unsafe impl Plain for PieceWords {}

const _: () = assert!(FORKS_PER_JOB_MAX < 63 && size_of::<LeaseHeader>() as u64 <= PIECES_AT);

/// Outcome of a read lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseOutcome {
    /// The source has not reached its next step.
    Open = 0,
    /// Every wanted reader has read everything, or finds it in the copy-on-write buffer.
    Kept = 1,
    /// Over budget: more bytes were unread than the source copies. A reader that has everything has the state of the
    /// step.
    OverBudget = 2,
    /// Invalidated: a tensor changed before the source closed the lease, so the bytes read may be of no step.
    Invalidated = 3,
    /// Owner lost: the source has ended without an outcome.
    OwnerLost = 4,
}

impl LeaseOutcome {
    /// Decodes an outcome; an invalid word counts as invalidated.
    const fn of(word: u64) -> Self {
        match word {
            0 => Self::Open,
            1 => Self::Kept,
            2 => Self::OverBudget,
            4 => Self::OwnerLost,
            _ => Self::Invalidated,
        }
    }
}

/// The shared words. Each function accesses one of them, once.
pub trait LeaseWords {
    /// Returns the outcome.
    fn outcome(&self) -> LeaseOutcome;
    /// Writes the outcome (the source, last). Its later writes are ordered after all earlier ones.
    fn end(&self, outcome: LeaseOutcome);
    /// Returns the wanted readers, a bit each.
    fn wanted(&self) -> u64;
    /// Returns a piece's word, ordered after all earlier reads.
    fn piece(&self, piece: usize) -> u64;
    /// Sets bits in a piece's word; returns its earlier value.
    fn mark(&self, piece: usize, bits: u64) -> u64;
    /// Returns a piece's offset in the copy-on-write buffer, plus one; 0: not copied.
    fn aside(&self, piece: usize) -> u64;
    /// Sets a piece's offset in the copy-on-write buffer, plus one (the source).
    fn set_aside(&self, piece: usize, word: u64);
    /// Returns the readers that have everything and request validation, a bit each.
    fn asking(&self) -> u64;
    /// Sets a reader's bit, ordered after all its reads.
    fn ask(&self, reader: u64);
    /// Returns the validated readers, a bit each.
    fn vouched(&self) -> u64;
    /// Validates readers (the source), which must have asked before it found that nothing had changed.
    fn vouch(&self, readers: u64);
}

/// Access to the memory of a lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseMemory<'a> {
    region: Region<'a>,
    header: &'a LeaseHeader,
    /// Wakes the source, which waits on this word.
    wake: fn(&AtomicU32),
}

impl<'a> LeaseMemory<'a> {
    /// Returns the bytes of a lease of this many pieces; an impossible number needs more than any memory has.
    pub const fn bytes(pieces: usize) -> usize {
        (PIECES_AT as usize).saturating_add(pieces.saturating_mul(size_of::<PieceWords>()))
    }

    /// Opens the lease in this memory. Returns `None` if it is too short for this many pieces.
    pub fn open(region: Region<'a>, pieces: usize, wake: fn(&AtomicU32)) -> Option<Self> {
        let header = region.at(0).filter(|_| region.len() >= Self::bytes(pieces))?;
        Some(Self { region, header, wake })
    }

    /// Names the wanted readers of a new lease: this many, from number 0 on.
    pub fn want(&self, readers: usize) {
        self.header.wanted.store((1 << readers) - 1, Release);
    }

    /// Removes a reader from the wanted ones (called by the agent).
    pub fn leave(&self, reader: u32) {
        self.header.wanted.fetch_and(!reader_bit(reader), AcqRel);
    }

    /// Notes that the source has ended, if there is no outcome yet (called by the agent).
    pub fn abandon(&self) {
        let (open, abandoned) = (LeaseOutcome::Open as u64, LeaseOutcome::OwnerLost as u64);
        let _ = self.header.outcome.compare_exchange(open, abandoned, AcqRel, Acquire);
    }

    /// Returns the word on which the source waits; it changes with each request, and with the outcome.
    pub fn bell(&self) -> &'a AtomicU32 {
        &self.header.bell
    }

    fn ring(&self) {
        self.bell().fetch_add(1, AcqRel);
        (self.wake)(self.bell());
    }

    /// # Panics
    /// If the piece is beyond the memory, which was checked to hold the pieces of the lease.
    fn piece_words(&self, piece: usize) -> &'a PieceWords {
        let words = self.region.element(PIECES_AT, piece as u64);
        words.expect("the piece is one of the lease")
    }
}

impl LeaseWords for LeaseMemory<'_> {
    fn outcome(&self) -> LeaseOutcome {
        LeaseOutcome::of(self.header.outcome.load(Acquire))
    }

    fn end(&self, outcome: LeaseOutcome) {
        self.header.outcome.store(outcome as u64, Release);
        // A reader that sees a later write of the program sees the pieces closed.
        fence(SeqCst);
        self.ring();
    }

    fn wanted(&self) -> u64 {
        self.header.wanted.load(Acquire)
    }

    fn piece(&self, piece: usize) -> u64 {
        // The other half of the fence in `end`.
        fence(SeqCst);
        self.piece_words(piece).readers.load(Acquire)
    }

    fn mark(&self, piece: usize, bits: u64) -> u64 {
        self.piece_words(piece).readers.fetch_or(bits, AcqRel)
    }

    fn aside(&self, piece: usize) -> u64 {
        self.piece_words(piece).aside.load(Acquire)
    }

    fn set_aside(&self, piece: usize, word: u64) {
        self.piece_words(piece).aside.store(word, Release);
    }

    fn asking(&self) -> u64 {
        self.header.asking.load(Acquire)
    }

    fn ask(&self, reader: u64) {
        self.header.asking.fetch_or(reader, AcqRel);
        self.ring();
    }

    fn vouched(&self) -> u64 {
        self.header.vouched.load(Acquire)
    }

    fn vouch(&self, readers: u64) {
        self.header.vouched.fetch_or(readers, AcqRel);
    }
}

/// Returns the bit mask of a reader, or 0 if its number is out of range.
pub fn reader_bit(reader: u32) -> u64 {
    1_u64.checked_shl(reader).unwrap_or(0) & !CLOSED
}
