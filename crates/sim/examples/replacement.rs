//! Comparison of `fill_first` and `lru` for a full tier. Whole files in directories on one node with one tier; the
//! decisions are those of the agent (`policy::fill_first`, `policy::eviction`), and so is its knowledge: the time of
//! the last use of each directory.
//!
//! `cargo run --release -p forebay-sim --example replacement` prints the table of docs/benchmarks.md.

#![expect(clippy::print_stdout, reason = "a table is what it is for")]

use std::collections::BTreeMap;

use forebay_policy::eviction::{Candidate, Want, choose};
use forebay_policy::{Action, CopyId, Event, FillFirst, Space, TierIndex, step};

/// Files that the tier holds; all are of one size.
const TIER_FILES: u64 = 10_000;
const FILE_BYTES: u64 = 100_000;
const FILES_A_DIRECTORY: u32 = 100;
/// Seconds that reading all files once takes, for any number of files.
const EPOCH_S: u64 = 1_800;
/// Settings of the agent: the default of `lru`, the part of a tier's bytes and the number of copies that are freed in
/// one go, and the pause after there was nothing to free.
const IDLE_S: u32 = 600;
const FREED_PART: u64 = 64;
const FREED_COPIES: usize = 1024;
const NO_VICTIMS_PAUSE_S: u64 = 5;

/// The files that an epoch reads, by number and in order.
type FileEpoch = Vec<u32>;

#[derive(Clone, Copy)]
enum TierPolicyUnderTest {
    FillFirst,
    Lru,
}

/// One node with one tier.
struct TierNode {
    policy: TierPolicyUnderTest,
    placement: FillFirst,
    /// Copies by file.
    copies: BTreeMap<u32, Candidate>,
    /// Time of the last use by directory, in seconds.
    used_at: BTreeMap<u32, u64>,
    no_victims_until_s: u64,
    next: u32,
}

impl TierNode {
    fn new(policy: TierPolicyUnderTest) -> Self {
        let spec = Space {
            bytes: TIER_FILES * FILE_BYTES,
            inodes: u64::MAX,
        };
        Self {
            policy,
            placement: FillFirst::new([spec]),
            copies: BTreeMap::new(),
            used_at: BTreeMap::new(),
            no_victims_until_s: 0,
            next: 0,
        }
    }

    /// Reads a file; returns true if the source was asked.
    fn read(&mut self, file: u32, now_s: u64) -> bool {
        let directory = file / FILES_A_DIRECTORY;
        self.used_at.insert(directory, now_s);
        if self.copies.contains_key(&file) {
            return false;
        }
        if !self.place(file, now_s) && matches!(self.policy, TierPolicyUnderTest::Lru) && now_s >= self.no_victims_until_s {
            let unused_s = |directory: u32| self.used_at.get(&directory).map_or(u32::MAX, |at| (now_s - at) as u32);
            let want = Want {
                bytes_min: FILE_BYTES,
                bytes_max: TIER_FILES * FILE_BYTES / FREED_PART,
                copies_max: FREED_COPIES,
            };
            let chosen = choose(self.copies.values().copied().collect(), unused_s, IDLE_S, &want);
            if chosen.is_empty() {
                self.no_victims_until_s = now_s + NO_VICTIMS_PAUSE_S;
            }
            for gone in chosen {
                self.copies.remove(&gone.record);
                let removed = Event::Removed {
                    tier: TierIndex(0),
                    size: gone.bytes,
                };
                step(&mut self.placement, removed);
            }
            self.place(file, now_s);
        }
        true
    }

    fn place(&mut self, file: u32, now_s: u64) -> bool {
        let copy = CopyId(u64::from(self.next));
        let offer = Event::Offer {
            copy,
            size: FILE_BYTES,
            now_ms: now_s * 1000,
        };
        let Action::Place { .. } = step(&mut self.placement, offer) else {
            return false;
        };
        step(&mut self.placement, Event::Published(copy));
        let made = Candidate {
            record: file,
            copy: copy.0,
            directory: file / FILES_A_DIRECTORY,
            bytes: FILE_BYTES,
            is_open: false,
        };
        self.copies.insert(file, made);
        self.next += 1;
        true
    }
}

/// Returns the share of opens that the source answered after the first epoch.
fn from_source(policy: TierPolicyUnderTest, epochs: &[FileEpoch]) -> f64 {
    let mut node = TierNode::new(policy);
    let (mut missed, mut all) = (0, 0);
    for (nth, epoch) in epochs.iter().enumerate() {
        for (at, file) in epoch.iter().enumerate() {
            let now_s = nth as u64 * EPOCH_S + at as u64 * EPOCH_S / epoch.len() as u64;
            let from_source = node.read(*file, now_s);
            if nth > 0 {
                missed += u32::from(from_source);
                all += 1;
            }
        }
    }
    f64::from(missed) / f64::from(all)
}

/// Shuffles by Fisher and Yates, with a generator that is the same everywhere.
fn shuffled(mut files: FileEpoch, seed: u64) -> FileEpoch {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for at in (1..files.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        files.swap(at, (state % (at as u64 + 1)) as usize);
    }
    files
}

/// Returns epochs over one set of files.
fn again(files: std::ops::Range<u32>, epochs: u64, is_shuffled: bool) -> Vec<FileEpoch> {
    let order = |nth| {
        if is_shuffled {
            shuffled(files.clone().collect(), nth + 1)
        } else {
            files.clone().collect()
        }
    };
    (0..epochs).map(order).collect()
}

fn main() {
    let tier = TIER_FILES as u32;
    let double = 0..2 * tier;
    let set = tier * 4 / 5;
    let one_after_another = (0..5).flat_map(|nth| again(nth * set..(nth + 1) * set, 4, true)).collect();
    let drifting = (0..20)
        .map(|nth| shuffled((nth * set / 10..nth * set / 10 + set).collect(), u64::from(nth) + 1))
        .collect();
    let workloads: [(&str, Vec<FileEpoch>); 5] = [
        ("one set, 2 x the tier, in random order", again(double.clone(), 10, true)),
        ("one set, 2 x the tier, file after file", again(double, 10, false)),
        ("one set, 1.25 x the tier, file after file", again(0..tier * 5 / 4, 10, false)),
        ("five sets one after another, each 0.8 x the tier, 4 epochs", one_after_another),
        ("a set of 0.8 x the tier, a tenth of it new each epoch", drifting),
    ];
    println!(
        "{:<60}{:>12}{:>8}",
        "opens that the source answers after the first epoch", "fill_first", "lru"
    );
    for (name, epochs) in &workloads {
        let [fill_first, lru] = [TierPolicyUnderTest::FillFirst, TierPolicyUnderTest::Lru].map(|policy| from_source(policy, epochs));
        println!("{name:<60}{:>10.1} %{:>6.1} %", fill_first * 100.0, lru * 100.0);
    }
}
