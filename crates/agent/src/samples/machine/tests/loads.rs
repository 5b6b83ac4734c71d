//! The load from which threads are assigned: that of a whole step, however far ranks request, and however much of it
//! was read meanwhile.

use std::sync::{Arc, Mutex};

use forebay_policy::schedule::{ReadRequest, StepLoad};

use super::*;

/// Keeps the loads that it is given. Reads go in order of arrival.
struct KeepsLoads {
    reads: FirstCome,
    loads: Arc<Mutex<Vec<StepLoad>>>,
}

impl Scheduler for KeepsLoads {
    fn name(&self) -> &'static str {
        "keeps_loads"
    }

    fn push(&mut self, request: ReadRequest) {
        self.reads.push(request);
    }

    fn pick(&mut self, busy: &[u32]) -> Option<ReadRequest> {
        self.reads.pick(busy)
    }

    fn assigns(&self) -> bool {
        true
    }

    fn divides_loading(&self) -> bool {
        true
    }

    fn assign(&mut self, load: &StepLoad) {
        self.loads.lock().expect("no thread panics").push(load.clone());
    }

    fn loading_threads(&self) -> u32 {
        8
    }

    fn waiting(&self) -> usize {
        self.reads.waiting()
    }
}

/// Ranks that have requested `asked` steps, at least two, which are all read, and have begun two of them. Returns the
/// last load that the schedule was given.
fn load_after(world: MachineWorld, asked: u32) -> StepLoad {
    let loads = Arc::new(Mutex::new(Vec::new()));
    let mut play = Play::new(world, Vec::new());
    let reads = FirstCome::new(8);
    play.core = world.core_with(Box::new(KeepsLoads {
        reads,
        loads: loads.clone(),
    }));
    // The first step tells sizes.
    for steps in [1, asked - 1] {
        for rank in 0..world.ranks as usize {
            (0..steps).for_each(|_| assert!(play.ask_next(rank)));
        }
        while !play.reads.is_empty() {
            play.end_read(0, 99);
        }
    }
    for steps in 1..3 {
        play.now_s += 0.1;
        let events: Vec<MachineEvent> = (0..world.ranks as usize)
            .map(|rank| MachineEvent::Stepped {
                rank,
                step: RankStep {
                    steps,
                    epoch: 0,
                    iteration: 0,
                },
            })
            .collect();
        play.happen(&events);
    }
    let last = loads.lock().expect("no thread panics").last().cloned();
    last.expect("threads were assigned when a step was measured")
}

#[test]
fn the_load_is_that_of_the_last_step_that_was_requested_even_if_it_was_read_meanwhile() {
    for asked in [2, 4, 6] {
        let world = MachineWorld {
            ranks: 2,
            batch: 5,
            window: 6,
            window_bytes: 60_000,
            memory_bytes: 0,
            policy: 8,
            ..roomy()
        };
        let load = load_after(world, asked);
        assert_eq!(load.samples, [5, 5], "{asked} of {} steps requested", world.window);
        assert!(
            load.bytes.iter().all(|bytes| bytes[2] > 0),
            "all are read from the source: {load:?}"
        );
        let read: u64 = load.bytes.iter().map(|bytes| bytes[2]).sum();
        assert_eq!(read, load.sample_bytes);
    }
}

#[test]
fn samples_in_memory_are_decoded_and_not_read() {
    let world = MachineWorld {
        ranks: 1,
        batch: 5,
        window: 3,
        window_bytes: 60_000,
        memory_bytes: 60_000,
        policy: 2,
        ..roomy()
    };
    let loads = Arc::new(Mutex::new(Vec::new()));
    let mut play = Play::new(world, Vec::new());
    let reads = FirstCome::new(8);
    play.core = world.core_with(Box::new(KeepsLoads {
        reads,
        loads: loads.clone(),
    }));
    let steps = 2 * SAMPLES as usize / world.batch as usize;
    for _ in 0..steps {
        assert!(play.ask_next(0));
        while !play.reads.is_empty() {
            play.end_read(0, 99);
        }
        play.now_s += 0.1;
        (0..world.batch).for_each(|_| assert!(play.release(0, 49)));
    }
    let loads = loads.lock().expect("no thread panics");
    let second: Vec<&StepLoad> = loads.iter().rev().take(5).collect();
    assert!(
        second
            .iter()
            .all(|load| load.samples == [5] && load.bytes == [[0; 3]] && load.sample_bytes > 0),
        "{second:?}"
    );
}
