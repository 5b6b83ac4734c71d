//! Finds the source of a copy's descriptor. There is no table of descriptors: a copy is recognised by its device, inode
//! and last change, whether the process opened, inherited or received it.

use core::ffi::{CStr, c_int};

use forebay_contract::{Attributes, Identity, IndexReader, Record};

use crate::{
    lookup::{ctime, mtime},
    path::PathBuffer,
    state::Serving,
    sys::{self, Errno},
};

/// A copy, by its record in an index that has it.
pub(crate) struct OpenCopy {
    reading: IndexReader,
    number: u32,
}

/// Type and permissions of each copy. Almost no other file has these, so few look-ups are wasted.
pub(crate) const COPY_MODE: libc::mode_t = libc::S_IFREG | 0o400;

/// Returns the copy that a result of `stat` describes, if it is one.
pub(crate) fn find(serving: Serving, stat: &libc::stat) -> Option<OpenCopy> {
    if stat.st_mode != COPY_MODE {
        return None;
    }
    // A copy that was dropped while it is open has lost its name, which changes its ctime; its contents never change.
    let changed = if stat.st_nlink == 0 { mtime(stat) } else { ctime(stat) };
    serving.read_all().find_map(|reading| {
        let (number, _) = reading.index().find_copy(stat.st_dev, stat.st_ino, changed)?;
        Some(OpenCopy { reading, number })
    })
}

/// Returns the copy that a descriptor is open on.
pub(crate) fn of_descriptor(serving: Serving, fd: c_int) -> Option<OpenCopy> {
    find(serving, &sys::stat_fd(fd).ok()?)
}

/// Returns the copy that a name leads to, which is only possible through `/proc/self/fd` or a similar directory.
pub(crate) fn of_name(serving: Serving, dirfd: c_int, path: &CStr) -> Option<OpenCopy> {
    let bytes = path.to_bytes();
    let may_be = bytes.first() != Some(&b'/') || bytes.starts_with(b"/proc/") || bytes.starts_with(b"/dev/");
    may_be
        .then(|| sys::stat_at(dirfd, path, 0).ok())
        .flatten()
        .and_then(|stat| find(serving, &stat))
}

impl OpenCopy {
    fn record(&self) -> Option<&Record> {
        self.reading.index().record(self.number)
    }

    /// Returns the path under which the source was opened.
    pub(crate) fn source_path<'a>(&self, buffer: &'a mut PathBuffer) -> Option<&'a CStr> {
        let (index, record) = (self.reading.index(), self.record()?);
        let directory = index.directory(record.directory())?;
        buffer.push(index.directory_path(directory)?)?;
        buffer.push(b"/")?;
        buffer.push(index.record_name(record)?)?;
        Some(buffer.c_str())
    }

    /// Returns the path of the source and releases the index. Use it before a call of libc: a thread that is cancelled
    /// there would hold the index for ever.
    pub(crate) fn into_source_path(self, buffer: &mut PathBuffer) -> Option<&CStr> {
        self.source_path(buffer)
    }

    /// Returns the version of the source that the copy holds.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.reading.index().identity(self.record()?)
    }

    /// Returns the source's other attributes, as they were when the copy was made.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        self.reading.index().attributes(self.record()?)
    }

    /// Returns the time at which the name last led to this version.
    pub(crate) fn checked_at(&self) -> Option<u64> {
        self.record().map(Record::checked_at)
    }

    /// Returns device and inode of the source.
    pub(crate) fn source_inode(&self) -> Option<(u64, u64)> {
        self.identity().map(|identity| (identity.dev, identity.ino))
    }

    /// Returns the `stat` of the source's name, if that is still the same file.
    pub(crate) fn stat_source(&self) -> Option<libc::stat> {
        let mut buffer = PathBuffer::new();
        let stat = sys::stat_at(libc::AT_FDCWD, self.source_path(&mut buffer)?, 0).ok()?;
        (self.source_inode() == Some((stat.st_dev, stat.st_ino))).then_some(stat)
    }

    /// Opens the source, if its name still leads to the same file.
    ///
    /// # Errors
    /// `ESTALE` if it does not; else the error of the open.
    pub(crate) fn open_source(&self, flags: c_int) -> Result<c_int, Errno> {
        let mut buffer = PathBuffer::new();
        let path = self.source_path(&mut buffer).ok_or(Errno(libc::ESTALE))?;
        let fd = sys::open_at(libc::AT_FDCWD, path, flags, 0)
            .map_err(|Errno(errno)| Errno(if errno == libc::ENOENT { libc::ESTALE } else { errno }))?;
        let same = sys::stat_fd(fd).is_ok_and(|stat| self.source_inode() == Some((stat.st_dev, stat.st_ino)));
        if !same {
            sys::close(fd);
            return Err(Errno(libc::ESTALE));
        }
        Ok(fd)
    }
}
