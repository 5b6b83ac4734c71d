//! F50: every order in which a source validates a reader, its program changes bytes that were read though no step
//! came, the step comes, and the reader asks. A reader that was validated, or whose lease was kept, has bytes of one
//! step.

use super::*;

/// The source's side before its step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Before {
    /// The program computes.
    Trains,
    /// Its step has come.
    Closes(ModelSource),
}

/// Thread that validates for the source: the main thread between two instructions, or another one, beside which the
/// program may go on and the step come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ValidatorStep {
    Rests,
    /// These asked.
    Asked(u64),
    /// And nothing had changed after that.
    Unchanged(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Side {
    Reads(ModelFork),
    Asks,
    Waits(ConfirmationWait),
    Ended(Confirmation),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ValidationModel {
    memory: ModelMemory,
    source: Before,
    look: ValidatorStep,
    clone: Side,
    /// Stretches that the program has changed by itself, of those that it may change.
    changed: usize,
    changes: usize,
    /// The clone has read one of these after.
    torn: bool,
}

impl ValidationModel {
    fn new(changes: usize) -> Self {
        let memory = super::LeaseModel::new(PIECES_THERE, false).memory;
        Self {
            memory: ModelMemory { wanted: 1, ..memory },
            source: Before::Trains,
            look: ValidatorStep::Rests,
            clone: Side::Reads(ModelFork::new(0)),
            changed: 0,
            changes,
            torn: false,
        }
    }

    fn source(&mut self, shared: &ModelWords) {
        self.source = match self.source.clone() {
            Before::Trains => {
                let outcome = if self.changed > 0 {
                    LeaseOutcome::Invalidated
                } else {
                    LeaseOutcome::Kept
                };
                let closing = Closing::new(PIECES_THERE, outcome);
                // Changed bytes are not copied to the buffer.
                let room = if self.changed > 0 { 0 } else { PIECES_THERE };
                Before::Closes(ModelSource::Closing { closing, room })
            }
            Before::Closes(ModelSource::Closing { mut closing, room }) if self.changed > 0 => match closing.next(shared) {
                Close::Done => Before::Closes(ModelSource::Steps { written: 0 }),
                _ => Before::Closes(ModelSource::Closing { closing, room }),
            },
            Before::Closes(source) => Before::Closes(source.step(shared)),
        };
    }

    fn look(&mut self, shared: &ModelWords) {
        let has_stepped = match self.source {
            Before::Closes(ModelSource::Steps { written }) => written > 0,
            Before::Closes(ModelSource::Ended) => true,
            _ => false,
        };
        self.look = match self.look {
            ValidatorStep::Rests => ValidatorStep::Asked(shared.asking() & !shared.vouched()),
            ValidatorStep::Asked(asked) if self.changed == 0 && !has_stepped => ValidatorStep::Unchanged(asked),
            ValidatorStep::Asked(_) => ValidatorStep::Rests,
            ValidatorStep::Unchanged(asked) => {
                shared.vouch(asked);
                ValidatorStep::Rests
            }
        };
    }

    fn clone_steps(&mut self, shared: &ModelWords) {
        self.clone = match self.clone.clone() {
            Side::Reads(mut fork) => {
                // Of what the program has changed by itself no piece tells: that is the source's to say.
                if self.changed > 0
                    && let Phase::HasRead { torn: true } = fork.phase
                {
                    self.torn |= shared.piece(fork.piece) & CLOSED == 0;
                    fork.phase = Phase::HasRead { torn: false };
                }
                fork.step(shared);
                match fork.phase {
                    Phase::HasAll => Side::Asks,
                    Phase::Lost(outcome) => Side::Ended(Confirmation::Lost(outcome)),
                    _ => Side::Reads(fork),
                }
            }
            Side::Asks => {
                let waiting = ConfirmationWait::new(0);
                waiting.ask(shared);
                Side::Waits(waiting)
            }
            Side::Waits(mut waiting) => match waiting.next(shared) {
                Confirmation::Again | Confirmation::NotYet => Side::Waits(waiting),
                word => Side::Ended(word),
            },
            ended @ Side::Ended(_) => ended,
        };
    }

    /// After one step of the source (0), of the clone (1), of who looks whether something has changed (2), or a
    /// change by the program (3).
    fn after(&self, who: usize) -> Self {
        let mut next = self.clone();
        let shared = ModelWords(RefCell::new(self.memory.clone()));
        match who {
            0 => next.source(&shared),
            1 => next.clone_steps(&shared),
            2 => next.look(&shared),
            3 if self.source == Before::Trains && self.changed < self.changes => {
                shared.0.borrow_mut().lie[self.changed / STRETCHES][self.changed % STRETCHES] = NEW;
                next.changed += 1;
            }
            _ => {}
        }
        next.memory = shared.0.into_inner();
        next
    }
}

/// Returns the results of clones, and whether one was validated before its lease ended.
fn explore(changes: usize) -> (HashSet<Confirmation>, bool) {
    let (mut seen, mut words, mut early) = (HashSet::new(), HashSet::new(), false);
    let mut open = vec![ValidationModel::new(changes)];
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        if let Side::Ended(word) = &world.clone {
            words.insert(*word);
            if *word == Confirmation::OfTheStep {
                assert!(!world.torn, "bytes of no step: {world:?}");
                early |= world.memory.outcome == LeaseOutcome::Open;
            }
        }
        open.extend((0..4).map(|who| world.after(who)));
    }
    (words, early)
}

#[test]
fn f50_whom_the_source_has_vouched_for_has_bytes_of_one_step() {
    let (words, early) = explore(PIECES_THERE * STRETCHES);
    assert!(early, "nobody has to wait for the step");
    assert_eq!(
        words,
        HashSet::from([Confirmation::OfTheStep, Confirmation::Lost(LeaseOutcome::Invalidated)])
    );
}

#[test]
fn where_nothing_but_steps_changes_anything_every_clone_gets_the_sources_word() {
    let (words, early) = explore(0);
    assert!(early);
    assert_eq!(words, HashSet::from([Confirmation::OfTheStep]));
}

#[test]
fn a_window_in_memory_wakes_who_waits_for_a_clone_to_ask() {
    let lease = ReadLease::create(1, 2).unwrap();
    let window = lease.memory();
    let mut waiting = ConfirmationWait::new(1);
    assert_eq!(
        [waiting.next(&window), waiting.next(&window)],
        [Confirmation::Again, Confirmation::NotYet]
    );
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| lease.wait_asked());
        waiting.ask(&window);
        assert!(asked.join().unwrap());
        assert_eq!(window.asking(), 0b10);
        window.vouch(0b10);
        let ended = scope.spawn(|| lease.wait_asked());
        window.end(LeaseOutcome::Invalidated);
        assert!(!ended.join().unwrap());
    });
    assert_eq!(
        [waiting.next(&window), waiting.next(&window)],
        [Confirmation::Again, Confirmation::OfTheStep],
        "what comes later is of no matter"
    );
    let mut other = ConfirmationWait::new(0);
    assert_eq!(
        [other.next(&window), other.next(&window)],
        [Confirmation::Again, Confirmation::Lost(LeaseOutcome::Invalidated)]
    );
}
