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
//! word at a time; they access memory only through [`LeaseWords`]. The layout of the memory is the contract's.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering::Acquire},
};

use forebay_contract::read_lease::{CLOSED, LeaseMemory, reader_bit};
pub use forebay_contract::read_lease::{LeaseOutcome, LeaseWords, PIECE_BYTES};
use rustix::{io::Errno, thread::futex};

use crate::{
    forks::limits::{FORKS_PER_JOB_MAX, WINDOW_LOOK_EVERY},
    host::shared::SharedFile,
};

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
            bit: reader_bit(reader),
            piece,
            place: PieceLocation::Lies,
        }
    }

    /// Returns the next action, until all of the piece has been read.
    pub fn next(&mut self, words: &impl LeaseWords) -> NextRead {
        match self.place {
            PieceLocation::Lies => NextRead::InPlace,
            PieceLocation::Aside(at) => NextRead::Aside(at),
            PieceLocation::Closed => {
                // Before the place: once the lease has ended, nothing more is copied to the buffer.
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
    pub fn counts(&mut self, words: &impl LeaseWords) -> bool {
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
    pub fn done(&self, words: &impl LeaseWords) {
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
        let (bit, outcome) = (reader_bit(reader), None);
        Self { bit, outcome }
    }

    /// Requests the confirmation, once everything has been read.
    pub fn ask(&self, words: &impl LeaseWords) {
        words.ask(self.bit);
    }

    /// The next look.
    pub fn next(&mut self, words: &impl LeaseWords) -> Confirmation {
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
    /// A reader lacks a piece: copy it to the buffer, and note its offset ([`note_copied`]); or go on without, if
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
    pub fn next(&mut self, words: &impl LeaseWords) -> Close {
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

    /// Stops copying: the lease ends over budget.
    pub fn give_up(&mut self) {
        self.outcome = LeaseOutcome::OverBudget;
    }
}

/// Notes that a piece was copied to this offset of the copy-on-write buffer (the source).
pub fn note_copied(words: &impl LeaseWords, piece: usize, at: u64) {
    words.set_aside(piece, at + 1);
}

/// Returns why a piece can't be read any more, or why bytes that were read may be of no step.
pub fn why_lost(outcome: LeaseOutcome) -> &'static str {
    match outcome {
        LeaseOutcome::OverBudget => {
            "the job's next step came before it was read, and it copies no more aside: raise session(aside=..., stall_s=...) there"
        }
        LeaseOutcome::Invalidated => "the job changed its tensors between point() and the optimizer's step",
        LeaseOutcome::OwnerLost => "the job has ended",
        LeaseOutcome::Open | LeaseOutcome::Kept => "the job's next step came, and nobody had asked it to keep this",
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
        let file = SharedFile::anonymous("forebay-window", LeaseMemory::bytes(pieces))?;
        let lease = Self { file };
        lease.memory().want(readers);
        Ok(lease)
    }

    /// Maps the memory behind a descriptor that was received, with at least this many pieces.
    ///
    /// # Errors
    /// The memory is shorter, or could become so.
    pub fn open(file: OwnedFd, pieces: usize) -> io::Result<Self> {
        let file = SharedFile::received(file, LeaseMemory::bytes(pieces))?;
        Ok(Self { file })
    }

    /// Returns the descriptor of the memory.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.descriptor()
    }

    /// Returns the shared words.
    ///
    /// # Panics
    /// Never: the length was checked when the memory was mapped.
    pub fn memory(&self) -> LeaseMemory<'_> {
        LeaseMemory::open(self.file.region(), 0, wake).expect("the memory is as long as a lease")
    }

    /// Waits, in a thread of the source's, until a reader requests validation or the lease has ended; returns whether
    /// one asks.
    pub fn wait_asked(&self) -> bool {
        let memory = self.memory();
        loop {
            let rung = memory.bell().load(Acquire);
            if memory.outcome() != LeaseOutcome::Open {
                return false;
            }
            if memory.asking() & !memory.vouched() != 0 {
                return true;
            }
            match futex::wait(memory.bell(), futex::Flags::empty(), rung, None) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => std::thread::sleep(WINDOW_LOOK_EVERY),
            }
        }
    }
}

/// Wakes a source that waits on its bell. No other error is possible than that nobody waits.
fn wake(bell: &AtomicU32) {
    let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
}

#[cfg(test)]
mod model;
