//! Limits of this crate, each with its unit.

use std::time::Duration;

/// Number of parallel requests for bytes. An object store answers one request no faster than about 100 MB/s, and many
/// in parallel.
pub const FETCHERS: usize = 16;
/// Number of connections that stay open for the next request: as many as a loader's agent has requests in parallel.
pub const CONNECTIONS_KEPT: usize = 256;
/// Size of the parts of an object, each fetched by a request of its own, in bytes.
pub const PART_BYTES: u64 = 8 << 20;
/// Largest request for a range that a loader reads, in bytes: each has to be answered within [`BODY_DEADLINE`].
pub const READ_BYTES: u64 = 64 << 20;
/// Length of one read of received bytes or of files, in bytes.
pub const PIECE_BYTES: usize = 256 << 10;

/// Number of attempts of a request, unless `AWS_MAX_ATTEMPTS` is set.
pub const ATTEMPTS: u32 = 6;
/// Largest value of `AWS_MAX_ATTEMPTS`.
pub const ATTEMPTS_MAX: u32 = 100;
/// Pause before the second attempt; it doubles with each further one.
pub const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// Longest pause between two attempts.
pub const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Deadline for making a connection.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Deadline for the head of an answer.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// Deadline for the body of an answer: a part at 70 KB/s.
pub const BODY_DEADLINE: Duration = Duration::from_secs(120);
/// Deadline for a service that lends credentials, over the network.
pub const TOKEN_DEADLINE: Duration = Duration::from_secs(30);
/// Life of a token that we sign ourselves: the longest that Google accepts.
pub const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// Deadline for a machine's own metadata service, which is near or missing.
pub const METADATA_DEADLINE: Duration = Duration::from_secs(2);

/// Life of a signed request: the clocks of both sides may differ by minutes.
pub const SIGNATURE_LIFE: Duration = Duration::from_secs(900);
/// Remaining life of credentials below which they are renewed.
pub const RENEW_AHEAD: Duration = Duration::from_secs(300);
/// Pause between two requests for new credentials, while the known ones are valid or there are none.
pub const RENEW_PAUSE: Duration = Duration::from_secs(30);

/// Time for which a failure to reach a store is remembered, such as a missing profile: a million samples must not read
/// its file each.
pub const FAILURE_KEPT: Duration = Duration::from_secs(5);

/// Largest page of a listing, in bytes: a thousand names of at most 1 KiB, each byte of which may be escaped.
pub const PAGE_BYTES_MAX: u64 = 16 << 20;
/// Largest part of an answer that is read if it is an error, or has credentials, in bytes.
pub const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Largest file with credentials, in bytes.
pub const PROFILE_BYTES_MAX: u64 = 1 << 20;
/// Largest number of objects in a view; each takes about 500 bytes of memory while it is filled.
pub const OBJECTS_MAX: usize = 20_000_000;

/// Longest name of a file in Linux, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path in Linux, in bytes, with the byte that ends it.
pub const PATH_BYTES_MAX: usize = 4096;

/// Part of the file system that stays free for others, in percent of its bytes and inodes, the same as for a tier.
pub const FLOOR_PERCENT: u64 = 5;
/// Block in which file systems allocate room, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Number of listings of a bucket, if objects change while they are fetched.
pub const PASSES_MAX: u32 = 3;
