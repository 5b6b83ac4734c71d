//! Files that the programs of a run open before its first step: times, opens and bytes by kind of file and origin.
//!
//! A file's kind follows from its name ([`FileKind::of`]). Counting ends once a loader has handed its first batch out,
//! a session has reached its first step boundary, or the command finds that the programs are past their start. From
//! then on an open costs one load here. Figures are shown to a person: a race may lose one.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::{TIERS_MAX, counters::named, digest::digest_of, region::Region};

named! {
/// Kind of a file that a program opens, by its name.
FileKind {
    /// code: Python's files, shared libraries, and all files of installed packages
    Import = "imports",
    /// weights and checkpoints
    Weights = "weights",
    /// settings, indices and vocabularies
    Settings = "settings",
    /// all other files
    Data = "data",
}
}

/// Number of kinds.
const KINDS: u64 = FileKind::ALL.len() as u64;
/// Number of shards: processes count in different ones, to keep their cache lines apart.
const SHARDS: u64 = 16;
/// Numbers in a shard for each kind: opens, bytes and nanoseconds at the source, the last open, then opens and bytes
/// of each tier.
const FIGURES: u64 = 4 + 2 * TIERS_MAX as u64;
const SHARD_BYTES: u64 = KINDS * FIGURES * 8;
/// Position of the time at which counting ended; 0 while it goes on.
const OVER_AT: u64 = 0;
/// Positions of the request for the first batch, the batch, the last of all processes' first batches, and their number.
const BATCH_ASKED_AT: u64 = 48;
const BATCH_AT: u64 = 8;
const LAST_BATCH_AT: u64 = 16;
const BATCHES_AT: u64 = 24;
/// Position of the first step boundary.
const STEP_AT: u64 = 32;
/// Position of the time at which the last byte of weights had come from the source.
const WEIGHTS_READ_AT: u64 = 40;
/// Position of the times of the first open, by kind.
const FIRST_AT: u64 = 64;
const SHARDS_AT: u64 = 128;
/// Length of the table in bytes.
pub(crate) const BYTES: u64 = SHARDS_AT + SHARDS * SHARD_BYTES;

const _: () = assert!(FIRST_AT + KINDS * 8 <= SHARDS_AT && SHARD_BYTES.is_multiple_of(64));

/// Layout that the preload library, the package, the agent and the command share.
pub(crate) const LAYOUT: &[u64] = &[
    digest_of_kinds(),
    SHARDS,
    FIGURES,
    OVER_AT,
    BATCH_ASKED_AT,
    BATCH_AT,
    LAST_BATCH_AT,
    BATCHES_AT,
    STEP_AT,
    WEIGHTS_READ_AT,
    FIRST_AT,
    SHARDS_AT,
    BYTES,
];

const fn digest_of_kinds() -> u64 {
    let mut digest = 0;
    let mut nth = 0;
    while nth < FileKind::ALL.len() {
        digest = digest_of(digest, FileKind::ALL[nth].name().as_bytes());
        nth += 1;
    }
    digest
}

/// End of the name of a directory of installed packages: `site-packages`, `dist-packages`.
const PACKAGES: &[u8] = b"-packages/";

impl FileKind {
    /// Returns the kind of a file with this path.
    pub fn of(path: &[u8]) -> Self {
        let slash = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let name = path.get(slash..).unwrap_or(&[]);
        let dot = name.iter().rposition(|byte| *byte == b'.').map_or(name.len(), |at| at + 1);
        let extension = name.get(dot..).unwrap_or(&[]);
        let by_name = match extension {
            b"py" | b"pyc" | b"so" | b"sh" => Self::Import,
            b"safetensors" | b"gguf" | b"distcp" | b"pt" | b"pth" | b"ckpt" | b"keras" => Self::Weights,
            // Files of tokens are called `.bin`, and files of data `.h5`, too.
            b"bin" if contains(name, b"model") => Self::Weights,
            b"h5" if name.ends_with(b".weights.h5") => Self::Weights,
            b"json" | b"yaml" | b"yml" | b"toml" | b"cfg" | b"ini" | b"txt" | b"model" => Self::Settings,
            // A shared library with its version, such as `libc.so.6`.
            [b'0'..=b'9', ..] if contains(name, b".so.") => Self::Import,
            _ => Self::Data,
        };
        if contains(path.get(..slash).unwrap_or(&[]), PACKAGES) {
            Self::Import
        } else {
            by_name
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    let Some(first) = part.first() else { return true };
    let mut left = text;
    while let Some(at) = left.iter().position(|byte| byte == first) {
        left = left.get(at..).unwrap_or(&[]);
        if left.starts_with(part) {
            return true;
        }
        left = left.get(1..).unwrap_or(&[]);
    }
    false
}

/// Opens of files of one kind, and the sizes of these files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenedFiles {
    /// Number of opens.
    pub opens: u64,
    /// Sizes of the files in bytes.
    pub bytes: u64,
}

/// First batches of the processes of a run. Times are `CLOCK_BOOTTIME` in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstBatches {
    /// Time of a request for the first batch.
    pub asked: u64,
    /// Time of the first batch of all.
    pub first: u64,
    /// Time of the first batch of the process that had its own last.
    pub last: u64,
    /// Number of processes that have told.
    pub processes: u64,
}

/// Access to the table.
#[derive(Clone, Copy, Debug)]
pub struct Startup<'a> {
    region: Region<'a>,
    base: u64,
}

impl<'a> Startup<'a> {
    /// Opens the table that begins at a byte offset, all zeroes at first.
    pub(crate) const fn at(region: Region<'a>, base: u64) -> Self {
        Self { region, base }
    }

    #[inline]
    fn word(&self, at: u64) -> Option<&'a AtomicU64> {
        self.region.at(self.base + at)
    }

    fn read(&self, at: u64) -> Option<u64> {
        self.word(at).map(|word| word.load(Acquire)).filter(|value| *value != 0)
    }

    /// Returns true once counting has ended.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.word(OVER_AT).is_none_or(|over| over.load(Relaxed) != 0)
    }

    /// Counts an open at `now` that a copy in `tier` answered. Times are `CLOCK_BOOTTIME` in nanoseconds.
    pub fn count_hit(&self, shard: u64, path: &[u8], now: u64, (tier, bytes): (usize, u64)) {
        let at = 4 + 2 * tier.min(TIERS_MAX - 1) as u64;
        self.count(shard, path, now, &[(at, 1), (at + 1, bytes)]);
    }

    /// Counts an open at `now` that the source answered after `ns`.
    pub fn count_source(&self, shard: u64, path: &[u8], now: u64, (ns, bytes): (u64, u64)) {
        self.count(shard, path, now, &[(0, 1), (1, bytes), (2, ns)]);
    }

    /// Counts that an open waited `ns` at the source, and that a copy answered it in the end, or nothing.
    pub fn count_wait(&self, shard: u64, path: &[u8], now: u64, ns: u64) {
        self.count(shard, path, now, &[(2, ns)]);
    }

    #[inline(never)]
    fn count(&self, shard: u64, path: &[u8], now: u64, figures: &[(u64, u64)]) {
        if self.is_over() {
            return;
        }
        let kind = FileKind::of(path) as u64;
        if let Some(first) = self.word(FIRST_AT + 8 * kind)
            && first.load(Relaxed) == 0
        {
            let _ = first.compare_exchange(0, now, Relaxed, Relaxed);
        }
        for (figure, by) in figures {
            if let Some(counter) = self.figure(shard, kind, *figure) {
                counter.fetch_add(*by, Relaxed);
            }
        }
        // Not a maximum: a process that shares the shard may have opened a file a microsecond later.
        if let Some(last) = self.figure(shard, kind, 3) {
            last.store(now, Relaxed);
        }
    }

    #[inline]
    fn figure(&self, shard: u64, kind: u64, figure: u64) -> Option<&'a AtomicU64> {
        self.word(SHARDS_AT + shard % SHARDS * SHARD_BYTES + 8 * (kind * FIGURES + figure))
    }

    fn figures(&self, kind: FileKind, figure: u64) -> impl Iterator<Item = u64> {
        (0..SHARDS)
            .filter_map(move |shard| self.figure(shard, kind as u64, figure))
            .map(|figure| figure.load(Relaxed))
    }

    /// Records that a process has at `now` the first batch that it asked for at `asked`, and ends counting.
    pub fn note_batch(&self, asked: u64, now: u64) {
        self.set_once(BATCH_ASKED_AT, asked.max(1));
        self.set_once(BATCH_AT, now);
        if let (Some(last), Some(batches)) = (self.word(LAST_BATCH_AT), self.word(BATCHES_AT)) {
            last.fetch_max(now, Relaxed);
            batches.fetch_add(1, Relaxed);
        }
        self.end(now);
    }

    /// Records that a process has reached its first step boundary at `now`, and ends counting.
    pub fn note_step(&self, now: u64) {
        self.set_once(STEP_AT, now);
        self.end(now);
    }

    /// Ends counting at `now`.
    pub fn end(&self, now: u64) {
        self.set_once(OVER_AT, now);
    }

    fn set_once(&self, at: u64, value: u64) {
        if let Some(word) = self.word(at) {
            // The first one stays.
            let _ = word.compare_exchange(0, value, Release, Relaxed);
        }
    }

    /// Records that all bytes of a file of weights had come from the source at `now`.
    pub fn note_weights_read(&self, now: u64) {
        if let Some(word) = self.word(WEIGHTS_READ_AT).filter(|_| !self.is_over()) {
            word.fetch_max(now, Relaxed);
        }
    }

    /// Returns the first batches that processes have told of.
    pub fn batches(&self) -> Option<FirstBatches> {
        let first = self.read(BATCH_AT)?;
        Some(FirstBatches {
            asked: self.read(BATCH_ASKED_AT)?.min(first),
            first,
            last: self.read(LAST_BATCH_AT)?.max(first),
            processes: self.read(BATCHES_AT)?,
        })
    }

    /// Returns the time of the first step boundary.
    pub fn step(&self) -> Option<u64> {
        self.read(STEP_AT)
    }

    /// Returns the time at which the last byte of weights had come from the source.
    pub fn weights_read(&self) -> Option<u64> {
        self.read(WEIGHTS_READ_AT)
    }

    /// Returns the times of the first and the last open of a kind.
    pub fn opened(&self, kind: FileKind) -> Option<(u64, u64)> {
        let first = self.read(FIRST_AT + 8 * kind as u64)?;
        Some((first, self.figures(kind, 3).fold(first, u64::max)))
    }

    /// Returns the opens of a kind that the source answered, and the nanoseconds that opens waited for it.
    pub fn from_source(&self, kind: FileKind) -> (OpenedFiles, u64) {
        let files = OpenedFiles {
            opens: self.figures(kind, 0).sum(),
            bytes: self.figures(kind, 1).sum(),
        };
        (files, self.figures(kind, 2).sum())
    }

    /// Returns the opens of a kind that a tier answered.
    pub fn from_tier(&self, kind: FileKind, tier: usize) -> OpenedFiles {
        let at = 4 + 2 * tier.min(TIERS_MAX - 1) as u64;
        OpenedFiles {
            opens: self.figures(kind, at).sum(),
            bytes: self.figures(kind, at + 1).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_from_names() {
        let of = |path: &str| FileKind::of(path.as_bytes());
        for path in [
            "/s/train.py",
            "/s/env/lib/python3.12/__pycache__/abc.cpython-312.pyc",
            "/s/lib/libtorch_cpu.so",
            "/s/lib/libcudart.so.12",
            "/s/env/lib/python3.12/site-packages/certifi/cacert.pem",
            "/s/env/lib/python3.12/site-packages/distutils-precedence.pth",
            "/usr/lib/python3/dist-packages/x.dist-info/METADATA",
        ] {
            assert_eq!(of(path), FileKind::Import, "{path}");
        }
        for path in [
            "/m/model-00001-of-00002.safetensors",
            "/m/a.gguf",
            "/c/__0_0.distcp",
            "/c/step-7.pt",
            "/m/pytorch_model.bin",
            "/m/a.weights.h5",
        ] {
            assert_eq!(of(path), FileKind::Weights, "{path}");
        }
        for path in ["/m/config.json", "/m/tokenizer.model", "/d/classes.txt"] {
            assert_eq!(of(path), FileKind::Settings, "{path}");
        }
        for path in [
            "/d/train.bin",
            "/d/a.so.tar",
            "/d.py/n0144/a.JPEG",
            "/d/shard-0001.tar",
            "/d/x",
            "x",
            "",
            "/d/a.h5",
        ] {
            assert_eq!(of(path), FileKind::Data, "{path}");
        }
    }
}
