//! A rank's board: memory that it shares with the loader agent, by which it asks for samples and learns where they lie.
//!
//! Each *use* of a sample has a *turn*, counted from 0, and the slot `turn % slots`. The rank writes what it wants into slots and then raises
//! `asked`; the agent writes answers into the same slots, in whatever order they come. When the rank has done with a use it writes its turn into
//! a second ring and raises `released`. A slot is written anew only after its last use was released, or was answered and is only *held*, and after the agent has *heard* so much that neither
//! ring is written over before it was read: an agent that stands still is not run past.
//!
//! A rank that releases a use before it was answered may see the answer all the same, in a slot that it has written anew: so each answer bears its
//! turn. The agent looks at `asked` before it looks at `released`: where it sees the new use, it has seen that the old one was released.
//!
//! Worker processes of a rank look at answers, too. They ask and release nothing: the rank gives a worker turns, keeps them unreleased, and the worker marks
//! one of them as *done* when it looks at none of them any more.
//!
//! Who waits says so first and then looks once more, so that nobody sleeps through what comes in between: the agent by `sleeping` (wake it by its
//! doorbell), ranks by `waiting` (wake them by a futex on `answers`).

use core::{
    ops::Range,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
};

use crate::region::{Plain, Region};

/// Raised whenever the layout of a board, or of [`crate::Extents`], changes.
pub const LOADER_VERSION: u32 = 2;
/// Most slots of a board.
pub const SLOTS_MAX: u32 = 1 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"FBBOARD\x01");
/// Each of these has a cache line of its own, since they are written by different sides.
const ASKED: u64 = 64;
const RELEASED: u64 = 128;
const STEPS: u64 = 192;
const STEP: u64 = 200;
const DECODING: u64 = 208;
const ALIVE: u64 = 256;
const ANSWERS: u64 = 320;
const WAITING: u64 = 384;
const SLEEPING: u64 = 448;
const HEARD: u64 = 512;
const SLOTS_AT: u64 = 4096;
const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

const READY: u32 = 1;
const REFUSED: u32 = 2;
const CODE_BITS: u32 = 2;

#[repr(C)]
#[derive(Debug)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    slots: AtomicU32,
}

#[repr(C)]
#[derive(Debug)]
struct Slot {
    /// Epoch and iteration.
    when: AtomicU64,
    offset: AtomicU64,
    sample: AtomicU32,
    length: AtomicU32,
    /// The turn's low bits, and a code. Written last.
    state: AtomicU32,
    /// The turn's low bits, inverted, once a worker of the rank's is done with what it was given together with this use.
    done: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl Plain for Header {}
// SAFETY: as above.
unsafe impl Plain for Slot {}

const _: () = assert!(SLOT_BYTES == 32);

/// What a rank asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Which sample.
    pub sample: u32,
    /// The pass through an epoch that uses it, as [`Self::pass`] names it,
    pub epoch: u32,
    /// and the step of that.
    pub iteration: u32,
}

/// In the name of a pass.
const ODD: u32 = 1 << 31;

impl Use {
    /// How a pass through an epoch is named on a board. Neighbouring passes have different names, though the same epoch may come again.
    pub const fn pass(epoch: u32, nth: u32) -> u32 {
        (epoch & !ODD) | if nth & 1 == 1 { ODD } else { 0 }
    }

    /// The epoch of a pass.
    pub const fn epoch_of(pass: u32) -> u32 {
        pass & !ODD
    }
}

/// What becomes of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet.
    Pending,
    /// Its bytes lie in the arena, until the use is released.
    Ready {
        /// From its beginning.
        offset: u64,
        /// In bytes.
        length: u32,
    },
    /// The rank is to read the source itself.
    Refused,
}

/// Access to a board.
#[derive(Clone, Copy, Debug)]
pub struct Board<'a> {
    region: Region<'a>,
    slots: u32,
}

impl<'a> Board<'a> {
    /// Length in bytes of a board with so many slots.
    pub const fn bytes(slots: u32) -> usize {
        (SLOTS_AT + slots as u64 * (SLOT_BYTES + 4)) as usize
    }

    /// Makes a board of zeroes: the agent's. `None` if the number of slots is no power of two, or too large, or the memory too small.
    pub fn create(region: Region<'a>, slots: u32) -> Option<Self> {
        let header = region.at::<Header>(0)?;
        header.slots.store(slots, Relaxed);
        header.version.store(LOADER_VERSION, Relaxed);
        header.magic.store(MAGIC, Release);
        Self::open(region)
    }

    /// The board that an agent made. `None` if it is none, or of another version.
    pub fn open(region: Region<'a>) -> Option<Self> {
        let header = region.at::<Header>(0)?;
        let slots = header.slots.load(Relaxed);
        let fits = header.magic.load(Acquire) == MAGIC
            && header.version.load(Relaxed) == LOADER_VERSION
            && slots.is_power_of_two()
            && slots <= SLOTS_MAX
            && region.len() >= Self::bytes(slots);
        fits.then_some(Self { region, slots })
    }

    /// How many uses can be under way.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    // What the rank does.

    /// Whether uses may be put before this turn, as far as the agent is concerned: it has read what would be written over.
    pub fn may_put_to(&self, end: u64) -> bool {
        end.wrapping_sub(self.long(HEARD).load(Acquire)) <= u64::from(self.slots)
    }

    /// Writes a use; nobody sees it before [`Self::set_asked`]. The slot's last use was released, and [`Self::may_put_to`] has said yes.
    pub fn put(&self, turn: u64, wanted: Use) {
        let slot = self.slot(turn);
        slot.when
            .store(u64::from(wanted.epoch) << 32 | u64::from(wanted.iteration), Relaxed);
        slot.sample.store(wanted.sample, Relaxed);
        slot.state.store(state(turn, 0), Relaxed);
    }

    /// All uses before this turn are asked for. Whether the agent is to be woken.
    pub fn set_asked(&self, turns: u64) -> bool {
        self.long(ASKED).store(turns, SeqCst);
        self.word(SLEEPING).load(SeqCst) != 0
    }

    /// What has become of a use that was not released.
    pub fn answer(&self, turn: u64) -> Answer {
        let slot = self.slot(turn);
        let found = slot.state.load(Acquire);
        if found == state(turn, READY) {
            Answer::Ready {
                offset: slot.offset.load(Relaxed),
                length: slot.length.load(Relaxed),
            }
        } else if found == state(turn, REFUSED) {
            Answer::Refused
        } else {
            Answer::Pending
        }
    }

    /// Notes that a use is over, as the `nth` of all that are; nobody sees it before [`Self::set_released`].
    pub fn release(&self, nth: u64, turn: u64) {
        self.released_slot(nth).store(turn as u32, Relaxed);
    }

    /// So many uses are over. Whether the agent is to be woken.
    pub fn set_released(&self, uses: u64) -> bool {
        self.long(RELEASED).store(uses, SeqCst);
        self.word(SLEEPING).load(SeqCst) != 0
    }

    /// The rank begins its `nth` step (counted from 1), which is this one of an epoch. Whether the agent is to be woken.
    pub fn begin_step(&self, nth: u64, epoch: u32, iteration: u32) -> bool {
        self.long(STEP).store(u64::from(epoch) << 32 | u64::from(iteration), Relaxed);
        self.long(STEPS).store(nth, SeqCst);
        self.word(SLEEPING).load(SeqCst) != 0
    }

    /// The rank's threads together take so many nanoseconds to decode a sample, as it has measured lately.
    pub fn set_decoding_ns(&self, ns: u64) {
        self.long(DECODING).store(ns, Relaxed);
    }

    /// Whether the worker that was given this use is done with it. It was not released yet.
    pub fn is_done(&self, turn: u64) -> bool {
        self.slot(turn).done.load(Acquire) == done(turn)
    }

    // What the rank does, and its workers.

    /// A worker looks no more at the bytes of what it was given together with this use.
    pub fn set_done(&self, turn: u64) {
        self.slot(turn).done.store(done(turn), Release);
    }

    /// Says that the caller is about to wait; what [`Self::answers`] is now. After that it looks for the answer once more. Ended by
    /// [`Self::wait_over`].
    pub fn wait_begins(&self) -> u32 {
        self.word(WAITING).fetch_add(1, SeqCst);
        self.word(ANSWERS).load(SeqCst)
    }

    /// The caller waits no longer.
    pub fn wait_over(&self) {
        self.word(WAITING).fetch_sub(1, SeqCst);
    }

    /// The word on which ranks wait: it changes with answers.
    pub fn answers(&self) -> &'a AtomicU32 {
        self.word(ANSWERS)
    }

    /// When the agent was last seen to work, by the clock that does not stand still in suspension, in nanoseconds.
    pub fn alive_ns(&self) -> u64 {
        self.long(ALIVE).load(Relaxed)
    }

    // What the agent does.

    /// Turns that were asked for. To be looked at before [`Self::released`], among which there may then be some that were asked for since.
    pub fn asked(&self) -> u64 {
        self.long(ASKED).load(SeqCst)
    }

    /// Uses that are over.
    pub fn released(&self) -> u64 {
        self.long(RELEASED).load(SeqCst)
    }

    /// Steps that have begun, and which the last of them is: epoch and iteration.
    pub fn steps(&self) -> (u64, u32, u32) {
        let steps = self.long(STEPS).load(SeqCst);
        let step = self.long(STEP).load(Relaxed);
        (steps, (step >> 32) as u32, step as u32)
    }

    /// What the rank's threads together take to decode a sample, in nanoseconds; 0 before it has measured that.
    pub fn decoding_ns(&self) -> u64 {
        self.long(DECODING).load(Relaxed)
    }

    /// What was asked for at a turn below [`Self::asked`].
    pub fn wanted(&self, turn: u64) -> Use {
        let slot = self.slot(turn);
        let when = slot.when.load(Relaxed);
        Use {
            sample: slot.sample.load(Relaxed),
            epoch: (when >> 32) as u32,
            iteration: when as u32,
        }
    }

    /// The low half of the turn of the `nth` use that is over, below [`Self::released`].
    pub fn released_turn(&self, nth: u64) -> u32 {
        self.released_slot(nth).load(Relaxed)
    }

    /// So many uses that are over were read, and all that was asked for before.
    fn set_heard(&self, uses: u64) {
        self.long(HEARD).store(uses, Release);
    }

    /// Answers a use, for which the rank may wait until [`Self::answered`].
    pub fn set_answer(&self, turn: u64, answer: Answer) {
        let slot = self.slot(turn);
        let code = match answer {
            Answer::Pending => 0,
            Answer::Ready { offset, length } => {
                slot.offset.store(offset, Relaxed);
                slot.length.store(length, Relaxed);
                READY
            }
            Answer::Refused => REFUSED,
        };
        slot.state.store(state(turn, code), Release);
    }

    /// Answers were written. Whether somebody is to be woken.
    pub fn answered(&self) -> bool {
        self.word(ANSWERS).fetch_add(1, SeqCst);
        self.word(WAITING).load(SeqCst) != 0
    }

    /// Whether the agent wants to be woken. After it has said so it looks once more.
    pub fn set_sleeping(&self, sleeping: bool) {
        self.word(SLEEPING).store(u32::from(sleeping), SeqCst);
    }

    /// The agent works.
    pub fn set_alive(&self, now_ns: u64) {
        self.long(ALIVE).store(now_ns, Relaxed);
    }

    /// # Panics
    /// Never: a slot lies within the memory, whose length was checked, and all offsets are multiples of what is read there. So with all below.
    fn slot(&self, turn: u64) -> &'a Slot {
        let index = turn & u64::from(self.slots - 1);
        self.region.element(SLOTS_AT, index).expect("slots lie within the board")
    }

    fn released_slot(&self, nth: u64) -> &'a AtomicU32 {
        let index = nth & u64::from(self.slots - 1);
        let at = SLOTS_AT + u64::from(self.slots) * SLOT_BYTES;
        self.region.element(at, index).expect("the second ring lies within the board")
    }

    fn word(&self, offset: u64) -> &'a AtomicU32 {
        self.region.at(offset).expect("the header lies within the board")
    }

    fn long(&self, offset: u64) -> &'a AtomicU64 {
        self.region.at(offset).expect("the header lies within the board")
    }
}

/// How far the agent has read a board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hearing {
    asked: u64,
    released: u64,
    steps: u64,
}

/// What a rank has written since the agent's last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Turns that were asked for: see [`Board::wanted`].
    pub asked: Range<u64>,
    /// Uses that are over, all of turns that were asked for by now, some of them perhaps only just: see [`Board::released_turn`].
    pub released: Range<u64>,
    /// Steps that have begun in all, epoch and iteration of the last one, if there are more than before.
    pub step: Option<(u64, u32, u32)>,
}

impl Hearing {
    /// Whether there is something that was not read yet.
    pub fn has_news(&self, board: &Board<'_>) -> bool {
        (board.asked(), board.released(), board.steps().0) != (self.asked, self.released, self.steps)
    }

    /// What is new; `asked` is [`Board::asked`], looked at before. Once it was read [`Self::heard`] is to be told. `None`: a rank that keeps to the rules
    /// would not have written that.
    pub fn look(&mut self, board: &Board<'_>, asked: u64) -> Option<News> {
        let released = board.released();
        let slots = u64::from(board.slots());
        let is_possible = asked >= self.asked && released >= self.released && asked - self.released <= slots;
        if !is_possible || released - self.released > slots {
            return None;
        }
        // What was asked for, and released, after `asked` was looked at: the next look finds both.
        let is_asked = |nth: &u64| (board.released_turn(*nth).wrapping_sub(asked as u32) as i32) < 0;
        let over = (self.released..released).take_while(is_asked).count() as u64;
        let step = board.steps();
        let news = News {
            asked: self.asked..asked,
            released: self.released..self.released + over,
            step: (step.0 != self.steps).then_some(step),
        };
        *self = Self {
            asked,
            released: news.released.end,
            steps: step.0,
        };
        Some(news)
    }

    /// All that was new was read: its place may be written over.
    pub fn heard(&self, board: &Board<'_>) {
        board.set_heard(self.released);
    }
}

const fn state(turn: u64, code: u32) -> u32 {
    (turn as u32) << CODE_BITS | code
}

/// Of no turn before the four billionth it is what a new board has there.
const fn done(turn: u64) -> u32 {
    !(turn as u32)
}
