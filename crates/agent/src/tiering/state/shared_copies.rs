//! Copies that other nodes are sent.

use std::sync::Arc;

use forebay_peers::{Blob, Found};

use crate::tiering::{
    limits::UNDIGESTED_BYTES_MAX,
    nodes::{
        blob::{CopyBlob, CopyPart, DigestBlob, SharedVersion},
        partial::PartialCopy,
    },
    state::{copies::PublishedCopies, flights::CopyFlight},
};

/// Returns the copy of a file at a version.
pub(super) fn find_copy(path: &[u8], version: SharedVersion, part: CopyPart, copies: &mut PublishedCopies) -> Option<Found> {
    let index = copies.index.index();
    let (number, record) = index.find_kept(path)?;
    let identity = index.identity(record).filter(|identity| SharedVersion::of(identity) == version)?;
    let (tier, copy) = (record.tier(), record.copy());
    if !copies.has_copy(number) {
        return None;
    }
    let digests = copies.tiers.digests_of(copy).cloned();
    // Nobody would publish its bytes without a digest to compare with.
    if digests.is_none() && identity.size > UNDIGESTED_BYTES_MAX {
        return None;
    }
    let blob: Arc<dyn Blob> = match part {
        CopyPart::Bytes => Arc::new(CopyBlob {
            file: copies.tiers.get(tier)?.tier.open_copy(copy).ok()?,
            bytes: identity.size,
            digest: digests.as_ref().map(|digests| digests.whole),
            pieces: digests.and_then(|digests| digests.pieces),
        }),
        CopyPart::Digest => Arc::new(DigestBlob(digests?.whole.to_le_bytes())),
    };
    Some(Found::Blob(blob))
}

/// Returns the copy that is being made, of which some pieces are here.
pub(super) fn find_pieces(flight: &CopyFlight, partial: &Arc<PartialCopy>, copies: &PublishedCopies) -> Option<Found> {
    let place = flight.place?;
    let file = copies.tiers.get(place.tier)?.tier.open_copy(place.copy).ok()?;
    Some(Found::Blob(Arc::new(CopyBlob {
        file,
        bytes: flight.identity.size,
        digest: None,
        pieces: Some(Arc::clone(partial)),
    })))
}
