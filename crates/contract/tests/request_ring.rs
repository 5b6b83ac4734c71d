//! The request ring of a rank: each request is answered once, whichever side is faster, and invalid memory is refused.

mod memory;

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use forebay_contract::request_ring::{RankDecoding, RequestRing, SLOTS_MAX, SampleAnswer, SampleRequest};
use memory::region;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn ring(slots: u32) -> RequestRing<'static> {
    RequestRing::create(region(RequestRing::bytes(slots)), slots).expect("room")
}

fn wanted(sequence: u64) -> SampleRequest {
    SampleRequest {
        sample: sequence as u32 ^ 0x55,
        epoch: (sequence / 100) as u32,
        iteration: (sequence % 100) as u32,
    }
}

fn ready(sequence: u64) -> SampleAnswer {
    SampleAnswer::Ready {
        offset: sequence * 4096,
        length: sequence as u32 + 1,
    }
}

#[test]
fn what_is_asked_is_answered() {
    let ring = ring(8);
    ring.put(0, wanted(0));
    ring.put(1, wanted(1));
    assert_eq!(ring.asked(), 0, "nobody sees it yet");
    ring.set_asked(2);
    assert_eq!((ring.asked(), ring.wanted(0), ring.wanted(1)), (2, wanted(0), wanted(1)));
    assert_eq!(ring.answer(1), SampleAnswer::Pending);
    ring.set_answer(1, ready(1));
    ring.set_answer(0, SampleAnswer::Refused);
    assert_eq!((ring.answer(0), ring.answer(1)), (SampleAnswer::Refused, ready(1)));
    ring.release(0, 1);
    ring.set_released(1);
    assert_eq!((ring.released(), ring.released_sequence(0)), (1, 1));
    ring.begin_step(1, 3, 7);
    assert_eq!(ring.steps(), (1, 3, 7));
    assert_eq!((ring.decoding(), ring.decoders_given()), (RankDecoding::default(), None));
    let decoding = RankDecoding {
        sample_ns: 40_000,
        sample_bytes: 7,
        threads: 3,
    };
    ring.set_decoding(decoding);
    ring.give_decoders(5);
    assert_eq!(
        (ring.decoding(), ring.decoders_given(), ring.steps()),
        (decoding, Some(5), (1, 3, 7))
    );
}

#[test]
fn a_worker_says_that_it_is_done_with_one_use_and_no_other() {
    let ring = ring(4);
    assert!((0..8).all(|sequence| !ring.is_done(sequence)));
    for sequence in [0, 1, 5, 1 << 32] {
        ring.set_done(sequence);
        assert!(ring.is_done(sequence) && !ring.is_done(sequence + 4) && !ring.is_done(sequence + 1));
    }
}

#[test]
fn passes_through_an_epoch_have_other_names_than_their_neighbours() {
    for epoch in [0, 1, 90, (1 << 31) - 1] {
        let names = [1, 2, 3].map(|nth| SampleRequest::pass(epoch, nth));
        assert!(names[0] != names[1] && names[1] != names[2]);
        assert!(names.iter().all(|name| SampleRequest::epoch_of(*name) == epoch));
    }
}

#[test]
fn an_answer_that_comes_too_late_is_not_taken_for_another_use() {
    let ring = ring(2);
    ring.put(0, wanted(0));
    ring.set_asked(1);
    ring.release(0, 0);
    ring.set_released(1);
    ring.put(2, wanted(2));
    ring.set_answer(0, ready(0));
    assert_eq!(ring.answer(2), SampleAnswer::Pending);
    ring.set_answer(2, ready(2));
    assert_eq!(ring.answer(2), ready(2));
}

#[test]
fn who_sleeps_is_to_be_woken() {
    let ring = ring(2);
    assert!(!ring.set_asked(0) && !ring.set_released(0) && !ring.begin_step(0, 0, 0) && !ring.answered());
    ring.set_sleeping(true);
    assert!(ring.set_asked(0) && ring.set_released(0) && ring.begin_step(0, 0, 0));
    ring.set_sleeping(false);
    assert!(!ring.set_asked(0));
    let seen = ring.wait_begins();
    assert!(ring.answered());
    assert_ne!(ring.answers().load(SeqCst), seen);
    ring.wait_over();
    assert!(!ring.answered());
}

/// Ends the other side when one side fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn expected(sequence: u64) -> SampleAnswer {
    if sequence.is_multiple_of(7) {
        SampleAnswer::Refused
    } else {
        ready(sequence)
    }
}

/// Answers requests as the agent, until the test is over.
fn answer_all(ring: RequestRing<'_>, is_over: &AtomicBool) {
    let _over = Over(is_over);
    let (mut seen, mut released) = (0, 0);
    while !is_over.load(SeqCst) {
        let (asked, over) = (ring.asked(), ring.released());
        while released < over {
            assert_eq!(ring.released_sequence(released), released as u32, "released in this order here");
            released += 1;
        }
        while seen < asked {
            assert_eq!(ring.wanted(seen), wanted(seen));
            ring.set_answer(seen, expected(seen));
            seen += 1;
        }
        thread::yield_now();
    }
}

/// One thread requests and releases, another answers, with few slots that are reused all the time.
#[test]
fn both_sides_at_once() {
    const TURNS: u64 = 100_000;
    let ring = ring(16);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| answer_all(ring, &is_over));
        let _over = Over(&is_over);
        let (mut asked, mut released) = (0, 0);
        while released < TURNS {
            assert!(!is_over.load(SeqCst), "the other side has failed");
            while asked < TURNS && asked - released < 16 {
                ring.put(asked, wanted(asked));
                asked += 1;
            }
            ring.set_asked(asked);
            while released < asked && ring.answer(released) != SampleAnswer::Pending {
                assert_eq!(ring.answer(released), expected(released));
                ring.release(released, released);
                released += 1;
            }
            ring.set_released(released);
            thread::yield_now();
        }
    });
}

#[test]
fn invalid_memory_is_refused() {
    assert!(RequestRing::open(region(RequestRing::bytes(4))).is_none(), "zeroes");
    for slots in [0, 3, SLOTS_MAX * 2] {
        assert!(RequestRing::create(region(1 << 16), slots).is_none(), "{slots} slots");
    }
    assert!(RequestRing::create(region(RequestRing::bytes(64) - 1), 64).is_none(), "too short");
    assert!(RequestRing::create(region(8), 1).is_none());
}

#[derive(Clone, Debug)]
enum RingMove {
    Ask,
    /// Answers the nth request that has no answer.
    SampleAnswer(usize, bool),
    /// Releases the nth request that was not released.
    Release(usize),
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn answers_come_in_any_order_and_stay_until_released(moves in proptest::collection::vec(prop_oneof![
        Just(RingMove::Ask),
        (any::<usize>(), any::<bool>()).prop_map(|(nth, is_ready)| RingMove::SampleAnswer(nth, is_ready)),
        any::<usize>().prop_map(RingMove::Release),
    ], 0..300)) {
        let ring = ring(8);
        let mut open: VecDeque<(u64, SampleAnswer)> = VecDeque::new();
        let (mut asked, mut released) = (0_u64, 0_u64);
        for one in moves {
            match one {
                RingMove::Ask if open.iter().all(|(sequence, _)| asked - sequence < 8) => {
                    ring.put(asked, wanted(asked));
                    open.push_back((asked, SampleAnswer::Pending));
                    asked += 1;
                    ring.set_asked(asked);
                }
                RingMove::SampleAnswer(nth, is_ready) if !open.is_empty() => {
                    let nth = nth % open.len();
                    let (sequence, answer) = &mut open[nth];
                    if *answer == SampleAnswer::Pending {
                        *answer = if is_ready { ready(*sequence) } else { SampleAnswer::Refused };
                        ring.set_answer(*sequence, *answer);
                    }
                }
                RingMove::Release(nth) if !open.is_empty() => {
                    let nth = nth % open.len();
                    let (sequence, _) = open.remove(nth).expect("it is one of them");
                    ring.release(released, sequence);
                    released += 1;
                    ring.set_released(released);
                    prop_assert_eq!(ring.released_sequence(released - 1), sequence as u32);
                }
                _ => {}
            }
            for (sequence, answer) in &open {
                prop_assert_eq!(ring.answer(*sequence), *answer);
                prop_assert_eq!(ring.wanted(*sequence), wanted(*sequence));
            }
        }
    }
}
