//! A read lease: from a job's step boundary to its next optimizer step clones read its large tensors in place.
//!
//! The tensors of a rank (the *source*) are cut into pieces. Each piece has two words in memory that the source, the
//! clones' ranks (its *readers*) and the fork agent share, and three rules ensure that the bytes read belong to one
//! step:
//!
//! - A reader reads a stretch of a piece, and checks the piece's word *afterwards*. While the piece is not closed,
//!   the stretch is of the step; else it is discarded, and the rest of the piece read from the copy-on-write buffer.
//!   A reader that has all of a piece sets its own bit.
//! - Before its step the source closes one piece after the other, the last first, since readers begin with the first.
//!   The operation that closes a piece returns the readers that have it. If a wanted reader lacks it, the source copies
//!   it to the buffer; the piece's second word holds the offset.
//! - Tensors change only after all pieces are closed.
//!
//! The bytes read belong to the step only if nothing but steps changes the tensors. The source knows from the version
//! counts of its framework, except while an operation is under way: it can confirm between two instructions of its
//! program, or while no operation that writes to the tensors runs. A reader that has read everything requests the
//! confirmation; the source either *validates* the readers that ask, or states the lease's outcome, whichever comes
//! first. A validated reader does not depend on the outcome.
//!
//! So the source waits for no reader: a slow, stopped or dead one costs a copy, within the source's budget. The
//! outcome is written last. [`PieceReader`], [`ConfirmationWait`] and [`Closing`] are the steps of each side, one
//! word at a time; they access memory only through [`Words`].

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{AcqRel, Acquire, Release, SeqCst},
        fence,
    },
};

use rustix::{io::Errno, thread::futex};

use crate::{
    forks::limits::{FORKS_PER_JOB_MAX, WINDOW_LOOK_EVERY},
    host::shared::SharedFile,
};

/// Bytes of a piece; a tensor's last one may be shorter. At most this much is copied without use for each reader.
pub const PIECE_BYTES: usize = 4 << 20;

/// Bit of a piece's word, above those of its readers: the source has closed it.
const CLOSED: u64 = 1 << 63;

/// Offsets of the words: outcome of the lease; wanted readers; readers that request validation; validated readers; a
/// futex of 32 bits that wakes the source; then, from [`PIECES`] on, two words a piece.
const OUTCOME: u64 = 0;
const WANTED: u64 = 8;
const ASKING: u64 = 16;
const VOUCHED: u64 = 24;
const BELL: u64 = 32;
const PIECES: u64 = 64;
const PIECE_WORDS: u64 = 2;

const _: () = assert!(FORKS_PER_JOB_MAX < 63);

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
    fn of(word: u64) -> Self {
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
pub trait Words {
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

/// Next action of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextRead {
    /// Read the next stretch of the piece in place, and check whether it counts.
    InPlace,
    /// Read the next stretch of the piece from the copy-on-write buffer, where the piece begins at this offset.
    Aside(u64),
    /// Ask again.
    Again,
    /// Ask again a little later: the source is closing the lease.
    Wait,
    /// The piece can't be read any more.
    Lost(LeaseOutcome),
}

/// A reader at one piece.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PieceReader {
    bit: u64,
    piece: usize,
    place: PieceLocation,
}

/// Location of a reader's piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PieceLocation {
    Lies,
    /// Closed: it may be in the copy-on-write buffer later.
    Closed,
    /// Outcome at the last look, after which the buffer is checked.
    Stood(LeaseOutcome),
    Aside(u64),
}

impl PieceReader {
    /// Begins with a piece.
    pub fn new(reader: u32, piece: usize) -> Self {
        Self {
            bit: bit(reader),
            piece,
            place: PieceLocation::Lies,
        }
    }

    /// Returns the next action, until all of the piece has been read.
    pub fn next(&mut self, words: &impl Words) -> NextRead {
        match self.place {
            PieceLocation::Lies => NextRead::InPlace,
            PieceLocation::Aside(at) => NextRead::Aside(at),
            PieceLocation::Closed => {
                // Before the place: once the window has ended, nothing more comes aside.
                self.place = PieceLocation::Stood(words.outcome());
                NextRead::Again
            }
            PieceLocation::Stood(outcome) => match words.aside(self.piece).checked_sub(1) {
                Some(at) => {
                    self.place = PieceLocation::Aside(at);
                    NextRead::Aside(at)
                }
                None if outcome == LeaseOutcome::Open => {
                    self.place = PieceLocation::Closed;
                    NextRead::Wait
                }
                None => NextRead::Lost(outcome),
            },
        }
    }

    /// Returns whether the stretch that was read last counts; else it has to be read once more, from the buffer.
    pub fn counts(&mut self, words: &impl Words) -> bool {
        if self.place != PieceLocation::Lies {
            return true;
        }
        let counts = words.piece(self.piece) & CLOSED == 0;
        if !counts {
            self.place = PieceLocation::Closed;
        }
        counts
    }

    /// Notes that all of the piece has been read.
    pub fn done(&self, words: &impl Words) {
        if self.place == PieceLocation::Lies {
            words.mark(self.piece, self.bit);
        }
    }
}

/// Answer to a reader that has read everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Confirmation {
    /// Ask again.
    Again,
    /// Ask again a little later: the source has not answered.
    NotYet,
    /// The bytes read are of the step.
    OfTheStep,
    /// The bytes read may be of no step.
    Lost(LeaseOutcome),
}

/// A reader that has read everything, and waits for the source's confirmation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConfirmationWait {
    bit: u64,
    outcome: Option<LeaseOutcome>,
}

impl ConfirmationWait {
    /// Begins to wait. Without a request the confirmation comes at the lease's end.
    pub fn new(reader: u32) -> Self {
        let (bit, outcome) = (bit(reader), None);
        Self { bit, outcome }
    }

    /// Requests the confirmation, once everything has been read.
    pub fn ask(&self, words: &impl Words) {
        words.ask(self.bit);
    }

    /// The next look.
    pub fn next(&mut self, words: &impl Words) -> Confirmation {
        let Some(outcome) = self.outcome.take() else {
            // First: what the source has said before the end is to be seen then.
            self.outcome = Some(words.outcome());
            return Confirmation::Again;
        };
        match outcome {
            _ if words.vouched() & self.bit != 0 => Confirmation::OfTheStep,
            LeaseOutcome::Kept | LeaseOutcome::OverBudget => Confirmation::OfTheStep,
            LeaseOutcome::Open => Confirmation::NotYet,
            LeaseOutcome::Invalidated | LeaseOutcome::OwnerLost => Confirmation::Lost(outcome),
        }
    }
}

/// Next action of a source that closes its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Close {
    /// Go on.
    Again,
    /// A reader lacks a piece: copy it to the buffer, and note its offset ([`Closing::copied`]); or go on without, if
    /// the lease ends over budget or invalidated.
    Lacking {
        /// Number of the piece.
        piece: usize,
        /// Readers that lack it, a bit each.
        readers: u64,
    },
    /// The lease is closed: the step may come.
    Done,
}

/// A source that closes its lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Closing {
    /// Number of pieces that are not closed yet, from the first on.
    left: usize,
    /// Wanted readers, read just before the next piece is closed.
    wanted: Option<u64>,
    outcome: LeaseOutcome,
}

impl Closing {
    /// Begins to close a lease of this many pieces, with this outcome.
    pub fn new(pieces: usize, outcome: LeaseOutcome) -> Self {
        Self {
            left: pieces,
            wanted: None,
            outcome,
        }
    }

    /// The next look.
    pub fn next(&mut self, words: &impl Words) -> Close {
        let Some(piece) = self.left.checked_sub(1) else {
            words.end(self.outcome);
            return Close::Done;
        };
        let Some(wanted) = self.wanted.take() else {
            self.wanted = Some(words.wanted());
            return Close::Again;
        };
        self.left = piece;
        let readers = wanted & !words.mark(piece, CLOSED);
        if readers == 0 {
            Close::Again
        } else {
            Close::Lacking { piece, readers }
        }
    }

    /// Notes that a piece was copied to this offset of the buffer.
    pub fn copied(&self, words: &impl Words, piece: usize, at: u64) {
        words.set_aside(piece, at + 1);
    }

    /// Stops copying: the lease ends over budget.
    pub fn give_up(&mut self) {
        self.outcome = LeaseOutcome::OverBudget;
    }
}

/// The shared memory of a read lease.
#[derive(Debug)]
pub struct ReadLease {
    file: SharedFile,
}

impl ReadLease {
    /// Creates the memory for a source with this many pieces, all of which this many readers want.
    ///
    /// # Errors
    /// No memory, or more readers than a job can have.
    pub fn create(pieces: usize, readers: usize) -> io::Result<Self> {
        if readers > FORKS_PER_JOB_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = SharedFile::anonymous("forebay-window", bytes(pieces))?;
        let window = Self { file };
        window.word(WANTED).store((1 << readers) - 1, Release);
        Ok(window)
    }

    /// Maps the memory behind a descriptor that was received, with at least this many pieces.
    ///
    /// # Errors
    /// The memory is shorter, or could become so.
    pub fn open(file: OwnedFd, pieces: usize) -> io::Result<Self> {
        let file = SharedFile::received(file, bytes(pieces))?;
        Ok(Self { file })
    }

    /// Returns the descriptor of the memory.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.descriptor()
    }

    /// Waits, in a thread of the source's, until a reader requests validation or the lease has ended; returns whether
    /// one asks.
    pub fn wait_asked(&self) -> bool {
        loop {
            let rung = self.bell().load(Acquire);
            if self.outcome() != LeaseOutcome::Open {
                return false;
            }
            if self.asking() & !self.vouched() != 0 {
                return true;
            }
            match futex::wait(self.bell(), futex::Flags::empty(), rung, None) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => std::thread::sleep(WINDOW_LOOK_EVERY),
            }
        }
    }

    fn ring(&self) {
        self.bell().fetch_add(1, AcqRel);
        // That nobody waits is no error, and what else there could be wakes nobody.
        let _ = futex::wake(self.bell(), futex::Flags::empty(), i32::MAX as u32);
    }

    /// # Panics
    /// Never, as [`Self::word`].
    fn bell(&self) -> &AtomicU32 {
        self.file.region().at(BELL).expect("the offset lies within the window")
    }

    /// Removes a reader from the wanted ones (called by the agent).
    pub fn leave(&self, reader: u32) {
        self.word(WANTED).fetch_and(!bit(reader), AcqRel);
    }

    /// Notes that the source has ended, if there is no outcome yet (called by the agent).
    pub fn abandon(&self) {
        let (open, abandoned) = (LeaseOutcome::Open as u64, LeaseOutcome::OwnerLost as u64);
        let _ = self.word(OUTCOME).compare_exchange(open, abandoned, AcqRel, Acquire);
    }

    /// # Panics
    /// Never: all offsets lie within the file, whose length was checked when it was mapped, and are multiples of
    /// eight.
    fn word(&self, offset: u64) -> &AtomicU64 {
        self.file.region().at(offset).expect("the offset lies within the window")
    }

    fn piece_word(&self, piece: usize, word: u64) -> &AtomicU64 {
        self.word(PIECES + (piece as u64 * PIECE_WORDS + word) * 8)
    }
}

impl Words for ReadLease {
    fn outcome(&self) -> LeaseOutcome {
        LeaseOutcome::of(self.word(OUTCOME).load(Acquire))
    }

    fn end(&self, outcome: LeaseOutcome) {
        self.word(OUTCOME).store(outcome as u64, Release);
        // What the program writes from now on is seen by nobody who does not see the pieces closed.
        fence(SeqCst);
        self.ring();
    }

    fn wanted(&self) -> u64 {
        self.word(WANTED).load(Acquire)
    }

    fn piece(&self, piece: usize) -> u64 {
        // The other half of the fence in `end`.
        fence(SeqCst);
        self.piece_word(piece, 0).load(Acquire)
    }

    fn mark(&self, piece: usize, bits: u64) -> u64 {
        self.piece_word(piece, 0).fetch_or(bits, AcqRel)
    }

    fn aside(&self, piece: usize) -> u64 {
        self.piece_word(piece, 1).load(Acquire)
    }

    fn set_aside(&self, piece: usize, word: u64) {
        self.piece_word(piece, 1).store(word, Release);
    }

    fn asking(&self) -> u64 {
        self.word(ASKING).load(Acquire)
    }

    fn ask(&self, reader: u64) {
        self.word(ASKING).fetch_or(reader, AcqRel);
        self.ring();
    }

    fn vouched(&self) -> u64 {
        self.word(VOUCHED).load(Acquire)
    }

    fn vouch(&self, readers: u64) {
        self.word(VOUCHED).fetch_or(readers, AcqRel);
    }
}

/// Returns the bit mask of a reader, or 0 if its number is out of range.
fn bit(reader: u32) -> u64 {
    1_u64.checked_shl(reader).unwrap_or(0) & !CLOSED
}

fn bytes(pieces: usize) -> usize {
    // What can't be is too long for any file.
    PIECES.saturating_add((pieces as u64).saturating_mul(PIECE_WORDS * 8)) as usize
}

#[cfg(test)]
mod model;
