//! Memory that is filled range by range, in any order, and read as far as it is filled.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    io::Errno,
    mm::{self, Advice, MapFlags, MremapFlags, ProtFlags},
};

/// Unit in which memory is touched where the kernel can't make its pages in one call.
const PAGE_BYTES: usize = 4096;

/// Ranges of a stream that are filled, by their beginnings.
#[derive(Debug, Default)]
pub(super) struct FilledRanges(BTreeMap<u64, u64>);

impl FilledRanges {
    /// Adds a range.
    pub(super) fn fill(&mut self, mut range: Range<u64>) {
        if let Some((start, _)) = self.0.range(..=range.start).next_back().filter(|(_, end)| **end >= range.start) {
            range.start = *start;
        }
        if let Some(end) = self.0.remove(&range.end) {
            range.end = end;
        }
        self.0.insert(range.start, range.end);
    }

    /// Returns whether all of a range is filled.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        let before = self.0.range(..=range.start).next_back();
        before.is_some_and(|(_, end)| *end >= range.end) || range.is_empty()
    }

    /// Returns whether a byte of a range is filled.
    fn overlap(&self, range: &Range<u64>) -> bool {
        let before = self.0.range(..range.end).next_back();
        before.is_some_and(|(_, end)| *end > range.start)
    }
}

/// Memory of this process with its pages. A range is lent to one writer, and is read by others once it is filled.
///
/// Large pages are not asked for: a virtual machine that gives free ones back to its host has to get each again, which
/// took 0.9 s for 256 MiB in place of 0.15 s.
#[derive(Debug)]
pub(super) struct FilledMemory {
    base: NonNull<u8>,
    length: usize,
    ranges: Mutex<MemoryRanges>,
}

#[derive(Debug, Default)]
struct MemoryRanges {
    lent: Vec<Range<u64>>,
    filled: FilledRanges,
}

// SAFETY: the mapping belongs to no thread. A range is written by the one holder of its `LentRange`, and read by others
// only once it is filled: it is not lent again from then on.
unsafe impl Send for FilledMemory {}
// SAFETY: as above.
unsafe impl Sync for FilledMemory {}

impl FilledMemory {
    /// Makes memory of this many bytes, pages included.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn make(length: u64) -> io::Result<Self> {
        let bytes = usize::try_from(length).map_err(io::Error::other)?;
        let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice; it lives until `drop`.
        let address = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), mapped(bytes), access, private)? };
        let memory = Self {
            base: NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mmap gave a null address"))?,
            length: bytes,
            ranges: Mutex::default(),
        };
        memory.make_pages(0)?;
        Ok(memory)
    }

    /// Gives the memory another length, before any of it is filled.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn set_length(&mut self, length: u64) -> io::Result<()> {
        let (had, bytes) = (self.length, usize::try_from(length).map_err(io::Error::other)?);
        let old = self.base.as_ptr().cast();
        // SAFETY: this mapping alone, of which nothing is borrowed.
        let address = unsafe { mm::mremap(old, mapped(had), mapped(bytes), MremapFlags::MAYMOVE)? };
        self.base = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mremap gave a null address"))?;
        self.length = bytes;
        self.make_pages(had)
    }

    /// Makes the pages from a length on.
    fn make_pages(&self, had: usize) -> io::Result<()> {
        let from = had.next_multiple_of(PAGE_BYTES);
        let Some(bytes) = self.length.checked_sub(from).filter(|bytes| *bytes > 0) else {
            return Ok(());
        };
        let start = self.base.as_ptr().wrapping_add(from);
        // SAFETY: of this mapping alone, and changes none of its bytes.
        match unsafe { mm::madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) } {
            // A kernel before 5.14 makes a page when it is written to.
            Err(Errno::INVAL) => {
                for at in (0..bytes).step_by(PAGE_BYTES) {
                    // SAFETY: within the mapping, which nobody has been lent yet.
                    unsafe { start.wrapping_add(at).write_volatile(0) };
                }
                Ok(())
            }
            result => Ok(result?),
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.length as u64
    }

    /// Lends a range to be written; none if it is empty, ends past the memory, or was lent or filled in part.
    pub(super) fn lend(&self, range: Range<u64>) -> Option<LentRange<'_>> {
        let mut ranges = self.ranges();
        let is_lent = ranges.lent.iter().any(|lent| lent.start < range.end && range.start < lent.end);
        if range.is_empty() || range.end > self.length() || is_lent || ranges.filled.overlap(&range) {
            return None;
        }
        ranges.lent.push(range.clone());
        Some(LentRange {
            memory: self,
            range,
            is_filled: false,
        })
    }

    /// Returns whether all of a range is filled.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        range.end <= self.length() && self.ranges().filled.has(range)
    }

    /// Copies bytes from an offset on to `room`. Returns false if not all of them are filled.
    pub(super) fn read(&self, offset: u64, room: &mut [u8]) -> bool {
        let range = offset..offset.saturating_add(room.len() as u64);
        let is_filled = self.has(&range);
        if is_filled {
            // SAFETY: within the mapping, and filled: nobody writes there any more.
            let filled = unsafe { std::slice::from_raw_parts(self.base.add(offset as usize).as_ptr(), room.len()) };
            room.copy_from_slice(filled);
        }
        is_filled
    }

    fn ranges(&self) -> MutexGuard<'_, MemoryRanges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FilledMemory {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `make`, and nothing borrows from `self` any more.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), mapped(self.length)) };
    }
}

/// Bytes to map for memory of a length. The kernel maps no empty range.
fn mapped(length: usize) -> usize {
    length.max(1)
}

/// A range that is lent to a writer.
#[derive(Debug)]
pub(super) struct LentRange<'a> {
    memory: &'a FilledMemory,
    range: Range<u64>,
    is_filled: bool,
}

impl LentRange<'_> {
    /// Returns the bytes of the range.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, bytes) = (self.range.start as usize, (self.range.end - self.range.start) as usize);
        // SAFETY: within the mapping, which has its pages; no other range that is lent overlaps this one, and none
        // that is filled.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base.add(start).as_ptr(), bytes) }
    }

    /// Gives the range back filled: others may read it now.
    pub(super) fn fill(mut self) {
        self.is_filled = true;
    }
}

impl Drop for LentRange<'_> {
    fn drop(&mut self) {
        let mut ranges = self.memory.ranges();
        ranges.lent.retain(|lent| *lent != self.range);
        if self.is_filled {
            ranges.filled.fill(self.range.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(memory: &FilledMemory, at: u64, bytes: &[u8]) -> bool {
        let lent = memory.lend(at..at + bytes.len() as u64);
        lent.is_some_and(|mut lent| {
            lent.bytes_mut().copy_from_slice(bytes);
            lent.fill();
            true
        })
    }

    #[test]
    fn a_range_is_read_once_it_is_filled_and_is_then_lent_no_more() {
        let memory = FilledMemory::make(10).unwrap();
        let mut room = [0; 4];
        assert!(!memory.read(2, &mut room));
        assert!(put(&memory, 4, b"cdef") && put(&memory, 2, b"ab"));
        assert!(memory.read(3, &mut room));
        assert_eq!(&room, b"bcde");
        assert!(!memory.read(7, &mut room) && memory.has(&(2..8)) && !memory.has(&(2..9)));
        assert!(!put(&memory, 0, b"xyz") && !put(&memory, 7, b"x") && !put(&memory, 8, b"xyz") && !put(&memory, 9, b""));
    }

    #[test]
    fn a_range_is_lent_to_one_writer_and_again_if_it_was_not_filled() {
        let memory = FilledMemory::make(10).unwrap();
        let lent = memory.lend(2..6).unwrap();
        assert!(memory.lend(5..7).is_none() && memory.lend(0..3).is_none() && memory.lend(6..10).is_some());
        drop(lent);
        assert!(!memory.has(&(2..6)) && put(&memory, 5, b"xy"));
    }

    #[test]
    fn a_length_is_changed_either_way_and_may_be_none() {
        let mut memory = FilledMemory::make(0).unwrap();
        assert!(memory.lend(0..1).is_none() && memory.read(0, &mut []) && !memory.read(0, &mut [0]));
        memory.set_length(3 << 20).unwrap();
        assert!(put(&memory, (3 << 20) - 1, b"x"));
        memory.set_length(1 << 20).unwrap();
        assert!(memory.lend((1 << 20) - 1..(1 << 20) + 1).is_none() && put(&memory, (1 << 20) - 1, b"x"));
        assert!(FilledMemory::make(u64::MAX).is_err());
    }

    #[test]
    fn memory_has_its_pages_before_it_is_filled() {
        let mut memory = FilledMemory::make(3 << 20).unwrap();
        memory.set_length(5 << 20).unwrap();
        // The kernel may have joined the mapping to one beside it.
        let holds = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let address = |text| usize::from_str_radix(text, 16).ok();
            Some((address(start)?..address(end)?).contains(&(memory.base.as_ptr() as usize)))
        };
        let resident = |line: &str| line.strip_prefix("Rss:")?.trim().trim_end_matches(" kB").parse::<u64>().ok();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut own = maps.lines().skip_while(|line| holds(line) != Some(true));
        assert!(own.find_map(resident).unwrap() >= 5 << 10);
    }
}
