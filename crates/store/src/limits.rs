//! Every bound of this crate, with its unit.

/// Piece in which copies are read back for verification, and the catalogue is read.
pub const READ_PIECE_BYTES: usize = 256 << 10;

/// Piece in which records of the catalogue are read that lie here and there.
pub const SCATTERED_PIECE_BYTES: usize = 16 << 10;

/// Buffer that [`crate::CopyWriter::advance`] is best called with: large enough to make system calls cheap, small enough to stay in
/// the processor's cache between the read and the write.
pub const COPY_BUFFER_BYTES: usize = 256 << 10;

/// Of a copy and its source so much is read to compare their speed.
pub const TIMED_BYTES_MAX: u64 = 1 << 20;

/// How often in a row a call is repeated that was interrupted before it did anything. A call that a signal interrupts is worth
/// repeating; one that is interrupted for ever must not spin.
pub const INTERRUPTIONS_MAX: u32 = 100;

/// Longest path of a directory, and of the description of a mount, in the catalogue.
pub const PATH_BYTES_MAX: usize = 4096;

/// Longest name of a file in the catalogue.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest payload of one catalogue record: a mount has two strings of the longest kind.
pub const RECORD_BYTES_MAX: usize = 2 * PATH_BYTES_MAX + 512;

/// Removals that could not be written to the catalogue yet; further ones are dropped (their records then lead to no file, which is found
/// when they are opened or reaped).
pub const PENDING_REMOVALS_MAX: usize = 64 << 10;

/// A directory's last use is written at most this often.
pub const USE_RESOLUTION_S: i64 = 3600;

/// The catalogue is not rewritten for fewer dead records than this.
pub const COMPACTION_DEAD_MIN: u64 = 4096;

/// Parts of `objects`: directories, made when they are first needed.
pub const PARTS_MAX: u64 = 256;

/// Catalogues at the most: the one in use, and the one that is to replace it.
pub const CATALOGUES_MAX: u64 = 2;

/// Inodes of a tier's root that are no copies: the root, `lease`, `FORMAT`, the catalogues, `objects` and its parts.
pub const OVERHEAD_INODES: u64 = 4 + CATALOGUES_MAX + PARTS_MAX;

/// Length of a segment, unless told otherwise: few files even for terabytes, and each holds thousands of extents.
pub const SEGMENT_BYTES: u64 = 1 << 30;

/// Attempts to lock a lease that another process looks at, or removes, at the same time.
pub const LEASE_ATTEMPTS_MAX: u32 = 4;

/// Pause between them.
pub const LEASE_PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// How often `clean` looks whether a file that was closed and removed is gone from a file system that hides such files,
pub const HIDDEN_ATTEMPTS_MAX: u32 = 250;

/// and the pause between two looks.
pub const HIDDEN_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

const _: () = assert!(RECORD_BYTES_MAX > 2 * PATH_BYTES_MAX + NAME_BYTES_MAX);
const _: () = assert!(READ_PIECE_BYTES > 4 * RECORD_BYTES_MAX);

/// What a copy takes of the catalogue, measured: its record with a name of usual length.
pub const CATALOGUE_BYTES_A_COPY: u64 = 120;
