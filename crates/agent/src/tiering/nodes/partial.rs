//! Pieces of a copy that is being made, as other nodes are sent them.
//!
//! A piece counts once it is in the tier and digested. Nobody publishes a copy for its pieces alone: the file may
//! change while its owner reads it. A node that has all pieces asks for the digest of the whole, which the owner gives
//! once its own copy is published.

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use forebay_store::{CopySource, CopyWriter, SourceStat, StatFrom, StoreError};
use twox_hash::{XxHash3_128, xxhash3_128::Hasher};

use crate::{
    host::clock::boot_ms,
    tiering::limits::{FETCH_PIECE_BYTES, PIECE_PAUSE_MAX},
};

/// Division of a file into pieces of one length; the last one may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceGrid {
    /// Length of the file in bytes.
    pub(crate) size: u64,
    pub(crate) piece_bytes: u64,
}

impl PieceGrid {
    /// Returns the pieces by which nodes ask for a file of `size` bytes.
    pub(crate) const fn of(size: u64) -> Self {
        Self {
            size,
            piece_bytes: FETCH_PIECE_BYTES,
        }
    }

    pub(crate) fn count(self) -> u32 {
        u32::try_from(self.size.div_ceil(self.piece_bytes)).unwrap_or(u32::MAX)
    }

    /// Returns the bytes of a piece.
    pub(crate) fn range(self, piece: u32) -> Range<u64> {
        let start = u64::from(piece) * self.piece_bytes;
        start..self.size.min(start + self.piece_bytes)
    }

    /// Returns the number of whole pieces in the first `bytes` of the file.
    pub(crate) fn count_in(self, bytes: u64) -> u32 {
        if bytes >= self.size {
            return self.count();
        }
        u32::try_from(bytes / self.piece_bytes).unwrap_or(u32::MAX)
    }
}

/// Pieces of one copy.
pub(crate) struct PartialCopy {
    grid: PieceGrid,
    /// XXH3-128 of each piece that is here.
    digests: Mutex<Vec<Option<u128>>>,
    /// Time of the latest piece, in milliseconds of `CLOCK_BOOTTIME`; 0 before the first.
    latest_ms: AtomicU64,
    /// True once the copy was given up, or its source has changed.
    is_void: AtomicBool,
    /// True while requests of other nodes wait for a piece.
    is_awaited: AtomicBool,
    /// Tells the event loop that a piece has come.
    tell: PieceNotice,
}

/// Tells the event loop that a piece has come, from any thread.
pub(crate) type PieceNotice = Box<dyn Fn() + Send + Sync>;

impl fmt::Debug for PartialCopy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PartialCopy({} of {} bytes)", self.available(), self.grid.size)
    }
}

impl PartialCopy {
    /// Begins without a piece.
    pub(crate) fn new(grid: PieceGrid, tell: PieceNotice) -> Self {
        Self {
            grid,
            digests: Mutex::new(vec![None; grid.count() as usize]),
            latest_ms: AtomicU64::new(0),
            is_void: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            tell,
        }
    }

    fn digests(&self) -> MutexGuard<'_, Vec<Option<u128>>> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece that is in the tier, and tells the event loop if a request waits for one.
    pub(crate) fn add(&self, piece: u32, digest: u128) {
        if let Some(slot) = self.digests().get_mut(piece as usize) {
            *slot = Some(digest);
        }
        self.latest_ms.store(boot_ms(), SeqCst);
        if self.is_awaited.swap(false, SeqCst) {
            (self.tell)();
        }
    }

    /// Returns true if a piece has come lately.
    pub(crate) fn is_coming(&self) -> bool {
        boot_ms() < self.latest_ms.load(SeqCst).saturating_add(PIECE_PAUSE_MAX.as_millis() as u64)
    }

    /// Has the next piece that comes told to the event loop. Called before it looks for one.
    pub(crate) fn await_piece(&self) {
        self.is_awaited.store(true, SeqCst);
    }

    /// Returns true if all bytes of a range are here.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        let piece_bytes = self.grid.piece_bytes;
        let (first, end) = (range.start / piece_bytes, range.end.div_ceil(piece_bytes));
        let digests = self.digests();
        let pieces = digests.get(first as usize..end as usize);
        range.end <= self.grid.size && pieces.is_some_and(|pieces| pieces.iter().all(Option::is_some))
    }

    /// Returns the digest of a range that is a piece.
    pub(crate) fn digest(&self, range: &Range<u64>) -> Option<u128> {
        let piece = u32::try_from(range.start / self.grid.piece_bytes).ok()?;
        let digest = self.digests().get(piece as usize).copied().flatten();
        digest.filter(|_| *range == self.grid.range(piece))
    }

    /// Returns the number of bytes that are here from the beginning on.
    pub(crate) fn available(&self) -> u64 {
        let pieces = self.digests().iter().take_while(|digest| digest.is_some()).count() as u64;
        (pieces * self.grid.piece_bytes).min(self.grid.size)
    }

    /// Has no byte of the copy count any more.
    pub(crate) fn make_void(&self) {
        self.is_void.store(true, SeqCst);
    }

    pub(crate) fn is_void(&self) -> bool {
        self.is_void.load(SeqCst)
    }
}

/// Digests the pieces of a copy while it is made in order.
pub(crate) struct PieceDigests {
    partial: Arc<PartialCopy>,
    hasher: Mutex<PieceHasher>,
}

/// Digest of a piece so far.
struct PieceHasher {
    hasher: Hasher,
    /// Bytes digested so far, from the file's beginning on.
    at: u64,
    /// Pieces that were read, and are not yet known to be in the tier.
    read: Vec<(u32, u128)>,
}

impl fmt::Debug for PieceDigests {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.partial.fmt(formatter)
    }
}

impl PieceDigests {
    pub(crate) fn new(partial: Arc<PartialCopy>) -> Self {
        Self {
            partial,
            hasher: Mutex::new(PieceHasher {
                hasher: Hasher::new(),
                at: 0,
                read: Vec::new(),
            }),
        }
    }

    /// Copies on as [`CopyWriter::advance`] does. Adds the pieces that are in the tier then.
    ///
    /// # Errors
    /// The writer can't read the source or write the copy.
    pub(crate) fn advance(
        &self,
        writer: &mut CopyWriter,
        source: &dyn CopySource,
        upto: u64,
        buffer: &mut [u8],
    ) -> Result<u64, StoreError> {
        let copied = writer.advance(&DigestedSource { source, digests: self }, upto, buffer)?;
        let read = std::mem::take(&mut self.hasher().read);
        for (piece, digest) in read {
            self.partial.add(piece, digest);
        }
        Ok(copied)
    }

    fn hasher(&self) -> MutexGuard<'_, PieceHasher> {
        self.hasher.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PieceHasher {
    /// Digests bytes that follow those before.
    fn take(&mut self, mut bytes: &[u8], grid: PieceGrid) {
        while !bytes.is_empty() {
            let piece = u32::try_from(self.at / grid.piece_bytes).unwrap_or(u32::MAX);
            let end = grid.range(piece).end;
            let part = usize::try_from(end.saturating_sub(self.at))
                .unwrap_or(usize::MAX)
                .clamp(1, bytes.len());
            let (now, later) = bytes.split_at(part);
            self.hasher.write(now);
            self.at += part as u64;
            if self.at == end {
                let hasher = std::mem::replace(&mut self.hasher, Hasher::new());
                self.read.push((piece, hasher.finish_128()));
            }
            bytes = later;
        }
    }
}

/// A source whose bytes are digested as they are read, in order.
struct DigestedSource<'a> {
    source: &'a dyn CopySource,
    digests: &'a PieceDigests,
}

impl CopySource for DigestedSource<'_> {
    fn stat(&self, ask: StatFrom) -> rustix::io::Result<SourceStat> {
        self.source.stat(ask)
    }

    fn read_at(&self, room: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
        let read = self.source.read_at(room, offset)?;
        let mut hasher = self.digests.hasher();
        if hasher.at != offset {
            return Err(rustix::io::Errno::INVAL);
        }
        hasher.take(room.get(..read).unwrap_or_default(), self.digests.partial.grid);
        Ok(read)
    }

    fn forget_pages(&self, bytes: u64) -> rustix::io::Result<()> {
        self.source.forget_pages(bytes)
    }
}

/// Digest of the bytes of a piece.
pub(crate) fn digest_of(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}
