//! Memory of the server of a job's states, from which they are sent as far as they have come.

use std::{io, ops::Range};

use forebay_peers::Blob;

use super::{
    filled::{FilledMemory, LentRange},
    memory::make_memory,
};

/// Part of a stream of a rank's state, which is sent as far as it has come.
#[derive(Debug)]
pub(super) struct Stage {
    memory: FilledMemory,
    /// Part of the stream in bytes.
    part: Range<u64>,
}

/// Makes memory for a stage of this length, before the state comes.
///
/// # Errors
/// There is not enough memory beside what the host needs to go on.
pub(super) fn reserve(length: u64) -> Result<FilledMemory, String> {
    make_memory(length, length, || FilledMemory::make(length))
}

impl Stage {
    /// Makes a stage for a part of a stream, in memory that was reserved, if any.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn create(memory: Option<FilledMemory>, part: Range<u64>) -> Result<Self, String> {
        let length = part.end - part.start;
        let mut memory = memory.map_or_else(|| reserve(length), Ok)?;
        let had = memory.length();
        if length != had {
            make_memory(length, length.saturating_sub(had), || memory.set_length(length))?;
        }
        Ok(Self { memory, part })
    }

    /// Lends the place of bytes of the stream, to be read to it; none if not all of them are of the stage's part.
    pub(super) fn lend(&self, at: u64, bytes: usize) -> Option<LentRange<'_>> {
        let start = at.checked_sub(self.part.start)?;
        self.memory.lend(start..start.checked_add(bytes as u64)?)
    }

    /// Takes bytes of the stream at `at`; those outside of the stage's part are left out.
    ///
    /// # Errors
    /// Some of them have come before.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let (from, to) = (at.max(self.part.start), (at + bytes.len() as u64).min(self.part.end));
        if from >= to {
            return Ok(());
        }
        let bytes = &bytes[(from - at) as usize..(to - at) as usize];
        let mut place = self.lend(from, bytes.len()).ok_or("bytes of the state come twice")?;
        place.bytes_mut().copy_from_slice(bytes);
        place.fill();
        Ok(())
    }

    /// Returns whether all bytes of a range have come, counted from the first byte of the stage.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        self.memory.has(&(range.start..range.end.min(self.memory.length())))
    }
}

impl Blob for Stage {
    fn length(&self) -> u64 {
        self.memory.length()
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        if !self.memory.read(offset, room) {
            return Err(io::Error::other("these bytes of the state have not come"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_what_was_put_of_its_part_in_any_order() {
        let stage = Stage::create(None, 10..20).unwrap();
        let mut room = [0; 4];
        stage.put(0, b"0123456789ab").unwrap();
        stage.put(16, b"ghijklmn").unwrap();
        assert!(stage.has(&(0..2)) && !stage.has(&(0..3)) && stage.has(&(6..10)));
        stage.read(0, &mut room[..2]).unwrap();
        assert_eq!(&room[..2], b"ab");
        assert!(stage.read(1, &mut room).is_err());
        assert!(stage.lend(9, 2).is_none() && stage.lend(19, 2).is_none());
        let mut place = stage.lend(12, 4).unwrap();
        place.bytes_mut().copy_from_slice(b"cdef");
        place.fill();
        assert!(stage.has(&(0..10)));
        stage.read(3, &mut room).unwrap();
        assert_eq!((&room, stage.length()), (b"defg", 10));
        assert!(stage.put(12, b"cdef").is_err());
    }

    #[test]
    fn f54_a_stage_has_the_length_of_its_part_whatever_was_reserved_and_is_refused_with_numbers() {
        for reserved in [0, 1 << 20, 3 << 20] {
            let stage = Stage::create(Some(reserve(reserved).unwrap()), 5..(2 << 20) + 5).unwrap();
            assert_eq!(stage.length(), 2 << 20);
            stage.put(5, &vec![1; 2 << 20]).unwrap();
            assert!(stage.has(&(0..2 << 20)));
        }
        let why = Stage::create(None, 0..1 << 60).unwrap_err();
        assert!(why.contains(&format!("{} bytes does not fit into the", 1u64 << 60)), "{why}");
    }
}
