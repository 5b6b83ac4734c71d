//! A window: from a job's point to its next optimizer step, while clones read its large tensors where they lie.
//!
//! The tensors of a rank (the *source*) are cut into pieces. Each piece has two words in memory that the source, the clones' ranks (its *readers*) and the
//! fork agent share, and three rules keep what is read to one step:
//!
//! - A reader reads a stretch of a piece, and looks at the piece's word *afterwards*. While the piece is not closed, the stretch is of the step; else it is
//!   thrown away, and the rest of the piece read from where it was copied aside. Who has all of a piece sets a bit of its own.
//! - Before its step the source closes one piece after the other, the last first, since readers begin with the first. The change that closes a piece tells
//!   who has it. What somebody lacks who is wanted is copied aside; the piece's second word says where.
//! - Only when all pieces are closed does anything change.
//!
//! What was read is of the step only if nothing but steps changes it. The source knows, by what its framework counts, but not while an operation is under way:
//! it can say so between two of its program's instructions, or while nothing runs that could write to them. A reader that has all asks for its word; the source either *vouches* for who asks, or says how
//! the window ended, whichever comes first. For whom it has vouched, what becomes of the window is of no matter.
//!
//! So the source waits for nobody: a reader that is slow, stopped or dead costs a copy, and no more than the source's budget. It says last how the window
//! ended. [`Reader`], [`Waiting`] and [`Closing`] are what each side does, a look at one word at a time; they touch no memory but by [`Words`].

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

/// Bytes of a piece; a tensor's last one may be shorter. So much may be copied aside in vain for each reader.
pub const PIECE_BYTES: usize = 4 << 20;

/// In a piece's word, above the bits of its readers: the source has closed it.
const CLOSED: u64 = 1 << 63;

/// How the window ended; the readers that are wanted, those that ask for the source's word, those for whom it has vouched; a bell, of 32 bits, that wakes the
/// source; then, from [`PIECES`] on, two words a piece.
const OUTCOME: u64 = 0;
const WANTED: u64 = 8;
const ASKING: u64 = 16;
const VOUCHED: u64 = 24;
const BELL: u64 = 32;
const PIECES: u64 = 64;
const PIECE_WORDS: u64 = 2;

const _: () = assert!(FORKS_PER_JOB_MAX < 63);

/// How a window stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The source has not come to its next step.
    Open = 0,
    /// Whoever is wanted has got all, or finds it aside.
    Kept = 1,
    /// More was left than the source copies aside. Who has all of it has the state of the step.
    Dropped = 2,
    /// The source found that something had changed before it closed the window: what was read may be of no step.
    Torn = 3,
    /// The source has ended, and can't say.
    Abandoned = 4,
}

impl Outcome {
    /// What nobody writes counts as the worst.
    fn of(word: u64) -> Self {
        match word {
            0 => Self::Open,
            1 => Self::Kept,
            2 => Self::Dropped,
            4 => Self::Abandoned,
            _ => Self::Torn,
        }
    }
}

/// The shared words. Each function looks at one of them, once.
pub trait Words {
    /// How the window stands.
    fn outcome(&self) -> Outcome;
    /// The source, last: how it ended. What it does after this comes after all that it did before.
    fn end(&self, outcome: Outcome);
    /// The readers that are wanted, a bit each.
    fn wanted(&self) -> u64;
    /// A piece's word, looked at after all that was read before.
    fn piece(&self, piece: usize) -> u64;
    /// Sets bits in a piece's word; gives what it was before.
    fn mark(&self, piece: usize, bits: u64) -> u64;
    /// Where a piece was copied aside, plus one; 0: nowhere.
    fn aside(&self, piece: usize) -> u64;
    /// The source: where a piece was copied aside, plus one.
    fn set_aside(&self, piece: usize, word: u64);
    /// The readers that have all, and ask for the source's word, a bit each.
    fn asking(&self) -> u64;
    /// A reader, after all that it has read: sets its bit.
    fn ask(&self, reader: u64);
    /// The readers for whom the source has vouched, a bit each.
    fn vouched(&self) -> u64;
    /// The source, between two of its program's instructions, when these asked before it found that nothing had changed.
    fn vouch(&self, readers: u64);
}

/// What a reader does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// Read the next stretch of the piece where it lies, and ask whether it counts.
    InPlace,
    /// Read the next stretch of the piece from what was copied aside, where the piece begins at this offset.
    Aside(u64),
    /// Ask again.
    Again,
    /// Ask again a little later: the source is closing its window.
    Wait,
    /// It will not come.
    Lost(Outcome),
}

/// A reader at one piece.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    bit: u64,
    piece: usize,
    place: Place,
}

/// Where a reader has to look for its piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Lies,
    /// Closed: it may be aside by and by.
    Closed,
    /// So the window stood, after which it will be seen whether it is aside.
    Stood(Outcome),
    Aside(u64),
}

impl Reader {
    /// Begins with a piece.
    pub fn new(reader: u32, piece: usize) -> Self {
        Self {
            bit: bit(reader),
            piece,
            place: Place::Lies,
        }
    }

    /// What to do next, until all of the piece has been read.
    pub fn next(&mut self, words: &impl Words) -> Read {
        match self.place {
            Place::Lies => Read::InPlace,
            Place::Aside(at) => Read::Aside(at),
            Place::Closed => {
                // Before the place: once the window has ended, nothing more comes aside.
                self.place = Place::Stood(words.outcome());
                Read::Again
            }
            Place::Stood(outcome) => match words.aside(self.piece).checked_sub(1) {
                Some(at) => {
                    self.place = Place::Aside(at);
                    Read::Aside(at)
                }
                None if outcome == Outcome::Open => {
                    self.place = Place::Closed;
                    Read::Wait
                }
                None => Read::Lost(outcome),
            },
        }
    }

    /// Whether the stretch that was read last counts; else it has to be read once more, from elsewhere.
    pub fn counts(&mut self, words: &impl Words) -> bool {
        if self.place != Place::Lies {
            return true;
        }
        let counts = words.piece(self.piece) & CLOSED == 0;
        if !counts {
            self.place = Place::Closed;
        }
        counts
    }

    /// All of the piece has been read.
    pub fn done(&self, words: &impl Words) {
        if self.place == Place::Lies {
            words.mark(self.piece, self.bit);
        }
    }
}

/// What a reader hears that has all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// Ask again.
    Again,
    /// Ask again a little later: the source has not said anything.
    NotYet,
    /// What was read is of the step.
    OfTheStep,
    /// It may be of none.
    Lost(Outcome),
}

/// A reader that has all, and waits for the source's word.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    bit: u64,
    outcome: Option<Outcome>,
}

impl Waiting {
    /// Waits for it; whether it has been asked for or not, it comes when the window ends.
    pub fn new(reader: u32) -> Self {
        let (bit, outcome) = (bit(reader), None);
        Self { bit, outcome }
    }

    /// Asks for it, once all has been read.
    pub fn ask(&self, words: &impl Words) {
        words.ask(self.bit);
    }

    /// The next look.
    pub fn next(&mut self, words: &impl Words) -> Word {
        let Some(outcome) = self.outcome.take() else {
            // First: what the source has said before the end is to be seen then.
            self.outcome = Some(words.outcome());
            return Word::Again;
        };
        match outcome {
            _ if words.vouched() & self.bit != 0 => Word::OfTheStep,
            Outcome::Kept | Outcome::Dropped => Word::OfTheStep,
            Outcome::Open => Word::NotYet,
            Outcome::Torn | Outcome::Abandoned => Word::Lost(outcome),
        }
    }
}

/// What the source does next to close its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Close {
    /// Go on.
    Again,
    /// Somebody lacks a piece: copy it aside, and say where ([`Closing::copied`]); or go on without, if the window does not end as kept.
    Lacking {
        /// Which.
        piece: usize,
        /// Who lacks it, a bit each.
        readers: u64,
    },
    /// The window is closed: the step may come.
    Done,
}

/// A source that closes its window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Closing {
    /// Pieces that are not closed yet: the first so many.
    left: usize,
    /// Who is wanted, looked at just before the next piece is closed.
    wanted: Option<u64>,
    outcome: Outcome,
}

impl Closing {
    /// Begins to close a window of so many pieces, to end it so.
    pub fn new(pieces: usize, outcome: Outcome) -> Self {
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

    /// A piece was copied aside, to this offset.
    pub fn copied(&self, words: &impl Words, piece: usize, at: u64) {
        words.set_aside(piece, at + 1);
    }

    /// No more is copied aside: the window ends as dropped.
    pub fn give_up(&mut self) {
        self.outcome = Outcome::Dropped;
    }
}

/// The shared memory of a window.
#[derive(Debug)]
pub struct Window {
    file: SharedFile,
}

impl Window {
    /// The source's, for so many pieces, all of which so many readers want.
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

    /// That behind a descriptor which was sent, with at least so many pieces.
    ///
    /// # Errors
    /// It is shorter, or could become so.
    pub fn open(file: OwnedFd, pieces: usize) -> io::Result<Self> {
        let file = SharedFile::received(file, bytes(pieces))?;
        Ok(Self { file })
    }

    /// Its memory, to be sent.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.descriptor()
    }

    /// The source, in a thread of its own: waits until a reader asks for its word and has not got it, or the window has ended; whether one asks.
    pub fn wait_asked(&self) -> bool {
        loop {
            let rung = self.bell().load(Acquire);
            if self.outcome() != Outcome::Open {
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

    /// The agent: this reader wants no more.
    pub fn leave(&self, reader: u32) {
        self.word(WANTED).fetch_and(!bit(reader), AcqRel);
    }

    /// The agent: the source has ended. What it has said before stands.
    pub fn abandon(&self) {
        let (open, abandoned) = (Outcome::Open as u64, Outcome::Abandoned as u64);
        let _ = self.word(OUTCOME).compare_exchange(open, abandoned, AcqRel, Acquire);
    }

    /// # Panics
    /// Never: all offsets lie within the file, whose length was checked when it was mapped, and are multiples of eight.
    fn word(&self, offset: u64) -> &AtomicU64 {
        self.file.region().at(offset).expect("the offset lies within the window")
    }

    fn piece_word(&self, piece: usize, word: u64) -> &AtomicU64 {
        self.word(PIECES + (piece as u64 * PIECE_WORDS + word) * 8)
    }
}

impl Words for Window {
    fn outcome(&self) -> Outcome {
        Outcome::of(self.word(OUTCOME).load(Acquire))
    }

    fn end(&self, outcome: Outcome) {
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

/// A reader's bit; none of one that can't be.
fn bit(reader: u32) -> u64 {
    1_u64.checked_shl(reader).unwrap_or(0) & !CLOSED
}

fn bytes(pieces: usize) -> usize {
    // What can't be is too long for any file.
    PIECES.saturating_add((pieces as u64).saturating_mul(PIECE_WORDS * 8)) as usize
}

#[cfg(test)]
mod model;
