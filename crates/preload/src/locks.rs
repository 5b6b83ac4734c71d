//! Locks are taken on the source (promise P2). Before a program locks a redirected descriptor, that descriptor is moved
//! to the source. Number, flags and offset stay; from then on the program reads what others have written under the
//! lock.
//!
//! A lock file protects the files beside it. So when a program locks a file of a source, its redirected descriptors of
//! files in the same directory are moved to the source, too: LMDB opens its data first, then locks a file beside them,
//! and maps the data after that.

use core::ffi::{CStr, c_int};

use forebay_contract::Counter;

use crate::{
    copies::{self, COPY_MODE, OpenCopy},
    open::has_source_path,
    path::{PathBuffer, descriptor_path, split},
    real,
    state::{self, Serving},
    sys::{self, Errno},
};

/// Owner of a lock, which decides whom it excludes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The process (`fcntl`'s classic locks, `lockf`).
    Process,
    /// The open file description, with all its descriptors in all processes (`flock`, `F_OFD_SETLK`).
    Description,
}

/// Returns the owner of the lock that an `fcntl` command sets or tests; `None` for all other commands.
#[inline]
pub(crate) const fn owner_of(command: c_int) -> Option<Owner> {
    match command {
        libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK => Some(Owner::Process),
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK => Some(Owner::Description),
        _ => None,
    }
}

/// Carries out `real`, the program's call that locks the file of `fd`, on the source.
pub(crate) fn lock(fd: c_int, owner: Owner, real: impl FnOnce() -> c_int) -> c_int {
    match state::serving().map_or(Ok(()), |serving| prepare(serving, fd, owner)) {
        Ok(()) => real(),
        Err(errno) => real::as_libc(Err(errno)),
    }
}

#[inline(never)]
fn prepare(serving: Serving, fd: c_int, owner: Owner) -> Result<(), Errno> {
    // The program's own call refuses a bad descriptor.
    let Ok(stat) = sys::stat_fd(fd) else { return Ok(()) };
    if let Some(copy) = copies::find(serving, &stat) {
        return to_source(serving, &copy, fd, owner);
    }
    if stat.st_mode & libc::S_IFMT == libc::S_IFREG && serving.pages.run.is_source_device(stat.st_dev) {
        serving.control.mark_live(stat.st_dev, stat.st_ino, real::now());
        // The file system may also hold other files that are often locked, such as databases.
        if has_source_path(serving, fd) {
            free_beside(serving, fd);
        }
    }
    Ok(())
}

/// Moves a copy's descriptor to the source, with all others of this process that share its offset.
///
/// # Errors
/// `EINTR`, or `ENOLCK` if the source can't be opened: a lock on the copy would not exclude users of the source.
fn to_source(serving: Serving, copy: &OpenCopy, fd: c_int, owner: Owner) -> Result<(), Errno> {
    if owner == Owner::Description && sys::shares_description(sys::parent_id(), fd, fd) {
        // The parent shares the lock, its descriptor can't be changed from here, and the lock has to outlive this
        // process (`flock 9` in a script).
        return Ok(());
    }
    let flags = sys::descriptor_flags(fd)?;
    let source = match copy.open_source(flags | libc::O_CLOEXEC | libc::O_NOCTTY) {
        Ok(source) => source,
        // The name leads to another file, or to none: only the copy of this version can be locked.
        Err(Errno(libc::ESTALE | libc::ENOTDIR)) => return Ok(()),
        Err(Errno(libc::EINTR)) => return Err(Errno(libc::EINTR)),
        Err(_) => return Err(Errno(libc::ENOLCK)),
    };
    if let Some((dev, ino)) = copy.source_inode() {
        serving.control.mark_live(dev, ino, real::now());
    }
    let moved = sys::seek_to(source, sys::offset(fd)).and_then(|()| {
        let process = sys::process_id() as c_int;
        for_each_descriptor(|other| {
            if other != fd && other != source && sys::shares_description(process, fd, other) {
                // After a failure it stays on the copy.
                let _ = sys::put_in_place(source, other);
            }
        });
        sys::put_in_place(source, fd)
    });
    sys::close(source);
    serving.pages.count(Counter::Locked, u64::from(moved.is_ok()));
    moved.map_err(|_| Errno(libc::ENOLCK))
}

/// Moves redirected descriptors of files beside that of `locked` to the source, as far as possible.
fn free_beside(serving: Serving, locked: c_int) {
    for_each_descriptor(|fd| {
        let Ok(stat) = sys::stat_fd(fd) else { return };
        if stat.st_mode == COPY_MODE
            && let Some(copy) = copies::find(serving, &stat)
            && let Some(directory) = source_directory(&copy)
            && directory_of(locked) == Some(directory)
        {
            let _ = to_source(serving, &copy, fd, Owner::Description);
        }
    });
}

/// Returns device and inode of an open file's directory.
#[inline(never)]
fn directory_of(fd: c_int) -> Option<(u64, u64)> {
    let mut path = PathBuffer::new();
    descriptor_path(fd, &mut path)?;
    parent_inode(&mut path)
}

/// Returns device and inode of the directory of a copy's source.
#[inline(never)]
fn source_directory(copy: &OpenCopy) -> Option<(u64, u64)> {
    let mut path = PathBuffer::new();
    copy.source_path(&mut path)?;
    parent_inode(&mut path)
}

fn parent_inode(path: &mut PathBuffer) -> Option<(u64, u64)> {
    let parent = split(path.bytes())?.0.len();
    path.truncate(parent);
    let stat = sys::stat_at(libc::AT_FDCWD, path.c_str(), 0).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Calls `act` with each open descriptor of this process, as far as /proc lists them.
fn for_each_descriptor(mut act: impl FnMut(c_int)) {
    const DIRECTORY: &CStr = c"/proc/self/fd";
    let Ok(listing) = sys::open_at(libc::AT_FDCWD, DIRECTORY, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0) else {
        return;
    };
    let mut entries = sys::Entries::new();
    while entries.read(listing) {
        entries.names(|name| {
            if let Some(fd) = number(name)
                && fd != listing
            {
                act(fd);
            }
        });
    }
    sys::close(listing);
}

/// Parses a decimal number; `None` for any other name.
fn number(name: &[u8]) -> Option<c_int> {
    let digits = || name.iter().map(|byte| byte.wrapping_sub(b'0'));
    if name.is_empty() || digits().any(|digit| digit > 9) {
        return None;
    }
    digits().try_fold(0 as c_int, |number, digit| number.checked_mul(10)?.checked_add(c_int::from(digit)))
}
