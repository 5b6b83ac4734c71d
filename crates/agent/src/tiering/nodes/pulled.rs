//! A copy that is made of pieces from other nodes.

use std::{ops::Range, sync::Arc};

use forebay_contract::Identity;
use forebay_policy::peers::PieceOrder;
use forebay_store::{CopySource, CopyWriter, Finished, StatFrom, StoreError, Tier};

use crate::tiering::{
    limits::UNDIGESTED_BYTES_MAX,
    nodes::partial::{PartialCopy, PieceGrid, digest_of},
};

/// A copy that is being pulled. Dropped before [`Self::finish`], it removes its file.
#[derive(Debug)]
pub(crate) struct PulledCopy {
    tier: Arc<Tier>,
    copy: u64,
    identity: Identity,
    keeps_holes: bool,
    /// Made for the first piece: nothing is made in the tier for a file that nobody gives.
    writer: Option<CopyWriter>,
    /// Pieces that other nodes are sent.
    partial: Option<Arc<PartialCopy>>,
    grid: PieceGrid,
    order: PieceOrder,
}

impl PulledCopy {
    /// Begins without a piece. `place` is the place of this node among the
    /// nodes of its job, and their number.
    pub(crate) fn new(
        (tier, copy): (Arc<Tier>, u64),
        identity: Identity,
        keeps_holes: bool,
        partial: Option<Arc<PartialCopy>>,
        (grid, place): (PieceGrid, (u16, u16)),
    ) -> Self {
        Self {
            grid,
            tier,
            copy,
            identity,
            keeps_holes,
            writer: None,
            partial,
            order: PieceOrder::new(grid.count(), place),
        }
    }

    /// Returns the number and range of the next piece to ask for; `None` until one has come.
    pub(crate) fn ask(&mut self) -> Option<(u32, Range<u64>)> {
        let piece = self.order.ask()?;
        Some((piece, self.grid.range(piece)))
    }

    /// Writes a piece that has come from a node that `has` so many bytes of the file.
    ///
    /// # Errors
    /// The tier takes no copy, or no bytes.
    pub(crate) fn take(&mut self, piece: u32, bytes: &[u8], has: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let writer = self.tier.begin(self.copy, &self.identity)?;
                none.insert(if self.keeps_holes { writer.keep_holes() } else { writer })
            }
        };
        writer.place(self.grid.range(piece).start, bytes, buffer)?;
        self.order.came(piece);
        self.order.holder_has(self.grid.count_in(has));
        if let Some(partial) = &self.partial {
            partial.add(piece, digest_of(bytes));
        }
        Ok(())
    }

    /// Takes note that a node did not give a piece, and that another one is asked from now on.
    pub(crate) fn lost(&mut self, piece: u32) {
        self.order.lost(piece);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.order.is_complete()
    }

    /// Returns the copy, if it is whole, of the version that this node's own source has, and of the digest that
    /// `is_digest_of_holder` confirms. Otherwise `None`, and nothing is left of the copy.
    ///
    /// A node confirms a digest only once it has published its own copy. So one of them has read the whole file from
    /// its source, and has found it unchanged afterwards.
    ///
    /// # Errors
    /// The tier or the source has failed, or the source has changed.
    pub(crate) fn finish(
        self,
        source: &dyn CopySource,
        ask: StatFrom,
        is_digest_of_holder: impl FnOnce(u128) -> bool,
    ) -> Result<Option<Finished>, StoreError> {
        let Some(writer) = self.writer else { return Ok(None) };
        let finished = writer.finish(source, ask)?;
        // A small file came in one answer, from a published copy, and with its digest.
        let is_small = self.identity.size <= UNDIGESTED_BYTES_MAX;
        if is_small || is_digest_of_holder(finished.checksum) {
            return Ok(Some(finished));
        }
        self.tier.discard(self.copy)?;
        Ok(None)
    }
}
