//! A source that hangs in some places.

use super::*;

#[test]
fn reads_that_hang_hold_up_no_others_and_are_taken_when_they_end() {
    let mut play = Play::new(roomy(), Vec::new());
    for rank in [0, 1] {
        while play.ask(rank) {}
    }
    let first: Vec<u32> = play.reads.iter().map(|(_, sample, _)| *sample).collect();
    play.happen(&[]);
    assert_eq!(play.reads.len(), first.len(), "as many as are made at once");
    play.now_s += 11.0;
    play.happen(&[]);
    assert_eq!(play.reads.len(), 2 * first.len(), "others go on");
    assert_eq!(play.core.figures().hung, first.len() as u64);
    // These hang, while all others are read.
    while let Some(nth) = play.reads.iter().position(|(_, sample, _)| !first.contains(sample)) {
        play.end_read(nth, 99);
    }
    assert_eq!(play.reads.len(), first.len());
    play.play(&chances());
    assert_eq!(play.core.figures().hung, 0);
}

#[test]
fn not_all_threads_may_hang() {
    let mut play = Play::new(roomy(), Vec::new());
    for rank in [0, 1] {
        while play.ask(rank) {}
    }
    for _ in 0..20 {
        play.now_s += 11.0;
        play.happen(&[]);
    }
    assert_eq!(play.core.figures().hung, 8, "as many as are read at once at most");
    assert!(play.reads.len() <= 2 * 8);
    play.play(&chances());
}

#[test]
fn what_is_let_go_while_its_read_hangs_holds_nobody_up() {
    let mut play = Play::new(MachineWorld { ranks: 1, ..roomy() }, Vec::new());
    assert!(play.ask(0));
    let (_, hanging, _) = play.reads[0];
    play.now_s += 11.0;
    play.happen(&[]);
    for turn in 0..2 * SAMPLES as usize {
        while play.seen[0].len() <= turn {
            assert!(play.ask_next(0));
        }
        // The rank has read this one itself, also in the second epoch, in which it waits for the same read.
        while play.wanted[0][turn].sample != hanging && play.seen[0][turn] == RequestView::Nothing {
            let other = play.reads.iter().position(|(_, sample, _)| *sample != hanging);
            play.end_read(other.expect("something is read for it"), 99);
        }
        play.let_go(0, turn);
    }
    assert_eq!(play.core.requests.pass(), Some(1), "the policy has come to the second epoch");
    assert!(!play.core.is_idle());
    while !play.reads.is_empty() {
        play.end_read(0, 99);
    }
    assert!(play.core.is_idle());
}

#[test]
fn what_is_tried_anew_has_all_its_time_again() {
    let mut play = Play::new(roomy(), Vec::new());
    assert!(play.ask(0));
    let first = play.reads.len() as u64;
    play.now_s += 9.0;
    let (flight, ..) = play.reads.remove(0);
    let outcome = ReadOutcome::Gone;
    play.happen(&[MachineEvent::Read { flight, outcome }]);
    play.now_s += 2.0;
    play.happen(&[]);
    assert_eq!(play.core.figures().hung, first - 1);
    play.play(&chances());
}
