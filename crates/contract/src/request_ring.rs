//! Request ring of a rank: memory that the rank shares with the loader's agent, by which it requests samples and learns
//! where they are.
//!
//! Each request for a sample has a *sequence number*, counted from 0, and the slot `sequence % slots`. The rank writes
//! requests into slots and then raises `asked`; the agent writes answers into the same slots, in any order. When the
//! rank no longer needs a sample it writes the sequence number into a second ring and raises `released`. The rank
//! writes a slot again only after two things: the slot's last request was released (or was answered and is only
//! *held*), and `heard` shows that the agent has read both rings far enough. So the rank never overwrites what a
//! stalled agent has not read.
//!
//! A rank that releases a request before it was answered may still find that answer in a slot with a newer request, so
//! each answer carries its sequence number. The agent reads `asked` before `released`: if it sees the new request, it
//! has seen that the old one was released.
//!
//! Worker processes of a rank read answers, too, but request and release nothing. The rank gives a worker sequence
//! numbers and keeps them unreleased; the worker marks one of them as *done* when it no longer reads any of them.
//!
//! Each side announces that it is about to wait and then looks once more, so that it cannot sleep through a change in
//! between. The agent announces by `sleeping` (wake it by its doorbell), ranks by `waiting` (wake them by a futex on
//! `answers`).

use core::{
    ops::Range,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
};

use crate::{
    CONTRACT_VERSION,
    digest::layout,
    region::{Plain, Region},
};

/// Largest number of slots of a ring.
pub const SLOTS_MAX: u32 = 1 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"FBBOARD\x01");
/// Each of these words has a cache line of its own, since different sides write them.
const ASKED: u64 = 64;
const RELEASED: u64 = 128;
const STEPS: u64 = 192;
const STEP: u64 = 200;
const DECODING: u64 = 208;
const DECODED_BYTES: u64 = 216;
const DECODERS: u64 = 224;
const ALIVE: u64 = 256;
const ANSWERS: u64 = 320;
const WAITING: u64 = 384;
const SLEEPING: u64 = 448;
const HEARD: u64 = 512;
const DECODERS_GIVEN: u64 = 520;
const SLOTS_AT: u64 = 4096;
const SLOT_BYTES: u64 = size_of::<RequestSlot>() as u64;

const READY: u32 = 1;
const REFUSED: u32 = 2;
const CODE_BITS: u32 = 2;

#[repr(C)]
#[derive(Debug)]
struct RingHeader {
    magic: AtomicU64,
    version: AtomicU32,
    slots: AtomicU32,
}

#[repr(C)]
#[derive(Debug)]
struct RequestSlot {
    /// Epoch and iteration.
    when: AtomicU64,
    offset: AtomicU64,
    sample: AtomicU32,
    length: AtomicU32,
    /// Low bits of the sequence number, and a code. Written last.
    state: AtomicU32,
    /// Low bits of the sequence number, inverted, once a worker of the rank no longer reads the samples that it got
    /// together with this one.
    done: AtomicU32,
}

/// Layout that ranks and the agent share.
pub(crate) const LAYOUT: &[&[u64]] = &[
    layout!(RingHeader: magic, version, slots),
    layout!(RequestSlot: when, offset, sample, length, state, done),
    &[
        MAGIC,
        ASKED,
        RELEASED,
        STEPS,
        STEP,
        DECODING,
        DECODED_BYTES,
        DECODERS,
        ALIVE,
        ANSWERS,
        WAITING,
        SLEEPING,
        HEARD,
        DECODERS_GIVEN,
        SLOTS_AT,
    ],
    &[READY as u64, REFUSED as u64, CODE_BITS as u64, ODD as u64],
];

// SAFETY: atomics only.
unsafe impl Plain for RingHeader {}
// SAFETY: as above.
unsafe impl Plain for RequestSlot {}

const _: () = assert!(SLOT_BYTES == 32);

/// A request for a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleRequest {
    /// Number of the sample.
    pub sample: u32,
    /// Pass through the epoch, as [`Self::pass`] names it.
    pub epoch: u32,
    /// Step of that pass.
    pub iteration: u32,
}

/// Set in the name of every second pass.
const ODD: u32 = 1 << 31;

impl SampleRequest {
    /// Returns the name of a pass through an epoch. Neighbouring passes have different names, even of the same epoch.
    pub const fn pass(epoch: u32, nth: u32) -> u32 {
        (epoch & !ODD) | if nth & 1 == 1 { ODD } else { 0 }
    }

    /// Returns the epoch of a pass.
    pub const fn epoch_of(pass: u32) -> u32 {
        pass & !ODD
    }
}

/// Decoding of a rank, as it lately measured it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankDecoding {
    /// Time in which one thread decodes a sample, in nanoseconds; 0 before the first measurement.
    pub sample_ns: u64,
    /// Mean size of these samples in bytes.
    pub sample_bytes: u32,
    /// Decoding threads that the rank has of its own; 0 where the agent does not choose their number.
    pub threads: u32,
}

/// SampleAnswer to a request for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleAnswer {
    /// There is no answer yet.
    Pending,
    /// The bytes are in the arena until the request is released.
    Ready {
        /// Offset from the beginning of the arena, in bytes.
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// The rank has to read the source itself.
    Refused,
}

/// Access to a request ring.
#[derive(Clone, Copy, Debug)]
pub struct RequestRing<'a> {
    region: Region<'a>,
    slots: u32,
}

impl<'a> RequestRing<'a> {
    /// Returns the length in bytes of a ring with this number of slots.
    pub const fn bytes(slots: u32) -> usize {
        (SLOTS_AT + slots as u64 * (SLOT_BYTES + 4)) as usize
    }

    /// Creates a ring in zeroed memory; called by the agent. Returns `None` if `slots` is not a power of two or too
    /// large, or the memory too small.
    pub fn create(region: Region<'a>, slots: u32) -> Option<Self> {
        let header = region.at::<RingHeader>(0)?;
        header.slots.store(slots, Relaxed);
        header.version.store(CONTRACT_VERSION, Relaxed);
        header.magic.store(MAGIC, Release);
        Self::open(region)
    }

    /// Opens the ring that an agent created. Returns `None` if the memory holds no ring of this version.
    pub fn open(region: Region<'a>) -> Option<Self> {
        let header = region.at::<RingHeader>(0)?;
        let slots = header.slots.load(Relaxed);
        let fits = header.magic.load(Acquire) == MAGIC
            && header.version.load(Relaxed) == CONTRACT_VERSION
            && slots.is_power_of_two()
            && slots <= SLOTS_MAX
            && region.len() >= Self::bytes(slots);
        fits.then_some(Self { region, slots })
    }

    /// Returns the number of requests that can be open at a time.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    // Called by the rank.

    /// Returns whether the agent has read enough for requests below this sequence number to be written.
    pub fn may_put_to(&self, end: u64) -> bool {
        end.wrapping_sub(self.long(HEARD).load(Acquire)) <= u64::from(self.slots)
    }

    /// Writes a request; it is visible only after [`Self::set_asked`]. The slot's last request must be released, and
    /// [`Self::may_put_to`] must have returned true.
    pub fn put(&self, sequence: u64, wanted: SampleRequest) {
        let slot = self.slot(sequence);
        slot.when
            .store(u64::from(wanted.epoch) << 32 | u64::from(wanted.iteration), Relaxed);
        slot.sample.store(wanted.sample, Relaxed);
        slot.state.store(state(sequence, 0), Relaxed);
    }

    /// Publishes all requests below this sequence number. Returns whether the agent has to be woken.
    pub fn set_asked(&self, sequences: u64) -> bool {
        self.long(ASKED).store(sequences, SeqCst);
        self.word(SLEEPING).load(SeqCst) != 0
    }

    /// Returns the answer to a request that was not released.
    pub fn answer(&self, sequence: u64) -> SampleAnswer {
        let slot = self.slot(sequence);
        let found = slot.state.load(Acquire);
        if found == state(sequence, READY) {
            SampleAnswer::Ready {
                offset: slot.offset.load(Relaxed),
                length: slot.length.load(Relaxed),
            }
        } else if found == state(sequence, REFUSED) {
            SampleAnswer::Refused
        } else {
            SampleAnswer::Pending
        }
    }

    /// Records the `nth` release; it is visible only after [`Self::set_released`].
    pub fn release(&self, nth: u64, sequence: u64) {
        self.released_slot(nth).store(sequence as u32, Relaxed);
    }

    /// Publishes the first `uses` releases. Returns whether the agent has to be woken.
    pub fn set_released(&self, uses: u64) -> bool {
        self.long(RELEASED).store(uses, SeqCst);
        self.word(SLEEPING).load(SeqCst) != 0
    }

    /// Records that the rank begins its `nth` step (counted from 1), at this epoch and iteration. Returns whether the
    /// agent has to be woken.
    pub fn begin_step(&self, nth: u64, epoch: u32, iteration: u32) -> bool {
        self.long(STEP).store(u64::from(epoch) << 32 | u64::from(iteration), Relaxed);
        self.long(STEPS).store(nth, SeqCst);
        self.word(SLEEPING).load(SeqCst) != 0
    }

    /// Records what the rank measured of its decoding, and its threads.
    pub fn set_decoding(&self, decoding: RankDecoding) {
        self.long(DECODING).store(decoding.sample_ns, Relaxed);
        self.word(DECODED_BYTES).store(decoding.sample_bytes, Relaxed);
        self.word(DECODERS).store(decoding.threads, Relaxed);
    }

    /// Returns the number of threads with which the rank is to decode; `None` before the agent has chosen it.
    pub fn decoders_given(&self) -> Option<u32> {
        let given = self.word(DECODERS_GIVEN).load(Relaxed);
        (given > 0).then_some(given)
    }

    /// Returns whether the worker that got this request is done with it. The request must not be released yet.
    pub fn is_done(&self, sequence: u64) -> bool {
        self.slot(sequence).done.load(Acquire) == done(sequence)
    }

    // Called by the rank and its workers.

    /// Records that a worker no longer reads the samples that it got together with this one.
    pub fn set_done(&self, sequence: u64) {
        self.slot(sequence).done.store(done(sequence), Release);
    }

    /// Announces that the caller is about to wait, and returns the present value of [`Self::answers`]. The caller then
    /// looks for its answer once more, and ends with [`Self::wait_over`].
    pub fn wait_begins(&self) -> u32 {
        self.word(WAITING).fetch_add(1, SeqCst);
        self.word(ANSWERS).load(SeqCst)
    }

    /// Records that the caller no longer waits.
    pub fn wait_over(&self) {
        self.word(WAITING).fetch_sub(1, SeqCst);
    }

    /// Returns the word on which ranks wait; it changes with every answer.
    pub fn answers(&self) -> &'a AtomicU32 {
        self.word(ANSWERS)
    }

    /// Returns the time at which the agent last worked, in nanoseconds of a clock that goes on during suspension.
    pub fn alive_ns(&self) -> u64 {
        self.long(ALIVE).load(Relaxed)
    }

    // Called by the agent.

    /// Returns the number of requests made. Read it before [`Self::released`]: releases may then include requests that
    /// came in between.
    pub fn asked(&self) -> u64 {
        self.long(ASKED).load(SeqCst)
    }

    /// Returns the number of releases.
    pub fn released(&self) -> u64 {
        self.long(RELEASED).load(SeqCst)
    }

    /// Returns the number of steps that have begun, with epoch and iteration of the last one.
    pub fn steps(&self) -> (u64, u32, u32) {
        let steps = self.long(STEPS).load(SeqCst);
        let step = self.long(STEP).load(Relaxed);
        (steps, (step >> 32) as u32, step as u32)
    }

    /// Returns what the rank measured of its decoding; three words that may be of two measurements.
    pub fn decoding(&self) -> RankDecoding {
        RankDecoding {
            sample_ns: self.long(DECODING).load(Relaxed),
            sample_bytes: self.word(DECODED_BYTES).load(Relaxed),
            threads: self.word(DECODERS).load(Relaxed),
        }
    }

    /// Sets the number of threads with which the rank is to decode.
    pub fn give_decoders(&self, threads: u32) {
        self.word(DECODERS_GIVEN).store(threads, Relaxed);
    }

    /// Returns the request with a sequence number below [`Self::asked`].
    pub fn wanted(&self, sequence: u64) -> SampleRequest {
        let slot = self.slot(sequence);
        let when = slot.when.load(Relaxed);
        SampleRequest {
            sample: slot.sample.load(Relaxed),
            epoch: (when >> 32) as u32,
            iteration: when as u32,
        }
    }

    /// Returns the low half of the sequence number of the `nth` release, which is below [`Self::released`].
    pub fn released_sequence(&self, nth: u64) -> u32 {
        self.released_slot(nth).load(Relaxed)
    }

    /// Records that the agent has read the first `uses` releases, and all requests made before them.
    fn set_heard(&self, uses: u64) {
        self.long(HEARD).store(uses, Release);
    }

    /// Answers a request; waiting ranks may sleep on until [`Self::answered`].
    pub fn set_answer(&self, sequence: u64, answer: SampleAnswer) {
        let slot = self.slot(sequence);
        let code = match answer {
            SampleAnswer::Pending => 0,
            SampleAnswer::Ready { offset, length } => {
                slot.offset.store(offset, Relaxed);
                slot.length.store(length, Relaxed);
                READY
            }
            SampleAnswer::Refused => REFUSED,
        };
        slot.state.store(state(sequence, code), Release);
    }

    /// Announces new answers. Returns whether a rank has to be woken.
    pub fn answered(&self) -> bool {
        self.word(ANSWERS).fetch_add(1, SeqCst);
        self.word(WAITING).load(SeqCst) != 0
    }

    /// Records whether the agent has to be woken. After it has set this the agent looks once more.
    pub fn set_sleeping(&self, sleeping: bool) {
        self.word(SLEEPING).store(u32::from(sleeping), SeqCst);
    }

    /// Records that the agent works.
    pub fn set_alive(&self, now_ns: u64) {
        self.long(ALIVE).store(now_ns, Relaxed);
    }

    /// Returns the slot of a sequence number.
    ///
    /// # Panics
    /// Never, nor do the methods below: a slot is inside the memory, whose length was checked, and all offsets are
    /// multiples of the size read there.
    fn slot(&self, sequence: u64) -> &'a RequestSlot {
        let index = sequence & u64::from(self.slots - 1);
        self.region.element(SLOTS_AT, index).expect("slots lie within the ring")
    }

    fn released_slot(&self, nth: u64) -> &'a AtomicU32 {
        let index = nth & u64::from(self.slots - 1);
        let at = SLOTS_AT + u64::from(self.slots) * SLOT_BYTES;
        self.region.element(at, index).expect("the second ring lies within the ring")
    }

    fn word(&self, offset: u64) -> &'a AtomicU32 {
        self.region.at(offset).expect("the header lies within the ring")
    }

    fn long(&self, offset: u64) -> &'a AtomicU64 {
        self.region.at(offset).expect("the header lies within the ring")
    }
}

/// The agent's position in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RingReader {
    asked: u64,
    released: u64,
    steps: u64,
}

/// Changes that a rank has made since the agent's last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingUpdate {
    /// Sequence numbers of new requests: see [`RequestRing::wanted`].
    pub asked: Range<u64>,
    /// Numbers of new releases: see [`RequestRing::released_sequence`]. The newest of them may belong to requests that
    /// were only just made.
    pub released: Range<u64>,
    /// Number of steps that have begun, with epoch and iteration of the last one, if there are new ones.
    pub step: Option<(u64, u32, u32)>,
}

impl RingReader {
    /// Returns whether the rank has written anything that was not read yet.
    pub fn has_news(&self, ring: &RequestRing<'_>) -> bool {
        (ring.asked(), ring.released(), ring.steps().0) != (self.asked, self.released, self.steps)
    }

    /// Returns the changes since the last look. `asked` is [`RequestRing::asked`], read beforehand; call
    /// [`Self::heard`] once the changes were read. `None` means that the rank broke the protocol.
    pub fn look(&mut self, ring: &RequestRing<'_>, asked: u64) -> Option<RingUpdate> {
        let released = ring.released();
        let slots = u64::from(ring.slots());
        let is_possible = asked >= self.asked && released >= self.released && asked - self.released <= slots;
        if !is_possible || released - self.released > slots {
            return None;
        }
        // A request made and released after `asked` was read is left for the next look, which finds both.
        let is_asked = |nth: &u64| (ring.released_sequence(*nth).wrapping_sub(asked as u32) as i32) < 0;
        let over = (self.released..released).take_while(is_asked).count() as u64;
        let step = ring.steps();
        let news = RingUpdate {
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

    /// Lets the rank overwrite all that was read.
    pub fn heard(&self, ring: &RequestRing<'_>) {
        ring.set_heard(self.released);
    }
}

const fn state(sequence: u64, code: u32) -> u32 {
    (sequence as u32) << CODE_BITS | code
}

/// Returns the `done` mark of a sequence number. It differs from a new ring's zeroes for the first four billion
/// requests.
const fn done(sequence: u64) -> u32 {
    !(sequence as u32)
}
