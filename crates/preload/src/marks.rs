//! Tombstones: the program's changes under a source are marked before and after. So no copy that was made or checked
//! before the end of a change is used after it (see `Control::usable`). A directory changes with each name that is made
//! in it or removed.

use core::ffi::{CStr, c_int};

use forebay_contract::Counter;

use crate::{
    lookup,
    path::{PathBuffer, descriptor_path, split},
    real,
    state::Serving,
    sys,
};

/// Age in seconds below which a modified file has no copy.
const SETTLED_S: i64 = 2;

/// A name on a source's file system, and its target before the change.
pub(crate) struct MarkedName<'a> {
    name: &'a [u8],
    parent: (u64, u64),
    /// Target of the name, through links.
    file: Option<(u64, u64)>,
    /// The name's own inode: a file with more names than this one, or a link.
    own: Option<(u64, u64)>,
    /// Source of the copy that the index has under this name, as spelled; it may no longer exist.
    copied: Option<(u64, u64)>,
    way: Option<PathRole>,
}

/// Ways in which other names may lead through a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathRole {
    Directory,
    /// A symbolic link to a directory.
    Link,
}

impl<'a> MarkedName<'a> {
    /// Returns the state of a name before its change; `None` if it is not on a source's file system.
    #[inline(never)]
    pub(crate) fn find(serving: Serving, dirfd: c_int, path: &'a CStr) -> Option<Self> {
        let (parent, name) = split(path.to_bytes())?;
        let parent = stat_directory(dirfd, parent)?;
        if !serving.pages.run.is_source_device(parent.st_dev) {
            return None;
        }
        let kind = |stat: &libc::stat| stat.st_mode & libc::S_IFMT;
        let inode = |stat: libc::stat| (stat.st_dev, stat.st_ino);
        let own = sys::stat_at(dirfd, path, libc::AT_SYMLINK_NOFOLLOW).ok();
        let is_link = own.as_ref().is_some_and(|stat| kind(stat) == libc::S_IFLNK);
        let file = if is_link { sys::stat_at(dirfd, path, 0).ok() } else { own };
        let is_directory = file.as_ref().is_some_and(|stat| kind(stat) == libc::S_IFDIR);
        Some(Self {
            name,
            parent: inode(parent),
            file: file.map(inode),
            own: own.map(inode),
            copied: copied(serving, dirfd, path),
            way: is_directory.then_some(if is_link { PathRole::Link } else { PathRole::Directory }),
        })
    }

    /// Returns whether it is a link without a target: a file created through it is created elsewhere.
    pub(crate) const fn is_dangling(&self) -> bool {
        self.own.is_some() && self.file.is_none()
    }

    /// Marks a change of the name's target or, if there is no such name, of its directory.
    pub(crate) fn mark(&self, serving: Serving) {
        let now = real::now();
        if self.own.is_none() {
            serving.control.mark_file(self.parent.0, self.parent.1, now);
        }
        serving.control.mark_name(self.parent.0, self.parent.1, self.name, now);
        for (dev, ino) in self.file.into_iter().chain(self.own).chain(self.copied) {
            serving.control.mark_file(dev, ino, now);
        }
    }

    fn mark_change(&self, serving: Serving, change: NameChange) {
        self.mark(serving);
        // A name that did not exist is marked by now.
        if change != NameChange::Contents && self.own.is_some() {
            serving.control.mark_file(self.parent.0, self.parent.1, real::now());
        }
        let leads_elsewhere = match change {
            NameChange::Make => false,
            NameChange::Move => self.way.is_some(),
            // A directory that can be removed is empty: no path leads through it any more.
            NameChange::Remove => self.way == Some(PathRole::Link),
            // The change may concern who may pass through it.
            NameChange::Contents => self.way == Some(PathRole::Directory),
        };
        if leads_elsewhere {
            serving.control.mark_void(real::now());
        }
    }
}

/// A function of its own, like the next one, so that only one path is on the stack at a time.
#[inline(never)]
fn stat_directory(dirfd: c_int, path: &[u8]) -> Option<libc::stat> {
    let mut buffer = PathBuffer::new();
    buffer.push(path)?;
    sys::stat_at(dirfd, buffer.c_str(), 0).ok()
}

/// Returns the source file of the copy that the index has under this name.
#[inline(never)]
fn copied(serving: Serving, dirfd: c_int, path: &CStr) -> Option<(u64, u64)> {
    let reading = serving.read()?;
    let index = reading.index();
    let mut buffer = PathBuffer::new();
    let spelled = lookup::spell(dirfd, path, &mut buffer).ok()?;
    let (_, record) = index.find(spelled)?;
    index.identity(record).map(|identity| (identity.dev, identity.ino))
}

/// Kind of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// Makes a name where there is none.
    Make,
    /// Gives a name another target, or replaces its target.
    Move,
    /// Removes a name.
    Remove,
    /// Changes the file, not the name.
    Contents,
}

/// Carries out a change, with its marks before and after.
pub(crate) fn around<const N: usize>(
    serving: Serving,
    places: &[Option<MarkedName<'_>>; N],
    change: NameChange,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let mark = || places.iter().flatten().for_each(|place| place.mark_change(serving, change));
    mark();
    let result = call();
    if result == 0 {
        mark();
        if places.iter().any(Option::is_some) {
            serving.pages.count(Counter::Tombstones, 1);
        }
    }
    result
}

/// Marks the target of a descriptor of a source, file or directory, before or after a change of its attributes.
pub(crate) fn mark_attributes(serving: Serving, fd: c_int) {
    let Ok(stat) = sys::stat_fd(fd) else { return };
    if !serving.pages.run.is_source_device(stat.st_dev) {
        return;
    }
    let now = real::now();
    serving.control.mark_file(stat.st_dev, stat.st_ino, now);
    if stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
        serving.control.mark_void(now);
    }
}

/// Marks the directory of a name, whatever path leads there.
#[inline(never)]
pub(crate) fn mark_parent(serving: Serving, dirfd: c_int, path: &CStr) {
    mark_directory(
        serving,
        split(path.to_bytes()).and_then(|(parent, _)| stat_directory(dirfd, parent)),
    );
}

/// Marks the directory of an open file, as the kernel knows it.
#[inline(never)]
pub(crate) fn mark_parent_of(serving: Serving, fd: c_int) {
    let mut path = PathBuffer::new();
    let is_known = descriptor_path(fd, &mut path);
    let parent = is_known.and_then(|()| split(path.bytes())).map(|(parent, _)| parent.len());
    if let Some(parent) = parent {
        path.truncate(parent);
        mark_directory(serving, sys::stat_at(libc::AT_FDCWD, path.c_str(), 0).ok());
    }
}

fn mark_directory(serving: Serving, found: Option<libc::stat>) {
    if let Some(stat) = found.filter(|stat| serving.pages.run.is_source_device(stat.st_dev)) {
        serving.control.mark_file(stat.st_dev, stat.st_ino, real::now());
    }
}

/// Marks the file that a descriptor was opened for writing on, whatever name led to it. Returns whether it is a
/// source's.
pub(crate) fn mark_descriptor(serving: Serving, fd: c_int) -> bool {
    let Ok(stat) = sys::stat_fd(fd) else {
        return false;
    };
    let ours = stat.st_mode & libc::S_IFMT == libc::S_IFREG && serving.pages.run.is_source_device(stat.st_dev);
    if ours && was_at_rest(&stat) {
        serving.control.mark_live(stat.st_dev, stat.st_ino, real::now());
    } else if ours {
        serving.control.mark_file(stat.st_dev, stat.st_ino, real::now());
    }
    ours
}

/// Returns whether a file that has just been opened for writing has contents that programs may have copies of: it was
/// not truncated, and is older than [`SETTLED_S`]. Writes now change it in place. A file that is written in one go,
/// even through several opens, does not count.
fn was_at_rest(stat: &libc::stat) -> bool {
    // A time in the future comes from a server whose clock differs: the file's age is unknown.
    stat.st_size > 0 && !(0..SETTLED_S).contains(&real::unix_s().saturating_sub(stat.st_mtime))
}
