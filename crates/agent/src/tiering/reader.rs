//! The program that reads a file while it is copied, seen through /proc and the page cache.

use std::{
    collections::HashMap,
    os::fd::{AsRawFd, BorrowedFd},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    ffi::CString,
    fs::{Mode, OFlags},
};

use crate::{
    host::shared::cached_bytes,
    tiering::open_files::{OpenDescriptor, without_removal},
};

/// Number of large files that are followed in each process. The reads of a process are divided among them.
pub(crate) type Followed = Arc<Mutex<HashMap<i32, u64>>>;

/// Descriptor with which a program has opened a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderDescriptor {
    pub(crate) pid: i32,
    /// Its number in the program.
    pub(crate) number: i32,
    /// Bytes that the process had read at the open; `None` if unknown.
    pub(crate) read_bytes: Option<u64>,
}

impl ReaderDescriptor {
    /// Returns the descriptor alone.
    pub(crate) const fn descriptor(self) -> OpenDescriptor {
        OpenDescriptor {
            pid: self.pid,
            number: self.number,
        }
    }
}

/// Descriptor of a program, seen from outside.
#[derive(Debug)]
pub(crate) struct FollowedReader {
    descriptor: OpenDescriptor,
    target: Option<CString>,
    volume: u64,
    /// Bytes that the process had read at the last look; `None` if unknown.
    read: Option<u64>,
    offset: u64,
    /// Bytes that the process had read at the last look before `offset` was looked up.
    read_before_offset: Option<u64>,
    seeks: bool,
    closed: bool,
    followed: Followed,
}

impl FollowedReader {
    /// Begins to watch a descriptor, of which `source` is a duplicate. Reads count from the open if the program has
    /// told what it had read by then: a fast one has read all of the file before a busy agent looks.
    pub(crate) fn new(opened: ReaderDescriptor, source: BorrowedFd<'_>, followed: &Followed) -> Self {
        *followed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(opened.pid)
            .or_default() += 1;
        let descriptor = opened.descriptor();
        let read = opened.read_bytes.or_else(|| bytes_read(opened.pid));
        Self {
            descriptor,
            target: descriptor.name(),
            volume: 0,
            read,
            offset: shared_offset(source),
            read_before_offset: read,
            seeks: false,
            closed: false,
            followed: Arc::clone(followed),
        }
    }

    /// Returns true if the program still has the file open under this number, though it may have been removed or
    /// replaced. Duplicates in other processes are not seen.
    pub(crate) fn is_open(&self) -> bool {
        let (Some(target), Some(now)) = (&self.target, self.descriptor.name()) else {
            return false;
        };
        without_removal(now.to_bytes()) == without_removal(target.to_bytes())
    }

    /// Notes the position of the reader, `offset`, which was looked up just before. Returns this file's share of the
    /// bytes that the process has read since the open, and true if the reader has ever seeked: its offset went back, or
    /// further than all reads of the process could have moved it.
    pub(crate) fn observe(&mut self, offset: u64, open: bool) -> (Option<u64>, bool) {
        let read_before = self.read;
        let share = self
            .followed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&self.descriptor.pid)
            .copied();
        if let (Some(now), Some(before)) = (bytes_read(self.descriptor.pid), self.read) {
            let read = now.saturating_sub(before);
            // A read may have ended between the two looks at offset and reads. So all reads count since the look before
            // the last offset.
            let most = now.saturating_sub(self.read_before_offset.unwrap_or(before));
            self.seeks |= offset > self.offset.saturating_add(most);
            // After the close, the process reads other files.
            if open || !self.closed {
                self.volume += read / share.unwrap_or(1).max(1);
            }
            self.closed = !open;
            self.read = Some(now);
        }
        self.seeks |= offset < self.offset;
        self.offset = offset;
        self.read_before_offset = read_before;
        (self.read.map(|_| self.volume), self.seeks)
    }

    /// Returns this file's share of the bytes that the process has read since the open, as far as it is known.
    pub(crate) fn volume_now(&mut self) -> u64 {
        let (offset, open) = (self.offset, self.is_open());
        self.observe(offset, open).0.unwrap_or(0)
    }
}

impl Drop for FollowedReader {
    fn drop(&mut self) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = followed.get_mut(&self.descriptor.pid) {
            *count -= 1;
            if *count == 0 {
                followed.remove(&self.descriptor.pid);
            }
        }
    }
}

/// Returns the bytes that a process has read by system calls from any file (`rchar`).
pub(crate) fn bytes_read(pid: i32) -> Option<u64> {
    let file = rustix::fs::open(format!("/proc/{pid}/io"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 256];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let text = std::str::from_utf8(text.get(..len)?).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.trim().parse().ok()
}

/// Returns the offset that our duplicate shares with the program's descriptor.
///
/// Never waits. `lseek` would wait for a read of the program that is under way, which may take as long as the source
/// needs for the whole file.
pub(crate) fn shared_offset(descriptor: BorrowedFd<'_>) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()));
    let position = text
        .ok()
        .and_then(|text| text.strip_prefix("pos:")?.split_whitespace().next()?.parse().ok());
    position.unwrap_or(0)
}

/// Returns the bytes in the page cache from `from` on without a hole, up to `len`. For a range of at most one step it
/// counts all cached bytes. `None` where the kernel does not tell: before Linux 6.5, and for files that the user
/// neither owns nor may write.
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

/// Returns the bytes that the kernel reads ahead of a reader of a file system, by its device.
pub(crate) fn readahead_bytes(dev: u64) -> u64 {
    const USUAL_KIB: u64 = 128;
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let text = std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
    text.ok().and_then(|kib| kib.trim().parse().ok()).unwrap_or(USUAL_KIB) << 10
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_offset_is_that_of_the_last_read() {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        let same = file.try_clone().unwrap();
        for (read, expected) in [(0, 0), (40, 40), (30, 70), (50, 100)] {
            file.by_ref().take(read).read_to_end(&mut Vec::new()).unwrap();
            assert_eq!(shared_offset(same.as_fd()), expected);
        }
        file.seek(SeekFrom::Start(5)).unwrap();
        assert_eq!(shared_offset(same.as_fd()), 5);
    }

    #[test]
    fn reads_before_the_first_look_count_from_the_open() {
        use std::io::{Read, Seek};
        const BYTES: u64 = 1 << 20;
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(2 * BYTES).unwrap();
        let own = std::process::id() as i32;
        let opened = ReaderDescriptor {
            pid: own,
            number: file.as_raw_fd(),
            read_bytes: bytes_read(own),
        };
        file.by_ref().take(BYTES).read_to_end(&mut Vec::new()).unwrap();
        let mut reader = FollowedReader::new(opened, file.as_fd(), &Followed::default());
        let (volume, seeks) = reader.observe(file.stream_position().unwrap(), true);
        assert!(volume.unwrap() >= BYTES && !seeks, "{volume:?}");
    }

    #[test]
    fn a_file_that_is_removed_stays_open_until_its_close() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let file = named.reopen().unwrap();
        let opened = ReaderDescriptor {
            pid: std::process::id() as i32,
            number: file.as_raw_fd(),
            read_bytes: None,
        };
        let same = file.try_clone().unwrap();
        let reader = FollowedReader::new(opened, same.as_fd(), &Followed::default());
        drop(named);
        assert!(reader.is_open());
        drop(file);
        assert!(!reader.is_open());
    }

    #[test]
    fn a_read_that_ends_between_two_looks_is_no_seek() {
        let file = tempfile::tempfile().unwrap();
        let own = std::process::id() as i32;
        let opened = ReaderDescriptor {
            pid: own,
            number: 0,
            read_bytes: None,
        };
        let mut reader = FollowedReader::new(opened, file.as_fd(), &Followed::default());
        // As if all reads of this process had ended after the look at its offset, and before that at its reads.
        let read = reader.read.unwrap();
        reader.read_before_offset = Some(0);
        assert!(!reader.observe(read, true).1, "the offset has moved by what was read");
        assert!(reader.observe(1 << 50, true).1, "nobody has read that much");
    }
}
