//! The run page: settings of one `forebay run`, which its processes read, and counters, which they write.

use core::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::{
    CONTRACT_VERSION, TIERS_MAX,
    control::Freshness,
    counters::{COUNT, Counter},
    covered::{self, Covered},
    digest::layout,
    exclude::{EXCLUDES_BYTES_MAX, Excludes},
    latency::{self, BUCKETS},
    open_waits::{self, OpenWaits},
    opens::{self, Opens},
    region::{Plain, Region},
    startup::{self, Startup},
};

const MAGIC: u64 = u64::from_le_bytes(*b"FBRUN\0\0\x01");
/// Largest number of sources (each with its spellings) of a run.
pub const ROOTS_MAX: usize = 32;
/// Longest spelled source, in bytes.
pub const ROOT_BYTES_MAX: usize = 1000;
/// Longest path of the agent's directory, in bytes.
pub const AGENT_DIR_BYTES_MAX: usize = 480;
/// Number of shards: processes count in different ones, to keep their cache lines apart.
const SHARDS: u64 = 16;
const SHARD_BYTES: u64 = 1024;
const COUNTERS_AT: u64 = 40_960;
/// Position in a shard, behind the counters and those of the tiers, of the durations of opens of the source.
const LATENCIES: usize = COUNT + 2 * TIERS_MAX;
const OPENS_AT: u64 = COUNTERS_AT + SHARDS * SHARD_BYTES;
const COVERED_AT: u64 = OPENS_AT + opens::BYTES;
const WAITS_AT: u64 = COVERED_AT + covered::BYTES;
const STARTUP_AT: u64 = (WAITS_AT + open_waits::BYTES).next_multiple_of(64);
/// Length of the run page in bytes.
pub const RUN_BYTES: usize = (STARTUP_AT + startup::BYTES) as usize;

const _: () = assert!((LATENCIES + BUCKETS) * 8 <= SHARD_BYTES as usize);
const _: () = assert!(size_of::<RunHeader>() <= COUNTERS_AT as usize);

/// Layout that the preload library and the command share.
pub(crate) const LAYOUT: &[&[u64]] = &[
    layout!(RunHeader: magic, version, run, freshness, ttl_ns, mount_namespace, root_dev, root_ino, agent_started_at, agent_dir_len, agent_dir,
        roots, root, excludes_len, excludes, other_name_len, other_name),
    layout!(Root: dev, len, path),
    &[
        MAGIC,
        SHARDS,
        SHARD_BYTES,
        COUNTERS_AT,
        OPENS_AT,
        COVERED_AT,
        WAITS_AT,
        STARTUP_AT,
        RUN_BYTES as u64,
    ],
    opens::LAYOUT,
    covered::LAYOUT,
    open_waits::LAYOUT,
    startup::LAYOUT,
    latency::LAYOUT,
];

/// A source as a program may spell it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Root {
    dev: u64,
    len: u64,
    path: [u8; ROOT_BYTES_MAX],
}

#[repr(C)]
#[derive(Debug)]
struct RunHeader {
    magic: AtomicU64,
    version: u64,
    run: u64,
    freshness: u64,
    ttl_ns: u64,
    mount_namespace: u64,
    root_dev: u64,
    root_ino: u64,
    agent_started_at: u64,
    agent_dir_len: u64,
    agent_dir: [u8; AGENT_DIR_BYTES_MAX],
    roots: u64,
    root: [Root; ROOTS_MAX],
    excludes_len: u64,
    excludes: [u8; EXCLUDES_BYTES_MAX],
    /// Length of the name; 0: none; [`BEING_WRITTEN`]: a process is writing it.
    other_name_len: AtomicU64,
    other_name: [AtomicU8; ROOT_BYTES_MAX],
}

const BEING_WRITTEN: u64 = u64::MAX;

// SAFETY: integers, byte arrays and an atomic; every bit pattern is a value.
unsafe impl Plain for RunHeader {}

/// RunSettings of a run, which the command chooses.
#[derive(Clone, Copy, Debug)]
pub struct RunSettings<'a> {
    /// Number of the run.
    pub run: u64,
    /// Time for which copies are used.
    pub freshness: Freshness,
    /// Inode of the mount namespace (`/proc/self/ns/mnt`) in which the paths are valid.
    pub mount_namespace: u64,
    /// Device and inode of `/`.
    pub root: (u64, u64),
    /// The agent's directory.
    pub agent_dir: &'a [u8],
    /// Start of the agent, `CLOCK_BOOTTIME` in nanoseconds: use stamps count seconds from there.
    pub agent_started_at: u64,
    /// Sources: absolute path as spelled, without a final slash, and device number.
    pub roots: &'a [(&'a [u8], u64)],
    /// Patterns of files that are never copied, each followed by a NUL.
    pub excludes: &'a [u8],
}

/// Returns the seconds from the agent's start to `now` (both boot time in nanoseconds), at least 1, since 0 means
/// "never used".
pub const fn use_stamp(agent_started_at: u64, now: u64) -> u32 {
    (now.saturating_sub(agent_started_at) / 1_000_000_000) as u32 + 1
}

/// Access to a run page.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    region: Region<'a>,
    header: &'a RunHeader,
}

impl<'a> Run<'a> {
    /// Writes a new page of [`RUN_BYTES`]; `None` if a setting does not fit.
    pub fn create(region: Region<'a>, settings: &RunSettings<'_>) -> Option<Self> {
        if region.len() < RUN_BYTES || settings.roots.len() > ROOTS_MAX {
            return None;
        }
        let place = region.slot::<RunHeader>(0)?;
        // SAFETY: checked by `slot`; nobody reads the page before its magic is stored. Fields are written one by one,
        // since the whole is too large for some stacks.
        let header = unsafe {
            (*place).version = u64::from(CONTRACT_VERSION);
            (*place).run = settings.run;
            ((*place).freshness, (*place).ttl_ns) = match settings.freshness {
                Freshness::Ttl(ttl_ns) => (0, ttl_ns),
                Freshness::Immutable => (1, 0),
                Freshness::OnOpen => (2, 0),
            };
            (*place).mount_namespace = settings.mount_namespace;
            ((*place).root_dev, (*place).root_ino) = settings.root;
            (*place).agent_started_at = settings.agent_started_at;
            (*place).agent_dir_len = settings.agent_dir.len() as u64;
            (*place)
                .agent_dir
                .get_mut(..settings.agent_dir.len())?
                .copy_from_slice(settings.agent_dir);
            (*place).roots = settings.roots.len() as u64;
            for (to, (path, dev)) in (*place).root.iter_mut().zip(settings.roots) {
                to.dev = *dev;
                to.len = path.len() as u64;
                to.path.get_mut(..path.len())?.copy_from_slice(path);
            }
            (*place).excludes_len = settings.excludes.len() as u64;
            (*place)
                .excludes
                .get_mut(..settings.excludes.len())?
                .copy_from_slice(settings.excludes);
            &*place
        };
        header.magic.store(MAGIC, Release);
        Some(Self { region, header })
    }

    /// Opens the page of a run; `None` if it is invalid or of another version.
    pub fn open(region: Region<'a>) -> Option<Self> {
        let header: &RunHeader = region.at(0)?;
        let ours = header.magic.load(Acquire) == MAGIC && header.version == u64::from(CONTRACT_VERSION);
        (ours && region.len() >= RUN_BYTES).then_some(Self { region, header })
    }

    /// Returns the number of the run.
    pub const fn number(&self) -> u64 {
        self.header.run
    }

    /// Returns the time for which copies are used.
    pub const fn freshness(&self) -> Freshness {
        match self.header.freshness {
            0 => Freshness::Ttl(self.header.ttl_ns),
            1 => Freshness::Immutable,
            _ => Freshness::OnOpen,
        }
    }

    /// Returns the inode of the run's mount namespace.
    pub const fn mount_namespace(&self) -> u64 {
        self.header.mount_namespace
    }

    /// Returns device and inode of the run's `/`.
    pub const fn root(&self) -> (u64, u64) {
        (self.header.root_dev, self.header.root_ino)
    }

    /// Returns the agent's directory.
    pub fn agent_dir(&self) -> &'a [u8] {
        self.header.agent_dir.get(..self.header.agent_dir_len as usize).unwrap_or(&[])
    }

    /// Returns the seconds since the agent's start, at least 1, for [`crate::Control::stamp_directory`].
    pub const fn use_stamp(&self, now: u64) -> u32 {
        use_stamp(self.header.agent_started_at, now)
    }

    /// Returns whether an absolute path, as spelled, is under a source.
    #[inline]
    pub fn covers(&self, path: &[u8]) -> bool {
        self.roots()
            .any(|(root, _)| path.len() > root.len() && path.starts_with(root) && path.get(root.len()) == Some(&b'/'))
    }

    /// Returns whether an absolute path of a directory, as spelled and without a final slash, is a source or under one.
    pub fn covers_directory(&self, path: &[u8]) -> bool {
        let is_end = |next: Option<&u8>| next.is_none_or(|byte| *byte == b'/');
        self.roots().any(|(root, _)| path.starts_with(root) && is_end(path.get(root.len())))
    }

    /// Returns whether the run has patterns of files that are never copied.
    #[inline]
    pub const fn has_excludes(&self) -> bool {
        self.header.excludes_len != 0
    }

    /// Returns whether a pattern excludes an absolute path, as spelled, from being copied.
    #[inline]
    pub fn excludes(&self, path: &[u8]) -> bool {
        self.has_excludes() && self.matches_excludes(path)
    }

    #[cold]
    #[inline(never)]
    fn matches_excludes(&self, path: &[u8]) -> bool {
        let text = self.header.excludes.get(..self.header.excludes_len as usize).unwrap_or(&[]);
        Excludes::new(text).matches(path, &self.roots().map(|root| root.0))
    }

    /// Records a name of a source that is not served; the first one stays.
    pub fn note_other_name(&self, name: &[u8]) {
        let len = &self.header.other_name_len;
        if name.is_empty() || name.len() > ROOT_BYTES_MAX || len.compare_exchange(0, BEING_WRITTEN, Acquire, Relaxed).is_err() {
            return;
        }
        for (to, from) in self.header.other_name.iter().zip(name) {
            to.store(*from, Relaxed);
        }
        len.store(name.len() as u64, Release);
    }

    /// Copies the name that [`Self::note_other_name`] noted first into `room`, and returns it.
    pub fn other_name<'r>(&self, room: &'r mut [u8; ROOT_BYTES_MAX]) -> Option<&'r [u8]> {
        let len = self.header.other_name_len.load(Acquire);
        if len == 0 || len == BEING_WRITTEN {
            return None;
        }
        for (to, from) in room.iter_mut().zip(&self.header.other_name) {
            *to = from.load(Relaxed);
        }
        room.get(..len as usize)
    }

    /// Returns whether a device number is a source's.
    #[inline]
    pub fn is_source_device(&self, dev: u64) -> bool {
        self.roots().any(|root| root.1 == dev)
    }

    /// Returns the sources: path and device.
    #[inline]
    pub fn roots(&self) -> impl Iterator<Item = (&'a [u8], u64)> + Clone + use<'a> {
        let roots = self.header.root.get(..self.header.roots as usize).unwrap_or(&[]);
        roots
            .iter()
            .map(|root| (root.path.get(..root.len as usize).unwrap_or(&[]), root.dev))
    }

    /// Adds to a counter. `shard` is any number that differs between processes.
    #[inline]
    pub fn count(&self, shard: u64, counter: Counter, by: u64) {
        self.add(shard, counter as u64, by);
    }

    /// Counts an open that a copy in `tier` answered, and the size of the file.
    #[inline]
    pub fn count_hit(&self, shard: u64, tier: usize, bytes: u64) {
        let at = (COUNT + 2 * tier.min(TIERS_MAX - 1)) as u64;
        self.add(shard, at, 1);
        self.add(shard, at + 1, bytes);
    }

    /// Counts an open that the source answered, with its duration in nanoseconds.
    #[inline]
    pub fn count_source_open(&self, shard: u64, ns: u64) {
        self.add(shard, (LATENCIES + latency::bucket_of(ns)) as u64, 1);
        self.count(shard, Counter::SourceOpenNs, ns);
    }

    /// Returns the number of opens that the source answered, by bucket of [`latency`].
    pub fn source_opens_by_time(&self) -> [u64; BUCKETS] {
        core::array::from_fn(|bucket| self.sum((LATENCIES + bucket) as u64))
    }

    /// Returns the sum of a counter over all processes.
    pub fn total(&self, counter: Counter) -> u64 {
        self.sum(counter as u64)
    }

    /// Returns the number of opens that a tier answered, and the sizes of those files in bytes.
    pub fn hits(&self, tier: usize) -> (u64, u64) {
        let at = (COUNT + 2 * tier.min(TIERS_MAX - 1)) as u64;
        (self.sum(at), self.sum(at + 1))
    }

    /// Returns the table of opens of each file.
    #[inline]
    pub const fn opens(&self) -> Opens<'a> {
        Opens::at(self.region, OPENS_AT)
    }

    /// Returns the table of processes that the preload library covers.
    #[inline]
    pub const fn covered(&self) -> Covered<'a> {
        Covered::at(self.region, COVERED_AT)
    }

    /// Returns the words on which opens wait for copies from other nodes.
    #[inline]
    pub const fn open_waits(&self) -> OpenWaits<'a> {
        OpenWaits::at(self.region, WAITS_AT)
    }

    /// Returns the table of files that are opened before the first step.
    #[inline]
    pub const fn startup(&self) -> Startup<'a> {
        Startup::at(self.region, STARTUP_AT)
    }

    #[inline]
    fn add(&self, shard: u64, at: u64, by: u64) {
        if let Some(counter) = self.region.element::<AtomicU64>(COUNTERS_AT + shard % SHARDS * SHARD_BYTES, at) {
            counter.fetch_add(by, Relaxed);
        }
    }

    fn sum(&self, at: u64) -> u64 {
        (0..SHARDS)
            .filter_map(|shard| self.region.element::<AtomicU64>(COUNTERS_AT + shard * SHARD_BYTES, at))
            .map(|c| c.load(Relaxed))
            .sum()
    }
}
