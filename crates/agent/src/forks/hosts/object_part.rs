//! Parts of objects: what one request asks a host for.

use forebay_peers::{BlobId, Kind};
use forebay_state::StateStream;

use crate::forks::limits::HOST_RANGE_BYTES;

/// Part of an object that a host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectPart {
    /// Object.
    pub(super) id: BlobId,
    /// First byte in the object.
    pub(super) offset: u64,
    /// Number of bytes.
    pub(super) bytes: u64,
    /// Number of the state, or text, that the bytes belong to.
    pub(super) of: usize,
    /// Stream of the state.
    pub(super) stream: StateStream,
    /// First byte in the stream.
    pub(super) at: u64,
}

impl ObjectPart {
    /// Cuts an object into parts of the size of a request. The object is a part of a stream, from `at` on.
    pub(super) fn all(id: BlobId, length: u64, of: usize, stream: StateStream, at: u64) -> impl Iterator<Item = Self> {
        let step = HOST_RANGE_BYTES as u64;
        (0..Self::count(length)).map(move |number| Self {
            id,
            offset: number * step,
            bytes: step.min(length - number * step),
            of,
            stream,
            at: at + number * step,
        })
    }

    /// Returns the number of parts of an object of this length.
    pub(super) const fn count(length: u64) -> u64 {
        length.div_ceil(HOST_RANGE_BYTES as u64)
    }

    /// Cuts the part in halves.
    pub(super) fn halves(self) -> [Self; 2] {
        let bytes = self.bytes / 2;
        let second = Self {
            offset: self.offset + bytes,
            bytes: self.bytes - bytes,
            at: self.at + bytes,
            ..self
        };
        [Self { bytes, ..self }, second]
    }
}

/// Returns the identity of a part at a host of a clone.
pub(super) fn received_id(fork: u64, part: &ObjectPart) -> BlobId {
    let name = format!("received/{}/{:?}/{}", part.of, part.stream, part.at);
    BlobId::of(Kind::Forks, name.as_bytes(), &fork.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_of_an_object_and_so_are_their_halves() {
        let id = BlobId::of(Kind::Forks, b"object", b"1");
        let length = 2 * HOST_RANGE_BYTES as u64 + 5;
        let parts: Vec<_> = ObjectPart::all(id, length, 3, StateStream::Own, 100).collect();
        assert_eq!(parts.len(), 3);
        let halves: Vec<_> = parts.iter().cloned().flat_map(ObjectPart::halves).collect();
        for parts in [&parts, &halves] {
            assert_eq!((parts[0].offset, parts[0].at), (0, 100));
            assert!(
                parts
                    .windows(2)
                    .all(|two| two[0].offset + two[0].bytes == two[1].offset && two[1].at == two[1].offset + 100)
            );
            assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), length);
        }
        assert_eq!(ObjectPart::all(id, 0, 0, StateStream::Own, 0).count(), 0);
    }
}
