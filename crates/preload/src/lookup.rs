//! Finds the copy of a path.

use core::ffi::{CStr, c_int};

use forebay_contract::{
    Attributes, Counter, Directory, FileTime, Freshness, Identity, Index, IndexReader, Record, Tier,
    index::{TIER_PATH_BYTES_MAX, split},
    object_path,
};

use crate::{
    path::{PathBuffer, descriptor_path},
    real, rights,
    state::Serving,
    sys,
};

/// Reason why no copy was opened.
#[derive(Clone, Copy)]
pub(crate) enum Miss {
    /// The index has no copy.
    Unknown,
    /// There is a copy that is not usable.
    Because(Counter),
}

impl Miss {
    /// Returns whether the agent needs to know of the state of a copy, even if it has no room for another.
    pub(crate) const fn is_news_of_copy(self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Because(reason) => matches!(
                reason,
                Counter::Stale | Counter::Tombstoned | Counter::SourceChanged | Counter::CopyGone
            ),
        }
    }

    /// Returns whether the agent should get the file that the program opens instead.
    pub(crate) const fn is_news(self) -> bool {
        matches!(self, Self::Unknown) || self.is_news_of_copy()
    }
}

/// Returns a path as the kernel would take it, made absolute but not changed otherwise: absolute ones as they are,
/// those relative to the current directory behind its name.
///
/// # Errors
/// The reason why there is no such spelling.
pub(crate) fn spell<'a>(dirfd: c_int, path: &'a CStr, buffer: &'a mut PathBuffer) -> Result<&'a [u8], Counter> {
    let mut bytes = path.to_bytes();
    if bytes.first() == Some(&b'/') {
        return if bytes.len() < libc::PATH_MAX as usize {
            Ok(bytes)
        } else {
            Err(Counter::OddPath)
        };
    }
    if dirfd != libc::AT_FDCWD {
        return Err(Counter::DirectoryDescriptor);
    }
    // "./" changes nothing, whatever the directory; nothing else is removed from a path.
    while let Some(rest) = bytes.strip_prefix(b"./") {
        bytes = rest;
    }
    sys::current_directory(buffer)
        .and_then(|()| if buffer.bytes() == b"/" { Some(()) } else { buffer.push(b"/") })
        .and_then(|()| buffer.push(bytes))
        .ok_or(Counter::OddPath)?;
    Ok(buffer.bytes())
}

/// A copy that may stand in for its source.
#[derive(Clone, Copy)]
pub(crate) struct IndexHit<'a> {
    index: Index<'a>,
    pub(crate) record: &'a Record,
    /// Version of the source that it holds.
    pub(crate) identity: Identity,
    tier: &'a Tier,
}

/// Room for the path of a copy.
pub(crate) type ObjectPath = [u8; TIER_PATH_BYTES_MAX + 24];

/// Returns the usable copy of `spelled` in the current index ([`Serving::read`]). `on_open` needs a question to the
/// source besides.
///
/// # Errors
/// The reason why there is none.
#[inline]
pub(crate) fn find<'a>(serving: Serving, reading: Option<&'a IndexReader>, spelled: &[u8], now: u64) -> Result<IndexHit<'a>, Miss> {
    let found = known(reading, spelled)?;
    found.may_stand_in(serving, spelled, now)?;
    Ok(found)
}

/// Returns the copy of `spelled` in the current index, usable or not.
///
/// # Errors
/// The reason why there is none.
#[inline]
pub(crate) fn known<'a>(reading: Option<&'a IndexReader>, spelled: &[u8]) -> Result<IndexHit<'a>, Miss> {
    let index = reading.ok_or(Miss::Because(Counter::NoPage))?.index();
    let (_, record) = index.find(spelled).ok_or(Miss::Unknown)?;
    let identity = index.identity(record).ok_or(Miss::Unknown)?;
    let tier = index.tiers().get(record.tier()).ok_or(Miss::Unknown)?;
    Ok(IndexHit {
        index,
        record,
        identity,
        tier,
    })
}

impl IndexHit<'_> {
    /// Checks that the copy is usable for `spelled` now. `on_open` needs a question to the source besides.
    ///
    /// # Errors
    /// The reason why it is not.
    #[inline]
    pub(crate) fn may_stand_in(&self, serving: Serving, spelled: &[u8], now: u64) -> Result<(), Miss> {
        self.may_stand_in_for(serving, spelled, serving.pages.run.freshness(), now)
    }

    /// Checks that the copy is usable as of `now` under a freshness.
    #[inline]
    fn may_stand_in_for(&self, serving: Serving, spelled: &[u8], freshness: Freshness, now: u64) -> Result<(), Miss> {
        let directory = self.index.directory(self.record.directory()).ok_or(Miss::Unknown)?;
        let (_, name) = split(spelled).ok_or(Miss::Unknown)?;
        if serving.control.tier_is_off(self.record.tier()) {
            return Err(Miss::Because(Counter::TierOff));
        }
        let usable = serving.control.usable(self.record, directory, name, &self.identity, freshness, now);
        usable.map_err(Miss::Because)?;
        // With a link on the path, the name in the record is not the file's own.
        if !self.record.is_plain() && serving.pages.run.has_excludes() && leads_to_excluded(serving, spelled) {
            return Err(Miss::Because(Counter::Excluded));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn is_cached_directory(&self) -> bool {
        self.index.is_cached_directory(self.record)
    }

    /// Returns whether it was compared with the source since it was added to the index. A copy of an earlier run need
    /// not have been.
    pub(crate) fn is_checked(&self) -> bool {
        let is_swept = |directory: &Directory| directory.swept_at() > self.record.inserted_at();
        self.record.checked_at() != 0 || self.index.directory(self.record.directory()).is_some_and(is_swept)
    }

    /// Returns whether a file of the source is the version that was copied.
    pub(crate) fn is_version(&self, now: &Identity) -> bool {
        self.index.is_version(self.record, now)
    }

    /// Returns the source's attributes beyond its identity.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        self.index.attributes(self.record)
    }

    /// Returns the path of the copy.
    pub(crate) fn path<'a>(&self, room: &'a mut ObjectPath) -> Option<&'a CStr> {
        let len = object_path(self.tier.objects(), self.record.copy(), room)?;
        CStr::from_bytes_with_nul(room.get(..=len)?).ok()
    }

    /// Returns whether a file is the copy, as it was published.
    pub(crate) fn is(&self, file: &Identity) -> bool {
        file.dev == self.tier.dev()
            && file.ino == self.record.copy_ino()
            && file.ctime == self.record.copy_ctime()
            && file.size == self.record.size()
    }

    /// Records that its directory is in use.
    pub(crate) fn stamp(&self, serving: Serving, now: u64) {
        let stamp = serving.pages.run.use_stamp(now);
        serving.control.stamp_directory(self.record.directory(), stamp);
    }

    /// Opens the copy, and no other file in its place.
    pub(crate) fn open(&self, flags: c_int) -> Option<c_int> {
        let mut room = [0; size_of::<ObjectPath>()];
        let fd = sys::open_at(libc::AT_FDCWD, self.path(&mut room)?, flags, 0).ok()?;
        if !sys::stat_fd(fd).is_ok_and(|stat| self.is(&identity_of(&stat))) {
            sys::close(fd);
            return None;
        }
        Some(fd)
    }
}

/// Opens the copy that stands in for `spelled`, which the program called `path`.
///
/// # Errors
/// The reason why the source is to be opened instead.
pub(crate) fn open_copy(serving: Serving, spelled: &[u8], path: &CStr, flags: c_int, now: u64) -> Result<c_int, Miss> {
    let reading = serving.read();
    let found = find(serving, reading.as_ref(), spelled, now)?;
    let attributes = found.attributes().ok_or(Miss::Unknown)?;
    if attributes.is_directory() {
        // A directory can be opened, but its descriptor must not return the bytes of its copy.
        return Err(Miss::Unknown);
    }
    if serving.pages.run.freshness() == Freshness::OnOpen && !source_is(path, &found.identity) {
        return Err(Miss::Because(Counter::SourceChanged));
    }
    if !rights::may_read(&attributes, path) {
        return Err(Miss::Because(Counter::SourceChanged));
    }
    let fd = found.open(flags).ok_or(Miss::Because(Counter::CopyGone))?;
    serving.pages.count_hit(spelled, now, found.record.tier(), found.record.size());
    serving.pages.note_open(spelled);
    found.stamp(serving, now);
    Ok(fd)
}

/// Opens the copy of `spelled` whatever its time, if the source, which the program has just opened as `source`, is the
/// version that was copied.
#[cold]
#[inline(never)]
pub(crate) fn open_unchanged(serving: Serving, spelled: &[u8], source: c_int, flags: c_int) -> Option<c_int> {
    let reading = serving.read();
    let found = known(reading.as_ref(), spelled).ok()?;
    if found.is_cached_directory() || !found.is_version(&identity_of(&sys::stat_fd(source).ok()?)) {
        return None;
    }
    let now = real::now();
    // Tombstones count as ever; the source was asked, as with `on_open`.
    found.may_stand_in_for(serving, spelled, Freshness::OnOpen, now).ok()?;
    let fd = found.open(flags)?;
    serving.pages.count_hit(spelled, now, found.record.tier(), found.record.size());
    serving.pages.note_open(spelled);
    found.stamp(serving, now);
    Some(fd)
}

/// Returns whether the kernel's own name of a path's target is excluded. It counts as excluded if the kernel can't tell
/// the name.
#[cold]
#[inline(never)]
fn leads_to_excluded(serving: Serving, spelled: &[u8]) -> bool {
    let mut path = PathBuffer::new();
    if path.push(spelled).is_none() {
        return true;
    }
    let Ok(fd) = sys::open_at(libc::AT_FDCWD, path.c_str(), libc::O_PATH | libc::O_CLOEXEC, 0) else {
        return true;
    };
    path.truncate(0);
    let is_known = descriptor_path(fd, &mut path).is_some();
    sys::close(fd);
    !is_known || serving.pages.run.excludes(path.bytes())
}

/// Returns whether the name still leads to the version that was copied.
fn source_is(path: &CStr, identity: &Identity) -> bool {
    sys::stat_at(libc::AT_FDCWD, path, 0).is_ok_and(|stat| identity_of(&stat) == *identity)
}

/// Returns the version that a result of `stat` describes.
pub(crate) fn identity_of(stat: &libc::stat) -> Identity {
    Identity {
        dev: stat.st_dev,
        ino: stat.st_ino,
        size: stat.st_size as u64,
        mtime: mtime(stat),
        ctime: ctime(stat),
    }
}

/// Returns the last change of the contents.
pub(crate) fn mtime(stat: &libc::stat) -> FileTime {
    FileTime {
        sec: stat.st_mtime,
        nsec: stat.st_mtime_nsec as u32,
    }
}

/// Returns the last change of the inode.
pub(crate) fn ctime(stat: &libc::stat) -> FileTime {
    FileTime {
        sec: stat.st_ctime,
        nsec: stat.st_ctime_nsec as u32,
    }
}
