//! Bytes that the loader reads from the source, against the lower bound for any policy: the figures that the simulator
//! predicts.

use forebay_contract::Identity;
use forebay_policy::Space;
use forebay_policy::bounds::source_bytes;
use forebay_policy::ids::Cluster;
use forebay_policy::order::{Deal, Order, Permutation};
use forebay_policy::residency::{Belady, FirstKept, Forebay, Lobster, Lru};
use forebay_policy::schedule::EarliestDeadline;
use forebay_store::FileVersion;

use super::*;

const SAMPLES: u32 = 6000;
/// Mean bytes of a sample. Sizes differ, or no policy would exchange one sample for another.
const BYTES: u32 = 100;
const BATCH: u32 = 10;
const WINDOW: u32 = 4;
const WINDOW_BYTES: u64 = 15_000;
const EPOCHS: u32 = 4;

fn bytes_of(sample: u32) -> u32 {
    BYTES / 2 + sample * 37 % (BYTES + 1)
}

fn cluster(memory_bytes: u64) -> Cluster {
    Cluster {
        nodes: 1,
        gpus: 1,
        cache_bytes: WINDOW_BYTES + memory_bytes,
        reserved_bytes: WINDOW_BYTES,
    }
}

fn order() -> Order {
    Order {
        permutation: Permutation::Torch,
        seed: 1,
        deal: Deal::new(SAMPLES, 1, BATCH).expect("there are some"),
    }
}

/// Returns all requests of one rank, in its order.
fn uses() -> Vec<SampleRequest> {
    let of_epoch = |epoch| {
        let samples = order().epoch(epoch);
        let of_iteration = |iteration| {
            let batch: Vec<u32> = samples.batch(0, iteration).collect();
            batch.into_iter().map(move |sample| SampleRequest { sample, epoch, iteration })
        };
        (0..samples.iterations()).flat_map(of_iteration).collect::<Vec<_>>()
    };
    (0..EPOCHS).flat_map(of_epoch).collect()
}

/// A loader whose reads end immediately.
struct Reads {
    core: LoaderMachine,
    now_s: f64,
    /// Bytes of the arena that were ever taken.
    taken: u64,
}

impl Reads {
    fn new(residency: Box<dyn Residency>, memory_bytes: u64) -> Self {
        let memory = Space {
            bytes: memory_bytes,
            inodes: u64::MAX,
        };
        let core = LoaderMachine::new(MachineInput {
            residency,
            scheduler: Box::new(EarliestDeadline::new(8)),
            order: order(),
            extents: SAMPLES,
            ranks: 1,
            placement: FillFirst::new([memory]),
            arena_bytes: WINDOW_BYTES + memory_bytes,
            window: WINDOW,
            fill_bytes: 0,
            reads_max: 8,
            hedge_budget: 0.0,
            thread_steps: 1,
            learned: LearnedDecoding::new(1),
            room_bytes: 0,
        });
        Self {
            core,
            now_s: 0.0,
            taken: 0,
        }
    }

    /// Processes these events, and all that follow from them; returns the bytes that were read.
    fn happen(&mut self, mut events: Vec<MachineEvent>) -> u64 {
        let before = self.taken;
        while !events.is_empty() {
            self.now_s += 0.001;
            let mut actions = Vec::new();
            for event in std::mem::take(&mut events) {
                self.core.take(event, self.now_s, &mut actions);
            }
            self.core.go_on(self.now_s, &mut actions);
            events.extend(actions.into_iter().filter_map(|action| self.carry_out(action)));
        }
        self.taken - before
    }

    fn carry_out(&mut self, action: MachineAction) -> Option<MachineEvent> {
        match action {
            MachineAction::Read { flight, sample, .. } => {
                let bytes = bytes_of(sample);
                self.taken += u64::from(bytes);
                let outcome = ReadOutcome::Whole {
                    place: ArenaRange { offset: self.taken, bytes },
                    version: FileVersion::of(&Identity {
                        ino: u64::from(sample),
                        ..Identity::default()
                    }),
                    left_on: None,
                };
                Some(MachineEvent::Read { flight, outcome })
            }
            MachineAction::Answer { answer, .. } => {
                assert!(matches!(answer, SampleAnswer::Ready { .. }), "there is room for the window");
                None
            }
            MachineAction::Free { .. } | MachineAction::GiveDecoders { .. } => None,
            MachineAction::Write { .. } | MachineAction::Release { .. } => panic!("there is no disk"),
            MachineAction::Serve { .. } | MachineAction::Decline { .. } => panic!("there is no other node"),
        }
    }
}

/// Returns the bytes from the source in each epoch, if each requested sample arrives immediately.
fn read_by_epoch(residency: Box<dyn Residency>, memory_bytes: u64) -> Vec<u64> {
    let mut reads = Reads::new(residency, memory_bytes);
    let uses = uses();
    let mut read = vec![0; EPOCHS as usize];
    let mut asked = 0;
    for first in (0..uses.len()).step_by(BATCH as usize) {
        let end = uses.len().min(first + (WINDOW * BATCH) as usize);
        let events = uses[asked..end].iter().map(|&wanted| MachineEvent::Asked { rank: 0, wanted });
        let mut read_now = reads.happen(events.collect());
        asked = end;
        let turns = first..first + BATCH as usize;
        let over = turns.map(|turn| MachineEvent::Released {
            rank: 0,
            turn: turn as u32,
        });
        read_now += reads.happen(over.collect());
        read[uses[first].epoch as usize] += read_now;
    }
    assert!(reads.core.is_idle(), "all was answered");
    read
}

#[test]
fn a_warm_epoch_reads_what_can_not_be_avoided_and_the_window() {
    let all: u64 = (0..SAMPLES).map(|sample| u64::from(bytes_of(sample))).sum();
    for percent in [30, 60] {
        let memory_bytes = all * percent / 100 - WINDOW_BYTES;
        let cluster = cluster(memory_bytes);
        let most = source_bytes(all, cluster) as f64 * 1.03 + WINDOW_BYTES as f64;
        let policies: [Box<dyn Residency>; 2] = [
            Box::new(Forebay::new(cluster, SAMPLES, WINDOW)),
            Box::new(FirstKept::pinned(cluster, SAMPLES, WINDOW)),
        ];
        for policy in policies {
            let name = policy.name();
            let read = read_by_epoch(policy, memory_bytes);
            // Reads for the next epoch that happen before this one ends count here.
            assert!(read[0] >= all - WINDOW_BYTES, "{name}: {read:?}");
            for warm in &read[1..] {
                assert!(*warm as f64 <= most, "{name}, {percent} %: {read:?}, at most {most}");
            }
            // A sample that the policy gave up for another is gone by the end of the epoch: if it went only shortly
            // before its use, more would be read.
            let (warm, unavoidable) = (read[1..].iter().sum::<u64>(), (all - memory_bytes) * u64::from(EPOCHS - 1));
            assert!(
                warm as f64 <= 1.005 * unavoidable as f64,
                "{name}, {percent} %: {read:?}, at best {unavoidable}"
            );
        }
        let lru = read_by_epoch(Box::new(Lru::new(cluster, SAMPLES, WINDOW)), memory_bytes);
        assert!(lru[2] as f64 > most, "{percent} %: {lru:?}");
        let looking: [Box<dyn Residency>; 2] = [
            Box::new(Belady::new(cluster, SAMPLES, WINDOW)),
            Box::new(Lobster::corrected(cluster, SAMPLES, WINDOW)),
        ];
        for policy in looking {
            let name = policy.name();
            let read = read_by_epoch(policy, memory_bytes);
            assert!(read[2] < lru[2], "{name}, {percent} %, sees what comes: {read:?}, and LRU {lru:?}");
        }
    }
}
