//! Eviction to make room: the least recently used goes, never a copy in use, and never more than is needed.

use std::collections::{BTreeMap, BTreeSet};

use forebay_policy::eviction::{Candidate, Want, choose};
use forebay_policy::{Action, CopyId, Event, FillFirst, Space, TierIndex, step};
use proptest::prelude::*;

const ALL: Want = Want::as_many_as_there_are(u64::MAX);

fn candidate(record: u32, directory: u32, bytes: u64) -> Candidate {
    Candidate {
        record,
        copy: u64::from(record),
        directory,
        bytes,
        is_open: false,
    }
}

fn records(chosen: &[Candidate]) -> Vec<u32> {
    chosen.iter().map(|candidate| candidate.record).collect()
}

#[test]
fn the_directory_that_was_used_longest_ago_goes_first_and_no_more_than_is_needed() {
    let candidates = vec![candidate(0, 0, 10), candidate(1, 1, 10), candidate(2, 1, 10), candidate(3, 2, 10)];
    let unused_s = |directory: u32| [5, 900, 700][directory as usize];
    let chosen = |idle_s: u32, want: &Want| records(&choose(candidates.clone(), unused_s, idle_s, want));
    assert_eq!(chosen(0, &Want::as_many_as_there_are(15)), [1, 2]);
    assert_eq!(chosen(0, &ALL), [1, 2, 3, 0]);
    assert_eq!(chosen(600, &ALL), [1, 2, 3], "directory 0 is in use");
    assert!(chosen(0, &Want::as_many_as_there_are(0)).is_empty());
}

#[test]
fn nothing_goes_in_vain_and_not_too_much_at_once() {
    let candidates: Vec<Candidate> = (0..100).map(|record| candidate(record, 0, 10)).collect();
    let chosen = |bytes_min, bytes_max, copies_max| {
        let want = Want {
            bytes_min,
            bytes_max,
            copies_max,
        };
        choose(candidates.clone(), |_| 900, 600, &want).len()
    };
    assert_eq!(chosen(1001, 0, 5), 0, "there is not as much");
    assert_eq!(chosen(1000, 0, 5), 100, "what is needed goes, however many copies it takes");
    assert_eq!(chosen(15, 0, 5), 2);
    assert_eq!(chosen(15, 95, 50), 10, "more than is needed, up to a part of the tier");
    assert_eq!(chosen(15, 500, 5), 5, "or a number of copies");
}

#[test]
fn what_is_open_stays_and_so_does_a_copy_with_a_name_in_use() {
    let mut candidates = vec![candidate(0, 0, 10), candidate(1, 1, 10), candidate(2, 0, 10)];
    candidates[1].copy = 0;
    candidates[2].is_open = true;
    let unused_s = |directory: u32| [900, 5][directory as usize];
    assert!(choose(candidates.clone(), unused_s, 600, &ALL).is_empty());
    let both_names = choose(candidates, unused_s, 0, &ALL);
    assert_eq!(both_names.len(), 1, "a copy goes once");
}

const TIER: TierIndex = TierIndex(0);
const QUOTA: u64 = 1_000;
const IDLE_S: u32 = 3;

/// A tier as the agent keeps it, with time in seconds.
struct EvictionModel {
    placement: FillFirst,
    published: BTreeMap<u64, Candidate>,
    in_flight: BTreeMap<u64, Candidate>,
    used_at: BTreeMap<u32, u32>,
    now_s: u32,
    next: u32,
}

impl EvictionModel {
    fn new() -> Self {
        let spec = Space { bytes: QUOTA, inodes: 20 };
        Self {
            placement: FillFirst::new([spec]),
            published: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            used_at: BTreeMap::new(),
            now_s: 0,
            next: 0,
        }
    }

    fn place(&mut self, directory: u32, bytes: u64) -> bool {
        let offered = CopyId(u64::from(self.next));
        let offer = Event::Offer {
            copy: offered,
            size: bytes,
            now_ms: u64::from(self.now_s) * 1000,
        };
        let placed = matches!(step(&mut self.placement, offer), Action::Place { .. });
        if placed {
            self.in_flight.insert(offered.0, candidate(self.next, directory, bytes));
            self.next += 1;
        }
        placed
    }

    /// Reads a file without a copy.
    fn miss(&mut self, directory: u32, bytes: u64) -> Result<(), TestCaseError> {
        self.used_at.insert(directory, self.now_s);
        if self.place(directory, bytes) || bytes > QUOTA {
            return Ok(());
        }
        let unused_s = |directory: u32| self.now_s - self.used_at.get(&directory).copied().unwrap_or(0);
        let shortfall = self.placement.shortfall_bytes(TIER, bytes);
        prop_assert!(shortfall > 0, "it did not fit");
        let want = Want {
            bytes_min: shortfall,
            bytes_max: 0,
            copies_max: 0,
        };
        let chosen = choose(self.published.values().copied().collect(), unused_s, IDLE_S, &want);
        let oldest_left = self
            .published
            .values()
            .filter(|left| !left.is_open && !chosen.contains(left))
            .map(|left| unused_s(left.directory))
            .max();
        for gone in &chosen {
            prop_assert!(!gone.is_open, "{gone:?} is being read");
            prop_assert!(unused_s(gone.directory) >= IDLE_S, "{gone:?} is in use");
            prop_assert!(!self.in_flight.contains_key(&gone.copy), "{gone:?} is being made");
            prop_assert!(
                oldest_left.is_none_or(|left| unused_s(gone.directory) >= left),
                "{gone:?} was used after what stays"
            );
        }
        let copies: BTreeSet<u64> = chosen.iter().map(|gone| gone.copy).collect();
        prop_assert_eq!(copies.len(), chosen.len(), "one copy, one removal");
        let freed: u64 = chosen.iter().map(|gone| gone.bytes).sum();
        let last = chosen.last().map_or(0, |gone| gone.bytes);
        prop_assert!(chosen.is_empty() || freed - last < shortfall, "no more than is needed");
        for gone in &chosen {
            self.published.remove(&gone.copy);
            step(
                &mut self.placement,
                Event::Removed {
                    tier: TIER,
                    size: gone.bytes,
                },
            );
        }
        let fits = self.place(directory, bytes);
        prop_assert_eq!(fits, !chosen.is_empty(), "what goes makes room, or nothing goes");
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let all: Vec<&Candidate> = self.published.values().chain(self.in_flight.values()).collect();
        let copies: BTreeSet<u64> = all.iter().map(|one| one.copy).collect();
        prop_assert_eq!(copies.len(), all.len(), "a copy has one owner");
        let bytes: u64 = all.iter().map(|one| one.bytes).sum();
        prop_assert!(bytes <= QUOTA && all.len() <= 20, "{} bytes, {} copies", bytes, all.len());
        prop_assert_eq!(
            (bytes, all.len() as u64),
            (self.placement.used_bytes(TIER), self.placement.used_inodes(TIER))
        );
        Ok(())
    }
}

proptest! {
    #[test]
    fn p8_room_is_made_within_the_quota_and_never_from_what_is_in_use(
        steps in proptest::collection::vec((0u32..6, 0u32..4, 0u64..400, any::<prop::sample::Index>()), 1..200),
    ) {
        let mut model = EvictionModel::new();
        for (what, directory, bytes, index) in steps {
            match what {
                0 | 1 => model.miss(directory, bytes)?,
                2 => {
                    if let Some((copy, made)) = model.in_flight.pop_first() {
                        step(&mut model.placement, Event::Published(CopyId(copy)));
                        model.published.insert(copy, made);
                    }
                }
                3 => {
                    if let Some((copy, _)) = model.in_flight.pop_last() {
                        step(&mut model.placement, Event::Dropped(CopyId(copy)));
                    }
                }
                4 if !model.published.is_empty() => {
                    // A program opens a copy, or closes it.
                    let nth = index.index(model.published.len());
                    let opened = model.published.values_mut().nth(nth).expect("it is there");
                    opened.is_open = !opened.is_open;
                    let directory = opened.directory;
                    model.used_at.insert(directory, model.now_s);
                }
                _ => model.now_s += directory,
            }
            model.check()?;
        }
    }
}
