//! Interference of other threads between a caller's steps.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::disk::MemoryDisk;

const QUOTA_BYTES: u64 = 4000;

fn segments() -> Segments {
    let config = SegmentsConfig {
        dir: "/cache".into(),
        quota_bytes: QUOTA_BYTES,
        segment_bytes: QUOTA_BYTES,
        free_floor: FreeFloor::Bytes(0),
    };
    let disk = Arc::new(MemoryDisk::new(1 << 20, 100));
    Segments::open_on(disk, "/cache/forebay-0".into(), config, &Secret::from_bytes([7; 32])).unwrap()
}

fn key(name: u8) -> ExtentKey {
    ExtentKey::new(&[name], 0, u64::MAX)
}

fn version(ino: u64) -> FileVersion {
    FileVersion::of(&Identity {
        ino,
        ..Identity::default()
    })
}

/// Returns extent 1, whose storing a caller is about to finish.
fn begun(segments: &Segments, version: FileVersion, bytes: &[u8]) -> Stored {
    let place = segments.reserve(&mut segments.state(), bytes.len() as u64).unwrap();
    let file = segments.file(place.segment).unwrap();
    disk::write_all_at(&*file, bytes, place.offset).unwrap();
    Stored {
        key: key(1),
        version,
        segment: place.segment,
        offset: place.offset,
        bytes: bytes.len() as u32,
        checksum: XxHash3_128::oneshot(bytes).to_le_bytes(),
    }
}

/// Returns whether extent 1 is unclaimed, so that another takes its room.
fn gives_way(segments: &Segments) -> bool {
    match segments.put(key(2), version(1), &[2; 3500]) {
        Ok(()) => true,
        Err(error) => {
            assert!(error.is_full(), "{error}");
            false
        }
    }
}

#[test]
fn two_who_store_the_same_share_it() {
    let segments = segments();
    let slower = begun(&segments, version(1), &[1; 1000]);
    segments.put(key(1), version(1), &[1; 1000]).unwrap();
    segments.finish(slower, Ok(())).unwrap();
    assert_eq!(segments.used_bytes(), 1000);
    segments.release(key(1));
    assert!(!gives_way(&segments), "the other has it still");
    segments.release(key(1));
    assert!(gives_way(&segments));
}

#[test]
fn who_could_not_write_claims_nothing() {
    let segments = segments();
    let slower = begun(&segments, version(1), &[1; 1000]);
    segments.put(key(1), version(1), &[1; 1000]).unwrap();
    let failed = segments.error("write a segment of", Errno::IO);
    assert!(segments.finish(slower, Err(failed)).is_err());
    assert_eq!(segments.used_bytes(), 1000);
    segments.release(key(1));
    assert!(gives_way(&segments));
}

#[test]
fn what_was_stored_is_there_though_another_version_came_first() {
    let segments = segments();
    let slower = begun(&segments, version(2), &[2; 1000]);
    segments.put(key(1), version(1), &[1; 1000]).unwrap();
    segments.finish(slower, Ok(())).unwrap();
    assert_eq!(segments.used_bytes(), 1000);
    let mut bytes = [0; 1000];
    assert!(segments.read(key(1), version(2), &mut bytes).unwrap());
    assert_eq!(bytes, [2; 1000]);
    assert!(!gives_way(&segments));
    segments.release(key(1));
    assert!(gives_way(&segments));
}

#[test]
fn who_lets_go_waits_for_nobody() {
    let segments = segments();
    segments.put(key(1), version(1), &[1; 1000]).unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        // A thread that stores something holds this lock until the disk answers.
        let state = guard(&segments.state);
        scope.spawn(|| {
            segments.release(key(1));
            sender.send(()).unwrap();
        });
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        drop(state);
    });
    assert!(gives_way(&segments));
}
