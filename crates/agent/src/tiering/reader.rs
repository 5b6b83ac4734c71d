//! The program that reads a file while it is copied, seen through /proc and the page cache.

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

use forebay_contract::Identity;
use forebay_store::SourceFile;
use rustix::{
    ffi::CString,
    fs::{Mode, OFlags},
};

use crate::host::shared::cached_bytes;
use crate::tiering::limits::{WRITERS_LOOK, WRITERS_MAPS_PART};

/// Number of large files that are followed in each process. The reads of a process are divided among them.
pub(crate) type Followed = Arc<Mutex<HashMap<i32, u64>>>;

/// Descriptor of a program, seen from outside.
#[derive(Debug)]
pub(crate) struct FollowedReader {
    pid: i32,
    link: String,
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
            offset: shared_offset(source),
            read_before_offset: read,
            seeks: false,
            closed: false,
            followed: Arc::clone(followed),
        }
    }

    /// Returns true if the program still has the file open under this number. Duplicates in other processes are not
    /// seen.
    pub(crate) fn is_open(&self) -> bool {
        self.target.is_some() && rustix::fs::readlink(&self.link, Vec::new()).ok() == self.target
    }

    /// Notes the position of the reader, `offset`, which was looked up just before. Returns this file's share of the
    /// bytes that the process has read since the open, and true if the reader has ever seeked: its offset went back, or
    /// further than all reads of the process could have moved it.
    pub(crate) fn observe(&mut self, offset: u64, open: bool) -> (Option<u64>, bool) {
        let read_before = self.read;
        let share = self.followed.lock().unwrap_or_else(PoisonError::into_inner).get(&self.pid).copied();
        if let (Some(now), Some(before)) = (bytes_read(self.pid), self.read) {
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
        if let Some(count) = followed.get_mut(&self.pid) {
            *count -= 1;
            if *count == 0 {
                followed.remove(&self.pid);
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

/// Returns the kernel's name of an open file, without a request to the source.
pub(crate) fn name_of(source: &SourceFile) -> Option<CString> {
    rustix::fs::readlink(format!("/proc/self/fd/{}", source.as_fd().as_raw_fd()), Vec::new()).ok()
}

/// Files that processes of this user have open, and files that they can change because they have them open or mapped
/// for writing. Only processes that the user may inspect are seen. Files are identified by the names of links and
/// mappings in /proc, and mapped files by device and inode, too, so that no request goes to the source.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    opened: HashMap<CString, Holders>,
    mapped: WritableMappings,
    opened_due: Option<Instant>,
    mapped_due: Option<Instant>,
}

impl Writers {
    /// Returns true if a process can change the file. One look at all processes serves many files that come together.
    pub(crate) fn hold(&mut self, source: &SourceFile, identity: &Identity) -> bool {
        self.look_at_descriptors();
        let begun = Instant::now();
        if self.mapped_due.is_none_or(|due| due <= begun) {
            self.look_at_mappings();
            // To list a process's mappings takes longer than its descriptors: a look takes its share of the time, and
            // no more.
            self.mapped_due = Some(begun + WRITERS_LOOK.max(begun.elapsed() * WRITERS_MAPS_PART));
        }
        let Some(name) = name_of(source) else { return true };
        self.opened.get(&name).is_some_and(|holders| holders.write) || self.mapped.has(name.to_bytes(), identity)
    }

    /// Returns true if a descriptor other than number `own.1` of process `own.0` has the same name.
    pub(crate) fn is_open_elsewhere(&mut self, source: &SourceFile, own: (i32, i32)) -> bool {
        self.look_at_descriptors();
        let Some(name) = name_of(source) else { return true };
        self.opened.get(&name).is_some_and(|holders| holders.only != Some(own))
    }

    fn look_at_descriptors(&mut self) {
        let begun = Instant::now();
        if self.opened_due.is_some_and(|due| begun < due) {
            return;
        }
        self.opened_due = Some(begun + WRITERS_LOOK);
        self.opened.clear();
        for pid in other_processes() {
            for number in numbers_in(&format!("/proc/{pid}/fd")) {
                let link = rustix::fs::readlink(format!("/proc/{pid}/fd/{number}"), Vec::new());
                let file = link.ok().filter(|name| name.to_bytes().starts_with(b"/"));
                let Some(name) = file else { continue };
                let write = is_writable(&format!("/proc/{pid}/fdinfo/{number}"));
                let first = Holders {
                    write,
                    only: Some((pid, number)),
                };
                let more = |holders: &mut Holders| {
                    holders.write |= write;
                    holders.only = None;
                };
                self.opened.entry(name).and_modify(more).or_insert(first);
            }
        }
    }

    fn look_at_mappings(&mut self) {
        self.mapped = WritableMappings::default();
        for pid in other_processes() {
            let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
            for line in maps.split(|byte| *byte == b'\n') {
                self.mapped.take(line);
            }
        }
    }
}

/// Processes that have a file open.
#[derive(Debug)]
struct Holders {
    /// True if a process can write to the file.
    write: bool,
    /// The only descriptor, by process and number; `None` if there are several.
    only: Option<(i32, i32)>,
}

/// Files with a shared writable mapping, through which they can be changed without a descriptor.
#[derive(Debug, Default)]
struct WritableMappings {
    names: HashSet<Vec<u8>>,
    inodes: HashSet<(u64, u64)>,
}

impl WritableMappings {
    /// Takes a line of `/proc/PID/maps`: `from-to rw-s offset major:minor inode   name`.
    fn take(&mut self, line: &[u8]) {
        let mut fields = line.split(|byte| *byte == b' ');
        // Most lines are of other kinds.
        let Some([_, b'w', _, b's']) = fields.nth(1) else { return };
        let (device, inode) = (
            fields.nth(1).and_then(device_of),
            fields.next().and_then(|inode| number_in(inode, 10)),
        );
        if let (Some(device), Some(inode)) = (device, inode) {
            self.inodes.insert((device, inode));
        }
        if let Some(at) = line.iter().position(|byte| *byte == b'/') {
            self.names.insert(without_escapes(line.get(at..).unwrap_or(&[])));
        }
    }

    /// Returns true if a file is among them, by inode or by name: some file systems (btrfs, overlayfs) give mappings
    /// another device number than files.
    fn has(&self, name: &[u8], identity: &Identity) -> bool {
        self.inodes.contains(&(identity.dev, identity.ino)) || self.names.contains(name)
    }
}

/// Reads `major:minor` in hexadecimal digits.
fn device_of(text: &[u8]) -> Option<u64> {
    let at = text.iter().position(|byte| *byte == b':')?;
    let part = |digits: Option<&[u8]>| u32::try_from(number_in(digits?, 16)?).ok();
    Some(rustix::fs::makedev(part(text.get(..at))?, part(text.get(at + 1..))?))
}

fn number_in(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Returns a name as links in /proc spell it. In `maps`, a newline is `\\012`.
fn without_escapes(name: &[u8]) -> Vec<u8> {
    const NEWLINE: &[u8] = b"\\012";
    let mut rest = name;
    let mut spelled = Vec::with_capacity(name.len());
    while let Some((first, after)) = rest.split_first() {
        let newline = rest.strip_prefix(NEWLINE);
        spelled.push(if newline.is_some() { b'\n' } else { *first });
        rest = newline.unwrap_or(after);
    }
    spelled
}

fn other_processes() -> impl Iterator<Item = i32> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    numbers_in("/proc").into_iter().filter(move |pid| *pid != own)
}

/// Returns the copies below these directories, removed ones too, that processes of this user have open or mapped. Only
/// processes that the user may inspect are seen.
pub(crate) fn open_copies(objects: &[PathBuf]) -> HashSet<u64> {
    // The kernel's names have their links resolved.
    let objects = objects.iter().map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone()));
    let below: Vec<Vec<u8>> = objects.map(|dir| [dir.as_os_str().as_bytes(), b"/"].concat()).collect();
    let copy_of = |name: &[u8]| below.iter().find_map(|below| copy_of(name.strip_prefix(below.as_slice())?));
    let mut open = HashSet::new();
    for pid in other_processes() {
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

/// Returns the number of the copy with the name `XX/ID` below a tier's objects.
fn copy_of(name: &[u8]) -> Option<u64> {
    let name = std::str::from_utf8(name.strip_suffix(b" (deleted)").unwrap_or(name)).ok()?;
    let (_, id) = name.split_once('/')?;
    u64::from_str_radix(id, 16).ok()
}

/// Returns the names in a directory of /proc that are numbers.
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

/// Returns true if the access mode in a descriptor's fdinfo (`flags:`, octal) allows writing.
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

#[cfg(test)]
mod tests {
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
    fn a_read_that_ends_between_two_looks_is_no_seek() {
        let file = tempfile::tempfile().unwrap();
        let own = std::process::id() as i32;
        let mut reader = FollowedReader::new(own, 0, file.as_fd(), &Followed::default());
        // As if all reads of this process had ended after the look at its offset, and before that at its reads.
        let read = reader.read.unwrap();
        reader.read_before_offset = Some(0);
        assert!(!reader.observe(read, true).1, "the offset has moved by what was read");
        assert!(reader.observe(1 << 50, true).1, "nobody has read that much");
    }

    #[test]
    fn finds_shared_writable_mappings_by_name_and_by_inode() {
        let mut mapped = WritableMappings::default();
        let lines: [&[u8]; 6] = [
            b"7f00-7f01 rw-s 00000000 fe:10 77                         /data/a b",
            b"7f00-7f01 -w-s 00000000 fe:10 78                         /data/new\\012line (deleted)",
            b"7f01-7f02 rw-p 00000000 fe:10 79                         /data/private",
            b"7f02-7f03 r--s 00000000 fe:10 80                         /data/read",
            b"7f03-7f04 rw-p 00000000 00:00 0 ",
            b"",
        ];
        for line in lines {
            mapped.take(line);
        }
        let none = Identity::default();
        let with_inode = |ino| Identity {
            dev: rustix::fs::makedev(0xFE, 0x10),
            ino,
            ..none
        };
        assert!(mapped.has(b"/data/a b", &none));
        assert!(mapped.has(b"/data/new\nline (deleted)", &none));
        assert!(mapped.has(b"/data/another name", &with_inode(77)), "a hard link");
        for (name, ino) in [(b"/data/private".as_slice(), 79), (b"/data/read", 80)] {
            assert!(!mapped.has(name, &with_inode(ino)));
        }
    }
}
