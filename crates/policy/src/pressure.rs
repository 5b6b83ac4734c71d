//! Memory pressure: limits the memory of copies, and the amount to give back when memory grows short.
//!
//! Copies take memory that belongs to the job: when it runs out, the kernel kills, and it kills the program. So a
//! floor of memory always stays free. Copies are placed while twice the floor is free, and given back when less than
//! the floor is: between the two nothing moves.

/// State of the memory that copies count in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobMemory {
    /// All that may be taken by whatever counts in it, in bytes.
    pub limit_bytes: u64,
    /// Bytes that are free, or would be as soon as they are needed (clean pages of files).
    pub free_bytes: u64,
    /// Part of the last ten seconds in which something had to wait for memory, in percent.
    pub stalled_percent: f64,
}

/// Part of the limit that stays free: one in this many.
const FLOOR_PART: u64 = 16;
/// Bounds of the floor in bytes: less than a program grows in a fifth of a second would be useless, more would be
/// waste.
const FLOOR_MIN_BYTES: u64 = 16 << 20;
const FLOOR_MAX_BYTES: u64 = 2 << 30;
/// Percentage of time stalled on memory from which memory is short, however much seems free.
pub const STALLED_PERCENT: f64 = 10.0;
/// Pause in milliseconds after giving back for a stall: a stall shows late (an average of ten seconds), so the
/// response is slow.
pub const STALL_PAUSE_MS: u64 = 2_000;
/// Part of the bytes of copies that goes each time: one in this many.
const STALL_PART: u64 = 8;
/// First pause in milliseconds after a look that found no copies to give back because all are open; each further such
/// look doubles it.
pub const FRUITLESS_PAUSE_FIRST_MS: u64 = 400;
/// Longest such pause.
pub const FRUITLESS_PAUSE_MAX_MS: u64 = 6_400;
/// Fall of free memory that ends the pause, in parts of the floor: open copies may have been closed, and time is
/// short.
const FRUITLESS_FALL_PART: u64 = 4;

impl JobMemory {
    /// Returns the bytes that stay free.
    pub fn floor_bytes(&self) -> u64 {
        (self.limit_bytes / FLOOR_PART).clamp(FLOOR_MIN_BYTES, FLOOR_MAX_BYTES)
    }

    /// Returns the bytes that new copies may take now in each of `tiers`. Tiers fill at the same time, and none sees
    /// before the next look how much the others take. The rest is shared out again then.
    pub fn room_bytes_each(&self, tiers: u64) -> u64 {
        if self.is_stalled() {
            0
        } else {
            self.free_bytes.saturating_sub(2 * self.floor_bytes()) / tiers.max(1)
        }
    }

    fn is_stalled(&self) -> bool {
        self.stalled_percent >= STALLED_PERCENT
    }
}

/// State between looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressure {
    answered_ms: Option<u64>,
    /// The last look, if it found nothing.
    fruitless: Option<Fruitless>,
}

#[derive(Clone, Copy, Debug)]
struct Fruitless {
    at_ms: u64,
    /// Pause in milliseconds after the look.
    pause_ms: u64,
    /// Free bytes at the look.
    free_bytes: u64,
}

impl Pressure {
    /// Returns the bytes of copies to give back now, of the `held` bytes in all; `now_ms` is on any clock that does
    /// not run backwards.
    pub fn give_back(&mut self, memory: &JobMemory, held: u64, now_ms: u64) -> u64 {
        let floor = memory.floor_bytes();
        if memory.free_bytes < floor {
            return (2 * floor - memory.free_bytes).min(held);
        }
        let is_due = self.answered_ms.is_none_or(|at| now_ms.saturating_sub(at) >= STALL_PAUSE_MS);
        if memory.is_stalled() && is_due {
            self.answered_ms = Some(now_ms);
            return held.div_ceil(STALL_PART);
        }
        if !memory.is_stalled() {
            self.fruitless = None;
        }
        0
    }

    /// Returns true if it is time to look for copies to give back. Each look goes through all names and all
    /// processes, in a moment in which the machine has little to spare.
    pub fn is_look_due(&self, memory: &JobMemory, now_ms: u64) -> bool {
        self.fruitless.is_none_or(|last| {
            let fallen = last.free_bytes.saturating_sub(memory.free_bytes);
            now_ms.saturating_sub(last.at_ms) >= last.pause_ms || fallen >= memory.floor_bytes() / FRUITLESS_FALL_PART
        })
    }

    /// Records the bytes that a look has given back; `None` if the open copies could not be determined. That does not
    /// mean that all of them are open, so it is tried again after the shortest pause.
    pub fn looked(&mut self, given_bytes: Option<u64>, memory: &JobMemory, now_ms: u64) {
        let pause_ms = match (given_bytes, self.fruitless) {
            (Some(0), Some(last)) => (last.pause_ms * 2).min(FRUITLESS_PAUSE_MAX_MS),
            (Some(0), None) | (None, _) => FRUITLESS_PAUSE_FIRST_MS,
            (Some(_), _) => {
                self.fruitless = None;
                return;
            }
        };
        self.fruitless = Some(Fruitless {
            at_ms: now_ms,
            pause_ms,
            free_bytes: memory.free_bytes,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(limit_mib: u64, free_mib: u64) -> JobMemory {
        JobMemory {
            limit_bytes: limit_mib << 20,
            free_bytes: free_mib << 20,
            stalled_percent: 0.0,
        }
    }

    #[test]
    fn f13_between_the_floor_and_twice_the_floor_nothing_moves() {
        let held = 100 << 20;
        for (free, room, back) in [(100, 60, 0), (40, 0, 0), (20, 0, 0), (19, 0, 21), (0, 0, 40)] {
            let memory = memory(320, free);
            assert_eq!(memory.room_bytes_each(1) >> 20, room, "{free} MiB free");
            assert_eq!(memory.room_bytes_each(4) >> 20, room / 4, "{free} MiB free");
            assert_eq!(Pressure::default().give_back(&memory, held, 0) >> 20, back, "{free} MiB free");
        }
    }

    #[test]
    fn f13_waiting_for_memory_is_answered_step_by_step() {
        let stalled = JobMemory {
            stalled_percent: STALLED_PERCENT,
            ..memory(1 << 20, 1 << 19)
        };
        let mut pressure = Pressure::default();
        assert_eq!(stalled.room_bytes_each(1), 0);
        assert_eq!(pressure.give_back(&stalled, 80, 5), 10);
        assert_eq!(pressure.give_back(&stalled, 70, 5 + STALL_PAUSE_MS - 1), 0);
        assert_eq!(pressure.give_back(&stalled, 1, 5 + STALL_PAUSE_MS), 1);
    }

    #[test]
    fn f13_where_all_copies_are_open_looks_become_rare_and_are_back_with_the_first_that_is_not() {
        let (mut pressure, short) = (Pressure::default(), memory(320, 10));
        let looks = |pressure: &mut Pressure, from_ms: u64, given: u64| {
            let mut looks = 0;
            for now_ms in (from_ms..from_ms + 60_000).step_by(200) {
                if pressure.is_look_due(&short, now_ms) {
                    pressure.looked(Some(given), &short, now_ms);
                    looks += 1;
                }
            }
            looks
        };
        let fruitless = looks(&mut pressure, 0, 0);
        assert!((60_000 / FRUITLESS_PAUSE_MAX_MS..20).contains(&fruitless), "{fruitless}");
        assert_eq!(looks(&mut pressure, 100_000, 1), 300, "each time it is looked at the memory");
    }

    #[test]
    fn f13_a_look_without_an_answer_is_tried_again_soon() {
        let (mut pressure, short) = (Pressure::default(), memory(320, 10));
        for now_ms in (0..100_000).step_by(10_000) {
            pressure.looked(Some(0), &short, now_ms);
        }
        pressure.looked(None, &short, 100_000);
        assert!(!pressure.is_look_due(&short, 100_000 + FRUITLESS_PAUSE_FIRST_MS - 1));
        assert!(pressure.is_look_due(&short, 100_000 + FRUITLESS_PAUSE_FIRST_MS));
    }

    #[test]
    fn f13_once_memory_was_not_short_a_look_is_due_at_once() {
        let mut pressure = Pressure::default();
        pressure.looked(Some(0), &memory(320, 10), 0);
        assert!(!pressure.is_look_due(&memory(320, 10), 1));
        assert_eq!(pressure.give_back(&memory(320, 20), 1 << 20, 2), 0);
        assert!(pressure.is_look_due(&memory(320, 10), 3));
    }

    proptest! {
        /// After any number of fruitless looks, free memory falls by no more than a quarter of the floor plus the
        /// program's growth between two moments before the next look.
        #[test]
        fn f13_a_fruitless_look_does_not_blind(
            limit_mib in 64u64..1 << 20,
            steps in proptest::collection::vec((0.0f64..0.1, 1u64..400), 1..200),
        ) {
            let mut seen = memory(limit_mib, 0);
            let floor = seen.floor_bytes();
            seen.free_bytes = floor - 1;
            let (mut pressure, mut now_ms, mut at_look) = (Pressure::default(), 0, seen.free_bytes);
            for (part, pause_ms) in steps {
                if pressure.is_look_due(&seen, now_ms) {
                    pressure.looked(Some(0), &seen, now_ms);
                    at_look = seen.free_bytes;
                }
                prop_assert!(at_look - seen.free_bytes < floor / 4);
                seen.free_bytes = seen.free_bytes.saturating_sub((floor as f64 * part) as u64);
                now_ms += pause_ms;
            }
        }

        /// A program grows by less than the floor between two looks; copies grow by the room. The kernel never has to
        /// kill.
        #[test]
        fn f13_memory_never_runs_out(
            limit_mib in 64u64..1 << 20,
            tiers in 1u64..5,
            growth in proptest::collection::vec((0.0f64..1.0, any::<bool>()), 1..100),
        ) {
            let limit = limit_mib << 20;
            let (mut program, mut copies) = (0u64, 0u64);
            let mut pressure = Pressure::default();
            for (at, (part, places)) in growth.into_iter().enumerate() {
                let seen = JobMemory { limit_bytes: limit, free_bytes: limit - program - copies, stalled_percent: 0.0 };
                let back = pressure.give_back(&seen, copies, at as u64);
                prop_assert!(back <= copies);
                copies -= back;
                if places {
                    copies += tiers * seen.room_bytes_each(tiers);
                }
                // All that the program can take before the next look; or, where there are no copies, all that there
                // is.
                let most = if copies == 0 { limit - program } else { seen.floor_bytes().saturating_sub(1) };
                program += ((most as f64 * part) as u64).min(limit - program);
                prop_assert!(program + copies <= limit, "{program} + {copies} of {limit}");
            }
        }
    }
}
