//! Shared by the tests of segments.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_contract::{FileTime, Identity};
use forebay_store::disk::{Disk, MemoryDisk};
use forebay_store::{ExtentKey, FileVersion, FreeFloor, Secret, Segments, SegmentsConfig, StoreError};

pub(crate) const SEGMENT_BYTES: u64 = 10_000;

pub(crate) fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

pub(crate) fn config(dir: &Path, quota_bytes: u64) -> SegmentsConfig {
    SegmentsConfig {
        dir: dir.to_owned(),
        quota_bytes,
        segment_bytes: SEGMENT_BYTES,
        free_floor: FreeFloor::Bytes(0),
    }
}

pub(crate) fn open_on(disk: Arc<dyn Disk>, quota_bytes: u64) -> Result<Segments, StoreError> {
    Segments::open_on(
        disk,
        PathBuf::from("/cache/forebay-0"),
        config(Path::new("/cache"), quota_bytes),
        &secret(),
    )
}

pub(crate) fn memory() -> Arc<MemoryDisk> {
    Arc::new(MemoryDisk::new(64 << 20, 10_000))
}

pub(crate) fn key(name: u64) -> ExtentKey {
    ExtentKey::new(format!("/data/{name}").as_bytes(), 0, u64::MAX)
}

pub(crate) fn version(number: u64) -> FileVersion {
    let time = FileTime { sec: 5, nsec: 6 };
    FileVersion::of(&Identity {
        dev: 1,
        ino: number,
        size: 2,
        mtime: time,
        ctime: time,
    })
}

/// Returns the content of a test's extent; no two parts of it are equal.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(at).wrapping_add(seed * 31) >> 3) as u8)
        .collect()
}

/// Reads an extent of version 1; `None` if it is not stored.
pub(crate) fn read(segments: &Segments, name: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(found) = segments.find(key(name)) else {
        return Ok(None);
    };
    let mut bytes = vec![0; found.bytes as usize];
    Ok(segments.read(key(name), version(1), &mut bytes)?.then_some(bytes))
}
