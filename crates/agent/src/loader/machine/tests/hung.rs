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
    // Whatever else there is, they hang on.
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
