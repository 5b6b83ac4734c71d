//! Every operation of a whole life of a tier fails, in every way: once and for ever, before and after it was done.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use forebay_policy::{Action, CopyId, Event, FillFirst, TierIndex, step};
use forebay_store::disk::{FailingDisk, Fault, FaultKind, MemoryDisk, Name, When};
use forebay_store::testing::MemorySource;
use forebay_store::{StoreError, Tier, clean_on};
use rustix::io::Errno;

use crate::common::{BOOT, NEXT_BOOT, NOW, content, known, open_on, publish, read, recover};

const TOP: TierIndex = TierIndex(0);
const FILES: [(&[u8], usize); 5] = [(b"a", 3000), (b"b", 0), (b"c", 20_000), (b"d", 999), (b"e", 1)];

fn source(index: usize) -> MemorySource {
    MemorySource::new(index as u64 + 10, &content(index as u64, FILES[index].1))
}

fn expected(name: &[u8]) -> Vec<u8> {
    let index = FILES.iter().position(|(file, _)| *file == name).expect("a name of ours");
    content(index as u64, FILES[index].1)
}

/// Results that the caller got, and the copies that must follow from them.
struct LifeResults {
    state: FillFirst,
    published: BTreeMap<&'static [u8], u64>,
    removed: Vec<&'static [u8]>,
    /// Removals that failed: the copy may be there or not.
    unsure: Vec<&'static [u8]>,
    errors: Vec<StoreError>,
}

impl LifeResults {
    fn note<T>(&mut self, answer: Result<T, StoreError>) -> Option<T> {
        answer.map_err(|error| self.errors.push(error)).ok()
    }

    fn copy(&mut self, tier: &Tier, memory: &MemoryDisk, index: usize) {
        let (name, size) = FILES[index];
        let copy = CopyId(index as u64);
        let placed = step(
            &mut self.state,
            Event::Offer {
                copy,
                size: size as u64,
                now_ms: index as u64 * 100_000,
            },
        );
        if placed != (Action::Place { copy, tier: TOP }) {
            return;
        }
        match publish(tier, name, &source(index)) {
            Ok(id) => {
                step(&mut self.state, Event::Published(copy));
                self.published.insert(name, id);
                let mut bytes = Vec::new();
                memory.alter(Name::Object(id), |stored| bytes.clone_from(stored));
                assert_eq!(bytes, expected(name), "a published copy is whole");
            }
            Err(error) => {
                step(&mut self.state, Event::Dropped(copy));
                if error.is_full() {
                    step(
                        &mut self.state,
                        Event::Full {
                            tier: TOP,
                            size: size as u64,
                            now_ms: index as u64 * 100_000,
                        },
                    );
                }
                self.errors.push(error);
            }
        }
    }

    fn remove(&mut self, tier: &Tier, name: &'static [u8]) {
        let Some(id) = self.published.remove(name) else { return };
        match tier.remove(id) {
            Ok(()) => {
                self.removed.push(name);
                step(
                    &mut self.state,
                    Event::Removed {
                        tier: TOP,
                        size: expected(name).len() as u64,
                    },
                );
            }
            Err(error) => {
                self.unsure.push(name);
                self.errors.push(error);
            }
        }
    }
}

/// Opens, copies five files, removes one, compacts, reopens, recovers, verifies, reaps.
fn life(disk: &Arc<FailingDisk>, memory: &MemoryDisk) -> LifeResults {
    let mut told = LifeResults {
        state: FillFirst::new([crate::common::QUOTA]),
        published: BTreeMap::new(),
        removed: Vec::new(),
        unsure: Vec::new(),
        errors: Vec::new(),
    };
    let opened = open_on(disk.clone(), BOOT);
    if let Some(tier) = told.note(opened) {
        told.note(recover(&tier));
        for index in 0..3 {
            told.copy(&tier, memory, index);
        }
        told.note(tier.mark_used(b"/pfs/train/7", NOW));
        if let Some(id) = told.published.get(b"a".as_slice()).copied() {
            told.note(tier.publish_alias(id, b"/link", b"a"));
        }
        told.remove(&tier, b"a");
        told.note(tier.compact());
        for index in 3..5 {
            told.copy(&tier, memory, index);
        }
        told.remove(&tier, b"d");
        told.note(tier.room());
    }
    let opened = open_on(disk.clone(), NEXT_BOOT);
    if let Some(tier) = told.note(opened)
        && let Some((copies, ..)) = told.note(recover(&tier))
    {
        for kept in copies.values() {
            told.note(tier.verify(kept.id, kept.checksum, &kept.object));
        }
        told.note(tier.reap(&known(&copies), 100, &mut || {}));
    }
    told
}

/// Checks with a healthy disk: recovered copies are correct and complete in number, nothing else stays, and `clean`
/// removes everything.
fn afterwards(disk: &Arc<MemoryDisk>, told: &LifeResults) {
    let sum: usize = told.published.keys().chain(&told.unsure).map(|name| expected(name).len()).sum();
    assert_eq!(
        (told.state.used_bytes(TOP), told.state.in_flight()),
        (sum as u64, 0),
        "the quota counts what was said to be there"
    );
    let tier = open_on(disk.clone(), NEXT_BOOT).expect("a healthy disk opens");
    let (copies, ..) = recover(&tier).expect("and is recovered");
    let mut state = FillFirst::new([tier.quota()]);
    for (name, kept) in &copies {
        assert_eq!(read(&tier, kept.id).expect("a recovered copy opens"), expected(name));
        tier.verify(kept.id, kept.checksum, &kept.object).expect("and verifies");
        assert!(!told.removed.contains(&name.as_slice()), "what was removed stays removed");
        step(
            &mut state,
            Event::Adopt {
                copy: CopyId(kept.id),
                size: kept.identity.size,
                tier: TOP,
            },
        );
    }
    for (name, id) in &told.published {
        assert_eq!(copies.get(*name).map(|kept| kept.id), Some(*id), "what was published is kept");
    }
    tier.reap(&known(&copies), 100, &mut || {}).expect("the rest is reaped");
    let objects: Vec<_> = disk.names().into_iter().filter(|name| matches!(name, Name::Object(_))).collect();
    let mut expected_objects: Vec<_> = copies.values().map(|kept| Name::Object(kept.id)).collect();
    expected_objects.sort();
    assert_eq!(objects, expected_objects);
    let log_bytes = [Name::Lease, Name::Format, Name::Catalogue].map(|name| {
        let mut size = 0;
        disk.alter(name, |bytes| size = bytes.len() as u64);
        size
    });
    assert_eq!(
        disk.used_bytes() - log_bytes.iter().sum::<u64>(),
        state.used_bytes(TOP),
        "the quota counts what is there"
    );
    drop(tier);
    let report = clean_on(&**disk, Path::new("/tier/forebay-0")).expect("it is cleaned");
    assert_eq!((report.left, disk.used_bytes(), disk.names().len()), (0, 0, 0));
}

fn run(fault: Option<Fault>) -> (LifeResults, u64) {
    let memory = Arc::new(MemoryDisk::new(64 << 20, 10_000));
    let failing = Arc::new(FailingDisk::new(memory.clone(), fault));
    let told = life(&failing, &memory);
    for error in &told.errors {
        assert!(!error.is_source(), "the source is well: {error}");
    }
    afterwards(&memory, &told);
    (told, failing.operations())
}

fn sweep(kinds: &[FaultKind], check: impl Fn(&Fault, &LifeResults)) {
    let (told, operations) = run(None);
    assert!(
        told.errors.is_empty() && told.published.len() == 3 && operations > 60,
        "{operations} {:?}",
        told.errors
    );
    for fault in Fault::each(kinds, operations) {
        // Catches the panic, so that a failed assertion shows its fault.
        let told = std::panic::catch_unwind(|| run(Some(fault)).0).unwrap_or_else(|_| panic!("with {fault:?}"));
        check(&fault, &told);
    }
}

#[test]
fn f1_every_operation_meets_a_full_disk() {
    sweep(&[FaultKind::Error(Errno::NOSPC), FaultKind::Error(Errno::DQUOT)], |_, told| {
        assert!(told.errors.iter().all(StoreError::is_full), "{:?}", told.errors);
    });
}

#[test]
fn f2_every_operation_fails_as_on_a_broken_or_vanished_disk() {
    sweep(&[Errno::IO, Errno::ROFS, Errno::STALE].map(FaultKind::Error), |_, told| {
        let classed = |error: &StoreError| error.is_tier_fault() || error.errno() == Some(Errno::EXIST);
        assert!(told.errors.iter().all(classed), "{:?}", told.errors);
    });
}

#[test]
fn f15_every_operation_meets_a_lack_of_descriptors() {
    sweep(&[FaultKind::Error(Errno::MFILE)], |_, told| {
        assert!(told.errors.iter().all(|error| !error.is_tier_fault()), "{:?}", told.errors);
    });
}

#[test]
fn f4_every_operation_is_interrupted_or_short_or_stuck() {
    sweep(
        &[FaultKind::Error(Errno::INTR), FaultKind::Short, FaultKind::Stuck],
        |fault, told| {
            let harmless = match fault.kind {
                FaultKind::Short => true,
                FaultKind::Error(_) => !fault.for_ever && fault.when == When::Before,
                FaultKind::Stuck => false,
            };
            assert!(!harmless || told.errors.is_empty(), "{fault:?}: {:?}", told.errors);
        },
    );
}
