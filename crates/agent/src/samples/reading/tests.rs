//! Threads that read real files into the arena, and write to real segments.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use forebay_store::{FreeFloor, Secret, SegmentsConfig};

use super::*;

use crate::samples::table::Table;

const WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns a table of whole files; or, with `spans`, of parts: path, offset, length.
fn table(paths: &[PathBuf], spans: Option<&[(usize, u64, Option<u64>)]>) -> SharedFile {
    let mut table = Table::default();
    let whole: Vec<_> = (0..paths.len()).map(|path| (path, 0, None)).collect();
    for &(path, offset, length) in spans.unwrap_or(&whole) {
        table.add(paths[path].as_os_str().as_bytes(), offset, length, 0).unwrap();
    }
    SharedFile::received_sealed(table.seal().unwrap()).unwrap()
}

fn segments(dir: &Path) -> Arc<Segments> {
    let config = SegmentsConfig {
        dir: dir.to_owned(),
        quota_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        free_floor: FreeFloor::Bytes(0),
    };
    let uid = rustix::process::geteuid().as_raw();
    Arc::new(Segments::open(config, &Secret::from_bytes([1; 32]), uid).unwrap())
}

fn readers(table: SharedFile, arena_bytes: u64, disks: Vec<Arc<Segments>>, settled_after: Duration) -> Readers {
    let tools = Tools {
        table,
        arena: Arc::new(Arena::create(arena_bytes, 0).unwrap()),
        disks,
        stores: Stores::new(BTreeMap::new()),
        doorbell: Arc::new(Doorbell::create().unwrap()),
        settled_after,
    };
    Readers::new(tools, Homes::default(), 4)
}

/// Runs a job, and returns its event.
fn done(readers: &Readers, job: ReaderJob) -> MachineEvent {
    readers.submit(job);
    let begun = Instant::now();
    loop {
        if let Some(event) = readers.done().pop() {
            return event;
        }
        assert!(begun.elapsed() < WAIT_MAX, "nothing comes of {job:?}");
        thread::yield_now();
    }
}

fn read(readers: &Readers, sample: u32) -> ReadOutcome {
    let from = ReadFrom::Source;
    match done(
        readers,
        ReaderJob::Read {
            flight: 7,
            sample,
            from,
            rank: 0,
        },
    ) {
        MachineEvent::Read { flight: 7, outcome } => outcome,
        event => panic!("{event:?}"),
    }
}

#[test]
fn files_and_parts_of_files_are_read_and_what_can_not_be_is_the_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b", "empty", "missing", "directory"].map(|name| dir.path().join(name));
    fs::write(&paths[0], b"0123456789").unwrap();
    fs::write(&paths[1], vec![7; 5000]).unwrap();
    fs::write(&paths[2], b"").unwrap();
    fs::create_dir(&paths[4]).unwrap();
    let spans = [
        (0, 2, Some(3)),
        (0, 8, None),
        (1, 0, Some(5000)),
        (2, 0, None),
        (3, 0, Some(1)),
        (4, 0, Some(0)),
        (0, 8, Some(3)),
        (0, 11, None),
    ];
    let readers = readers(table(&paths, Some(&spans)), 5100, Vec::new(), Duration::ZERO);
    for (sample, expected) in [(0, b"234".as_slice()), (1, b"89"), (2, &[7; 5000]), (3, b"")] {
        match read(&readers, sample) {
            ReadOutcome::Whole { place, left_on: None, .. } => assert_eq!(readers.tools().arena.bytes(place), expected),
            outcome => panic!("{outcome:?}"),
        }
    }
    for sample in [4, 5, 6, 7, 8] {
        assert_eq!(read(&readers, sample), ReadOutcome::Failed, "sample {sample}");
    }
    assert_eq!(read(&readers, 2), ReadOutcome::NoRoom { bytes: 5000 });
}

#[test]
fn what_was_written_to_a_disk_is_read_there_and_by_the_next_job_only_in_its_version() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = [dir.path().join("a")];
    fs::write(&paths[0], b"first").unwrap();
    let disk = segments(cache.path());
    let readers = readers(table(&paths, None), 4096, vec![Arc::clone(&disk)], Duration::ZERO);
    let ReadOutcome::Whole { place, version, .. } = read(&readers, 0) else {
        panic!("it can be read");
    };
    let write = ReaderJob::Write {
        sample: 0,
        disk: 0,
        place,
        version,
    };
    let written = MachineEvent::Written {
        sample: 0,
        disk: 0,
        result: Ok(()),
    };
    assert_eq!(done(&readers, write), written);
    let from = ReadFrom::Disk {
        disk: 0,
        version,
        bytes: 5,
    };
    let again = done(
        &readers,
        ReaderJob::Read {
            flight: 1,
            sample: 0,
            from,
            rank: 0,
        },
    );
    assert!(
        matches!(again, MachineEvent::Read { outcome: ReadOutcome::Whole { place, .. }, .. } if readers.tools().arena.bytes(place) == b"first")
    );
    // The next job has no record of it, but finds it.
    readers.tools().release(0, 0);
    assert!(matches!(read(&readers, 0), ReadOutcome::Whole { left_on: Some(0), .. }));
    // A changed file is another version.
    fs::write(&paths[0], b"second").unwrap();
    match read(&readers, 0) {
        ReadOutcome::Whole { place, left_on: None, .. } => assert_eq!(readers.tools().arena.bytes(place), b"second"),
        outcome => panic!("{outcome:?}"),
    }
    let from = ReadFrom::Disk {
        disk: 0,
        version: FileVersion::of(&forebay_contract::Identity::default()),
        bytes: 5,
    };
    let gone = done(
        &readers,
        ReaderJob::Read {
            flight: 1,
            sample: 0,
            from,
            rank: 0,
        },
    );
    assert_eq!(
        gone,
        MachineEvent::Read {
            flight: 1,
            outcome: ReadOutcome::Gone
        }
    );
}

#[test]
fn f5_what_was_changed_only_just_is_left_to_nobody() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = [dir.path().join("a")];
    fs::write(&paths[0], b"first").unwrap();
    let readers = readers(table(&paths, None), 4096, vec![segments(cache.path())], Duration::from_secs(3600));
    let ReadOutcome::Whole { place, version, .. } = read(&readers, 0) else {
        panic!("it can be read");
    };
    let (sample, disk) = (0, 0);
    let write = ReaderJob::Write {
        sample,
        disk,
        place,
        version,
    };
    assert!(matches!(done(&readers, write), MachineEvent::Written { result: Ok(()), .. }));
    // This loader finds it.
    let (flight, bytes) = (1, 5);
    let from = ReadFrom::Disk { disk, version, bytes };
    let again = done(
        &readers,
        ReaderJob::Read {
            flight,
            sample,
            from,
            rank: 0,
        },
    );
    assert!(
        matches!(
            again,
            MachineEvent::Read {
                outcome: ReadOutcome::Whole { .. },
                ..
            }
        ),
        "{again:?}"
    );
    assert!(matches!(read(&readers, 0), ReadOutcome::Whole { left_on: None, .. }));
}

#[test]
fn what_is_done_for_a_loader_that_has_ended_claims_nothing() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = [dir.path().join("a")];
    // Only one of two has room.
    let bytes = 600 << 10;
    fs::write(&paths[0], vec![1; bytes]).unwrap();
    let disk = segments(cache.path());
    for is_done in [true, false] {
        let readers = readers(table(&paths, None), 1 << 20, vec![Arc::clone(&disk)], Duration::ZERO);
        let ReadOutcome::Whole { place, version, .. } = read(&readers, 0) else {
            panic!("it can be read");
        };
        let (sample, number) = (0, 0);
        readers.submit(ReaderJob::Write {
            sample,
            disk: number,
            place,
            version,
        });
        let begun = Instant::now();
        while is_done && readers.shared.state().done.is_empty() {
            assert!(begun.elapsed() < WAIT_MAX);
            thread::yield_now();
        }
        drop(readers);
        let other = ExtentKey::new(b"/other", 0, 0);
        while let Err(error) = disk.put(other, version, &vec![2; bytes]) {
            assert!(begun.elapsed() < WAIT_MAX, "{error}");
            thread::yield_now();
        }
        disk.release(other);
    }
}
