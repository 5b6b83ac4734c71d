//! Background fill: its samples, their time, and their bytes.

use super::*;

/// Returns a world with the policy that keeps nothing, and so leaves all memory to fetches ahead.
fn filling() -> MachineWorld {
    MachineWorld {
        ranks: 1,
        fills: true,
        nodes: 1,
        policy: 8,
        ..roomy()
    }
}

impl Play {
    /// Requests this number of steps.
    fn ask_steps(&mut self, steps: usize) {
        for _ in 0..steps {
            assert!(self.ask_next(0));
        }
    }

    /// Ends reads, one after the other, until none is under way; returns the requests in the order of their answers.
    fn read_all(&mut self) -> Vec<usize> {
        let mut answered = Vec::new();
        loop {
            let ready = |turn: &usize| matches!(self.seen[0][*turn], RequestView::Ready(_)) && !answered.contains(turn);
            let new: Vec<usize> = (0..self.seen[0].len()).filter(ready).collect();
            answered.extend(new);
            if self.reads.is_empty() {
                return answered;
            }
            self.end_read(0, 99);
        }
    }
}

#[test]
fn what_is_beyond_the_window_is_read_once_nothing_nearer_waits() {
    let mut play = Play::new(filling(), Vec::new());
    play.ask_steps(10);
    let batch = play.world.batch as usize;
    let near = play.world.window as usize * batch;
    let answered = play.read_all();
    assert_eq!(answered.len(), 10 * batch, "all of it, and nobody has used anything yet");
    // A thread takes samples after the window only if there is nothing within it.
    let last_near = answered.iter().position(|&turn| turn == near - 1).expect("it is there");
    assert!(last_near < near + 8, "{answered:?}");
}

#[test]
fn without_it_nothing_beyond_the_window_is_read() {
    let world = MachineWorld { fills: false, ..filling() };
    let mut play = Play::new(world, Vec::new());
    play.ask_steps(10);
    assert_eq!(play.read_all().len(), (play.world.window * play.world.batch) as usize);
}

#[test]
fn no_more_is_filled_than_memory_for_residents() {
    let world = MachineWorld {
        memory_bytes: 4000,
        ..filling()
    };
    let mut play = Play::new(world, Vec::new());
    play.ask_steps(12);
    let answered = play.read_all().len() as u64;
    let held: u64 = play.places.values().map(|(_, bytes)| u64::from(*bytes)).sum();
    let near = u64::from(play.world.window * play.world.batch);
    assert!(answered > near && answered < 12 * u64::from(play.world.batch), "{answered}");
    // Sizes are not known before they are read, and four are read concurrently.
    assert!(held <= 4000 + 4 * 150, "{held}");
}

#[test]
fn what_was_far_away_hurries_when_its_step_comes_near() {
    let mut play = Play::new(filling(), Vec::new());
    let batch = play.world.batch as usize;
    // A size has to be known first.
    play.ask_steps(1);
    play.read_all();
    play.ask_steps(8);
    // The window's reads are under way or wait; then background fill waits behind them.
    while play.core.reads.fills.is_empty() {
        assert!(!play.reads.is_empty());
        play.end_read(0, 99);
    }
    // The rank goes on: samples that were far away are near now.
    for turn in 0..3 * batch {
        while play.seen[0][turn] == RequestView::Nothing {
            play.end_read(0, 99);
        }
        play.let_go(0, turn);
    }
    let near = (3 + play.world.window as usize) * batch;
    let far = play.core.reads.fills.clone();
    for number in far {
        let waiting = play.core.reads.flights.waiting_for_fill(number).unwrap_or_default().to_vec();
        assert!(waiting.iter().all(|&(_, turn)| turn as usize >= near), "{waiting:?}");
    }
    play.play(&chances());
    assert_eq!(play.core.reads.flights.coming_bytes(), 0, "nothing is on its way any more");
}
