//! The machine in a random world: for any events in any order, each request is answered once, with its own sample's
//! bytes, and nothing leaks.

use std::collections::BTreeMap;

use forebay_contract::Identity;
use forebay_policy::Space;
use forebay_policy::ids::Cluster;
use forebay_policy::models::LearnedReads;
use forebay_policy::order::{Deal, Order, Permutation};
use forebay_policy::ranges::Ranges;
use forebay_policy::residency::{Belady, FirstKept, Forebay, Lobster, Lru, Nopfs, nopfs::Uses};
use forebay_policy::schedule::{self, EarliestDeadline, FirstCome, NodeModel, Static};
use forebay_store::FileVersion;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

mod background_fill;
mod decoders;
mod hung;
mod loads;
mod peers;
mod ranks;
mod schedules;
mod several;

const SAMPLES: u32 = 60;
const EPOCHS: u32 = 4;

/// Parameters of the world.
#[derive(Clone, Copy, Debug)]
struct MachineWorld {
    ranks: u32,
    batch: u32,
    window: u32,
    window_bytes: u64,
    memory_bytes: u64,
    disk_bytes: u64,
    policy: u8,
    scheduler: u8,
    hedge_budget: f64,
    /// Percentage of reads of the source and of disks, and of writes, that fail.
    faults: u32,
    /// True if ranks use samples in another order than the loader was told: then decisions are poor, but answers are
    /// right.
    is_unknown: bool,
    /// True if ranks ask far ahead, for background fill.
    fills: bool,
    /// Nodes of the job.
    nodes: u16,
    /// Most nodes of a group of them; 0 for one group of all.
    group_max: u16,
    /// Number of this node.
    here: u16,
}

fn size_of(sample: u32) -> u32 {
    if sample.is_multiple_of(17) { 0 } else { 100 + sample * 7 % 50 }
}

fn version_of(sample: u32) -> FileVersion {
    FileVersion::of(&Identity {
        ino: u64::from(sample),
        ..Identity::default()
    })
}

impl MachineWorld {
    fn order(self) -> Order {
        Order {
            permutation: Permutation::Torch,
            seed: 3,
            deal: Deal::new(SAMPLES, u32::from(self.nodes) * self.ranks, self.batch).expect("there are some"),
        }
    }

    fn ranks_before(self) -> u32 {
        u32::from(self.here) * self.ranks
    }

    /// Returns the order that ranks use.
    fn used(self) -> Order {
        let seed = if self.is_unknown { 4 } else { 3 };
        Order { seed, ..self.order() }
    }

    fn residency(self) -> Box<dyn Residency> {
        let cluster = Cluster {
            nodes: 1,
            gpus: self.ranks,
            cache_bytes: self.window_bytes + self.memory_bytes + self.disk_bytes,
            reserved_bytes: self.window_bytes,
        };
        let window = self.window;
        match self.policy % 9 {
            0 => Box::new(Forebay::new(cluster, SAMPLES, window)),
            1 => Box::new(FirstKept::pinned(cluster, SAMPLES, window)),
            2 => Box::new(FirstKept::fill_first(cluster, SAMPLES, window)),
            3 => Box::new(Lru::new(cluster, SAMPLES, window)),
            4 => Box::new(Belady::new(cluster, SAMPLES, window).after(self.ranks_before())),
            5 => Box::new(Lobster::corrected(cluster, SAMPLES, window).of_one_node(self.ranks_before())),
            6 => Box::new(Lobster::as_written(cluster, SAMPLES).of_one_node(self.ranks_before())),
            7 => {
                let epochs = (0..EPOCHS).map(|epoch| self.order().epoch(epoch));
                let uses = Uses::count_after(cluster, self.ranks_before(), SAMPLES, epochs);
                Box::new(Nopfs::new(cluster, SAMPLES, window, uses))
            }
            _ => Box::new(FirstKept::nothing(cluster, SAMPLES, window)),
        }
    }

    fn scheduler(self) -> Box<dyn Scheduler> {
        let (load, preprocessing) = LearnedReads::default().models(None, 8);
        let node = NodeModel {
            threads: 9,
            ranks: self.ranks,
            load,
            preprocessing,
            tau: 0.05,
        };
        match self.scheduler % 7 {
            0 => Box::new(EarliestDeadline::new(8)),
            1 => Box::new(FirstCome::new(8)),
            2 => Box::new(schedule::LobsterSchedule::corrected(node)),
            3 => Box::new(schedule::LobsterSchedule::as_written(node)),
            4 => Box::new(Static::new(8, self.ranks)),
            5 => Box::new(schedule::ForebaySchedule::new(8, self.ranks, 0.05)),
            _ => Box::new(schedule::DaliLike::new(8)),
        }
    }

    fn core(self) -> LoaderMachine {
        self.core_with(self.scheduler())
    }

    fn core_with(self, scheduler: Box<dyn Scheduler>) -> LoaderMachine {
        let mut core = self.core_alone(scheduler);
        if let Some(shares) = self.shares() {
            core.share(shares);
        }
        core
    }

    fn core_alone(self, scheduler: Box<dyn Scheduler>) -> LoaderMachine {
        let tiers = [self.memory_bytes, self.disk_bytes].map(|bytes| Space { bytes, inodes: u64::MAX });
        LoaderMachine::new(MachineInput {
            residency: self.residency(),
            scheduler,
            order: self.order(),
            extents: SAMPLES,
            ranks: self.ranks as usize,
            placement: FillFirst::new(tiers),
            arena_bytes: self.window_bytes + self.memory_bytes,
            window: self.window,
            fill_bytes: if self.fills { self.memory_bytes } else { 0 },
            reads_max: 8,
            hedge_budget: self.hedge_budget,
            thread_steps: 1,
            learned: LearnedDecoding::new(self.ranks as usize),
            room_bytes: self.memory_bytes + self.disk_bytes,
        })
    }
}

/// Status of a request as the rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestView {
    Nothing,
    Ready(ArenaRange),
    Refused,
    Released,
}

/// Threads, arena, disk and ranks, driven by random numbers.
struct Play {
    world: MachineWorld,
    core: LoaderMachine,
    now_s: f64,
    /// All future requests of each rank, in its order; those made are a prefix of it.
    wanted: Vec<Vec<SampleRequest>>,
    seen: Vec<Vec<RequestView>>,
    arena: Ranges,
    /// Contents of the arena, by offset. (A sample of 0 bytes takes no room, so it has no entry.)
    places: BTreeMap<u64, (u32, u32)>,
    reads: Vec<(u32, u32, ReadFrom)>,
    writes: Vec<(u32, usize)>,
    disk: BTreeMap<u32, u32>,
    left: Vec<u32>,
    others: peers::OtherNodes,
}

impl Play {
    fn new(world: MachineWorld, left: Vec<u32>) -> Self {
        let order = world.used();
        let wanted = |rank| -> Vec<SampleRequest> {
            let epochs = (0..EPOCHS).map(|epoch| (epoch, order.epoch(epoch)));
            let uses = epochs.flat_map(|(epoch, order)| {
                let steps = (0..order.iterations()).flat_map(|iteration| {
                    let batch: Vec<u32> = order.batch(world.ranks_before() + rank, iteration).collect();
                    batch.into_iter().map(move |sample| SampleRequest { sample, epoch, iteration })
                });
                steps.collect::<Vec<_>>()
            });
            uses.collect()
        };
        Self {
            world,
            core: world.core(),
            now_s: 0.0,
            wanted: (0..world.ranks).map(wanted).collect(),
            seen: vec![Vec::new(); world.ranks as usize],
            arena: Ranges::new(world.window_bytes + world.memory_bytes),
            places: BTreeMap::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            disk: BTreeMap::new(),
            left,
            others: peers::OtherNodes::default(),
        }
    }

    /// Takes some events, and carries out the actions that follow.
    fn happen(&mut self, events: &[MachineEvent]) {
        self.now_s += 0.001;
        let mut actions = Vec::new();
        self.core.expect(events);
        for event in events {
            self.core.take(*event, self.now_s, &mut actions);
        }
        self.core.go_on(self.now_s, &mut actions);
        for action in actions {
            self.carry_out(action);
        }
        let resident = self.core.storage.resident_bytes();
        assert!(resident <= self.world.memory_bytes, "memory for residents is kept to");
    }

    fn carry_out(&mut self, action: MachineAction) {
        match action {
            MachineAction::Read { flight, sample, from, .. } => {
                assert!(sample < SAMPLES);
                self.reads.push((flight, sample, from));
            }
            MachineAction::Write {
                sample,
                disk,
                place,
                version,
            } => {
                assert_eq!((disk, version, place.bytes), (0, version_of(sample), size_of(sample)));
                self.writes.push((sample, disk));
            }
            MachineAction::Free { place } if place.bytes > 0 => {
                let (_, bytes) = self.places.remove(&place.offset).expect("what is freed lies there");
                assert_eq!(bytes, place.bytes);
                assert!(
                    !self.seen.iter().flatten().any(|seen| *seen == RequestView::Ready(place)),
                    "a rank has it still"
                );
                assert!(!self.others.have(place), "another node is being sent it");
                self.arena.give(place.offset, u64::from(bytes));
            }
            MachineAction::Free { .. } | MachineAction::GiveDecoders { .. } => {}
            MachineAction::Release { sample, .. } => drop(self.disk.remove(&sample)),
            MachineAction::Serve { ticket, place } => {
                let sample = self.others.served(ticket, place);
                assert_eq!(place.bytes, size_of(sample));
                assert!(place.bytes == 0 || self.places.get(&place.offset) == Some(&(sample, place.bytes)));
            }
            MachineAction::Decline { ticket } => self.others.declined(ticket),
            MachineAction::Answer { rank, turn, answer } => {
                let sample = self.wanted[rank][turn as usize].sample;
                let seen = &mut self.seen[rank][turn as usize];
                assert_eq!(*seen, RequestView::Nothing, "a use is answered once, and not after its release");
                *seen = match answer {
                    SampleAnswer::Ready { offset, length } => {
                        assert_eq!(length, size_of(sample));
                        assert!(
                            length == 0 || self.places.get(&offset) == Some(&(sample, length)),
                            "it is this sample"
                        );
                        RequestView::Ready(ArenaRange { offset, bytes: length })
                    }
                    SampleAnswer::Refused => RequestView::Refused,
                    SampleAnswer::Pending => panic!("a pending request is not answered"),
                };
            }
        }
    }

    /// Ends a read of a thread.
    fn end_read(&mut self, nth: usize, chance: u32) {
        let (flight, sample, from) = self.reads.swap_remove(nth);
        let bytes = size_of(sample);
        if let Some(outcome) = peers::without_bytes(from, bytes, (chance, self.world.faults)) {
            return self.happen(&[MachineEvent::Read { flight, outcome }]);
        }
        let fails = chance % 100 < self.world.faults;
        let left_on = self
            .left
            .iter()
            .position(|left| *left == sample)
            .filter(|_| from == ReadFrom::Source);
        let outcome = if fails && from == ReadFrom::Source {
            ReadOutcome::Failed
        } else if matches!(from, ReadFrom::Disk { .. }) && (fails || !self.disk.contains_key(&sample)) {
            let is_there = self.disk.remove(&sample).is_some();
            if is_there { ReadOutcome::DiskFault } else { ReadOutcome::Gone }
        } else if let Some(offset) = self.arena.take(u64::from(bytes)) {
            if bytes > 0 {
                self.places.insert(offset, (sample, bytes));
            }
            if let Some(at) = left_on {
                self.left.swap_remove(at);
                self.disk.insert(sample, bytes);
            }
            ReadOutcome::Whole {
                place: ArenaRange { offset, bytes },
                version: version_of(sample),
                left_on: left_on.map(|_| 0),
            }
        } else {
            ReadOutcome::NoRoom { bytes }
        };
        self.happen(&[MachineEvent::Read { flight, outcome }]);
    }

    fn end_write(&mut self, nth: usize, chance: u32) {
        let (sample, disk) = self.writes.swap_remove(nth);
        let result = if chance % 100 >= self.world.faults {
            self.disk.insert(sample, size_of(sample));
            Ok(())
        } else if chance.is_multiple_of(2) {
            Err(WriteError::Full)
        } else {
            Err(WriteError::Fault)
        };
        self.happen(&[MachineEvent::Written { sample, disk, result }]);
    }

    /// Requests a rank's next step, if it is no more than the window ahead of the released ones.
    fn ask(&mut self, rank: usize) -> bool {
        let (asked, wanted) = (self.seen[rank].len(), &self.wanted[rank]);
        if asked == wanted.len() {
            return false;
        }
        let open = self.seen[rank]
            .iter()
            .position(|seen| *seen != RequestView::Released)
            .unwrap_or(asked);
        let steps = if self.world.fills { 20 } else { self.world.window + 1 };
        let is_far = open < asked && asked - open >= (steps * self.world.batch) as usize;
        !is_far && self.ask_next(rank)
    }

    /// Requests a rank's next step.
    fn ask_next(&mut self, rank: usize) -> bool {
        let (asked, wanted) = (self.seen[rank].len(), &self.wanted[rank]);
        let Some(next) = wanted.get(asked) else { return false };
        let of_step = |used: &&SampleRequest| (used.epoch, used.iteration) == (next.epoch, next.iteration);
        let step: Vec<SampleRequest> = wanted[asked..].iter().take_while(of_step).copied().collect();
        let events: Vec<MachineEvent> = step.iter().map(|wanted| MachineEvent::Asked { rank, wanted: *wanted }).collect();
        self.seen[rank].extend(step.iter().map(|_| RequestView::Nothing));
        self.happen(&events);
        true
    }

    /// Releases a request of a rank's oldest open step: one that is ready, or sometimes one that is not.
    fn release(&mut self, rank: usize, chance: u32) -> bool {
        let open = self.seen[rank].iter().position(|seen| *seen != RequestView::Released);
        let Some(first) = open else { return false };
        let of_step = |used: &SampleRequest| (used.epoch, used.iteration);
        let oldest = of_step(&self.wanted[rank][first]);
        let turns: Vec<usize> = (first..self.seen[rank].len())
            .filter(|turn| of_step(&self.wanted[rank][*turn]) == oldest)
            .filter(|turn| match self.seen[rank][*turn] {
                RequestView::Released => false,
                RequestView::Nothing => chance % 50 < self.world.faults / 10,
                RequestView::Ready(_) | RequestView::Refused => true,
            })
            .collect();
        let Some(&turn) = turns.get(chance as usize % turns.len().max(1)) else {
            return false;
        };
        self.let_go(rank, turn);
        true
    }

    /// Releases a request of a rank; its step is begun by then.
    fn let_go(&mut self, rank: usize, turn: usize) {
        let now = self.wanted[rank][turn];
        self.seen[rank][turn] = RequestView::Released;
        self.happen(&[
            MachineEvent::Released { rank, turn: turn as u32 },
            MachineEvent::Stepped {
                rank,
                step: RankStep {
                    steps: (turn / self.world.batch as usize) as u64,
                    epoch: now.epoch,
                    iteration: now.iteration,
                },
            },
        ]);
    }

    fn is_over(&self) -> bool {
        let all = |(wanted, seen): (&Vec<SampleRequest>, &Vec<RequestView>)| {
            seen.len() == wanted.len() && seen.iter().all(|seen| *seen == RequestView::Released)
        };
        self.wanted.iter().zip(&self.seen).all(all) && self.reads.is_empty() && self.writes.is_empty() && self.others.are_idle()
    }

    /// Plays to the end with the given random numbers, over and over; then only residents are left.
    fn play(&mut self, chances: &[u32]) {
        let mut idle = 0;
        for chance in chances.iter().copied().cycle() {
            if self.is_over() {
                break;
            }
            let rank = (chance / 7) as usize % self.world.ranks as usize;
            let moved = match chance % if self.world.nodes > 1 { 6 } else { 5 } {
                0 => self.ask(rank),
                1 | 2 => self.release(rank, chance / 11),
                3 if !self.reads.is_empty() => {
                    self.end_read((chance / 13) as usize % self.reads.len(), chance / 17);
                    true
                }
                4 if !self.writes.is_empty() => {
                    self.end_write((chance / 13) as usize % self.writes.len(), chance / 17);
                    true
                }
                5 => self.move_others(chance / 13),
                _ => false,
            };
            idle = if moved { 0 } else { idle + 1 };
            if idle > 2 * chances.len() {
                // Random choices may never hit the only possible move. Any possible move is made then, or the world
                // would stand still for ever.
                assert!(self.nudge(), "it stands still: {:?}", self.seen);
                idle = 0;
            }
        }
        self.happen(&[]);
        assert!(self.core.is_idle());
        let held: u64 = self.places.values().map(|(_, bytes)| u64::from(*bytes)).sum();
        assert_eq!(held, self.core.storage.resident_bytes(), "only residents are left in memory");
        for (sample, disk) in self.core.on_disks() {
            assert_eq!(
                (disk, self.disk.get(&sample)),
                (0, Some(&size_of(sample))),
                "residents are where they should be"
            );
        }
        assert_eq!(self.core.on_disks().len(), self.disk.len(), "and nothing else is there");
    }

    fn nudge(&mut self) -> bool {
        if !self.reads.is_empty() {
            self.end_read(0, 99);
            return true;
        }
        if !self.writes.is_empty() {
            self.end_write(0, 99);
            return true;
        }
        self.release_others() || (0..self.world.ranks as usize).any(|rank| self.release(rank, 49) || self.ask(rank))
    }
}

fn worlds() -> impl Strategy<Value = MachineWorld> {
    let shape = (1..4_u32, 1..6_u32, 1..4_u32);
    let bytes = (600..6000_u64, prop_oneof![Just(0), 0..4000_u64], prop_oneof![Just(0), 0..6000_u64]);
    let others = (
        any::<u8>(),
        any::<u8>(),
        prop_oneof![Just(0.0), Just(0.3)],
        prop_oneof![Just(0), 1..40_u32],
        any::<bool>(),
        any::<bool>(),
        (1..5_u16, 0..3_u16),
    );
    (shape, bytes, others).prop_map(
        |(
            (ranks, batch, window),
            (window_bytes, memory_bytes, disk_bytes),
            (policy, scheduler, hedge_budget, faults, is_unknown, fills, (nodes, group_max)),
        )| MachineWorld {
            ranks,
            batch,
            window,
            window_bytes,
            memory_bytes,
            disk_bytes,
            policy,
            scheduler,
            hedge_budget,
            faults,
            is_unknown,
            fills,
            nodes,
            group_max,
            here: 0,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn each_use_is_answered_once_with_its_own_bytes_and_nothing_leaks(
        world in worlds(), chances in proptest::collection::vec(any::<u32>(), 200..400), left in proptest::collection::btree_set(0..SAMPLES, 0..20),
    ) {
        Play::new(world, left.into_iter().collect()).play(&chances);
    }
}

fn roomy() -> MachineWorld {
    MachineWorld {
        ranks: 2,
        batch: 5,
        window: 3,
        window_bytes: 20_000,
        memory_bytes: 20_000,
        disk_bytes: 0,
        policy: 0,
        scheduler: 0,
        hedge_budget: 0.0,
        faults: 0,
        is_unknown: false,
        fills: false,
        nodes: 1,
        group_max: 0,
        here: 0,
    }
}

/// Returns the same shuffled numbers each time.
fn chances() -> Vec<u32> {
    (0..997_u32).map(|nth| nth.wrapping_mul(2_654_435_761) >> 3).collect()
}

#[test]
fn where_all_fits_the_source_is_read_once() {
    let mut play = Play::new(roomy(), Vec::new());
    play.play(&chances());
    let figures = play.core.figures();
    assert_eq!(figures.from_source, u64::from(SAMPLES));
    assert_eq!(
        figures.source_bytes,
        (0..SAMPLES).map(|sample| u64::from(size_of(sample))).sum::<u64>()
    );
    // Except for requests that come while the one before them is still being read.
    assert!(
        (150..=u64::from(SAMPLES * (EPOCHS - 1))).contains(&figures.from_memory),
        "{figures:?}"
    );
    assert_eq!((figures.refused_no_room, figures.refused_failed, figures.lost), (0, 0, 0));
    let by_rank = [0, 1].map(|rank| play.core.rank_figures(rank));
    assert_eq!(by_rank[0].reads + by_rank[1].reads, figures.from_source);
    assert!(
        by_rank
            .iter()
            .all(|of_rank| of_rank.reading_us > 0 && (1..=8).contains(&of_rank.threads_most))
    );
}

#[test]
fn what_does_not_fit_into_memory_lies_on_the_disk_and_comes_back_from_there() {
    let world = MachineWorld {
        window_bytes: 40_000,
        memory_bytes: 2000,
        disk_bytes: 20_000,
        ..roomy()
    };
    let mut play = Play::new(world, Vec::new());
    play.play(&chances());
    let figures = play.core.figures();
    assert_eq!(figures.from_source, u64::from(SAMPLES));
    assert!(figures.from_disk > 100 && figures.from_memory > 20, "{figures:?}");
    assert_eq!(figures.lost, 0);
}

#[test]
fn what_an_earlier_job_left_is_not_read_again() {
    let world = MachineWorld {
        disk_bytes: 20_000,
        ..roomy()
    };
    let mut play = Play::new(world, (0..30).collect());
    play.play(&chances());
    let figures = play.core.figures();
    assert_eq!((figures.left_by_others, figures.from_source), (30, 30));
}
