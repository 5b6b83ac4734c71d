//! Model check: every order in which a rank and the agent can take their steps on a ring of two slots, each step being
//! one call of either side. Each request is seen once and answered once, each release is seen once, no unread word is
//! overwritten, and nobody sleeps while there is work.
//!
//! A step is one publication or one look; nobody looks at what a call stores before that. The stress test in
//! `request_ring.rs` has the processor's own order.

mod memory;

use std::collections::HashSet;

use forebay_contract::{
    Region,
    request_ring::{RequestRing, RingReader, SampleAnswer, SampleRequest},
};

const SLOTS: u32 = 2;
/// Number of requests: each slot is used three times, sometimes by a request that was released without an answer.
const SEQUENCES: u64 = 6;

fn wanted(sequence: u64) -> SampleRequest {
    SampleRequest {
        sample: sequence as u32 + 1,
        epoch: 7,
        iteration: sequence as u32,
    }
}

fn right(sequence: u64) -> SampleAnswer {
    if sequence.is_multiple_of(3) {
        return SampleAnswer::Refused;
    }
    SampleAnswer::Ready {
        offset: sequence * 100,
        length: sequence as u32 + 1,
    }
}

/// A rank that makes one request after the other, and releases each when it has been answered. It releases those in
/// `hasty`, one bit each, without waiting for the answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RingRank {
    hasty: u8,
    asked: u64,
    /// Sequence numbers that are open.
    open: Vec<u64>,
    released: u64,
    /// True if the doorbell is to be rung.
    rings: bool,
    wait: RingWait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RingWait {
    Not,
    /// The rank has announced that it waits, and is to look once more.
    Begun {
        seen: u32,
    },
    /// The rank sleeps until the word changes and somebody wakes it.
    Asleep {
        seen: u32,
    },
    Woken,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RingAgent {
    hearing: RingReader,
    at: At,
    /// Sequence numbers that were seen and not answered; released ones are not answered any more.
    due: Vec<u64>,
    heard: Vec<u64>,
    over: Vec<u64>,
    is_rung: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// The agent has announced that it wants to be woken.
    Sleepy,
    Asleep,
    Awake,
    /// The agent has read `asked`.
    Looked {
        asked: u64,
    },
    Answering,
    /// The agent is to wake the rank if that waits.
    Answered,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RingWorld {
    bytes: Vec<u8>,
    rank: RingRank,
    agent: RingAgent,
}

impl RingRank {
    /// Returns the steps that are possible now: none if it sleeps or is done.
    fn steps(&self, ring: &RequestRing<'_>) -> Vec<fn(&mut Self, &RequestRing<'_>)> {
        if self.rings {
            // The world rings for the rank.
            return Vec::new();
        }
        match self.wait {
            RingWait::Asleep { .. } => return Vec::new(),
            RingWait::Begun { .. } => return vec![Self::look_again],
            RingWait::Woken => return vec![Self::wait_over],
            RingWait::Not => {}
        }
        let mut steps: Vec<fn(&mut Self, &RequestRing<'_>)> = Vec::new();
        let is_free = self.open.iter().all(|sequence| self.asked - sequence < u64::from(SLOTS));
        if self.asked < SEQUENCES && is_free && ring.may_put_to(self.asked + 1) {
            steps.push(Self::ask);
        }
        if let Some(&oldest) = self.open.first() {
            if ring.answer(oldest) != SampleAnswer::Pending || self.hasty & 1 << oldest != 0 {
                steps.push(Self::release);
            } else {
                steps.push(Self::wait);
            }
        }
        steps
    }

    fn ask(&mut self, ring: &RequestRing<'_>) {
        ring.put(self.asked, wanted(self.asked));
        self.open.push(self.asked);
        self.asked += 1;
        self.rings = ring.set_asked(self.asked);
    }

    fn release(&mut self, ring: &RequestRing<'_>) {
        let sequence = self.open.remove(0);
        let answer = ring.answer(sequence);
        assert!(
            answer == SampleAnswer::Pending || answer == right(sequence),
            "sequence {sequence} is answered {answer:?}"
        );
        ring.release(self.released, sequence);
        self.released += 1;
        self.rings = ring.set_released(self.released);
    }

    fn wait(&mut self, ring: &RequestRing<'_>) {
        self.wait = RingWait::Begun { seen: ring.wait_begins() };
    }

    fn look_again(&mut self, ring: &RequestRing<'_>) {
        let RingWait::Begun { seen } = self.wait else { unreachable!() };
        let is_answered = ring.answer(self.open[0]) != SampleAnswer::Pending;
        // The kernel compares the word before it lets anybody sleep.
        let is_changed = ring.answers().load(std::sync::atomic::Ordering::SeqCst) != seen;
        self.wait = if is_answered || is_changed {
            RingWait::Woken
        } else {
            RingWait::Asleep { seen }
        };
    }

    fn wait_over(&mut self, ring: &RequestRing<'_>) {
        ring.wait_over();
        self.wait = RingWait::Not;
    }
}

impl RingAgent {
    fn step(&mut self, ring: &RequestRing<'_>, rank: &mut RingRank) {
        self.at = match self.at {
            At::Asleep => {
                self.is_rung = false;
                ring.set_sleeping(false);
                At::Awake
            }
            At::Awake => At::Looked { asked: ring.asked() },
            At::Looked { asked } => {
                self.look(ring, asked);
                At::Answering
            }
            At::Answering => {
                if let Some(sequence) = self.due.pop() {
                    ring.set_answer(sequence, right(sequence));
                    if self.due.is_empty() { At::Answered } else { At::Answering }
                } else {
                    ring.set_sleeping(true);
                    At::Sleepy
                }
            }
            At::Answered => {
                if ring.answered() && matches!(rank.wait, RingWait::Asleep { .. }) {
                    rank.wait = RingWait::Woken;
                }
                ring.set_sleeping(true);
                At::Sleepy
            }
            At::Sleepy if self.hearing.has_news(ring) => {
                ring.set_sleeping(false);
                At::Awake
            }
            At::Sleepy => At::Asleep,
        };
    }

    fn look(&mut self, ring: &RequestRing<'_>, asked: u64) {
        let news = self.hearing.look(ring, asked).expect("the rank keeps to the rules");
        for sequence in news.asked {
            assert_eq!(
                (ring.wanted(sequence), self.heard.len() as u64),
                (wanted(sequence), sequence),
                "heard of once, in order, and right"
            );
            self.heard.push(sequence);
            self.due.push(sequence);
        }
        for nth in news.released {
            let sequence = u64::from(ring.released_sequence(nth));
            assert!(
                self.heard.contains(&sequence) && !self.over.contains(&sequence),
                "sequence {sequence} is over once, and was asked for"
            );
            self.over.push(sequence);
            self.due.retain(|due| *due != sequence);
        }
        self.hearing.heard(ring);
    }
}

/// Explores all worlds that can follow from the first one.
fn explore(hasty: u8) -> usize {
    let region = memory::region(RequestRing::bytes(SLOTS));
    let ring = RequestRing::create(region, SLOTS).expect("room");
    let first = RingWorld {
        bytes: saved(region),
        rank: RingRank {
            hasty,
            asked: 0,
            open: Vec::new(),
            released: 0,
            rings: false,
            wait: RingWait::Not,
        },
        agent: RingAgent {
            hearing: RingReader::default(),
            at: At::Awake,
            due: Vec::new(),
            heard: Vec::new(),
            over: Vec::new(),
            is_rung: false,
        },
    };
    let (mut seen, mut left) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(world) = left.pop() {
        let mut next = Vec::new();
        let mut follow = |step: &dyn Fn(&mut RingWorld)| {
            restore(region, &world.bytes);
            let mut world = world.clone();
            step(&mut world);
            world.bytes = saved(region);
            next.push(world);
        };
        restore(region, &world.bytes);
        for step in world.rank.steps(&ring) {
            follow(&|world| step(&mut world.rank, &ring));
        }
        if world.rank.rings {
            follow(&|world| {
                world.rank.rings = false;
                world.agent.is_rung = true;
            });
        }
        if world.agent.at != At::Asleep || world.agent.is_rung {
            follow(&|world| world.agent.step(&ring, &mut world.rank));
        }
        if next.is_empty() {
            assert_eq!(
                world.rank.released, SEQUENCES,
                "nobody moves any more: {:?} {:?}",
                world.rank, world.agent
            );
            assert_eq!(
                (world.agent.heard.len(), world.agent.over.len()),
                (SEQUENCES as usize, SEQUENCES as usize),
                "{:?}",
                world.agent
            );
        }
        left.extend(next.into_iter().filter(|world| seen.insert(world.clone())));
    }
    seen.len()
}

/// Returns the bytes of the ring that are ever written.
fn saved(region: Region<'_>) -> Vec<u8> {
    region.bytes(0, RequestRing::bytes(SLOTS) as u64).expect("it is as long").to_vec()
}

fn restore(region: Region<'_>, bytes: &[u8]) {
    // SAFETY: the test's own memory, of that length, and one thread.
    unsafe { region.base().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

#[test]
fn whatever_order_both_sides_move_in() {
    for hasty in [0, 0b01_0010, 0b11_1111] {
        let worlds = explore(hasty);
        assert!(worlds > 100, "there are more orders than {worlds}");
    }
}
