//! The files that processes have open or mapped, seen through /proc.
//!
//! Only processes that the user may inspect are seen. Files are identified by the names of links and mappings in /proc,
//! and mapped files by device and inode, too, so that no request goes to the source.

use std::{
    collections::{HashMap, HashSet},
    os::{
        fd::{AsFd, AsRawFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    time::{Duration, Instant},
};

use forebay_contract::Identity;
use forebay_store::SourceFile;
use rustix::{
    ffi::CString,
    fs::{Mode, OFlags},
};

use crate::tiering::limits::{WRITERS_LOOK, WRITERS_MAPPED_PART, WRITERS_OPENED_PART};

/// Returns the kernel's name of an open file, without a request to the source.
pub(crate) fn name_of(source: &SourceFile) -> Option<CString> {
    rustix::fs::readlink(format!("/proc/self/fd/{}", source.as_fd().as_raw_fd()), Vec::new()).ok()
}

/// Other processes that have files open or mapped for writing. One look at all processes serves many files that come
/// together.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    opened: HashMap<CString, Vec<OpenDescriptor>>,
    mapped: WritableMappings,
    opened_due: LookTime,
    mapped_due: LookTime,
}

impl Writers {
    /// Returns true if a process can change the file.
    pub(crate) fn hold(&mut self, source: &SourceFile, identity: &Identity) -> bool {
        self.look_at_descriptors();
        self.look_at_mappings();
        let Some(name) = name_of(source) else { return true };
        let mut opened = self.opened.get(&name).into_iter().flatten();
        opened.any(|descriptor| descriptor.can_write(&name)) || self.mapped.has(name.to_bytes(), identity)
    }

    /// Returns true if another descriptor than `own` has the same name.
    pub(crate) fn is_open_elsewhere(&mut self, source: &SourceFile, own: OpenDescriptor) -> bool {
        self.look_at_descriptors();
        let Some(name) = name_of(source) else { return true };
        self.opened.get(&name).is_some_and(|opened| opened.iter().any(|one| *one != own))
    }

    fn look_at_descriptors(&mut self) {
        let begun = Instant::now();
        if !self.opened_due.is_due(begun) {
            return;
        }
        self.opened.clear();
        for pid in other_processes() {
            for number in numbers_in(&format!("/proc/{pid}/fd")) {
                let descriptor = OpenDescriptor { pid, number };
                if let Some(name) = descriptor.name().filter(|name| name.to_bytes().starts_with(b"/")) {
                    self.opened.entry(name).or_default().push(descriptor);
                }
            }
        }
        self.opened_due.set(begun, begun.elapsed(), WRITERS_OPENED_PART);
    }

    fn look_at_mappings(&mut self) {
        let begun = Instant::now();
        if !self.mapped_due.is_due(begun) {
            return;
        }
        self.mapped = WritableMappings::default();
        for pid in other_processes() {
            let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
            for line in maps.split(|byte| *byte == b'\n') {
                self.mapped.take(line);
            }
        }
        self.mapped_due.set(begun, begun.elapsed(), WRITERS_MAPPED_PART);
    }
}

/// The time of the next look at all processes. Where they have very many files open, a look takes its share of the
/// time, and no more: else a look for each file that comes would stop the event loop.
#[derive(Clone, Copy, Debug, Default)]
struct LookTime(Option<Instant>);

impl LookTime {
    fn is_due(self, now: Instant) -> bool {
        self.0.is_none_or(|due| due <= now)
    }

    /// Sets it after a look that began at `begun`, and took `took`: at most one part in `part` of the time.
    fn set(&mut self, begun: Instant, took: Duration, part: u32) {
        self.0 = Some(begun + WRITERS_LOOK.max(took * part));
    }
}

/// Descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenDescriptor {
    pub(crate) pid: i32,
    /// Its number in the process.
    pub(crate) number: i32,
}

impl OpenDescriptor {
    /// Returns the kernel's name of its file; `None` if it is closed.
    pub(crate) fn name(self) -> Option<CString> {
        rustix::fs::readlink(format!("/proc/{}/fd/{}", self.pid, self.number), Vec::new()).ok()
    }

    /// Returns true if it still leads to the file of this name, and allows writing.
    fn can_write(self, name: &CString) -> bool {
        self.name().as_ref() == Some(name) && is_writable(&format!("/proc/{}/fdinfo/{}", self.pid, self.number))
    }
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

/// Returns the copies below these directories, removed ones too, that processes of this user have open or mapped.
pub(crate) fn open_copies(objects: &[PathBuf]) -> HashSet<u64> {
    // The kernel's names have their links resolved.
    let objects = objects.iter().map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone()));
    let below: Vec<Vec<u8>> = objects.map(|dir| [dir.as_os_str().as_bytes(), b"/"].concat()).collect();
    let copy_of = |name: &[u8]| below.iter().find_map(|below| copy_of(name.strip_prefix(below.as_slice())?));
    let mut open = HashSet::new();
    for pid in other_processes() {
        for number in numbers_in(&format!("/proc/{pid}/fd")) {
            let name = OpenDescriptor { pid, number }.name();
            open.extend(name.and_then(|name| copy_of(name.to_bytes())));
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

/// Returns the name that a file had before it was removed, or has.
pub(crate) fn without_removal(name: &[u8]) -> &[u8] {
    name.strip_suffix(b" (deleted)").unwrap_or(name)
}

/// Returns the number of the copy with the name `XX/ID` below a tier's objects.
fn copy_of(name: &[u8]) -> Option<u64> {
    let name = std::str::from_utf8(without_removal(name)).ok()?;
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
    fn a_long_look_takes_its_share_of_the_time_and_no_more() {
        let (mut due, begun) = (LookTime::default(), Instant::now());
        assert!(due.is_due(begun));
        due.set(begun, Duration::from_millis(1), 5);
        assert!(!due.is_due(begun) && due.is_due(begun + WRITERS_LOOK));
        due.set(begun, Duration::from_secs(1), 5);
        assert!(
            !due.is_due(begun + Duration::from_secs(4)),
            "four fifths of the time are for the event loop"
        );
        assert!(due.is_due(begun + Duration::from_secs(5)));
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
