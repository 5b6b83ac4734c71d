//! What can be seen of the program that reads a file which is being copied.

use std::{
    collections::{HashMap, HashSet},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use forebay_store::SourceFile;
use rustix::{
    ffi::CString,
    fs::{Mode, OFlags, SeekFrom},
};

use crate::{limits::WRITERS_LOOK, shared::cached_bytes};

/// Large files that are followed now, by process: a process's reads are shared out among them.
pub(crate) type Followed = Arc<Mutex<HashMap<i32, u64>>>;

/// A program's descriptor, seen from outside.
#[derive(Debug)]
pub(crate) struct Reader {
    pid: i32,
    link: String,
    target: Option<CString>,
    volume: u64,
    /// What the process had read at the last look; `None`: it can't be seen.
    read: Option<u64>,
    offset: u64,
    seeks: bool,
    closed: bool,
    followed: Followed,
}

impl Reader {
    /// Begins to watch descriptor `number` of `pid`, of which `source` is a duplicate.
    pub(crate) fn new(pid: i32, number: i32, source: BorrowedFd<'_>, followed: &Followed) -> Self {
        *followed.lock().unwrap_or_else(PoisonError::into_inner).entry(pid).or_default() += 1;
        let link = format!("/proc/{pid}/fd/{number}");
        let target = rustix::fs::readlink(&link, Vec::new()).ok();
        let read = bytes_read(pid);
        Self {
            pid,
            link,
            target,
            volume: 0,
            read,
            // After the reads, and at each look before them: so an offset never seems to have moved further than was read.
            offset: shared_offset(source),
            seeks: false,
            closed: false,
            followed: Arc::clone(followed),
        }
    }

    /// Whether the program still has the file open under that number. Copies of the descriptor in other processes are not seen.
    pub(crate) fn is_open(&self) -> bool {
        self.target.is_some() && rustix::fs::readlink(&self.link, Vec::new()).ok() == self.target
    }

    /// Takes note of where the reader is, `offset` having been looked at just before. Gives this file's share of what the process has read
    /// since it was opened, in bytes, and whether the reader was ever seen to seek: its offset went back, or further than all
    /// of the process's reads could have moved it.
    pub(crate) fn observe(&mut self, offset: u64, open: bool) -> (Option<u64>, bool) {
        let share = self.followed.lock().unwrap_or_else(PoisonError::into_inner).get(&self.pid).copied();
        if let (Some(now), Some(before)) = (bytes_read(self.pid), self.read) {
            let read = now.saturating_sub(before);
            self.seeks |= offset > self.offset.saturating_add(read);
            // Once it is closed, what the process reads is of other files.
            if open || !self.closed {
                self.volume += read / share.unwrap_or(1).max(1);
            }
            self.closed = !open;
            self.read = Some(now);
        }
        self.seeks |= offset < self.offset;
        self.offset = offset;
        (self.read.map(|_| self.volume), self.seeks)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = followed.get_mut(&self.pid) {
            *count -= 1;
            if *count == 0 {
                followed.remove(&self.pid);
            }
        }
    }
}

/// Bytes that a process has read by system calls, from whatever (`rchar`).
fn bytes_read(pid: i32) -> Option<u64> {
    let file = rustix::fs::open(format!("/proc/{pid}/io"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 256];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let text = std::str::from_utf8(text.get(..len)?).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.trim().parse().ok()
}

/// The offset that a descriptor shares with the program's.
pub(crate) fn shared_offset(descriptor: BorrowedFd<'_>) -> u64 {
    rustix::fs::seek(descriptor, SeekFrom::Current(0)).unwrap_or(0)
}

/// Bytes in the page cache from `from` on without a hole, looking at most `len` far (any bytes at all of a range that is one step
/// long); `None` where the kernel refuses to say: before Linux 6.5, and for files that the user neither owns nor may write.
pub(crate) fn cached_run(descriptor: BorrowedFd<'_>, from: u64, len: u64) -> Option<u64> {
    const STEP: u64 = 128 << 10;
    if len <= STEP {
        return cached_bytes(descriptor, from, len);
    }
    let mut run = 0;
    while run < len {
        let step = STEP.min(len - run);
        if cached_bytes(descriptor, from + run, step)? < step {
            break;
        }
        run += step;
    }
    Some(run)
}

/// The name by which the kernel knows an open file; it asks nothing of the source.
pub(crate) fn name_of(source: &SourceFile) -> Option<CString> {
    rustix::fs::readlink(format!("/proc/self/fd/{}", source.as_fd().as_raw_fd()), Vec::new()).ok()
}

/// Files that processes of this user have open for writing, as far as they can be looked into, by the names of links in /proc: nothing is
/// asked of the source. A mapping that outlived its descriptor is not seen.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    names: HashSet<CString>,
    looked_at: Option<Instant>,
}

impl Writers {
    /// Whether somebody has the file open for writing. One look at all processes serves many files that come together.
    pub(crate) fn hold(&mut self, source: &SourceFile) -> bool {
        if self.looked_at.is_none_or(|at| at.elapsed() >= WRITERS_LOOK) {
            self.look();
        }
        name_of(source).is_none_or(|name| self.names.contains(&name))
    }

    fn look(&mut self) {
        self.looked_at = Some(Instant::now());
        self.names.clear();
        let own = rustix::process::getpid().as_raw_nonzero().get();
        for pid in numbers_in("/proc").into_iter().filter(|pid| *pid != own) {
            for number in numbers_in(&format!("/proc/{pid}/fd")) {
                let link = rustix::fs::readlink(format!("/proc/{pid}/fd/{number}"), Vec::new());
                let file = link.ok().filter(|name| name.to_bytes().starts_with(b"/"));
                if let Some(name) = file.filter(|_| is_writable(&format!("/proc/{pid}/fdinfo/{number}"))) {
                    self.names.insert(name);
                }
            }
        }
    }
}

/// Copies below these directories of objects, removed ones too, that processes of this user have open or mapped, as far as they can be looked
/// into.
pub(crate) fn open_copies(objects: &[PathBuf]) -> HashSet<u64> {
    // The kernel tells of names without links.
    let objects = objects.iter().map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone()));
    let below: Vec<Vec<u8>> = objects.map(|dir| [dir.as_os_str().as_bytes(), b"/"].concat()).collect();
    let copy_of = |name: &[u8]| below.iter().find_map(|below| copy_of(name.strip_prefix(below.as_slice())?));
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut open = HashSet::new();
    for pid in numbers_in("/proc").into_iter().filter(|pid| *pid != own) {
        for number in numbers_in(&format!("/proc/{pid}/fd")) {
            let link = rustix::fs::readlink(format!("/proc/{pid}/fd/{number}"), Vec::new());
            open.extend(link.ok().and_then(|name| copy_of(name.to_bytes())));
        }
        let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let names = maps.split(|byte| *byte == b'\n').filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b'/')?;
            line.get(at..)
        });
        open.extend(names.filter_map(copy_of));
    }
    open
}

/// The copy that `XX/ID` below a tier's objects is.
fn copy_of(name: &[u8]) -> Option<u64> {
    let name = std::str::from_utf8(name.strip_suffix(b" (deleted)").unwrap_or(name)).ok()?;
    let (_, id) = name.split_once('/')?;
    u64::from_str_radix(id, 16).ok()
}

/// Names of a directory in /proc that are numbers.
fn numbers_in(dir: &str) -> Vec<i32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(listing) = rustix::fs::open(dir, flags, Mode::empty()).and_then(rustix::fs::Dir::new) else {
        return Vec::new();
    };
    listing
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok())
        .collect()
}

/// The access mode in a descriptor's fdinfo (`flags:`, octal).
fn is_writable(fdinfo: &str) -> bool {
    let Ok(file) = rustix::fs::open(fdinfo, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut text = [0; 256];
    let len = rustix::io::read(&file, &mut text).unwrap_or(0);
    let text = String::from_utf8_lossy(text.get(..len).unwrap_or(&[])).into_owned();
    let flags = text
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 0o3 != 0)
}
