//! Order in which a node asks for the pieces of a large file that several nodes want at the same moment.
//!
//! The holder may still be reading the file. A node asks for pieces that the holder has, beginning at a place of its
//! own, so that nodes hold different pieces and can give them to each other. Once it has asked for all of these, it
//! asks for the next one, which the holder answers as soon as it has read that.

use std::collections::BTreeSet;

/// Pieces that a node asks for at the same moment.
pub const PIECES_AT_ONCE: usize = 4;

/// Pieces of one file that a node has, has asked for, and lacks.
#[derive(Clone, Debug)]
pub struct PieceOrder {
    /// Pieces that were not asked for.
    missing: BTreeSet<u32>,
    under_way: BTreeSet<u32>,
    /// Number of pieces, from the first one on, that the holder is known to have.
    there: u32,
    /// Piece from which on the next one is looked for.
    cursor: u32,
}

impl PieceOrder {
    /// Begins with no piece. `place` is a number from 0 to `places` - 1 that differs between nodes.
    pub fn new(pieces: u32, (place, places): (u16, u16)) -> Self {
        let cursor = u64::from(pieces) * u64::from(place) / u64::from(places.max(1));
        Self {
            missing: (0..pieces).collect(),
            under_way: BTreeSet::new(),
            there: 0,
            cursor: u32::try_from(cursor).unwrap_or(0),
        }
    }

    /// Returns the next piece to ask for; `None` until one that was asked for has come.
    pub fn ask(&mut self) -> Option<u32> {
        if self.under_way.len() >= PIECES_AT_ONCE {
            return None;
        }
        let from = self.cursor.min(self.there);
        let later = self.missing.range(from..self.there).next();
        let there = later.or_else(|| self.missing.range(..from).next());
        // A request that waits for the holder takes a connection: one is enough.
        let is_waiting = self.under_way.range(self.there..).next().is_some();
        let next = there.or_else(|| self.missing.range(self.there..).next().filter(|_| !is_waiting));
        let piece = *next?;
        self.missing.remove(&piece);
        self.under_way.insert(piece);
        self.cursor = piece + 1;
        Some(piece)
    }

    /// Takes note that a piece is here.
    pub fn came(&mut self, piece: u32) {
        self.under_way.remove(&piece);
    }

    /// Takes note that the holder has the first `pieces`.
    pub fn holder_has(&mut self, pieces: u32) {
        self.there = self.there.max(pieces);
    }

    /// Puts a piece back that did not come, since its holder is asked no more: another one may have fewer pieces.
    pub fn lost(&mut self, piece: u32) {
        if self.under_way.remove(&piece) {
            self.missing.insert(piece);
        }
        self.there = 0;
    }

    /// Returns true once all pieces are here.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_request_waits_for_a_holder_that_is_still_reading() {
        let mut order = PieceOrder::new(8, (1, 4));
        assert_eq!((order.ask(), order.ask()), (Some(0), None));
        order.came(0);
        order.holder_has(1);
        assert_eq!((order.ask(), order.ask()), (Some(1), None));
        order.holder_has(4);
        assert_eq!([order.ask(), order.ask(), order.ask()], [Some(2), Some(3), Some(4)]);
        assert_eq!(order.ask(), None, "four are under way");
    }

    #[test]
    fn nodes_begin_at_places_of_their_own() {
        let firsts = [0, 1, 2, 3].map(|place| {
            let mut order = PieceOrder::new(64, (place, 4));
            order.holder_has(64);
            order.ask()
        });
        assert_eq!(firsts, [Some(0), Some(16), Some(32), Some(48)]);
    }

    proptest! {
        /// In whatever order pieces come or are lost, each is asked for until it has come, none twice at a time, at
        /// most four together, and at most one beyond those that the holder has.
        #[test]
        fn all_pieces_come(
            pieces in 0_u32..40,
            place in 0_u16..4,
            events in prop::collection::vec((any::<u8>(), 0_u8..8, any::<u8>()), 0..80),
        ) {
            let mut order = PieceOrder::new(pieces, (place, 4));
            let (mut here, mut under_way, mut there) = (BTreeSet::new(), Vec::new(), 0);
            for (which, what, more) in events {
                while let Some(piece) = order.ask() {
                    prop_assert!(!here.contains(&piece) && !under_way.contains(&piece));
                    under_way.push(piece);
                    prop_assert!(under_way.len() <= PIECES_AT_ONCE);
                }
                prop_assert!(!under_way.is_empty() || here.len() == pieces as usize);
                if under_way.is_empty() { break }
                let piece = under_way.remove(usize::from(which) % under_way.len());
                if what == 0 {
                    order.lost(piece);
                    there = 0;
                } else {
                    order.came(piece);
                    here.insert(piece);
                    there = there.max((u32::from(more) % (pieces + 1)).max(piece + 1));
                    order.holder_has(there);
                }
                prop_assert_eq!(order.is_complete(), here.len() == pieces as usize);
            }
            for _ in 0..=pieces {
                for piece in std::iter::from_fn(|| order.ask()).collect::<Vec<_>>().into_iter().chain(under_way.drain(..)) {
                    order.came(piece);
                    here.insert(piece);
                }
            }
            prop_assert!(order.is_complete() && here.len() == pieces as usize);
        }
    }
}
