//! Every operation of a whole life of segments fails, in every way: once and for ever, before and after it was done.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use forebay_store::disk::{FailingDisk, Fault, FaultKind, MemoryDisk, Name, When};
use forebay_store::{StoreError, clean_on};
use rustix::io::Errno;

use crate::common::{content, key, open_on, read, version};

const QUOTA: u64 = 12_000;
/// Sizes of extents: all of one round fit, if those of the round before are removed.
const SIZES: [usize; 6] = [3000, 0, 4000, 999, 1500, 1];

/// Results that the caller got.
#[derive(Default)]
struct SegmentLife {
    stored: BTreeMap<u64, usize>,
    errors: Vec<StoreError>,
}

impl SegmentLife {
    fn note<T>(&mut self, answer: Result<T, StoreError>) -> Option<T> {
        answer.map_err(|error| self.errors.push(error)).ok()
    }
}

/// Opens, stores, reads, releases, stores in freed room, removes; and once more.
fn life(disk: &Arc<FailingDisk>) -> SegmentLife {
    let mut told = SegmentLife::default();
    for round in 0..2_u64 {
        let opened = open_on(disk.clone(), QUOTA);
        let Some(segments) = told.note(opened) else { continue };
        for (nth, bytes) in SIZES.into_iter().enumerate() {
            let name = round * 100 + nth as u64;
            let put = segments.put(key(name), version(1), &content(name, bytes));
            if told.note(put).is_some() {
                told.stored.insert(name, bytes);
            }
            let found = read(&segments, name);
            if let Some(Some(found)) = told.note(found) {
                assert_eq!(found, content(name, bytes), "what is read is what was stored");
            }
        }
        // Others may come in their place, in the next round for certain.
        for nth in 0..4 {
            segments.release(key(round * 100 + nth));
        }
        told.stored.remove(&(round * 100 + 5));
        told.note(segments.forget(key(round * 100 + 5)));
    }
    told
}

/// Checks with a healthy disk: every stored extent is complete, the quota is kept, and `clean` removes everything.
fn afterwards(disk: &Arc<MemoryDisk>, told: &SegmentLife) {
    let segments = open_on(disk.after_crash(), QUOTA).expect("a healthy disk opens");
    let sizes: BTreeMap<u64, usize> = (0..2_u64)
        .flat_map(|round| {
            SIZES
                .into_iter()
                .enumerate()
                .map(move |(nth, bytes)| (round * 100 + nth as u64, bytes))
        })
        .collect();
    for (name, bytes) in &sizes {
        let found = read(&segments, *name).expect("nothing is damaged");
        assert!(
            found.is_none_or(|found| found == content(*name, *bytes)),
            "{name} is whole or not there"
        );
    }
    if told.errors.is_empty() {
        for name in told.stored.keys().filter(|name| **name >= 100) {
            assert!(segments.find(key(*name)).is_some(), "{name} was stored last");
        }
    }
    assert!(segments.used_bytes() <= QUOTA);
    // The segments can still be used.
    segments
        .put(key(7), version(1), &content(7, 2000))
        .expect("a healthy disk takes it");
    assert_eq!(read(&segments, 7).expect("it is readable"), Some(content(7, 2000)));
    drop(segments);
    let report = clean_on(&**disk, Path::new("/cache/forebay-0")).expect("it is cleaned");
    assert_eq!((report.left, disk.used_bytes(), disk.names()), (0, 0, Vec::<Name>::new()));
}

fn run(fault: Option<Fault>) -> (SegmentLife, u64) {
    let memory = Arc::new(MemoryDisk::new(64 << 20, 10_000));
    let failing = Arc::new(FailingDisk::new(memory.clone(), fault));
    let told = life(&failing);
    afterwards(&memory, &told);
    (told, failing.operations())
}

fn sweep(kinds: &[FaultKind], check: impl Fn(&Fault, &SegmentLife)) {
    let (told, operations) = run(None);
    assert!(told.errors.is_empty() && operations > 50, "{operations} {:?}", told.errors);
    for fault in Fault::each(kinds, operations) {
        // Catches the panic, so that a failed assertion shows its fault.
        let told = std::panic::catch_unwind(|| run(Some(fault)).0).unwrap_or_else(|_| panic!("with {fault:?}"));
        check(&fault, &told);
    }
}

#[test]
fn f1_every_operation_meets_a_full_disk() {
    sweep(&[FaultKind::Error(Errno::NOSPC)], |_, told| {
        let is_room = |error: &StoreError| error.is_full() || error.errno() == Some(Errno::IO);
        assert!(told.errors.iter().all(is_room), "{:?}", told.errors);
    });
}

#[test]
fn f2_every_operation_fails_as_on_a_broken_or_vanished_disk() {
    sweep(&[Errno::IO, Errno::ROFS].map(FaultKind::Error), |_, told| {
        let classed = |error: &StoreError| error.is_tier_fault() || error.errno() == Some(Errno::EXIST);
        assert!(told.errors.iter().all(classed), "{:?}", told.errors);
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
