//! The request ring of a rank: each request is answered once, whichever side is faster, and invalid memory is refused.

mod memory;

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use forebay_contract::board::{Answer, Board, SLOTS_MAX, Use};
use memory::region;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn board(slots: u32) -> Board<'static> {
    Board::create(region(Board::bytes(slots)), slots).expect("room")
}

fn wanted(turn: u64) -> Use {
    Use {
        sample: turn as u32 ^ 0x55,
        epoch: (turn / 100) as u32,
        iteration: (turn % 100) as u32,
    }
}

fn ready(turn: u64) -> Answer {
    Answer::Ready {
        offset: turn * 4096,
        length: turn as u32 + 1,
    }
}

#[test]
fn what_is_asked_is_answered() {
    let board = board(8);
    board.put(0, wanted(0));
    board.put(1, wanted(1));
    assert_eq!(board.asked(), 0, "nobody sees it yet");
    board.set_asked(2);
    assert_eq!((board.asked(), board.wanted(0), board.wanted(1)), (2, wanted(0), wanted(1)));
    assert_eq!(board.answer(1), Answer::Pending);
    board.set_answer(1, ready(1));
    board.set_answer(0, Answer::Refused);
    assert_eq!((board.answer(0), board.answer(1)), (Answer::Refused, ready(1)));
    board.release(0, 1);
    board.set_released(1);
    assert_eq!((board.released(), board.released_turn(0)), (1, 1));
    board.begin_step(1, 3, 7);
    assert_eq!(board.steps(), (1, 3, 7));
    assert_eq!(board.decoding_ns(), 0);
    board.set_decoding_ns(40_000);
    assert_eq!((board.decoding_ns(), board.steps()), (40_000, (1, 3, 7)));
}

#[test]
fn a_worker_says_that_it_is_done_with_one_use_and_no_other() {
    let board = board(4);
    assert!((0..8).all(|turn| !board.is_done(turn)));
    for turn in [0, 1, 5, 1 << 32] {
        board.set_done(turn);
        assert!(board.is_done(turn) && !board.is_done(turn + 4) && !board.is_done(turn + 1));
    }
}

#[test]
fn passes_through_an_epoch_have_other_names_than_their_neighbours() {
    for epoch in [0, 1, 90, (1 << 31) - 1] {
        let names = [1, 2, 3].map(|nth| Use::pass(epoch, nth));
        assert!(names[0] != names[1] && names[1] != names[2]);
        assert!(names.iter().all(|name| Use::epoch_of(*name) == epoch));
    }
}

#[test]
fn an_answer_that_comes_too_late_is_not_taken_for_another_use() {
    let board = board(2);
    board.put(0, wanted(0));
    board.set_asked(1);
    board.release(0, 0);
    board.set_released(1);
    board.put(2, wanted(2));
    board.set_answer(0, ready(0));
    assert_eq!(board.answer(2), Answer::Pending);
    board.set_answer(2, ready(2));
    assert_eq!(board.answer(2), ready(2));
}

#[test]
fn who_sleeps_is_to_be_woken() {
    let board = board(2);
    assert!(!board.set_asked(0) && !board.set_released(0) && !board.begin_step(0, 0, 0) && !board.answered());
    board.set_sleeping(true);
    assert!(board.set_asked(0) && board.set_released(0) && board.begin_step(0, 0, 0));
    board.set_sleeping(false);
    assert!(!board.set_asked(0));
    let seen = board.wait_begins();
    assert!(board.answered());
    assert_ne!(board.answers().load(SeqCst), seen);
    board.wait_over();
    assert!(!board.answered());
}

/// Ends the other side when one side fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn expected(turn: u64) -> Answer {
    if turn.is_multiple_of(7) { Answer::Refused } else { ready(turn) }
}

/// Answers requests as the agent, until the test is over.
fn answer_all(board: Board<'_>, is_over: &AtomicBool) {
    let _over = Over(is_over);
    let (mut seen, mut released) = (0, 0);
    while !is_over.load(SeqCst) {
        let (asked, over) = (board.asked(), board.released());
        while released < over {
            assert_eq!(board.released_turn(released), released as u32, "released in this order here");
            released += 1;
        }
        while seen < asked {
            assert_eq!(board.wanted(seen), wanted(seen));
            board.set_answer(seen, expected(seen));
            seen += 1;
        }
        thread::yield_now();
    }
}

/// One thread requests and releases, another answers, with few slots that are reused all the time.
#[test]
fn both_sides_at_once() {
    const TURNS: u64 = 100_000;
    let board = board(16);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| answer_all(board, &is_over));
        let _over = Over(&is_over);
        let (mut asked, mut released) = (0, 0);
        while released < TURNS {
            assert!(!is_over.load(SeqCst), "the other side has failed");
            while asked < TURNS && asked - released < 16 {
                board.put(asked, wanted(asked));
                asked += 1;
            }
            board.set_asked(asked);
            while released < asked && board.answer(released) != Answer::Pending {
                assert_eq!(board.answer(released), expected(released));
                board.release(released, released);
                released += 1;
            }
            board.set_released(released);
            thread::yield_now();
        }
    });
}

#[test]
fn what_is_no_board_is_none() {
    assert!(Board::open(region(Board::bytes(4))).is_none(), "zeroes");
    for slots in [0, 3, SLOTS_MAX * 2] {
        assert!(Board::create(region(1 << 16), slots).is_none(), "{slots} slots");
    }
    assert!(Board::create(region(Board::bytes(64) - 1), 64).is_none(), "too short");
    assert!(Board::create(region(8), 1).is_none());
}

#[derive(Clone, Debug)]
enum RingMove {
    Ask,
    /// Answers the nth request that has no answer.
    Answer(usize, bool),
    /// Releases the nth request that was not released.
    Release(usize),
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn answers_come_in_any_order_and_stay_until_released(moves in proptest::collection::vec(prop_oneof![
        Just(RingMove::Ask),
        (any::<usize>(), any::<bool>()).prop_map(|(nth, is_ready)| RingMove::Answer(nth, is_ready)),
        any::<usize>().prop_map(RingMove::Release),
    ], 0..300)) {
        let board = board(8);
        let mut open: VecDeque<(u64, Answer)> = VecDeque::new();
        let (mut asked, mut released) = (0_u64, 0_u64);
        for one in moves {
            match one {
                RingMove::Ask if open.iter().all(|(turn, _)| asked - turn < 8) => {
                    board.put(asked, wanted(asked));
                    open.push_back((asked, Answer::Pending));
                    asked += 1;
                    board.set_asked(asked);
                }
                RingMove::Answer(nth, is_ready) if !open.is_empty() => {
                    let nth = nth % open.len();
                    let (turn, answer) = &mut open[nth];
                    if *answer == Answer::Pending {
                        *answer = if is_ready { ready(*turn) } else { Answer::Refused };
                        board.set_answer(*turn, *answer);
                    }
                }
                RingMove::Release(nth) if !open.is_empty() => {
                    let nth = nth % open.len();
                    let (turn, _) = open.remove(nth).expect("it is one of them");
                    board.release(released, turn);
                    released += 1;
                    board.set_released(released);
                    prop_assert_eq!(board.released_turn(released - 1), turn as u32);
                }
                _ => {}
            }
            for (turn, answer) in &open {
                prop_assert_eq!(board.answer(*turn), *answer);
                prop_assert_eq!(board.wanted(*turn), wanted(*turn));
            }
        }
    }
}
