//! Every bound of this crate, with its unit.

use std::time::Duration;

/// Requests for bytes under way at once. An object store answers one request no faster than about 100 MB/s, and many at once.
pub const FETCHERS: usize = 16;
/// Connections that stay open for the next request: as many as a loader's agent makes at once.
pub const CONNECTIONS_KEPT: usize = 256;
/// An object is fetched in parts of this size, each a request of its own.
pub const PART_BYTES: u64 = 8 << 20;
/// A range that a loader reads is asked for in requests of this size at most: each has to be answered within [`BODY_DEADLINE`].
pub const READ_BYTES: u64 = 64 << 20;
/// Piece in which bytes are received, and files are read back.
pub const PIECE_BYTES: usize = 256 << 10;

/// How often a request is tried in all, unless `AWS_MAX_ATTEMPTS` says otherwise.
pub const ATTEMPTS: u32 = 6;
/// The most that it can say.
pub const ATTEMPTS_MAX: u32 = 100;
/// Pause before the second attempt; it doubles with each further one,
pub const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// up to this.
pub const PAUSE_MAX: Duration = Duration::from_secs(10);

/// For making a connection.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// For the head of an answer.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// For the rest of it: a part at 70 KB/s.
pub const BODY_DEADLINE: Duration = Duration::from_secs(120);
/// For a service that lends credentials, over the network.
pub const TOKEN_DEADLINE: Duration = Duration::from_secs(30);
/// For how long a token that we sign ourselves is valid: the most that Google takes.
pub const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// For a machine's own metadata service, which is near or not there.
pub const METADATA_DEADLINE: Duration = Duration::from_secs(2);

/// For how long a signed request is valid: the clocks of both sides may differ by minutes.
pub const SIGNATURE_LIFE: Duration = Duration::from_secs(900);
/// Credentials that end sooner are renewed.
pub const RENEW_AHEAD: Duration = Duration::from_secs(300);
/// Between two questions for new ones, as long as those that are there hold; and for any, where there are none.
pub const RENEW_PAUSE: Duration = Duration::from_secs(30);

/// For so long it is known why a store can't be reached, as of a profile that is not there: a million samples don't read its file each.
pub const FAILURE_KEPT: Duration = Duration::from_secs(5);

/// A page of a listing is not longer: a thousand names of at most 1 KiB, each byte of which may be escaped.
pub const PAGE_BYTES_MAX: u64 = 16 << 20;
/// What is read of an answer that is an error, and of one with credentials.
pub const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Files with credentials are not longer.
pub const PROFILE_BYTES_MAX: u64 = 1 << 20;
/// A view has no more objects than this; each takes some 500 bytes of memory while it is filled.
pub const OBJECTS_MAX: usize = 20_000_000;

/// Longest name of a file, and longest path, of Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path of Linux, with the byte that ends it.
pub const PATH_BYTES_MAX: usize = 4096;

/// Part of the file system that stays free for others, in percent of its bytes and inodes: as of a tier.
pub const FLOOR_PERCENT: u64 = 5;
/// File systems give room out in blocks of this.
pub const BLOCK_BYTES: u64 = 4096;

/// How often a bucket is listed anew because objects changed while they were fetched.
pub const PASSES_MAX: u32 = 3;
