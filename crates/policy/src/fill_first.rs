//! Monarch's placement: the top tier first, then the next, no eviction. Unlike in the original, a file that does not
//! fit does not end placement for files that do.
//!
//! A copy is *offered*, then *placed* in a tier, which takes its bytes and inode from the quota immediately, and then
//! either *published* or *dropped*. Only copies in flight have state of their own. Published copies are kept as sums,
//! so that millions of them take no memory.

use std::collections::BTreeMap;

/// Room that files take, or may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Number of bytes.
    pub bytes: u64,
    /// Number of inodes: one a file.
    pub inodes: u64,
}

impl Space {
    fn of_file(bytes: u64) -> Self {
        Self { bytes, inodes: 1 }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }
}

/// Names one copy, published or not; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// A tier by its place in the order of preference; 0 is the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierIndex(pub usize);

/// Events that placement is told of. Times are milliseconds on any clock that does not run backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file of `size` bytes could be copied. Answered by [`Action::Place`] or [`Action::Refuse`].
    Offer {
        /// The copy that would be made.
        copy: CopyId,
        /// Its size in bytes.
        size: u64,
        /// Now.
        now_ms: u64,
    },
    /// A published copy of an earlier run is in `tier`. Answered by [`Action::Place`] (the copy counts) or
    /// [`Action::Refuse`] (it is over the quota, which has become smaller: remove it; nothing was counted).
    Adopt {
        /// The copy.
        copy: CopyId,
        /// Its size in bytes.
        size: u64,
        /// Tier that holds the copy.
        tier: TierIndex,
    },
    /// Sums of the copies of earlier runs in `tier` that are still to be recovered. They count against every
    /// [`Event::Offer`] from now on, each copy until its [`Event::Adopt`]. Replaces the sums told before; zeros end
    /// it.
    Expect(TierIndex, Space),
    /// Sums of removed copies whose space the file system of `tier` has not freed. They count against every
    /// [`Event::Offer`]. Replaces the sums told before.
    Left(TierIndex, Space),
    /// A placed copy is whole and servable.
    Published(CopyId),
    /// A placed copy was given up before it was published, and its partial file removed.
    Dropped(CopyId),
    /// A *published* copy was removed.
    Removed {
        /// Tier that held it.
        tier: TierIndex,
        /// Its size in bytes.
        size: u64,
    },
    /// The tier answered ENOSPC or EDQUOT to a copy of `size` bytes (0: not even an empty file could be made).
    Full {
        /// The tier.
        tier: TierIndex,
        /// Size of the file for which there was no room.
        size: u64,
        /// Now.
        now_ms: u64,
    },
    /// Room that the tier's file system was seen to have above its free floor.
    Room(TierIndex, Space),
    /// The tier is not to be used (quarantined, gone).
    Off(TierIndex),
    /// The tier may be used again.
    On(TierIndex),
}

/// Answers to an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make the copy (or keep the recovered one) in this tier.
    Place {
        /// The copy.
        copy: CopyId,
        /// Tier to use.
        tier: TierIndex,
    },
    /// Make no copy.
    Refuse {
        /// The copy.
        copy: CopyId,
        /// Reason.
        reason: PlacementRefusal,
    },
    /// Nothing.
    Nothing,
}

/// Reason why no tier took a copy. If tiers have different reasons, the last one in this order is returned: it is the
/// nearest to having room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PlacementRefusal {
    /// Every tier is off.
    Off,
    /// Larger than the quota of every tier: it will never fit.
    TooLarge,
    /// The quota in bytes or inodes is used up.
    Quota,
    /// The file system has too little above its free floor.
    Floor,
    /// A tier was full a moment ago and is not tried yet.
    BackingOff,
    /// This copy is being made already.
    InFlight,
}

/// Shortest time that a tier which was full is left alone.
pub const BACK_OFF_FIRST_MS: u64 = 1_000;
/// Longest such time; each further `Full` doubles it up to here.
pub const BACK_OFF_MAX_MS: u64 = 64_000;

/// Block size of a file system's free space. (Quotas count file sizes; the free floor counts blocks.)
const BLOCK_BYTES: u64 = 4096;

/// Room that a file takes in the file system, in whole blocks.
fn footprint(size: u64) -> Space {
    Space::of_file(size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES))
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    tier: TierIndex,
    size: u64,
    /// `FillLevel::fulls` when it was placed: only a copy placed after the last `Full` shows that there is room again.
    fulls: u64,
}

#[derive(Clone, Copy, Debug)]
struct BackOff {
    until_ms: u64,
    length_ms: u64,
    /// Size below which files are tried until then: half of the size that failed last, so that a few failures find a
    /// size that fits.
    ceiling: u64,
}

/// Fill level of a tier.
#[derive(Clone, Debug, Default)]
struct FillLevel {
    quota: Space,
    used: Space,
    /// Copies that are still to be recovered.
    expected: Space,
    /// Copies that could not be removed.
    left: Space,
    /// Blocks of the copies in flight: an observed room does not show the blocks that they have yet to write.
    in_flight: Space,
    room: Option<Space>,
    back_off: Option<BackOff>,
    fulls: u64,
    off: bool,
}

impl FillLevel {
    fn refusal(&self, size: u64, now_ms: u64) -> Option<PlacementRefusal> {
        if self.off {
            Some(PlacementRefusal::Off)
        } else if let Some(refusal) = self.quota_refusal(size, self.taken()) {
            Some(refusal)
        } else if self.room.is_some_and(|room| room.inodes == 0 || footprint(size).bytes > room.bytes) {
            Some(PlacementRefusal::Floor)
        } else if self
            .back_off
            .is_some_and(|back_off| now_ms < back_off.until_ms && size >= back_off.ceiling)
        {
            Some(PlacementRefusal::BackingOff)
        } else {
            None
        }
    }

    /// Returns the part of the quota that a new copy can't have.
    fn taken(&self) -> Space {
        self.used.plus(self.expected).plus(self.left)
    }

    fn quota_refusal(&self, size: u64, taken: Space) -> Option<PlacementRefusal> {
        let left = self.quota.minus(taken);
        if size > self.quota.bytes || self.quota.inodes == 0 {
            Some(PlacementRefusal::TooLarge)
        } else if size > left.bytes || left.inodes == 0 {
            Some(PlacementRefusal::Quota)
        } else {
            None
        }
    }

    fn shortfall(&self, size: u64) -> u64 {
        let taken = self.taken();
        let over_quota = taken.bytes.saturating_add(size).saturating_sub(self.quota.bytes);
        let over_room = self.room.map_or(0, |room| footprint(size).bytes.saturating_sub(room.bytes));
        let is_full = taken.inodes >= self.quota.inodes || self.room.is_some_and(|room| room.inodes == 0);
        over_quota.max(over_room).max(u64::from(is_full))
    }

    fn take(&mut self, size: u64) {
        self.used = self.used.plus(Space::of_file(size));
    }

    fn give_back(&mut self, size: u64) {
        self.used = self.used.minus(Space::of_file(size));
        self.room = self.room.map(|room| room.plus(footprint(size)));
    }

    fn start(&mut self, size: u64) {
        self.take(size);
        self.in_flight = self.in_flight.plus(footprint(size));
        self.room = self.room.map(|room| room.minus(footprint(size)));
    }

    fn end(&mut self, size: u64) {
        self.in_flight = self.in_flight.minus(footprint(size));
    }

    fn note_full(&mut self, size: u64, now_ms: u64) {
        self.fulls += 1;
        let mut ceiling = size / 2;
        let mut length_ms = BACK_OFF_FIRST_MS;
        if let Some(last) = self.back_off {
            if now_ms < last.until_ms {
                // Still the same lack of room: a smaller file failed too, or one that was in flight.
                ceiling = ceiling.min(last.ceiling);
                length_ms = last.length_ms;
            } else {
                length_ms = (last.length_ms * 2).min(BACK_OFF_MAX_MS);
            }
        }
        self.back_off = Some(BackOff {
            until_ms: now_ms.saturating_add(length_ms),
            length_ms,
            ceiling,
        });
    }

    fn observe(&mut self, room: Space) {
        // Copies in flight may have written all of their bytes or none; taking off all of them errs towards the
        // floor.
        self.room = Some(room.minus(self.in_flight));
    }

    fn largest(&self, now_ms: u64) -> u64 {
        if self.refusal(0, now_ms).is_some() {
            return 0;
        }
        let mut largest = self.quota.minus(self.taken()).bytes;
        if let Some(room) = self.room {
            largest = largest.min(room.bytes / BLOCK_BYTES * BLOCK_BYTES);
        }
        match self.back_off {
            Some(back_off) if now_ms < back_off.until_ms => largest.min(back_off.ceiling.saturating_sub(1)),
            _ => largest,
        }
    }
}

/// The state of placement.
#[derive(Clone, Debug)]
pub struct FillFirst {
    tiers: Vec<FillLevel>,
    in_flight: BTreeMap<CopyId, InFlight>,
}

impl FillFirst {
    /// Creates empty tiers with these quotas, the top one first.
    pub fn new(quotas: impl IntoIterator<Item = Space>) -> Self {
        let empty = |quota| FillLevel {
            quota,
            ..FillLevel::default()
        };
        Self {
            tiers: quotas.into_iter().map(empty).collect(),
            in_flight: BTreeMap::new(),
        }
    }

    /// The size in bytes of the largest file that some tier would take now; 0 when none would (or only an empty one).
    pub fn room_hint(&self, now_ms: u64) -> u64 {
        self.tiers.iter().map(|tier| tier.largest(now_ms)).max().unwrap_or(0)
    }

    /// Bytes that count against the quota of `tier`, of published copies and of copies in flight. 0 for an unknown
    /// tier.
    pub fn used_bytes(&self, tier: TierIndex) -> u64 {
        self.tiers.get(tier.0).map_or(0, |tier| tier.used.bytes)
    }

    /// Returns the bytes of published copies that have to go from `tier` before a file of `size` bytes fits; 0 if it
    /// fits. At least 1 if the number of copies is what is used up.
    pub fn shortfall_bytes(&self, tier: TierIndex, size: u64) -> u64 {
        self.tiers.get(tier.0).map_or(0, |tier| tier.shortfall(size))
    }

    /// Copies that count against the quota of `tier`.
    pub fn used_inodes(&self, tier: TierIndex) -> u64 {
        self.tiers.get(tier.0).map_or(0, |tier| tier.used.inodes)
    }

    /// Copies placed and neither published nor dropped.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the tier in which a copy in flight was placed.
    pub fn place_of(&self, copy: CopyId) -> Option<TierIndex> {
        self.in_flight.get(&copy).map(|in_flight| in_flight.tier)
    }

    /// Returns true if `tier` is off.
    pub fn is_off(&self, tier: TierIndex) -> bool {
        self.tiers.get(tier.0).is_none_or(|tier| tier.off)
    }

    fn offer(&mut self, copy: CopyId, size: u64, now_ms: u64) -> Action {
        if self.in_flight.contains_key(&copy) {
            return Action::Refuse {
                copy,
                reason: PlacementRefusal::InFlight,
            };
        }
        let mut reason = PlacementRefusal::Off;
        for (index, tier) in self.tiers.iter_mut().enumerate() {
            if let Some(refusal) = tier.refusal(size, now_ms) {
                reason = reason.max(refusal);
                continue;
            }
            tier.start(size);
            let in_flight = InFlight {
                tier: TierIndex(index),
                size,
                fulls: tier.fulls,
            };
            self.in_flight.insert(copy, in_flight);
            return Action::Place {
                copy,
                tier: TierIndex(index),
            };
        }
        Action::Refuse { copy, reason }
    }

    fn adopt(&mut self, copy: CopyId, size: u64, index: TierIndex) -> Action {
        if self.in_flight.contains_key(&copy) {
            return Action::Refuse {
                copy,
                reason: PlacementRefusal::InFlight,
            };
        }
        let Some(tier) = self.tiers.get_mut(index.0) else {
            return Action::Refuse {
                copy,
                reason: PlacementRefusal::Off,
            };
        };
        tier.expected = tier.expected.minus(Space::of_file(size));
        // Its bytes are in the tier already, so only the quota can refuse it, not the floor or a full disk. Copies
        // expected after it count after it.
        if let Some(reason) = tier.quota_refusal(size, tier.used) {
            return Action::Refuse { copy, reason };
        }
        tier.take(size);
        Action::Place { copy, tier: index }
    }

    fn published(&mut self, copy: CopyId) {
        let Some(InFlight { tier, size, fulls }) = self.in_flight.remove(&copy) else {
            return;
        };
        let Some(tier) = self.tiers.get_mut(tier.0) else { return };
        tier.end(size);
        if tier
            .back_off
            .is_some_and(|back_off| fulls == tier.fulls && size >= back_off.ceiling)
        {
            tier.back_off = None;
        }
    }

    fn dropped(&mut self, copy: CopyId) {
        let Some(InFlight { tier, size, .. }) = self.in_flight.remove(&copy) else {
            return;
        };
        let Some(tier) = self.tiers.get_mut(tier.0) else { return };
        tier.end(size);
        tier.give_back(size);
    }
}

/// Takes one event into the state and returns the action. Events about unknown copies or tiers change nothing.
pub fn step(state: &mut FillFirst, event: Event) -> Action {
    match event {
        Event::Offer { copy, size, now_ms } => return state.offer(copy, size, now_ms),
        Event::Adopt { copy, size, tier } => return state.adopt(copy, size, tier),
        Event::Expect(tier, expected) => with(state, tier, |tier| tier.expected = expected),
        Event::Left(tier, left) => with(state, tier, |tier| tier.left = left),
        Event::Published(copy) => state.published(copy),
        Event::Dropped(copy) => state.dropped(copy),
        Event::Removed { tier, size } => with(state, tier, |tier| tier.give_back(size)),
        Event::Full { tier, size, now_ms } => with(state, tier, |tier| tier.note_full(size, now_ms)),
        Event::Room(tier, room) => with(state, tier, |tier| tier.observe(room)),
        Event::Off(tier) => with(state, tier, |tier| tier.off = true),
        Event::On(tier) => with(state, tier, |tier| {
            tier.off = false;
            tier.back_off = None;
        }),
    }
    Action::Nothing
}

fn with(state: &mut FillFirst, index: TierIndex, change: impl FnOnce(&mut FillLevel)) {
    if let Some(tier) = state.tiers.get_mut(index.0) {
        change(tier);
    }
}
