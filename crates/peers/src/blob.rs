//! Objects of a node, as its server sees them: each has an identity, and ranges that can be read.

use std::{fmt, io, ops::Range, sync::Arc, time::Instant};

use tokio::sync::oneshot;

use crate::wire::{BlobId, BlobName};

/// Owner of objects: a role of the agent.
pub trait Holder: Send + Sync + 'static {
    /// Takes a request, and answers it by `reply`, now or later, from any thread. It must not block: it is called in
    /// the thread that serves all. A reply that is dropped counts as [`Found::Absent`].
    fn asked(&self, request: BlobRequest, reply: Reply);

    /// Returns true for a node whose requests are never answered by asking other nodes. Its requests are admitted
    /// apart: were they to wait behind some that wait for other nodes, nodes could wait for each other.
    fn is_apart(&self, node: u16) -> bool {
        let _ = node;
        false
    }
}

/// A request for a range of an object.
#[derive(Clone, Debug)]
pub struct BlobRequest {
    /// The object.
    pub id: BlobId,
    /// Name and version of which the identity was made, if the asker gave them: enough to make the object.
    pub name: Option<BlobName>,
    /// The range that is asked for.
    pub range: Range<u64>,
    /// The node that asks.
    pub from: u16,
    /// Until when it waits.
    pub deadline: Instant,
    /// The step that needs it; lower ones go first.
    pub turn: u64,
}

/// Answer of a holder.
#[derive(Debug)]
pub enum Found {
    /// The object.
    Blob(Arc<dyn Blob>),
    /// No such object.
    Absent,
    /// The object at another version.
    Gone,
    /// The object, or room to read it, but no time.
    Busy,
}

/// Takes the answer of a holder.
#[derive(Debug)]
pub struct Reply(pub(crate) oneshot::Sender<Found>);

impl Reply {
    /// Answers. An asker that has gone does not matter.
    pub fn send(self, found: Found) {
        let _ = self.0.send(found);
    }

    /// Returns true if nobody waits for the answer any more.
    pub fn is_unwanted(&self) -> bool {
        self.0.is_closed()
    }
}

/// An object that a holder has.
pub trait Blob: Send + Sync + fmt::Debug + 'static {
    /// Length in bytes.
    fn length(&self) -> u64;

    /// Returns the number of bytes that are there, from the beginning on. It is less than the length while the object
    /// is still being made.
    fn available(&self) -> u64 {
        self.length()
    }

    /// Copies bytes from `offset` on into all of `room`.
    ///
    /// # Errors
    /// They can't be read.
    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()>;

    /// Returns XXH3-128 of a range, if that is known without reading it.
    fn digest(&self, range: &Range<u64>) -> Option<u128> {
        let _ = range;
        None
    }

    /// Returns whether bytes that were read a moment ago count: memory that changes, such as tensors under a read
    /// lease, says so *after* it was read.
    fn is_valid(&self, range: &Range<u64>) -> bool {
        let _ = range;
        true
    }

    /// Returns whether reading may wait for a disk.
    fn may_wait(&self) -> bool {
        false
    }
}
