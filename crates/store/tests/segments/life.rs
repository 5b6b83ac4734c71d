//! The life of extents: stored, read back, claimed, released, removed, found by the next process.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_store::disk::Name;
use forebay_store::{ExtentKey, Secret, Segments, StoreError, clean};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::common::{SEGMENT_BYTES, config, content, key, memory, open_on, read, secret, version};

#[test]
fn what_is_stored_is_found_by_the_next_process_on_a_real_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let uid = rustix::process::geteuid().as_raw();
    let open = || Segments::open(config(dir.path(), 1 << 20), &secret(), uid);
    {
        let segments = open().expect("it opens");
        for name in 0..50 {
            segments.put(key(name), version(1), &content(name, 700)).expect("there is room");
        }
        assert!(matches!(open(), Err(StoreError::InUse { .. })), "it is leased");
    }
    let segments = open().expect("it opens again");
    assert_eq!((segments.count(), segments.used_bytes()), (50, 35_000));
    for name in 0..50 {
        assert_eq!(read(&segments, name).expect("it is readable"), Some(content(name, 700)));
    }
    let objects = std::fs::read_dir(dir.path().join(format!("forebay-{uid}/objects"))).expect("it is there");
    assert!(objects.count() <= 4, "a file a segment, not a file an extent");
    segments.put(key(99), version(1), b"more").expect("it can be written to");
    drop(segments);
    let others = Segments::open(config(dir.path(), 1 << 20), &Secret::from_bytes([8; 32]), uid).expect("it opens");
    assert_eq!(others.count(), 0, "records of somebody else's are none");
    drop(others);
    let report = clean(dir.path(), uid).expect("it is cleaned");
    assert_eq!(report.left, 0);
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
}

#[test]
fn the_quota_holds_and_what_nobody_claims_goes_first_the_oldest_before_others() {
    let disk = memory();
    let segments = open_on(disk.clone(), 25_000).expect("it opens");
    for name in 0..25 {
        segments.put(key(name), version(1), &content(name, 1000)).expect("there is room");
    }
    assert!(segments.put(key(30), version(1), &[1; 1000]).expect_err("all is claimed").is_full());
    for name in [7, 3, 20] {
        segments.release(key(name));
    }
    assert!(segments.claim(key(7), version(1)), "it is there as long as nobody needs the room");
    segments.put(key(30), version(1), &[1; 1000]).expect("there is room now");
    assert_eq!(segments.find(key(3)), None);
    assert!(segments.find(key(7)).is_some() && segments.find(key(20)).is_some());
    assert!(!segments.claim(key(3), version(1)));
    let on_disk: u64 = disk.names().into_iter().map(|name| length(&disk, name)).max().unwrap_or(0);
    assert!(on_disk <= SEGMENT_BYTES && segments.used_bytes() <= 25_000);
    assert!(
        segments
            .put(key(40), version(1), &[0; 10_001])
            .expect_err("no segment is so long")
            .is_full()
    );
    assert!(segments.find(key(20)).is_some(), "nothing was given up for it");
}

fn length(disk: &forebay_store::disk::MemoryDisk, name: Name) -> u64 {
    let mut length = 0;
    disk.alter(name, |bytes| length = bytes.len() as u64);
    length
}

#[test]
fn a_version_is_never_taken_for_another() {
    let disk = memory();
    let segments = open_on(disk.clone(), 1 << 20).expect("it opens");
    segments.put(key(1), version(1), b"old").expect("there is room");
    assert!(!segments.read(key(1), version(2), &mut [0; 3]).expect("not a fault"));
    assert!(!segments.claim(key(1), version(2)));
    segments.put(key(1), version(2), b"new").expect("there is room");
    let mut bytes = [0; 3];
    assert!(!segments.read(key(1), version(1), &mut bytes).expect("not a fault"));
    assert!(segments.read(key(1), version(2), &mut bytes).expect("it is readable"));
    assert_eq!(&bytes, b"new");
    drop(segments);
    let segments = open_on(disk.after_crash(), 1 << 20).expect("it opens");
    assert_eq!(segments.find(key(1)).map(|found| found.version), Some(version(2)));
    assert_eq!(segments.count(), 1);
    assert_ne!(key(1), ExtentKey::new(b"/data/1", 0, 3));
    assert_ne!(key(1), ExtentKey::new(b"/data/1", 1, u64::MAX));
}

#[test]
fn f10_bytes_that_are_altered_are_a_miss_and_given_up() {
    let disk = memory();
    let segments = open_on(disk.clone(), 1 << 20).expect("it opens");
    for name in 0..3 {
        segments.put(key(name), version(1), &content(name, 1000)).expect("there is room");
    }
    for name in disk.names() {
        if matches!(name, Name::Object(_)) {
            disk.alter(name, |bytes| bytes[1500] ^= 1);
        }
    }
    assert!(matches!(read(&segments, 1), Err(StoreError::Damaged { .. })));
    assert_eq!(read(&segments, 1).expect("it is gone"), None);
    assert_eq!(read(&segments, 0).expect("it is well"), Some(content(0, 1000)));
    assert_eq!(read(&segments, 2).expect("it is well"), Some(content(2, 1000)));
}

#[test]
fn f9_a_torn_log_keeps_what_is_whole_before_it() {
    let disk = memory();
    let segments = open_on(disk.clone(), 1 << 20).expect("it opens");
    for name in 0..10 {
        segments.put(key(name), version(1), &content(name, 100)).expect("there is room");
    }
    drop(segments);
    let whole = length(&disk, Name::Catalogue);
    disk.alter(Name::Catalogue, |bytes| bytes.truncate(whole as usize - 5));
    let segments = open_on(disk.after_crash(), 1 << 20).expect("it opens");
    assert_eq!((segments.count(), segments.find(key(9))), (9, None));
    assert_eq!(read(&segments, 8).expect("it is readable"), Some(content(8, 100)));
    segments.put(key(9), version(1), &content(9, 100)).expect("it goes on");
    drop(segments);
    assert_eq!(open_on(disk.after_crash(), 1 << 20).expect("it opens").count(), 10);
}

#[test]
fn a_smaller_quota_gives_up_what_is_beyond_it_and_the_same_one_nothing() {
    let disk = memory();
    let segments = open_on(disk.clone(), 25_000).expect("it opens");
    for name in 0..25 {
        segments.put(key(name), version(1), &content(name, 1000)).expect("there is room");
    }
    drop(segments);
    assert_eq!(open_on(disk.after_crash(), 25_000).expect("it opens").count(), 25);
    let segments = open_on(disk.after_crash(), 12_000).expect("it opens");
    assert_eq!((segments.count(), segments.used_bytes()), (12, 12_000));
    for name in 0..25 {
        let found = read(&segments, name).expect("it is readable");
        assert!(found.is_none_or(|bytes| bytes == content(name, 1000)));
    }
    drop(segments);
    let segments = open_on(disk.after_crash(), 25_000).expect("it opens");
    assert_eq!(segments.count(), 12, "what was given up stays so");
}

#[test]
fn a_log_that_is_mostly_dead_is_written_anew() {
    let disk = memory();
    let segments = open_on(disk.clone(), 5000).expect("it opens");
    for name in 0..4000 {
        segments.put(key(name), version(1), &content(name, 1000)).expect("the oldest goes");
        segments.release(key(name));
    }
    let bytes = length(&disk, Name::Catalogue);
    assert!(bytes < 400_000, "{bytes}");
    drop(segments);
    let segments = open_on(disk.after_crash(), 5000).expect("it opens");
    assert_eq!(segments.count(), 5);
    assert_eq!(read(&segments, 3999).expect("it is readable"), Some(content(3999, 1000)));
}

#[test]
fn the_free_floor_is_kept() {
    let disk = memory();
    let config = forebay_store::SegmentsConfig {
        free_floor: forebay_store::FreeFloor::Bytes((64 << 20) - 5000),
        ..config(Path::new("/cache"), 1 << 20)
    };
    let segments = Segments::open_on(disk, "/cache/forebay-0".into(), config, &secret()).expect("it opens");
    segments.put(key(1), version(1), &[1; 3000]).expect("there is room");
    assert!(
        segments
            .put(key(2), version(1), &[1; 3000])
            .expect_err("it is others' room")
            .is_full()
    );
    assert_eq!(segments.count(), 1);
}

#[derive(Clone, Debug)]
enum SegmentMove {
    Put { name: u64, bytes: usize },
    Claim(u64),
    Release(u64),
    Forget(u64),
    Reopen,
}

fn moves() -> impl Strategy<Value = Vec<SegmentMove>> {
    let one = prop_oneof![
        6 => (0..40_u64, 0..3000_usize).prop_map(|(name, bytes)| SegmentMove::Put { name, bytes }),
        2 => (0..40_u64).prop_map(SegmentMove::Claim),
        5 => (0..40_u64).prop_map(SegmentMove::Release),
        1 => (0..40_u64).prop_map(SegmentMove::Forget),
        1 => Just(SegmentMove::Reopen),
    ];
    proptest::collection::vec(one, 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// Comparison with a map: claimed extents are stored, stored ones have the written bytes, and their total is within
    /// the quota.
    #[test]
    fn extents_are_there_whole_or_not_at_all(moves in moves()) {
        const QUOTA: u64 = 25_000;
        let disk = memory();
        let mut segments = open_on(disk.clone(), QUOTA).expect("it opens");
        let mut stored: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut claims: BTreeMap<u64, u32> = BTreeMap::new();
        for one in moves {
            match one {
                SegmentMove::Put { name, bytes } => {
                    // A version has one content.
                    let bytes = stored.get(&name).filter(|_| segments.find(key(name)).is_some()).cloned().unwrap_or_else(|| content(name, bytes));
                    match segments.put(key(name), version(1), &bytes) {
                        Ok(()) => {
                            stored.insert(name, bytes);
                            *claims.entry(name).or_default() += 1;
                        }
                        Err(error) => prop_assert!(error.is_full(), "{error}"),
                    }
                }
                SegmentMove::Claim(name) => {
                    if segments.claim(key(name), version(1)) {
                        *claims.entry(name).or_default() += 1;
                    }
                }
                SegmentMove::Release(name) => {
                    segments.release(key(name));
                    if let Some(count) = claims.get_mut(&name) {
                        *count = count.saturating_sub(1);
                    }
                }
                SegmentMove::Forget(name) => {
                    segments.forget(key(name)).expect("the disk is well");
                    claims.remove(&name);
                    prop_assert_eq!(segments.find(key(name)), None);
                }
                SegmentMove::Reopen => {
                    let before = segments.count();
                    drop(segments);
                    segments = open_on(disk.after_crash(), QUOTA).expect("it opens");
                    prop_assert_eq!(segments.count(), before);
                    claims.clear();
                }
            }
            prop_assert!(segments.used_bytes() <= QUOTA);
            for name in 0..40 {
                let found = read(&segments, name).expect("the disk is well");
                prop_assert!(found.is_some() || claims.get(&name).is_none_or(|count| *count == 0), "{name} is claimed");
                if let Some(found) = found {
                    prop_assert_eq!(Some(&found), stored.get(&name));
                }
            }
        }
    }
}
