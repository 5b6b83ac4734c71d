//! Tombstones: what this program changes under a source is marked before the change and after it, so that no copy made or checked
//! before the change's end stands in for what comes after (see `Control::usable`).

use core::ffi::{CStr, c_int};

use forebay_contract::Counter;

use crate::{
    path::{PathBuffer, split},
    real,
    state::Serving,
    sys,
};

/// A name on a source's file system, and what it led to before the change.
pub(crate) struct Place<'a> {
    name: &'a [u8],
    parent: (u64, u64),
    /// What the name leads to, through links.
    file: Option<(u64, u64)>,
    /// What the name is: a file with more names than this one, or a link.
    own: Option<(u64, u64)>,
    /// Other names may lead through this one: it is a directory or a symbolic link.
    is_way: bool,
}

impl<'a> Place<'a> {
    /// The place that a name stands for; `None` if that is not on a source's file system.
    #[inline(never)]
    pub(crate) fn find(serving: Serving, dirfd: c_int, path: &'a CStr) -> Option<Self> {
        let (parent, name) = split(path.to_bytes())?;
        let parent = {
            let mut buffer = PathBuffer::new();
            buffer.push(parent)?;
            sys::stat_at(dirfd, buffer.c_str(), 0).ok()?
        };
        if !serving.door.run.is_source_device(parent.st_dev) {
            return None;
        }
        let own = sys::stat_at(dirfd, path, libc::AT_SYMLINK_NOFOLLOW).ok();
        let kind = own.map(|stat| stat.st_mode & libc::S_IFMT);
        let inode = |stat: libc::stat| (stat.st_dev, stat.st_ino);
        let own = own.map(inode);
        let file = match kind {
            Some(libc::S_IFLNK) => sys::stat_at(dirfd, path, 0).ok().map(inode),
            _ => own,
        };
        Some(Self {
            name,
            parent: inode(parent),
            file,
            own,
            is_way: matches!(kind, Some(libc::S_IFLNK | libc::S_IFDIR)),
        })
    }

    /// Marks a change of what the name leads to.
    pub(crate) fn mark(&self, serving: Serving) {
        let now = real::now();
        serving.control.mark_name(self.parent.0, self.parent.1, self.name, now);
        for (dev, ino) in self.file.into_iter().chain(self.own) {
            serving.control.mark_file(dev, ino, now);
        }
    }

    /// Marks a change after which other names may lead elsewhere.
    fn mark_way(&self, serving: Serving) {
        self.mark(serving);
        if self.is_way {
            serving.control.mark_void(real::now());
        }
    }
}

/// What a change does to names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Takes names away, puts them elsewhere or replaces what they lead to.
    Name,
    /// Makes a symbolic link.
    Link,
    /// Changes a file's contents.
    Contents,
}

/// Carries out a change, with its marks before and after.
pub(crate) fn around<const N: usize>(
    serving: Serving,
    places: &[Option<Place<'_>>; N],
    change: Change,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let mark = || {
        for place in places.iter().flatten() {
            if change == Change::Contents {
                place.mark(serving);
            } else {
                place.mark_way(serving);
            }
            if change == Change::Link {
                serving.control.mark_void(real::now());
            }
        }
    };
    mark();
    let result = call();
    if result == 0 {
        mark();
        if places.iter().any(Option::is_some) {
            serving.door.count(Counter::Tombstones, 1);
        }
    }
    result
}

/// Marks the file that a descriptor was opened for writing on, whatever name led to it. Gives whether it is a source's.
pub(crate) fn mark_descriptor(serving: Serving, fd: c_int) -> bool {
    let Ok(stat) = sys::stat_fd(fd) else {
        return false;
    };
    let ours = stat.st_mode & libc::S_IFMT == libc::S_IFREG && serving.door.run.is_source_device(stat.st_dev);
    if ours {
        serving.control.mark_file(stat.st_dev, stat.st_ino, real::now());
    }
    ours
}
