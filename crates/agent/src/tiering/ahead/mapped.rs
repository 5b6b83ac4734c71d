//! Pages of a file that a process has touched through a mapping: neither an offset nor a count of bytes shows them.

use std::{ffi::CStr, fs::File, os::unix::fs::FileExt};

/// Bytes of a mapping that are looked at; a longer one is judged by its beginning.
const LOOKED_BYTES_MAX: u64 = 2 << 30;
/// Bit of an entry of `/proc/PID/pagemap` for a page that the process has in its page table.
const PRESENT: u64 = 1 << 63;
/// Bytes of an entry.
const ENTRY_BYTES: u64 = 8;

/// Touched bytes of a mapped file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TouchedBytes {
    /// Without a gap from the offset that was asked for.
    pub(crate) in_order: u64,
    /// In all.
    pub(crate) anywhere: u64,
}

/// Returns the bytes of a file that process `pid` has touched through mappings, counted in order from offset `from`.
/// `None` if it has no mapping of the file. The kernel maps up to 16 pages at a touch.
pub(crate) fn touched(pid: i32, name: &CStr, from: u64) -> Option<TouchedBytes> {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
    let mappings: Vec<MappedRange> = maps.split(|byte| *byte == b'\n').filter_map(|line| range_of(line, name)).collect();
    if mappings.is_empty() {
        return None;
    }
    let mut touched = TouchedBytes::default();
    let Ok(pages) = File::open(format!("/proc/{pid}/pagemap")) else {
        return Some(touched);
    };
    for mapping in &mappings {
        let present = mapping.present(&pages);
        let page = rustix::param::page_size() as u64;
        let here = present.iter().filter(|present| **present).count() as u64 * page;
        let skipped = (from.saturating_sub(mapping.offset) / page) as usize;
        let run = present.iter().skip(skipped).take_while(|present| **present).count() as u64 * page;
        touched.anywhere = touched.anywhere.saturating_add(here);
        if mapping.offset <= from {
            touched.in_order = touched.in_order.max(run);
        }
    }
    Some(touched)
}

/// Addresses of a mapping, and the offset of the first one in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MappedRange {
    start: u64,
    end: u64,
    offset: u64,
}

impl MappedRange {
    /// Returns for each page whether the process has touched it.
    fn present(&self, pages: &File) -> Vec<bool> {
        let page = rustix::param::page_size() as u64;
        let count = (self.end - self.start).min(LOOKED_BYTES_MAX) / page;
        let mut entries = vec![0; (count * ENTRY_BYTES) as usize];
        let read = pages.read_at(&mut entries, self.start / page * ENTRY_BYTES).unwrap_or(0);
        entries.truncate(read);
        let (entries, _) = entries.as_chunks::<{ ENTRY_BYTES as usize }>();
        entries.iter().map(|entry| u64::from_ne_bytes(*entry) & PRESENT != 0).collect()
    }
}

/// Reads a line of `/proc/PID/maps` if it is of the file with this name: `start-end rw-p offset device inode   name`.
fn range_of(line: &[u8], name: &CStr) -> Option<MappedRange> {
    let at = line.iter().position(|byte| *byte == b'/')?;
    if line.get(at..)? != name.to_bytes() {
        return None;
    }
    let text = std::str::from_utf8(line.get(..at)?).ok()?;
    let mut fields = text.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(MappedRange {
        start: hexadecimal(start)?,
        end: hexadecimal(end)?,
        offset: hexadecimal(fields.nth(1)?)?,
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    #[test]
    fn lines_of_the_file_are_read_and_no_others() {
        let line = b"7f00-7f02 r--p 00003000 fe:10 77                         /data/a b";
        let range = MappedRange {
            start: 0x7f00,
            end: 0x7f02,
            offset: 0x3000,
        };
        assert_eq!(range_of(line, c"/data/a b"), Some(range));
        assert_eq!(range_of(line, c"/data/a"), None);
        assert_eq!(range_of(b"7f00-7f02 rw-p 00000000 00:00 0", c"/data/a"), None);
    }

    #[test]
    fn touched_pages_are_counted() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let page = rustix::param::page_size();
        let pages = 256;
        std::fs::write(file.path(), vec![1; pages * page]).unwrap();
        let name = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        assert_eq!(touched(pid, &name, 0), None);
        let descriptor = file.as_file().as_fd();
        // SAFETY: a new mapping of a file that nobody truncates, unmapped below.
        let at = unsafe { mmap(std::ptr::null_mut(), pages * page, ProtFlags::READ, MapFlags::SHARED, descriptor, 0) }.unwrap();
        assert_eq!(touched(pid, &name, 0), Some(TouchedBytes::default()));
        let touch = |number: usize| {
            // SAFETY: a byte of the mapping, which is readable.
            let byte = unsafe { at.cast::<u8>().add(number * page).read_volatile() };
            assert_eq!(byte, 1);
        };
        (0..64).for_each(touch);
        let first = touched(pid, &name, 0).unwrap();
        assert!(first.in_order >= 64 * page as u64 && first.anywhere == first.in_order, "{first:?}");
        touch(200);
        let more = touched(pid, &name, 0).unwrap();
        assert!(more.anywhere > first.anywhere && more.in_order == first.in_order, "{more:?}");
        // SAFETY: nothing uses the mapping any more.
        unsafe { munmap(at, pages * page) }.unwrap();
    }
}
