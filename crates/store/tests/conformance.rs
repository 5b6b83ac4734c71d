//! One suite over every disk.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use forebay_store::disk::{FailingDisk, Fault, FaultKind, MemoryDisk, RealDisk, Throttle, ThrottledDisk, When};
use forebay_store::testing::disk_conformance;
use rustix::fs::{Mode, OFlags};

fn directory(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("the directory opens")
}

#[test]
fn f16_the_real_disk_conforms_with_and_without_openat2() {
    // The kernel's own file system in memory, where there is one, and whatever the temporary directory is on.
    for parent in [std::env::temp_dir(), "/dev/shm".into()].iter().filter(|parent| parent.is_dir()) {
        let dir = tempfile::tempdir_in(parent).expect("a temporary directory");
        disk_conformance(&RealDisk::new(directory(dir.path())).expect("a disk"));
        let dir = tempfile::tempdir_in(parent).expect("a temporary directory");
        disk_conformance(&RealDisk::without_openat2(directory(dir.path())).expect("a disk"));
    }
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
