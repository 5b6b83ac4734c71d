//! Limits of this crate, each with its unit.

/// Length of one read of a copy for verification, or of the catalogue, in bytes.
pub const READ_PIECE_BYTES: usize = 256 << 10;

/// Length of one read of scattered catalogue records, in bytes.
pub const SCATTERED_PIECE_BYTES: usize = 16 << 10;

/// Number of bytes of a copy and its source that are read to compare their speed.
pub const TIMED_BYTES_MAX: u64 = 1 << 20;

/// Number of times that a call is repeated which was interrupted before it did anything. Repeating after a signal is
/// right, but endless interruptions must not make it spin.
pub const INTERRUPTIONS_MAX: u32 = 100;

/// Longest path of a directory, or description of a mount, in the catalogue, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;

/// Longest name of a file in the catalogue, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest payload of one catalogue record, in bytes: a mount has two strings of the longest kind.
pub const RECORD_BYTES_MAX: usize = 2 * PATH_BYTES_MAX + 512;

/// Number of removals that wait to be written to the catalogue. Further ones are dropped: their records lead to no
/// file, which is found when the copies are opened or reaped.
pub const PENDING_REMOVALS_MAX: usize = 64 << 10;

/// Shortest time between two records of a directory's last use, in seconds.
pub const USE_RESOLUTION_S: i64 = 3600;

/// Number of dead records below which the catalogue is not rewritten.
pub const COMPACTION_DEAD_MIN: u64 = 4096;

/// Number of parts of `objects`: directories that are made when they are first needed.
pub const PARTS_MAX: u64 = 256;

/// Number of catalogues: the one in use, and its replacement.
pub const CATALOGUES_MAX: u64 = 2;

/// Inodes of a tier's root that are not copies: the root, `lease`, `FORMAT`, the catalogues, `objects` and its parts.
pub const OVERHEAD_INODES: u64 = 4 + CATALOGUES_MAX + PARTS_MAX;

/// Part of a tier's file system that is left free for others, of its bytes and of its inodes.
pub const FREE_FLOOR_PERCENT: u64 = 5;

/// Length of a segment, in bytes, except in tests: few files even for terabytes, each with thousands of extents.
pub const SEGMENT_BYTES: u64 = 1 << 30;

/// Number of attempts to lock a lease that another process inspects or removes at the same time.
pub const LEASE_ATTEMPTS_MAX: u32 = 4;

/// Pause between two attempts to lock a lease.
pub const LEASE_PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// Number of times that `clean` looks for a removed file on a file system that keeps open files under a hidden name.
pub const HIDDEN_ATTEMPTS_MAX: u32 = 250;

/// Pause between two looks for a hidden file.
pub const HIDDEN_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

const _: () = assert!(RECORD_BYTES_MAX > 2 * PATH_BYTES_MAX + NAME_BYTES_MAX);
const _: () = assert!(READ_PIECE_BYTES > 4 * RECORD_BYTES_MAX);

/// Catalogue bytes of one copy, measured: its record with a name of usual length.
pub const CATALOGUE_BYTES_A_COPY: u64 = 120;
