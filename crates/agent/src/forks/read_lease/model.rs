//! F50, F51: every order in which a source, two readers and the agent can take their looks, each look and each access
//! to bytes being one step. Nobody takes bytes of two steps, the source waits for nobody, and each wanted reader gets
//! all, unless more is left than the source copies to its buffer.

use std::{cell::RefCell, collections::HashSet};

use super::*;

const PIECES_THERE: usize = 2;
const STRETCHES: usize = 2;
const READERS: usize = 2;
/// More than anybody needs who goes on alone.
const ALONE_MAX: usize = 60;

/// The step of which a stretch's bytes are. They change once, so who reads the last byte of a stretch as it was has
/// read all of them so.
type ModelBytes = [[u8; STRETCHES]; PIECES_THERE];
const OLD: u8 = 0;
const NEW: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModelMemory {
    outcome: LeaseOutcome,
    wanted: u64,
    pieces: [u64; PIECES_THERE],
    aside: [u64; PIECES_THERE],
    asking: u64,
    vouched: u64,
    lie: ModelBytes,
    copied: ModelBytes,
}

#[derive(Debug)]
struct ModelWords(RefCell<ModelMemory>);

impl LeaseWords for ModelWords {
    fn outcome(&self) -> LeaseOutcome {
        self.0.borrow().outcome
    }

    fn end(&self, outcome: LeaseOutcome) {
        self.0.borrow_mut().outcome = outcome;
    }

    fn wanted(&self) -> u64 {
        self.0.borrow().wanted
    }

    fn piece(&self, piece: usize) -> u64 {
        self.0.borrow().pieces[piece]
    }

    fn mark(&self, piece: usize, bits: u64) -> u64 {
        let mut memory = self.0.borrow_mut();
        let before = memory.pieces[piece];
        memory.pieces[piece] |= bits;
        before
    }

    fn aside(&self, piece: usize) -> u64 {
        self.0.borrow().aside[piece]
    }

    fn set_aside(&self, piece: usize, word: u64) {
        self.0.borrow_mut().aside[piece] = word;
    }

    fn asking(&self) -> u64 {
        self.0.borrow().asking
    }

    fn ask(&self, reader: u64) {
        self.0.borrow_mut().asking |= reader;
    }

    fn vouched(&self) -> u64 {
        self.0.borrow().vouched
    }

    fn vouch(&self, readers: u64) {
        self.0.borrow_mut().vouched |= readers;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ModelSource {
    Closing {
        closing: Closing,
        room: usize,
    },
    Copying {
        closing: Closing,
        room: usize,
        piece: usize,
        stretch: usize,
    },
    Steps {
        written: usize,
    },
    Ended,
}

impl ModelSource {
    fn step(self, shared: &ModelWords) -> Self {
        match self {
            Self::Closing { mut closing, room } => match closing.next(shared) {
                Close::Again => Self::Closing { closing, room },
                Close::Done => Self::Steps { written: 0 },
                Close::Lacking { .. } if room == 0 => {
                    closing.give_up();
                    Self::Closing { closing, room }
                }
                Close::Lacking { piece, .. } => Self::Copying {
                    closing,
                    room: room - 1,
                    piece,
                    stretch: 0,
                },
            },
            Self::Copying {
                closing,
                room,
                piece,
                stretch: STRETCHES,
            } => {
                note_copied(shared, piece, piece as u64);
                Self::Closing { closing, room }
            }
            Self::Copying {
                closing,
                room,
                piece,
                stretch,
            } => {
                let mut memory = shared.0.borrow_mut();
                memory.copied[piece][stretch] = memory.lie[piece][stretch];
                Self::Copying {
                    closing,
                    room,
                    piece,
                    stretch: stretch + 1,
                }
            }
            Self::Steps { written } if written < PIECES_THERE * STRETCHES => {
                shared.0.borrow_mut().lie[written / STRETCHES][written % STRETCHES] = NEW;
                Self::Steps { written: written + 1 }
            }
            Self::Steps { .. } | Self::Ended => Self::Ended,
        }
    }
}

mod validate;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Asks,
    /// It is about to read a stretch.
    Reads,
    /// It has read one, of the next step or not.
    HasRead {
        torn: bool,
    },
    Finishes,
    HasAll,
    Lost(LeaseOutcome),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModelFork {
    number: u32,
    reader: PieceReader,
    piece: usize,
    stretch: usize,
    phase: Phase,
}

impl ModelFork {
    fn new(number: u32) -> Self {
        let (reader, phase) = (PieceReader::new(number, 0), Phase::Asks);
        Self {
            number,
            reader,
            piece: 0,
            stretch: 0,
            phase,
        }
    }

    fn step(&mut self, shared: &ModelWords) {
        self.phase = match self.phase.clone() {
            Phase::Asks => match self.reader.next(shared) {
                NextRead::InPlace => Phase::Reads,
                NextRead::Aside(at) => {
                    assert_eq!(
                        shared.0.borrow().copied[at as usize][self.stretch],
                        OLD,
                        "what is aside is of the step"
                    );
                    assert_eq!(at, self.piece as u64);
                    assert!(self.reader.counts(shared));
                    self.one_more()
                }
                NextRead::Again | NextRead::Wait => Phase::Asks,
                NextRead::Lost(outcome) => Phase::Lost(outcome),
            },
            Phase::HasRead { torn } => {
                if self.reader.counts(shared) {
                    assert!(!torn, "a stretch of two steps counts");
                    self.one_more()
                } else {
                    Phase::Asks
                }
            }
            Phase::Reads => Phase::HasRead {
                torn: shared.0.borrow().lie[self.piece][self.stretch] == NEW,
            },
            Phase::Finishes => {
                self.reader.done(shared);
                self.piece += 1;
                self.stretch = 0;
                self.reader = PieceReader::new(self.number, self.piece);
                if self.piece == PIECES_THERE { Phase::HasAll } else { Phase::Asks }
            }
            ended @ (Phase::HasAll | Phase::Lost(_)) => ended,
        };
    }

    fn one_more(&mut self) -> Phase {
        self.stretch += 1;
        if self.stretch == STRETCHES { Phase::Finishes } else { Phase::Asks }
    }

    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::HasAll | Phase::Lost(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LeaseModel {
    memory: ModelMemory,
    source: ModelSource,
    clones: [ModelFork; READERS],
    /// The agent may still find that the last clone has failed.
    may_leave: bool,
}

impl LeaseModel {
    fn new(room: usize, may_leave: bool) -> Self {
        let memory = ModelMemory {
            outcome: LeaseOutcome::Open,
            wanted: (1 << READERS) - 1,
            pieces: [0; PIECES_THERE],
            aside: [0; PIECES_THERE],
            asking: 0,
            vouched: 0,
            lie: [[OLD; STRETCHES]; PIECES_THERE],
            copied: [[NEW; STRETCHES]; PIECES_THERE],
        };
        let closing = Closing::new(PIECES_THERE, LeaseOutcome::Kept);
        Self {
            memory,
            source: ModelSource::Closing { closing, room },
            clones: [ModelFork::new(0), ModelFork::new(1)],
            may_leave,
        }
    }

    /// After one step of the source (0), of a clone, or of the agent (last).
    fn after(&self, who: usize) -> Self {
        let mut next = self.clone();
        let shared = ModelWords(RefCell::new(self.memory.clone()));
        match who {
            0 => next.source = next.source.step(&shared),
            _ if who <= READERS => next.clones[who - 1].step(&shared),
            _ if self.may_leave => {
                next.may_leave = false;
                shared.0.borrow_mut().wanted &= !(1 << (READERS - 1));
            }
            _ => {}
        }
        next.memory = shared.0.into_inner();
        next
    }

    /// After as many steps of one alone as it needs to end.
    fn alone(&self, who: usize, has_ended: impl Fn(&Self) -> bool) -> Self {
        let mut world = self.clone();
        for _ in 0..ALONE_MAX {
            if has_ended(&world) {
                return world;
            }
            world = world.after(who);
        }
        panic!("{who} does not end by itself: {self:?}")
    }

    /// Each reader, alone with a window that has been closed, gets all that it wants.
    fn check_closed(&self, may_leave: bool) {
        let outcome = self.memory.outcome;
        for who in 1..=READERS {
            let ended = self.alone(who, |world| world.clones[who - 1].has_ended());
            match &ended.clones[who - 1].phase {
                Phase::HasAll => {}
                Phase::Lost(LeaseOutcome::OverBudget) => assert_eq!(outcome, LeaseOutcome::OverBudget),
                Phase::Lost(LeaseOutcome::Kept) => assert!(may_leave && who == READERS && !self.may_leave, "{self:?}"),
                other => panic!("{other:?}: {self:?}"),
            }
        }
    }
}

/// Explores all states, with room for this many pieces in the copy-on-write buffer. Returns their number, and the
/// outcomes of the lease.
fn explore(room: usize, may_leave: bool) -> (usize, HashSet<LeaseOutcome>) {
    let (mut seen, mut closed) = (HashSet::new(), HashSet::new());
    let mut outcomes = HashSet::new();
    let mut open = vec![LeaseModel::new(room, may_leave)];
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        // Whatever the readers do, or do no more, the source comes to its end.
        let ended = world.alone(0, |world| world.source == ModelSource::Ended);
        if closed.insert(ended.clone()) {
            ended.check_closed(may_leave);
        }
        outcomes.insert(world.memory.outcome);
        open.extend((0..=READERS + 1).map(|who| world.after(who)));
    }
    (seen.len(), outcomes)
}

#[test]
fn f50_in_every_order_what_is_read_is_of_one_step() {
    let (states, outcomes) = explore(PIECES_THERE, false);
    assert!(states > 1000, "{states}");
    assert_eq!(
        outcomes,
        HashSet::from([LeaseOutcome::Open, LeaseOutcome::Kept]),
        "with room for all nothing is dropped"
    );
}

#[test]
fn f51_in_every_order_a_budget_drops_the_fork_and_not_the_step() {
    for room in 0..PIECES_THERE {
        let (_, outcomes) = explore(room, false);
        assert_eq!(
            outcomes,
            HashSet::from([LeaseOutcome::Open, LeaseOutcome::Kept, LeaseOutcome::OverBudget])
        );
    }
}

#[test]
fn f51_in_every_order_a_clone_that_has_failed_costs_the_others_nothing() {
    let (_, outcomes) = explore(PIECES_THERE, true);
    assert_eq!(outcomes, HashSet::from([LeaseOutcome::Open, LeaseOutcome::Kept]));
}

#[test]
fn a_window_in_memory_keeps_what_each_side_says() {
    let lease = ReadLease::create(3, 2).unwrap();
    let opened = ReadLease::open(lease.descriptor().try_clone_to_owned().unwrap(), 3).unwrap();
    let (window, other) = (lease.memory(), opened.memory());
    assert_eq!((window.outcome(), window.wanted()), (LeaseOutcome::Open, 0b11));
    assert_eq!((other.mark(2, 1), other.mark(2, 2), window.piece(2), window.piece(1)), (0, 1, 3, 0));
    window.set_aside(1, 8);
    assert_eq!([other.aside(0), other.aside(1), other.aside(2)], [0, 8, 0]);
    other.leave(1);
    assert_eq!(window.wanted(), 1);
    other.abandon();
    assert_eq!(window.outcome(), LeaseOutcome::OwnerLost);
    window.end(LeaseOutcome::Kept);
    other.abandon();
    assert_eq!(window.outcome(), LeaseOutcome::Kept, "what the source has said stands");
    assert!(ReadLease::create(1, FORKS_PER_JOB_MAX + 1).is_err());
    assert!(
        ReadLease::open(lease.descriptor().try_clone_to_owned().unwrap(), 1 << 20).is_err(),
        "it is shorter"
    );
}

#[test]
fn a_source_that_was_changed_ends_as_torn() {
    let lease = ReadLease::create(2, 1).unwrap();
    let window = lease.memory();
    let mut closing = Closing::new(2, LeaseOutcome::Invalidated);
    while closing.next(&window) != Close::Done {}
    assert_eq!(window.outcome(), LeaseOutcome::Invalidated);
    let mut reader = PieceReader::new(0, 0);
    assert_eq!(reader.next(&window), NextRead::InPlace);
    assert!(!reader.counts(&window));
    assert_eq!(
        [reader.next(&window), reader.next(&window)],
        [NextRead::Again, NextRead::Lost(LeaseOutcome::Invalidated)]
    );
}
