//! Sources of extents: a file, or an object of a store.

use std::time::Duration;

use forebay_contract::{
    Identity,
    extents::{Extent, TO_THE_END},
};
use forebay_objects::Stores;
use forebay_store::{CopySource, FileVersion, SourceFile, StatFrom};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use crate::host::limits::CLOCK_SKEW_MAX;
use crate::{host::clock::unix_s, samples::table::is_object};

/// Times in a row that an interrupted call is repeated.
const INTERRUPTIONS_MAX: u32 = 100;

/// An extent that can't be read. The rank sees the error when it reads by itself.
#[derive(Debug)]
pub(super) struct Unreadable;

impl From<Errno> for Unreadable {
    fn from(_: Errno) -> Self {
        Self
    }
}

impl From<forebay_objects::Error> for Unreadable {
    fn from(_: forebay_objects::Error) -> Self {
        Self
    }
}

/// An extent whose length and version are known.
#[derive(Debug)]
pub(super) enum OpenedExtent {
    File {
        file: SourceFile,
        identity: Identity,
        offset: u64,
        bytes: u64,
    },
    Object(forebay_objects::OpenedRange),
}

/// Returns the version of an extent that its dataset names, if it does: the source need not be asked.
pub(super) fn meant(extent: &Extent<'_>) -> Option<FileVersion> {
    (is_object(extent.path) && extent.mark != 0).then(|| FileVersion::of_object(extent.mark))
}

impl OpenedExtent {
    pub(super) fn of(extent: &Extent<'_>, stores: &Stores) -> Result<Self, Unreadable> {
        if !is_object(extent.path) {
            return Self::file(extent);
        }
        let object = str::from_utf8(extent.path).map_err(|_| Unreadable)?;
        let length = (extent.length != TO_THE_END).then_some(extent.length);
        let mark = (extent.mark != 0).then_some(extent.mark);
        Ok(Self::Object(stores.open(object, extent.offset, length, mark)?))
    }

    fn file(extent: &Extent<'_>) -> Result<Self, Unreadable> {
        // The path may name something else than a file: opening it must not block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = SourceFile::new(uninterrupted(|| rustix::fs::open(extent.path, flags, Mode::empty()))?);
        let found = file.stat(StatFrom::Kernel)?;
        let left = found.identity.size.checked_sub(extent.offset).ok_or(Unreadable)?;
        let bytes = if extent.length == TO_THE_END { left } else { extent.length };
        if !found.is_regular() || bytes > left {
            return Err(Unreadable);
        }
        Ok(Self::File {
            file,
            identity: found.identity,
            offset: extent.offset,
            bytes,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::File { bytes, .. } => *bytes,
            Self::Object(opened) => opened.bytes(),
        }
    }

    /// Returns the version under which it is kept. If a file was changed just now, its times may not show the next
    /// change (fault F5): then the version is unique to this loader.
    pub(super) fn version(&self, settled_after: Duration) -> FileVersion {
        let identity = match self {
            Self::File { identity, .. } => identity,
            Self::Object(opened) => return FileVersion::of_object(opened.version().mark),
        };
        let (newest_s, now_s) = (identity.mtime.sec.max(identity.ctime.sec), unix_s());
        let is_recent = newest_s > now_s - settled_after.as_secs() as i64 && newest_s < now_s + CLOCK_SKEW_MAX.as_secs() as i64;
        if is_recent {
            FileVersion::of_nothing()
        } else {
            FileVersion::of(identity)
        }
    }

    /// Reads all of it, in one version from its beginning to its end.
    pub(super) fn read(self, into: &mut [u8]) -> Result<(), Unreadable> {
        match self {
            Self::File {
                file, identity, offset, ..
            } => {
                read_full(&file, into, offset)?;
                if file.stat(StatFrom::Kernel)?.identity != identity {
                    return Err(Unreadable);
                }
            }
            Self::Object(opened) => opened.read(into)?,
        }
        Ok(())
    }
}

fn read_full(file: &SourceFile, bytes: &mut [u8], offset: u64) -> Result<(), Unreadable> {
    let mut filled = 0;
    while filled < bytes.len() {
        let (at, rest) = (offset + filled as u64, &mut bytes[filled..]);
        match uninterrupted(|| file.read_at(rest, at))? {
            // It ends before its size.
            0 => return Err(Unreadable),
            read => filled += read,
        }
    }
    Ok(())
}

fn uninterrupted<T>(mut operation: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..INTERRUPTIONS_MAX {
        match operation() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
    Err(Errno::INTR)
}
