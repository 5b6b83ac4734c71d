//! Runs one suite over every kind of disk.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_store::disk::{self, Disk, FailingDisk, Fault, FaultKind, MemoryDisk, Name, RealDisk, Throttle, ThrottledDisk, When};
use forebay_store::testing::disk_conformance;
use rustix::fs::{Mode, OFlags};

fn directory(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("the directory opens")
}

/// Returns the directories to test: on the kernel's memory file system, if there is one, and on the file system of the
/// temporary directory. `tests/faults/test_f16_odd_file_systems.py` names others in a variable.
fn directories() -> Vec<PathBuf> {
    match std::env::var_os("FOREBAY_TEST_DIRECTORIES") {
        Some(named) => std::env::split_paths(&named).collect(),
        None => [std::env::temp_dir(), "/dev/shm".into()]
            .into_iter()
            .filter(|dir| dir.is_dir())
            .collect(),
    }
}

#[test]
fn f16_the_real_disk_conforms_with_and_without_openat2() {
    for parent in directories() {
        println!("{}", parent.display());
        let dir = tempfile::tempdir_in(&parent).expect("a temporary directory");
        let disk = RealDisk::new(directory(dir.path())).expect("a disk");
        disk_conformance(&disk);
        large_offsets(&disk);
        let dir = tempfile::tempdir_in(&parent).expect("a temporary directory");
        disk_conformance(&RealDisk::without_openat2(directory(dir.path())).expect("a disk"));
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(
            forebay_store::probe(dir.path(), uid).expect("it can be tried"),
            None,
            "what conforms lacks nothing"
        );
    }
}

/// Offsets beyond 31 and 32 bits; the file begins with a hole.
fn large_offsets(disk: &dyn Disk) {
    let file = disk.create(Name::Catalogue).expect("a file can be made");
    for offset in [(1 << 31) - 2, (1 << 32) - 2] {
        disk::write_all_at(&*file, b"over", offset).expect("it can be written");
        assert_eq!(file.stat().expect("it has a stat").identity.size, offset + 4);
        let mut bytes = [1; 8];
        assert_eq!(disk::read_full_at(&*file, &mut bytes, offset - 2).expect("it can be read"), 6);
        assert_eq!(&bytes[..6], b"\0\0over");
    }
    disk.remove(Name::Catalogue).expect("it can be removed");
}

#[test]
fn the_memory_disk_conforms() {
    disk_conformance(&MemoryDisk::new(1 << 20, 100));
}

#[test]
fn f12_the_throttled_disk_conforms_and_is_slow() {
    let begun = std::time::Instant::now();
    let throttle = Throttle {
        latency_us: 100,
        bytes_per_s: 1 << 20,
    };
    disk_conformance(&ThrottledDisk::new(Arc::new(MemoryDisk::new(1 << 20, 100)), throttle));
    assert!(begun.elapsed().as_micros() > 4_000, "some fifty operations of 100 us each");
}

#[test]
fn f4_the_failing_disk_conforms_without_a_fault_and_with_short_reads_and_writes_only() {
    disk_conformance(&FailingDisk::new(Arc::new(MemoryDisk::new(1 << 20, 100)), None));
    let short = Fault {
        nth: 0,
        for_ever: true,
        kind: FaultKind::Short,
        when: When::Before,
    };
    disk_conformance(&FailingDisk::new(Arc::new(MemoryDisk::new(1 << 20, 100)), Some(short)));
}
