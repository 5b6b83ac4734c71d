//! Ranks that leave, come again, or keep their bytes for long.

use super::*;

#[test]
fn a_rank_that_is_gone_holds_nothing_and_the_others_go_on() {
    let mut play = Play::new(roomy(), Vec::new());
    assert!(play.ask(0) && play.ask(1) && play.ask(1));
    while play.reads.len() > 2 {
        play.end_read(0, 99);
    }
    play.happen(&[MachineEvent::Gone { rank: 1 }]);
    let asked = play.seen[1].len();
    for seen in &mut play.seen[1] {
        *seen = RequestView::Released;
    }
    play.wanted[1].truncate(asked);
    play.play(&chances());
}

#[test]
fn a_sample_that_there_is_not_is_refused() {
    let mut play = Play::new(roomy(), Vec::new());
    let wanted = SampleRequest {
        sample: SAMPLES,
        epoch: 0,
        iteration: 0,
    };
    play.wanted[0] = vec![wanted];
    play.seen[0] = vec![RequestView::Nothing];
    play.happen(&[MachineEvent::Asked { rank: 0, wanted }]);
    assert_eq!((play.seen[0][0], play.reads.len()), (RequestView::Refused, 0));
    play.happen(&[
        MachineEvent::Released { rank: 0, turn: 0 },
        MachineEvent::Released { rank: 0, turn: 5 },
    ]);
    assert!(play.core.is_idle());
}

#[test]
fn an_epoch_that_comes_again_and_one_that_is_left_early_are_passes_of_their_own() {
    let mut rank = RankRequests::default();
    let mut ask = |epoch, iteration| {
        let wanted = SampleRequest {
            sample: 0,
            epoch,
            iteration,
        };
        rank.ask(wanted, 10, true).1
    };
    let passes = [
        (0, 0),
        (0, 0),
        (0, 4),
        (SampleRequest::pass(1, 1), 1),
        (SampleRequest::pass(1, 0), 1),
        (7, 2),
        (7, 3),
    ]
    .map(|(epoch, iteration)| ask(epoch, iteration));
    // A following epoch is the next pass; any other is a pass that was not foreseen.
    assert_eq!(passes, [0, 0, 0, 1, 4, 7, 7]);
    assert_eq!(rank.used(6).step, 73);
}

#[test]
fn what_a_rank_refers_to_for_long_stays_and_holds_nothing_up() {
    let mut play = Play::new(roomy(), Vec::new());
    assert!(play.ask(0));
    while !play.reads.is_empty() {
        play.end_read(0, 99);
    }
    let RequestView::Ready(held) = play.seen[0][0] else {
        panic!("it is there")
    };
    // All requests of all epochs but the first are released.
    let all = play.wanted[0].len();
    for turn in 1..all {
        while play.seen[0].len() <= turn {
            assert!(play.ask_next(0));
        }
        while play.seen[0][turn] == RequestView::Nothing {
            assert!(!play.reads.is_empty(), "turn {turn} waits for nothing");
            play.end_read(0, 99);
        }
        play.let_go(0, turn);
    }
    assert_eq!(play.seen[0][0], RequestView::Ready(held), "its bytes were given to nobody else");
    play.let_go(0, 0);
    assert_eq!(play.core.storage.copies.lent(), 0, "then nothing is lent any more");
}

#[test]
fn before_a_step_was_measured_reads_go_in_the_order_of_steps() {
    let mut rank = RankRequests::default();
    let due_s = |rank: &RankRequests, step, now_s| rank.deadline_s(step, now_s);
    // Independent of the rank that asks first, and of the duration of reads.
    let first_steps = [
        (0, 7.0),
        (1, 0.0),
        (2, 3600.0),
        (11, 0.0),
        (3_000_000, 0.0),
        (u64::from(u32::MAX), 0.0),
    ]
    .map(|(step, now_s)| due_s(&rank, step, now_s));
    assert!(first_steps.windows(2).all(|two| two[0] + 60.0 < two[1]), "{first_steps:?}");
    rank.stepped(1, 10.0);
    rank.stepped(2, 10.5);
    let later = due_s(&rank, 3, 10.5);
    assert!((later - 12.5).abs() < 1e-9, "a step ends at 11, and three come before: {later}");
    assert!(
        first_steps.iter().all(|first| *first < later),
        "what was asked for before is of earlier steps"
    );
}

#[test]
fn what_could_not_be_read_once_counts_as_large_as_others() {
    let mut play = Play::new(roomy(), Vec::new());
    assert!(play.ask(0));
    let nth = play.reads.iter().position(|(_, sample, _)| size_of(*sample) > 0);
    play.end_read(nth.expect("not all are empty"), 99);
    let (flight, failing, _) = play.reads.remove(0);
    let outcome = ReadOutcome::Failed;
    play.happen(&[MachineEvent::Read { flight, outcome }]);
    assert_eq!(play.core.figures().refused_failed, 1);
    let read = play.seen[0].iter().position(|seen| matches!(seen, RequestView::Ready(_)));
    let read = play.wanted[0][read.expect("one was read")].sample;
    assert_eq!(play.core.storage.copies.expected_bytes(failing), size_of(read));
    play.play(&chances());
}

#[test]
fn two_ranks_that_want_the_same_sample_have_it_read_once() {
    let mut play = Play::new(roomy(), Vec::new());
    let wanted = SampleRequest {
        sample: 7,
        epoch: 0,
        iteration: 0,
    };
    for rank in 0..2 {
        play.wanted[rank] = vec![wanted];
        play.seen[rank] = vec![RequestView::Nothing];
        play.happen(&[MachineEvent::Asked { rank, wanted }]);
    }
    assert_eq!(play.reads.len(), 1);
    play.end_read(0, 99);
    assert!(matches!((play.seen[0][0], play.seen[1][0]), (RequestView::Ready(a), RequestView::Ready(b)) if a == b));
}
