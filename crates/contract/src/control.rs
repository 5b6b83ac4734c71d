//! The control page: flags, tombstones and stamps that may change at any time, and that all covered processes must see
//! immediately.
//!
//! The preload library maps it for writing, since it sets tombstones; nothing in it leads to a file's bytes.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::{
    CONTRACT_VERSION, Identity,
    counters::Counter,
    digest::layout,
    hash::{hash_bytes, hash_pair},
    index::{Directory, Record},
    region::{Plain, Region},
};

const MAGIC: u64 = u64::from_le_bytes(*b"FBCTRL\0\x01");
const TOMBSTONES: u64 = 1 << 18;
/// Largest number of directories with a use stamp; any further one counts as always used.
pub const DIRECTORIES_STAMPED_MAX: u64 = 1 << 20;
const TOMBSTONES_AT: u64 = 4096;
const USED_AT: u64 = TOMBSTONES_AT + TOMBSTONES * 8;
/// Live marks: fewer than tombstones, for few files are shared while they change.
const LIVE_MARKS: u64 = 1 << 16;
const LIVE_AT: u64 = USED_AT + DIRECTORIES_STAMPED_MAX * 4;
/// Length of the control file in bytes.
pub const CONTROL_BYTES: usize = (LIVE_AT + LIVE_MARKS * 8) as usize;
/// Seed of tombstone slots. It is fixed: a collision only costs a comparison with the source.
const TOMBSTONE_SEED: u64 = 0x7461_6C6C_7973_2121;
/// Seed of live marks. A collision only costs a file that is not shared its copy.
const LIVE_SEED: u64 = 0x6C69_7665_6D61_726B;

/// Size in bytes up to which programs read a file in one go, so that nothing of it is left to read ahead.
pub const SMALL_FILE_BYTES: u64 = 128 << 10;

/// Layout that the preload library and the agent share.
pub(crate) const LAYOUT: &[&[u64]] = &[
    layout!(ControlHeader: magic, version, generation, room_hint, pages_hint, newest_tombstone, void_since, unseen_since, tiers_off, closed),
    &[
        MAGIC,
        TOMBSTONES,
        TOMBSTONES_AT,
        TOMBSTONE_SEED,
        DIRECTORIES_STAMPED_MAX,
        USED_AT,
        LIVE_MARKS,
        LIVE_AT,
        LIVE_SEED,
        LIVE_REST_MIN,
        LIVE_REST_GAPS,
        CONTROL_BYTES as u64,
        SMALL_FILE_BYTES,
    ],
];

/// The fixed part at the start of the page.
#[repr(C)]
#[derive(Debug)]
struct ControlHeader {
    magic: AtomicU64,
    version: AtomicU64,
    generation: AtomicU64,
    room_hint: AtomicU64,
    pages_hint: AtomicU64,
    newest_tombstone: AtomicU64,
    void_since: AtomicU64,
    unseen_since: AtomicU64,
    tiers_off: AtomicU64,
    closed: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Plain for ControlHeader {}

/// Time for which a copy may be used before it is compared with the source again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Freshness {
    /// Nanoseconds since the last check of the name or the last sweep of its directory; whole seconds in messages.
    Ttl(#[cfg_attr(feature = "serde", serde(with = "seconds"))] u64),
    /// Without limit: the user guarantees that the source does not change.
    Immutable,
    /// Zero: each open asks the source by name.
    OnOpen,
}

const NS_PER_S: u64 = 1_000_000_000;

impl Freshness {
    /// Returns the freshness of a time to live in seconds.
    pub const fn of_seconds(seconds: u64) -> Self {
        Self::Ttl(seconds.saturating_mul(NS_PER_S))
    }

    /// Returns the time to live in seconds, if there is one.
    pub const fn seconds(self) -> Option<u64> {
        match self {
            Self::Ttl(ttl_ns) => Some(ttl_ns / NS_PER_S),
            Self::Immutable | Self::OnOpen => None,
        }
    }
}

/// Nanoseconds that messages carry as seconds.
#[cfg(feature = "serde")]
mod seconds {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::NS_PER_S;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(ttl_ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        (ttl_ns / NS_PER_S).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        u64::deserialize(deserializer).map(|seconds| seconds.saturating_mul(NS_PER_S))
    }
}

/// Shortest time, in nanoseconds, for which a file that was changed in place or locked must be left alone before it may
/// be copied.
const LIVE_REST_MIN: u64 = 60_000_000_000;
/// The file must also be left alone for this many times its longest gap between two such changes.
const LIVE_REST_GAPS: u64 = 4;

/// A file that programs share while it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Time of the last mark, boot time in nanoseconds.
    pub marked_at: u64,
    /// Longest time between two marks, in nanoseconds.
    pub longest_gap: u64,
}

/// Packed form of a live mark: milliseconds of boot time in the upper 40 bits, seconds of the longest gap below them. 0
/// means no mark.
impl Live {
    const GAP_BITS: u32 = 24;
    const GAP_MAX: u64 = (1 << Self::GAP_BITS) - 1;

    /// Returns the time for which the file must be left alone before it may be copied, in nanoseconds.
    pub const fn rest(&self) -> u64 {
        let by_gap = self.longest_gap.saturating_mul(LIVE_REST_GAPS);
        if by_gap > LIVE_REST_MIN { by_gap } else { LIVE_REST_MIN }
    }

    /// Returns the boot time in nanoseconds at which the file may have a copy again, unless it is marked again.
    pub const fn rests_until(&self) -> u64 {
        self.marked_at.saturating_add(self.rest())
    }

    fn unpack(mark: u64) -> Option<Self> {
        let marked_at = (mark >> Self::GAP_BITS) * 1_000_000;
        let longest_gap = (mark & Self::GAP_MAX) * 1_000_000_000;
        (mark != 0).then_some(Self { marked_at, longest_gap })
    }

    fn pack(self) -> u64 {
        let gap_s = (self.longest_gap / 1_000_000_000).min(Self::GAP_MAX);
        (self.marked_at / 1_000_000).max(1) << Self::GAP_BITS | gap_s
    }

    /// Returns the mark after one more change at `now`.
    fn renewed(mark: u64, now: u64) -> u64 {
        let gap = |live: Self| live.longest_gap.max(now.saturating_sub(live.marked_at));
        let longest_gap = Self::unpack(mark).map_or(0, gap);
        Self {
            marked_at: now,
            longest_gap,
        }
        .pack()
    }
}

/// Access to the control page.
#[derive(Clone, Copy, Debug)]
pub struct Control<'a> {
    region: Region<'a>,
    header: &'a ControlHeader,
}

impl<'a> Control<'a> {
    /// Creates an empty page; called by the agent.
    pub fn create(region: Region<'a>) -> Option<Self> {
        let header: &ControlHeader = region.at(0)?;
        header.version.store(u64::from(CONTRACT_VERSION), Relaxed);
        header.room_hint.store(u64::MAX, Relaxed);
        header.magic.store(MAGIC, Release);
        Self::open(region)
    }

    /// Opens the page of a running agent. Returns `None` if it is of another version or too short.
    pub fn open(region: Region<'a>) -> Option<Self> {
        let header: &ControlHeader = region.at(0)?;
        let fits = region.len() >= CONTROL_BYTES;
        let ours = header.magic.load(Acquire) == MAGIC && header.version.load(Relaxed) == u64::from(CONTRACT_VERSION);
        (fits && ours).then_some(Self { region, header })
    }

    /// Returns the generation of the current index file, `index.GEN`.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.header.generation.load(Acquire)
    }

    /// Publishes a new index; called by the agent.
    pub fn set_generation(&self, generation: u64) {
        self.header.generation.store(generation, Release);
    }

    /// Returns true if a file of `size` bytes is worth a handoff now: a tier has room for it, or it is read ahead into
    /// the page cache alone.
    #[inline]
    pub fn is_worth_handoff(&self, size: u64) -> bool {
        size <= self.header.room_hint.load(Relaxed) || (size > SMALL_FILE_BYTES && size <= self.header.pages_hint.load(Relaxed))
    }

    /// Sets the size in bytes of the largest file that could be placed now; called by the agent.
    pub fn set_room_hint(&self, bytes: u64) {
        self.header.room_hint.store(bytes, Relaxed);
    }

    /// Sets the size in bytes of the largest file that is read ahead although no tier takes it, 0 for none; called by
    /// the agent.
    pub fn set_pages_hint(&self, bytes: u64) {
        self.header.pages_hint.store(bytes, Relaxed);
    }

    /// Returns whether a tier is switched off, so that its copies must not be opened.
    #[inline]
    pub fn tier_is_off(&self, tier: usize) -> bool {
        self.header.tiers_off.load(Relaxed) >> (tier & 63) & 1 == 1
    }

    /// Switches a tier off or on; called by the agent.
    pub fn set_tier_off(&self, tier: usize, off: bool) {
        let bit = 1u64 << (tier & 63);
        if off {
            self.header.tiers_off.fetch_or(bit, Relaxed);
        } else {
            self.header.tiers_off.fetch_and(!bit, Relaxed);
        }
    }

    /// Returns whether the agent has ended: it publishes nothing more and receives no descriptors.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.header.closed.load(Relaxed) != 0
    }

    /// Records that the agent has ended; called by the agent.
    pub fn close(&self) {
        self.header.closed.store(1, Relaxed);
    }

    fn tombstone(&self, hash: u64) -> Option<&'a AtomicU64> {
        self.region.element(TOMBSTONES_AT, hash & (TOMBSTONES - 1))
    }

    fn mark(&self, hash: u64, now: u64) {
        if let Some(slot) = self.tombstone(hash) {
            slot.fetch_max(now, AcqRel);
        }
        // This store comes after the slot's, so that a reader of the new "newest" sees the slot too.
        self.header.newest_tombstone.fetch_max(now, AcqRel);
    }

    /// Records that the file with this inode changes now, under any of its names.
    pub fn mark_file(&self, dev: u64, ino: u64, now: u64) {
        self.mark(hash_pair(TOMBSTONE_SEED, dev, ino), now);
    }

    fn live_slot(&self, dev: u64, ino: u64) -> Option<&'a AtomicU64> {
        let hash = hash_pair(LIVE_SEED, dev, ino);
        self.region.element(LIVE_AT, hash & (LIVE_MARKS - 1))
    }

    /// Records that the file with this inode is shared while it changes: its contents are changed in place, or a
    /// program locks it. This counts as a change as well.
    pub fn mark_live(&self, dev: u64, ino: u64, now: u64) {
        if let Some(slot) = self.live_slot(dev, ino) {
            // If two programs mark the file in the same moment, one mark may be lost.
            slot.store(Live::renewed(slot.load(Relaxed), now), Release);
        }
        self.mark_file(dev, ino, now);
    }

    /// Returns the live mark of a file that is, or was, shared while it changes.
    pub fn live(&self, dev: u64, ino: u64) -> Option<Live> {
        Live::unpack(self.live_slot(dev, ino)?.load(Acquire))
    }

    /// Records that `name` in the directory with this inode changes its target now.
    pub fn mark_name(&self, parent_dev: u64, parent_ino: u64, name: &[u8], now: u64) {
        self.mark(name_key(parent_dev, parent_ino, name), now);
    }

    /// Advances the invalidation epoch: from now on any name may lead elsewhere, since a directory was renamed or a
    /// symbolic link changed.
    pub fn mark_void(&self, now: u64) {
        self.header.void_since.fetch_max(now, AcqRel);
        self.header.newest_tombstone.fetch_max(now, AcqRel);
    }

    /// Records that a program without the preload library has ended: it may have changed any file.
    pub fn mark_unseen(&self, now: u64) {
        self.header.unseen_since.fetch_max(now, AcqRel);
        self.header.newest_tombstone.fetch_max(now, AcqRel);
    }

    /// Returns the time at which a program without the preload library last ended, in nanoseconds of boot time; 0:
    /// never.
    pub fn unseen_since(&self) -> u64 {
        self.header.unseen_since.load(Acquire)
    }

    /// Returns the time at which a covered program last changed the file with this inode; 0: never.
    pub fn file_marked_at(&self, dev: u64, ino: u64) -> u64 {
        self.tombstone(hash_pair(TOMBSTONE_SEED, dev, ino))
            .map_or(0, |slot| slot.load(Acquire))
    }

    /// Returns the time at which a covered program last changed the target of `name` in that directory; 0: never.
    pub fn name_marked_at(&self, parent_dev: u64, parent_ino: u64, name: &[u8]) -> u64 {
        self.tombstone(name_key(parent_dev, parent_ino, name))
            .map_or(0, |slot| slot.load(Acquire))
    }

    /// Returns the time of the newest tombstone or invalidation epoch; 0: never.
    pub fn newest_tombstone(&self) -> u64 {
        self.header.newest_tombstone.load(Acquire)
    }

    /// Returns the invalidation epoch: the time since which any name may lead elsewhere; 0: never.
    pub fn void_since(&self) -> u64 {
        self.header.void_since.load(Acquire)
    }

    /// Checks that a copy may stand in for its source now. [`Freshness::OnOpen`] needs a question to the source
    /// besides.
    ///
    /// # Errors
    /// The reason to open the source instead.
    #[inline]
    pub fn usable(
        &self,
        record: &Record,
        directory: &Directory,
        name: &[u8],
        source: &Identity,
        freshness: Freshness,
        now: u64,
    ) -> Result<(), Counter> {
        let checked = record.checked_at();
        let swept = directory.swept_at();
        let newest = self.header.newest_tombstone.load(Acquire);
        // Tombstones are compared with the record's own check. A sweep counts as a check, since it compares the
        // source's metadata and re-publishes changed files, but only for records inserted before it began.
        let since = if swept > record.inserted_at() {
            checked.max(swept)
        } else {
            checked
        };
        if since <= newest {
            let void_since = self.void_since();
            let way_is_known = record.is_plain() && directory.way_checked_at() > void_since;
            let void_since = if way_is_known { 0 } else { void_since };
            let marked = void_since.max(self.file_marked_at(source.dev, source.ino)).max(self.name_marked_at(
                directory.dev(),
                directory.ino(),
                name,
            ));
            // A mark of 0 means none, and a recovered record that was not checked yet has `since` 0 too.
            if marked != 0 && since <= marked {
                return Err(Counter::Tombstoned);
            }
            // With `on_open` the source is asked in any case, and with `immutable` the user guarantees that it does not
            // change.
            if matches!(freshness, Freshness::Ttl(_)) && since <= self.unseen_since() {
                return Err(Counter::Stale);
            }
        }
        match freshness {
            Freshness::Ttl(ttl) if since == 0 || now.saturating_sub(since) >= ttl => Err(Counter::Stale),
            _ => Ok(()),
        }
    }

    /// Records that a directory's copies are in use; `stamp` is in seconds since the agent's start, at least 1.
    #[inline]
    pub fn stamp_directory(&self, directory: u32, stamp: u32) {
        if u64::from(directory) >= DIRECTORIES_STAMPED_MAX {
            return;
        }
        if let Some(slot) = self.region.element::<AtomicU32>(USED_AT, u64::from(directory)) {
            // Loading first keeps the line shared between processes while the second lasts.
            if slot.load(Relaxed) != stamp {
                slot.store(stamp, Relaxed);
            }
        }
    }

    /// Returns the stamp of the last use of a directory's copies, as given to [`Self::stamp_directory`]; 0: never.
    pub fn directory_stamp(&self, directory: u32) -> u32 {
        if u64::from(directory) >= DIRECTORIES_STAMPED_MAX {
            return u32::MAX;
        }
        self.region
            .element::<AtomicU32>(USED_AT, u64::from(directory))
            .map_or(0, |slot| slot.load(Relaxed))
    }
}

fn name_key(parent_dev: u64, parent_ino: u64, name: &[u8]) -> u64 {
    hash_bytes(hash_pair(TOMBSTONE_SEED, parent_dev, parent_ino), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_live_mark_keeps_its_time_and_the_longest_gap() {
        assert_eq!(Live::unpack(0), None);
        let mut mark = 0;
        for at in [0, 3, 10, 11] {
            mark = Live::renewed(mark, at * SECOND);
        }
        let live = Live {
            marked_at: 11 * SECOND,
            longest_gap: 7 * SECOND,
        };
        assert_eq!(Live::unpack(mark), Some(live));
        let late = Live::renewed(mark, u64::MAX / 2);
        assert_eq!(
            Live::unpack(late).map(|live| live.longest_gap),
            Some(Live::GAP_MAX * SECOND),
            "as far as it can be told"
        );
    }
}
