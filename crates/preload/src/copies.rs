//! From a descriptor back to the source, for descriptors of copies. There is no table of descriptors: a copy is known by its device,
//! inode and last change, whoever opened it, inherited it or was sent it.

use core::ffi::{CStr, c_int};

use forebay_contract::{Attributes, Identity, IndexReader, Record};

use crate::{
    lookup::{ctime, mtime},
    path::PathBuffer,
    state::Serving,
    sys::{self, Errno},
};

/// A copy, by its record in an index that knows it.
pub(crate) struct Copy {
    reading: IndexReader,
    number: u32,
}

/// Type and permissions of each copy: almost no other file has these, so few are looked up in vain.
pub(crate) const COPY_MODE: libc::mode_t = libc::S_IFREG | 0o400;

/// The copy that a `stat` speaks of, if it is one.
pub(crate) fn find(serving: Serving, stat: &libc::stat) -> Option<Copy> {
    if stat.st_mode != COPY_MODE {
        return None;
    }
    // A copy that was dropped while it is open has lost its name, which changes its ctime; nothing has ever changed its contents.
    let changed = if stat.st_nlink == 0 { mtime(stat) } else { ctime(stat) };
    serving.read_all().find_map(|reading| {
        let (number, _) = reading.index().find_copy(stat.st_dev, stat.st_ino, changed)?;
        Some(Copy { reading, number })
    })
}

/// The copy that a descriptor is of.
pub(crate) fn of_descriptor(serving: Serving, fd: c_int) -> Option<Copy> {
    find(serving, &sys::stat_fd(fd).ok()?)
}

/// The copy that a name leads to, where that can only be through `/proc/self/fd` or its kin.
pub(crate) fn of_name(serving: Serving, dirfd: c_int, path: &CStr) -> Option<Copy> {
    let bytes = path.to_bytes();
    let may_be = bytes.first() != Some(&b'/') || bytes.starts_with(b"/proc/") || bytes.starts_with(b"/dev/");
    may_be
        .then(|| sys::stat_at(dirfd, path, 0).ok())
        .flatten()
        .and_then(|stat| find(serving, &stat))
}

impl Copy {
    fn record(&self) -> Option<&Record> {
        self.reading.index().record(self.number)
    }

    /// Where the source was opened.
    pub(crate) fn source_path<'a>(&self, buffer: &'a mut PathBuffer) -> Option<&'a CStr> {
        let (index, record) = (self.reading.index(), self.record()?);
        let directory = index.directory(record.directory())?;
        buffer.push(index.directory_path(directory)?)?;
        buffer.push(b"/")?;
        buffer.push(index.record_name(record)?)?;
        Some(buffer.c_str())
    }

    /// The same; holds no index any more. For what goes through libc after it: a thread that is cancelled there would hold it for ever.
    pub(crate) fn into_source_path(self, buffer: &mut PathBuffer) -> Option<&CStr> {
        self.source_path(buffer)
    }

    /// The version of the source that it holds.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.reading.index().identity(self.record()?)
    }

    /// What else the source said of itself when the copy was made.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        self.reading.index().attributes(self.record()?)
    }

    /// When its name was last known to lead to this version.
    pub(crate) fn checked_at(&self) -> Option<u64> {
        self.record().map(Record::checked_at)
    }

    /// Device and inode of the source.
    pub(crate) fn source_inode(&self) -> Option<(u64, u64)> {
        self.identity().map(|identity| (identity.dev, identity.ino))
    }

    /// What the source's name leads to, if that is still the same file.
    pub(crate) fn stat_source(&self) -> Option<libc::stat> {
        let mut buffer = PathBuffer::new();
        let stat = sys::stat_at(libc::AT_FDCWD, self.source_path(&mut buffer)?, 0).ok()?;
        (self.source_inode() == Some((stat.st_dev, stat.st_ino))).then_some(stat)
    }

    /// Opens the source, if its name still leads to the same file.
    ///
    /// # Errors
    /// `ESTALE` if not; else what the open says.
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
